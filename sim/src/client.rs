//! The client model: the `Transport` port over the simulated cluster, as librdkafka would drive it.
//!
//! [`Client`] is what every kind shares: connections, cached metadata, coordinator look-up and the meaning of error
//! codes. The producer, the group consumer, the consumer by assignment and the admin client are beside it.
//!
//! It must never do in `Drop` what a killed process would not do: nothing here leaves, commits or flushes there.

mod admin;
mod assigned;
mod assignor;
mod commits;
mod fetcher;
mod group;
mod membership;
mod producer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{ErrorKind, GroupConfig, ProducerConfig, Transport, TransportError};

use crate::cluster::protocol::{BrokerId, ErrorCode, OffsetSpec, Request, Response};
use crate::executor::lock;
use crate::network::{Connection, Host, NetworkError, RoundTrip};

pub use admin::SimAdmin;
pub use assigned::SimAssigned;
pub use commits::UnfencedCommit;
pub use group::{SimGroup, SimPoller};
pub use producer::SimProducer;

/// Tries of a request that a caller waits for, before it is told that it may try again.
const TRIES_MAX: usize = 50;

/// The simulated Kafka as one process reaches it. Inert once the process is dead.
#[derive(Clone, Debug)]
pub struct SimTransport {
    host: Host,
}

impl SimTransport {
    pub(crate) fn new(host: Host) -> Self {
        SimTransport { host }
    }
}

impl Transport for SimTransport {
    type Producer = SimProducer;
    type Poller = SimPoller;
    type Group = SimGroup;
    type Assigned = SimAssigned;
    type Admin = SimAdmin;

    async fn producer(&self, config: ProducerConfig) -> Result<SimProducer, TransportError> {
        self.host.halt_if_dead().await;
        SimProducer::open(Client::new(self.host.clone()), config).await
    }

    async fn join(&self, config: GroupConfig) -> Result<(SimPoller, SimGroup), TransportError> {
        self.host.halt_if_dead().await;
        group::join(Client::new(self.host.clone()), config)
    }

    async fn assign(
        &self,
        _client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> Result<SimAssigned, TransportError> {
        self.host.halt_if_dead().await;
        Ok(SimAssigned::new(Client::new(self.host.clone()), from))
    }

    fn admin(&self) -> SimAdmin {
        SimAdmin::new(Client::new(self.host.clone()))
    }
}

/// One client instance: a connection to each broker, and what it knows of the cluster.
#[derive(Debug)]
struct Client {
    host: Host,
    connections: Mutex<BTreeMap<BrokerId, Arc<Connection>>>,
    /// Leaders of the partitions of each topic.
    topics: Mutex<BTreeMap<Arc<str>, Vec<BrokerId>>>,
    /// The broker that is asked what any may answer; moves on when one does not answer.
    any: Mutex<BrokerId>,
}

impl Client {
    fn new(host: Host) -> Self {
        Client { host, connections: Mutex::default(), topics: Mutex::default(), any: Mutex::new(BrokerId(0)) }
    }

    fn request_timeout(&self) -> Duration {
        self.host.shared.config.request_timeout
    }

    async fn back_off(&self) {
        self.host.sleep(self.host.shared.config.retry_backoff).await;
    }

    fn send(&self, to: BrokerId, request: Request, limit: Duration) -> RoundTrip {
        let connection = lock(&self.connections).entry(to).or_insert_with(|| self.host.connect()).clone();
        self.host.send(&connection, to, request, limit)
    }

    /// Asks a broker that any may be.
    async fn ask_any(&self, request: Request) -> Result<Response, NetworkError> {
        let to = *lock(&self.any);
        let answer = self.send(to, request, self.request_timeout()).await;
        if answer.is_err() {
            let brokers = i32::try_from(self.host.shared.config.cluster.brokers).unwrap_or(1).max(1);
            *lock(&self.any) = BrokerId((to.0 + 1) % brokers);
        }
        answer
    }

