//! What every part of the cluster acts through: the time, answers, timers and the audit.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;

use super::audit::Audit;
use super::config::ClusterConfig;
use super::inbox::{Inbox, RequestId};
use super::protocol::{ErrorCode, ProducePartition, ProducerId, Response};

/// Something that happens by time alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Timer {
    /// A parked fetch is answered with what there is.
    Fetch(RequestId),
    /// A phase of a group's rebalance is over.
    Phase(Arc<str>, Phase),
    /// A member's session may be over.
    Session(Arc<str>, Arc<str>),
    /// Committed offsets are looked through for old ones.
    OffsetExpiry,
}

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// More members, in a group that was empty: this long, and then at most `remaining` more.
    Initial {
        /// The wait that ends.
        delay: Duration,
        /// What may follow.
        remaining: Duration,
    },
    /// All members to join.
    Join,
    /// All members to send their SyncGroup.
    Sync,
}

/// Key of an armed timer: when, and a number in the order of arming.
pub(super) type TimerKey = (Instant, u64);

/// Decides for each batch whether it is refused, and how, instead of appended.
pub type ProduceHook = Box<dyn FnMut(&ProducePartition) -> Option<ErrorCode> + Send>;

/// A hook, or none.
#[derive(Default)]
pub(super) struct Hook(pub(super) Option<ProduceHook>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a hook" } else { "no hook" })
    }
}

#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: ClusterConfig,
    pub(super) now: Instant,
    pub(super) inbox: Inbox,
    timers: BTreeMap<TimerKey, Timer>,
    armed: u64,
    pub(super) audit: Vec<(Instant, Audit)>,
    members_named: u64,
    producers_named: i64,
    pub(super) on_produce: Hook,
}

impl Context {
    pub(super) fn new(config: ClusterConfig) -> Self {
        Context {
            config,
            now: Instant::default(),
            inbox: Inbox::default(),
            timers: BTreeMap::new(),
            armed: 0,
            audit: Vec::new(),
            members_named: 0,
            producers_named: 0,
            on_produce: Hook::default(),
        }
    }

    pub(super) fn answer(&mut self, request: RequestId, response: Response) {
        self.inbox.answer(request, self.now, response);
    }

    pub(super) fn tell(&mut self, audit: Audit) {
        self.audit.push((self.now, audit));
    }

    pub(super) fn arm(&mut self, after: Duration, timer: Timer) -> TimerKey {
        let key = (self.now + after, self.armed);
        self.armed += 1;
        self.timers.insert(key, timer);
        key
    }

    pub(super) fn cancel(&mut self, key: TimerKey) {
        self.timers.remove(&key);
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|(key, _)| key.0)
    }

    pub(super) fn pop_timer(&mut self) -> Option<Timer> {
        self.timers.pop_first().map(|(_, timer)| timer)
    }

    /// A producer id that was never given before.
    pub(super) fn next_producer(&mut self) -> ProducerId {
        self.producers_named += 1;
        ProducerId { id: self.producers_named, epoch: 0 }
    }

    /// A member id that was never given before.
    pub(super) fn name_member(&mut self, stem: &str) -> Arc<str> {
        self.members_named += 1;
        format!("{stem}-{}", self.members_named).into()
    }
}
