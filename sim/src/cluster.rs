//! The Kafka cluster as a state machine: requests and time in, answers out.
//!
//! A plain struct, called synchronously. It has no IO, no tasks, no clock and no randomness, and it never looks at who
//! calls it: what it answers, and when, follows from the requests and their arrival times alone, however often and by
//! whom [`Cluster::advance`] is called. A request outlives its sender: nothing takes a submitted request back.
//!
//! The shapes are in [`protocol`]; logs in `log`, groups in `group`, committed offsets in `offsets`; what was applied
//! is told through [`audit`]. The network, connections and their deaths belong to the world around it: it keeps the
//! requests of one connection in order by their arrival times. Unlike a broker's, a connection here is not held up by
//! a parked answer.

pub mod audit;
pub mod protocol;
pub mod trace;

mod config;
mod error;
mod inbox;

use seriatim_core::env::Instant;

use self::audit::Audit;
use self::inbox::Inbox;
use self::protocol::{BrokerId, ConnectionId, Request, Response};

pub use self::config::ClusterConfig;
pub use self::inbox::RequestId;

/// A Kafka cluster.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    now: Instant,
    inbox: Inbox,
    audit: Vec<(Instant, Audit)>,
}

impl Cluster {
    /// An empty cluster at the origin of time.
    pub fn new(config: ClusterConfig) -> Self {
        Cluster { config, now: Instant::default(), inbox: Inbox::default(), audit: Vec::new() }
    }

    /// Queues a request that reaches broker `to` at `arrives_at`, or now if that is over.
    pub fn submit(
        &mut self,
        arrives_at: Instant,
        connection: ConnectionId,
        to: BrokerId,
        request: Request,
    ) -> RequestId {
        self.inbox.push(arrives_at.max(self.now), connection, to, request)
    }

    /// Applies everything due up to and including `now`, in the order of time; at one instant, requests by connection
    /// and then by sequence, and then timers. Going back in time does nothing.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// When and what a request was answered, once. `None` while it is queued or parked.
    pub fn take_response(&mut self, request: RequestId) -> Option<(Instant, Response)> {
        self.inbox.take(request)
    }

    /// The requests answered since the last call, in the order of their answers: whom to wake. Drain it after every
    /// `advance`, it only grows. It may name requests that were taken or forgotten meanwhile.
    pub fn drain_answered(&mut self) -> std::vec::Drain<'_, RequestId> {
        self.inbox.drain_answered()
    }

    /// Nobody waits for this answer any more. The request is still applied.
    pub fn forget(&mut self, request: RequestId) {
        self.inbox.forget(request);
    }

    /// When `advance` has something to do next. It may be earlier than that (a session that was renewed), never later.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.inbox.next_arrival()
    }

    /// What was applied since the last call, each with its time. Drain it regularly, it only grows.
    pub fn drain_audit(&mut self) -> std::vec::Drain<'_, (Instant, Audit)> {
        self.audit.drain(..)
    }

    /// Requests that are queued, parked, or answered and not taken.
    pub fn outstanding(&self) -> usize {
        self.inbox.outstanding()
    }

    /// The settings.
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }
}