    /// Asks for the partitions of `topics` anew. Topics that do not exist are forgotten.
    async fn refresh(&self, topics: Vec<Arc<str>>) -> Result<(), NetworkError> {
        if topics.is_empty() {
            return Ok(());
        }
        if let Response::Metadata { topics, .. } = self.ask_any(Request::Metadata { topics: Some(topics) }).await? {
            let mut known = lock(&self.topics);
            for topic in topics {
                if topic.error.is_none() {
                    known.insert(topic.topic, topic.leaders);
                } else {
                    known.remove(&topic.topic);
                }
            }
        }
        Ok(())
    }

    /// The leader of a partition, as far as it is known.
    fn leader(&self, partition: &TopicPartition) -> Option<BrokerId> {
        let place = usize::try_from(partition.partition).ok()?;
        lock(&self.topics).get(&partition.topic)?.get(place).copied()
    }

    /// The number of partitions of a topic, as far as it is known.
    fn partitions(&self, topic: &str) -> Option<u32> {
        lock(&self.topics).get(topic).and_then(|leaders| u32::try_from(leaders.len()).ok())
    }

    /// Forgets a topic, so that it is looked up again before it is used.
    fn forget_topic(&self, topic: &str) {
        lock(&self.topics).remove(topic);
    }

    /// The number of partitions of a topic, asked for when it is not known.
    async fn partitions_of(&self, topic: &Arc<str>, tries: usize) -> Result<u32, TransportError> {
        let mut asked = Ok(());
        for attempt in 0..tries {
            if let Some(count) = self.partitions(topic) {
                return Ok(count);
            }
            if attempt > 0 {
                self.back_off().await;
            }
            asked = self.refresh(vec![topic.clone()]).await;
        }
        let context = format!("looking topic `{topic}` up");
        match (self.partitions(topic), asked) {
            (Some(count), _) => Ok(count),
            (None, Ok(())) => Err(broker_error(ErrorCode::UnknownTopicOrPartition, context + ": create it first")),
            (None, Err(_)) => Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context)),
        }
    }

    /// One try to find the coordinator of `group`.
    async fn find_coordinator(&self, group: &Arc<str>) -> Option<BrokerId> {
        match self.ask_any(Request::FindCoordinator { group: group.clone() }).await {
            Ok(Response::FindCoordinator { error, coordinator }) if error.is_none() => Some(coordinator),
            _ => None,
        }
    }

    /// The offset that `spec` means, asked of the partition's leader. One try; `None` when it should be tried again.
    async fn list_offset(&self, partition: &TopicPartition, spec: OffsetSpec) -> Option<i64> {
        let Some(leader) = self.leader(partition) else {
            let _ = self.refresh(vec![partition.topic.clone()]).await;
            return None;
        };
        let request = Request::ListOffsets { partitions: vec![(partition.clone(), spec)] };
        if let Ok(Response::ListOffsets { partitions }) = self.send(leader, request, self.request_timeout()).await
            && let Some(found) = partitions.first()
            && found.error.is_none()
        {
            return Some(found.offset);
        }
        let _ = self.refresh(vec![partition.topic.clone()]).await;
        None
    }
}

/// What a caller may do about a broker's error.
fn error_kind(code: ErrorCode) -> ErrorKind {
    match code {
        ErrorCode::NotLeaderOrFollower
        | ErrorCode::RequestTimedOut
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::NotCoordinator
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::RebalanceInProgress => ErrorKind::Retriable,
        ErrorCode::IllegalGeneration | ErrorCode::UnknownMemberId => ErrorKind::Fenced,
        ErrorCode::FencedInstanceId
        | ErrorCode::OutOfOrderSequenceNumber
        | ErrorCode::UnknownProducerId
        | ErrorCode::InvalidProducerEpoch => ErrorKind::Fatal,
        _ => ErrorKind::Refused,
    }
}

fn broker_error(code: ErrorCode, context: impl Into<String>) -> TransportError {
    TransportError::new(error_kind(code), code.name(), context)
}

/// The error of a request whose answer did not come.
fn unanswered(error: NetworkError, context: impl Into<String>) -> TransportError {
    let code = match error {
        NetworkError::TimedOut => "REQUEST_TIMED_OUT",
        NetworkError::Disconnected => "NETWORK_EXCEPTION",
    };
    TransportError::new(ErrorKind::UnknownOutcome, code, context)
}
