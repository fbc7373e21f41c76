//! What all clients share: the last thing that librdkafka complained of, threads for what blocks, and look-ups.
//!
//! Everything here that asks a broker blocks, and is run away from the tasks.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::client::Client;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Committed, ErrorKind, TransportError, Watermarks};

use crate::error;

/// Locks `mutex`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code panics while it holds a client's state")
}

/// What librdkafka said last of its connections: the reason behind a time-out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<Option<(RDKafkaErrorCode, String)>>>);

impl Complaints {
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let mut last = lock(&self.0);
        // That all brokers are down is no reason, and a refused credential is the reason of what follows.
        let is_worse = match &*last {
            Some((RDKafkaErrorCode::Authentication, _)) => true,
            Some(_) => code == RDKafkaErrorCode::AllBrokersDown,
            None => false,
        };
        if !is_worse {
            *last = Some((code, reason.to_owned()));
        }
    }

    pub(crate) fn last(&self) -> Option<(RDKafkaErrorCode, String)> {
        lock(&self.0).clone()
    }

    /// `error`, with the reason if it is about a broker that did not answer.
    pub(crate) fn explain(&self, error: TransportError) -> TransportError {
        match self.last() {
            Some((RDKafkaErrorCode::Authentication, reason)) if error.kind == ErrorKind::Retriable => {
                error::of_code(RDKafkaErrorCode::Authentication, format!("{}: {reason}", error.context))
            }
            Some((_, reason)) if error.kind == ErrorKind::Retriable => {
                TransportError { context: format!("{} ({reason})", error.context), ..error }
            }
            _ => error,
        }
    }
}

/// The context of clients that have no callbacks of their own.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlainContext {
    pub(crate) complaints: Complaints,
}

impl ClientContext for PlainContext {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.complaints.note(&error, reason);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}
}

impl ConsumerContext for PlainContext {}

/// Runs `work`, which may block for long, on a thread of its own: for the end of clients, which must not hold up an
/// executor nor need one.
pub(crate) fn detach(name: &str, work: impl FnOnce() + Send + 'static) {
    // Without a thread what it holds is dropped here: blocking is better than a leak.
    let _ = std::thread::Builder::new().name(name.to_owned()).spawn(work);
}

/// Whether `name` may be handed to librdkafka, which panics in Rust's wrapper at a NUL.
pub(crate) fn check_topic(name: &str, doing: &str) -> Result<(), TransportError> {
    if name.is_empty() || name.contains('\0') {
        return Err(error::of_code(RDKafkaErrorCode::InvalidTopic, format!("{doing}: `{}`", name.escape_debug())));
    }
    Ok(())
}

/// A list for librdkafka.
pub(crate) fn list<'a>(partitions: impl IntoIterator<Item = (&'a TopicPartition, Offset)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in partitions {
        // Only an offset that has no number is refused.
        let _ = list.add_partition(&partition.topic, partition.partition).set_offset(offset);
    }
    list
}

/// The partitions of a list, with topic names out of `known` where they are there.
pub(crate) fn partitions_of(list: &TopicPartitionList, known: &[Arc<str>]) -> Vec<TopicPartition> {
    let name = |topic: &str| known.iter().find(|known| &***known == topic).cloned().unwrap_or_else(|| topic.into());
    list.elements().iter().map(|element| TopicPartition::new(name(element.topic()), element.partition())).collect()
}

/// The number of partitions of `topic`, asked of a broker.
pub(crate) fn partition_count<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    limit: Duration,
) -> Result<u32, TransportError> {
    let doing = || format!("looking topic `{topic}` up");
    check_topic(topic, &doing())?;
    let metadata = client.fetch_metadata(Some(topic), limit).map_err(|error| error::of(&error, doing()))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Err(error::of_code(RDKafkaErrorCode::UnknownTopicOrPartition, doing()));
    };
    if let Some(code) = found.error() {
        return Err(error::of_code(code.into(), doing()));
    }
    match u32::try_from(found.partitions().len()) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(error::of_code(RDKafkaErrorCode::LeaderNotAvailable, doing())),
    }
}

/// First and next offsets of `partitions`, in order: two requests to each leader.
pub(crate) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    limit: Duration,
) -> Result<Vec<Watermarks>, TransportError> {
    for partition in partitions {
        check_topic(&partition.topic, "looking offsets up")?;
    }
    let starts = offsets(consumer, partitions, Offset::Beginning, limit)?;
    let ends = offsets(consumer, partitions, Offset::End, limit)?;
    let both = starts.into_iter().zip(ends);
    Ok(both.map(|(start, end)| Watermarks { start, end: end.max(start) }).collect())
}

/// The offsets that `which` stands for: the special time stamps of `ListOffsets` are the numbers of librdkafka's
/// logical offsets.
pub(crate) fn offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    which: Offset,
    limit: Duration,
) -> Result<Vec<i64>, TransportError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let doing = || format!("looking the offsets of {partitions:?} up");
    let asked = list(partitions.iter().map(|partition| (partition, which)));
    let answer = consumer.offsets_for_times(asked, limit).map_err(|error| error::of(&error, doing()))?;
    let mut found = BTreeMap::new();
    for element in answer.elements() {
        let doing = || format!("looking the offsets of {}-{} up", element.topic(), element.partition());
        element.error().map_err(|error| error::of(&error, doing()))?;
        let Offset::Offset(offset) = element.offset() else {
            return Err(error::of_code(RDKafkaErrorCode::LeaderNotAvailable, doing()));
        };
        found.insert((element.topic().to_owned(), element.partition()), offset);
    }
    partitions
        .iter()
        .map(|partition| found.get(&(partition.topic.to_string(), partition.partition)).copied())
        .collect::<Option<_>>()
        .ok_or_else(|| error::of_code(RDKafkaErrorCode::UnknownTopicOrPartition, doing()))
}

/// What the consumer's group has committed for `partitions`, in order.
pub(crate) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    limit: Duration,
    doing: &dyn Fn() -> String,
) -> Result<Vec<Option<Committed>>, TransportError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    for partition in partitions {
        check_topic(&partition.topic, &doing())?;
    }
    let asked = list(partitions.iter().map(|partition| (partition, Offset::Invalid)));
    let answer = consumer.committed_offsets(asked, limit).map_err(|error| error::of(&error, doing()))?;
    let mut found = BTreeMap::new();
    for element in answer.elements() {
        element.error().map_err(|error| error::of(&error, doing()))?;
        let committed = match element.offset() {
            Offset::Offset(offset) => Some(Committed { offset, metadata: metadata(&element) }),
            _ => None,
        };
        found.insert((element.topic().to_owned(), element.partition()), committed);
    }
    let of = |partition: &TopicPartition| found.get(&(partition.topic.to_string(), partition.partition)).cloned();
    Ok(partitions.iter().map(|partition| of(partition).flatten()).collect())
}

/// What was committed beside an offset. Others may have written anything: what is no text counts as nothing.
fn metadata(element: &TopicPartitionListElem<'_>) -> String {
    // The wrapper panics at bytes that are no UTF-8.
    catch_unwind(AssertUnwindSafe(|| element.metadata().to_owned())).unwrap_or_default()
}
