//! What librdkafka calls back: rebalances are only written down here, and nothing is done about them.
//!
//! The one exception is a member that closes: whoever closes waits for librdkafka, and nobody would release.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use tokio::sync::Notify;

use super::state::State;
use crate::client::{Complaints, list, lock, partitions_of};

/// What the handles, the callbacks and librdkafka's threads share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Partitions of the commit on the wire.
    pub(super) wire: Mutex<Vec<TopicPartition>>,
    /// Something for the poller: records, or an event.
    pub(super) for_poller: Notify,
    /// Something for whoever waits for a commit: an answer, or one that was given up.
    pub(super) for_commits: Notify,
    /// Events that librdkafka handed over, of any kind.
    pub(super) served: AtomicU64,
    /// When a revocation that comes now has to be released.
    pub(super) deadline: Mutex<Instant>,
    pub(super) complaints: Complaints,
    topics: OnceLock<Vec<Arc<str>>>,
}

impl Shared {
    pub(super) fn new(topics: Vec<Arc<str>>) -> Self {
        Shared { topics: OnceLock::from(topics), ..Shared::default() }
    }

    fn topics(&self) -> &[Arc<str>] {
        self.topics.get().map_or(&[], Vec::as_slice)
    }

    /// Those who wait look again: the poller, and whoever waits for a commit. Cheap, since librdkafka's threads call
    /// it.
    pub(super) fn changed(&self) {
        self.for_poller.notify_one();
        self.for_commits.notify_waiters();
    }
}

/// The callbacks of one member.
pub(super) struct Context {
    pub(super) shared: Arc<Shared>,
    pub(super) is_cooperative: bool,
    /// Rebalances are done within the callback: nobody will release any more.
    pub(super) is_closing: AtomicBool,
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {
        self.shared.served.fetch_add(1, Ordering::Relaxed);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.shared.served.fetch_add(1, Ordering::Relaxed);
        self.shared.complaints.note(&error, reason);
    }

    fn stats_raw(&self, _statistics: &[u8]) {
        self.shared.served.fetch_add(1, Ordering::Relaxed);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, error: RDKafkaRespErr, list: &mut TopicPartitionList) {
        self.shared.served.fetch_add(1, Ordering::Relaxed);
        let is_assignment = error == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let partitions = partitions_of(list, self.shared.topics());
        if self.is_closing.load(Ordering::Acquire) {
            // What is assigned now, librdkafka takes for given up.
            // An error cannot be mended here: whoever closes has a bound.
            let _ = match is_assignment {
                true => take(consumer, self.is_cooperative, list),
                false => give_up(consumer, self.is_cooperative, &partitions),
            };
            return;
        }
        let mut state = lock(&self.shared.state);
        if is_assignment {
            state.announce(partitions);
        } else {
            let deadline = *lock(&self.shared.deadline);
            state.revoke(partitions, consumer.assignment_lost(), deadline);
        }
        drop(state);
        self.shared.changed();
    }
}

/// Tells librdkafka to read `list` beside what it reads, or instead of it.
pub(super) fn take<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    is_cooperative: bool,
    list: &TopicPartitionList,
) -> KafkaResult<()> {
    if is_cooperative { consumer.incremental_assign(list) } else { consumer.assign(list) }
}

/// Gives `partitions` back to librdkafka, whole: an eager member everything, whatever they are.
///
/// Never in parts: librdkafka would take the first part for all of it, and go on reading the rest as another member
/// does.
pub(super) fn give_up<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    is_cooperative: bool,
    partitions: &[TopicPartition],
) -> KafkaResult<()> {
    if !is_cooperative {
        return consumer.unassign();
    }
    // One that is not assigned would make it refuse all of them.
    let assigned = consumer.assignment()?;
    let is_assigned =
        |partition: &&TopicPartition| assigned.find_partition(&partition.topic, partition.partition).is_some();
    // Nor may one be named twice: a revocation may come upon another.
    let going: BTreeSet<_> = partitions.iter().filter(is_assigned).collect();
    consumer.incremental_unassign(&list(going.into_iter().map(|partition| (partition, Offset::Invalid))))
}
