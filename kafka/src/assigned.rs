//! A consumer of given partitions from given offsets, outside any group.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use rdkafka::Offset;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Assigned, ErrorKind, Record, TransportError};
use tokio::sync::Notify;

use crate::client::{self, PlainContext, check_topic, detach, list};
use crate::cluster::{Cluster, Lookup};
use crate::records::Copier;
use crate::{NO_COST, error};

/// How often a waiting poll looks whether librdkafka forgot to wake it.
const TICK: Duration = Duration::from_millis(100);
/// Events that are taken off the queue at a time.
const EVENTS_MAX: usize = 16;
/// How long opening waits for a broker to describe the topics.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

struct Part {
    partition: TopicPartition,
    /// The next offset that the caller will read.
    position: i64,
    queue: PartitionQueue<PlainContext>,
}

/// A consumer by assignment. The epoch of its records is 0.
pub struct KafkaAssigned<E> {
    env: E,
    /// `None` only while it is dropped.
    consumer: Option<Arc<Lookup>>,
    parts: Vec<Part>,
    copier: Copier,
    woken: Arc<Notify>,
    request_limit: Duration,
    /// Which partition is served first; moves on.
    turn: usize,
    /// The position of this part is not in its log.
    out_of_range: Option<usize>,
}

impl<E> std::fmt::Debug for KafkaAssigned<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let positions = self.parts.iter().map(|part| (&part.partition, part.position));
        f.debug_struct("KafkaAssigned").field("positions", &positions.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl<E: Env> KafkaAssigned<E> {
    pub(crate) async fn open(
        env: E,
        cluster: &Cluster,
        client_id: &str,
        from: Vec<(TopicPartition, i64)>,
    ) -> Result<Self, TransportError> {
        let doing = format!("reading {:?} by assignment", from.iter().map(|(one, _)| one).collect::<Vec<_>>());
        for (partition, _) in &from {
            check_topic(&partition.topic, &doing)?;
        }
        let mut config = cluster.settings.consumer(client_id);
        config.set("group.id", &cluster.settings.assigned_group);
        // A position that is not in the log is looked at here: below it is mended, past it is an error.
        config.set("auto.offset.reset", "error").set("queued.min.messages", "10000");
        // Whoever reads by assignment has seen the topic: it is not on its way for long.
        config.set("topic.metadata.propagation.max.ms", "5000");
        let woken = Arc::new(Notify::new());
        let notify = woken.clone();
        let request_limit = cluster.settings.request_limit;
        let topics: BTreeSet<_> = from.iter().map(|(partition, _)| partition.topic.clone()).collect();
        let make = move || -> Result<_, KafkaError> {
            let mut consumer = Lookup::from_config_and_context(&config, PlainContext::default())?;
            let wake = notify.clone();
            consumer.set_nonempty_callback(move || wake.notify_one());
            let consumer = Arc::new(consumer);
            let mut parts = Vec::with_capacity(from.len());
            for (partition, position) in from {
                let queue = consumer.split_partition_queue(&partition.topic, partition.partition);
                let Some(mut queue) = queue else {
                    return Err(KafkaError::Subscription("the partition has no queue".into()));
                };
                let wake = notify.clone();
                queue.set_nonempty_callback(move || wake.notify_one());
                parts.push(Part { partition, position, queue });
            }
            assign(&consumer, &parts)?;
            Ok((consumer, parts))
        };
        let made = env.run_blocking(NO_COST, make).await;
        let (consumer, parts) = made.map_err(|error| error::of(&error, doing))?;
        let (asked, limit) = (consumer.clone(), request_limit.min(LOOK_LIMIT));
        env.run_blocking(NO_COST, move || look_for_denials(&asked, &topics, limit)).await?;
        let consumer = Some(consumer);
        let copier = Copier::default();
        Ok(KafkaAssigned { env, consumer, parts, copier, woken, request_limit, turn: 0, out_of_range: None })
    }

    fn consumer(&self) -> &Arc<Lookup> {
        self.consumer.as_ref().expect("taken only when it is dropped")
    }

    fn take(&mut self, limit: usize) -> Result<Vec<Record>, TransportError> {
        self.serve()?;
        let mut records = Vec::new();
        let count = self.parts.len();
        for place in 0..count {
            let place = (self.turn + place) % count;
            let part = &mut self.parts[place];
            while records.len() < limit {
                let error = match part.queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        let record = self.copier.record(&part.partition, Epoch(0), &message);
                        part.position = record.position.offset + 1;
                        records.push(record);
                        continue;
                    }
                    Some(Err(error)) => error,
                    None => break,
                };
                match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                        self.out_of_range = Some(place);
                        break;
                    }
                    // What was read is given first; librdkafka says it once.
                    Some(code) if error::kind(code) == ErrorKind::Refused && records.is_empty() => {
                        return Err(error::of_code(code, format!("reading {}", part.partition)));
                    }
                    _ => {}
                }
            }
        }
        self.turn = if records.is_empty() { self.turn } else { (self.turn + 1) % count.max(1) };
        Ok(records)
    }

    /// Takes librdkafka's events; an error that no later poll mends is told.
    fn serve(&self) -> Result<(), TransportError> {
        for _ in 0..EVENTS_MAX {
            match self.consumer().poll(Duration::ZERO) {
                Some(Err(error)) => {
                    let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                    if is_denied(code) {
                        return Err(error::of_code(code, "reading by assignment"));
                    }
                }
                Some(Ok(_)) => {
                    let context = "reading by assignment: a record came by the queue of events, and would be lost";
                    return Err(TransportError::new(ErrorKind::Fatal, "_STATE", context));
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Goes on at the oldest record when those before it are gone; a position past the end is an error.
    async fn mend(&mut self, place: usize) -> Result<(), TransportError> {
        let (partition, position) = (self.parts[place].partition.clone(), self.parts[place].position);
        let (consumer, limit, asked) = (self.consumer().clone(), self.request_limit, partition.clone());
        let look_up = move || client::watermarks(&consumer, &[asked], limit);
        let marks = self.env.run_blocking(NO_COST, look_up).await?;
        let Some(marks) = marks.first() else { return Ok(()) };
        if position > marks.end {
            let context = format!("reading {partition} at {position}, past its end: was the topic made anew?");
            return Err(TransportError::new(ErrorKind::Refused, "OFFSET_OUT_OF_RANGE", context));
        }
        self.parts[place].position = position.max(marks.start);
        let parts = self.parts.iter().map(|part| (part.partition.clone(), part.position)).collect::<Vec<_>>();
        let consumer = self.consumer().clone();
        let again = move || consumer.assign(&list(parts.iter().map(|(one, at)| (one, Offset::Offset(*at)))));
        let assigned = self.env.run_blocking(NO_COST, again).await;
        assigned.map_err(|error| error::of(&error, format!("reading {partition} from its start")))
    }
}

/// Refuses topics that a broker does not even describe to this principal. librdkafka tells a consumer by assignment of
/// what it may not fetch, but not of this: it would wait for ever. Whatever else is wrong shows later.
fn look_for_denials(consumer: &Lookup, topics: &BTreeSet<Arc<str>>, limit: Duration) -> Result<(), TransportError> {
    for topic in topics {
        match client::partition_count(consumer.client(), topic, limit) {
            Err(error) if error.code == error::name(RDKafkaErrorCode::TopicAuthorizationFailed) => return Err(error),
            // Nobody answers now: the rest would take as long again.
            Err(error) if error.kind == ErrorKind::Retriable => break,
            _ => {}
        }
    }
    Ok(())
}

/// Whether a broker does not let this principal read.
fn is_denied(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::Authentication
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::TopicAuthorizationFailed
    )
}

fn assign(consumer: &Lookup, parts: &[Part]) -> Result<(), KafkaError> {
    consumer.assign(&list(parts.iter().map(|part| (&part.partition, Offset::Offset(part.position)))))
}

impl<E: Env> Assigned for KafkaAssigned<E> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Vec<Record>, TransportError> {
        let until = self.env.now() + wait;
        loop {
            // Kept until it is mended: this future may be dropped meanwhile.
            if let Some(place) = self.out_of_range {
                match self.mend(place).await {
                    Err(error) if error.kind == ErrorKind::Retriable => self.env.sleep(TICK).await,
                    mended => {
                        mended?;
                        self.out_of_range = None;
                    }
                }
            }
            let records = self.take(records_max)?;
            let left = until.since(self.env.now());
            if !records.is_empty() || left.is_zero() {
                return Ok(records);
            }
            if self.out_of_range.is_none() {
                select(pin!(self.woken.notified()), pin!(self.env.sleep(left.min(TICK)))).await;
            }
        }
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.parts.iter().map(|part| (part.partition.clone(), part.position)).collect()
    }
}

impl<E> Drop for KafkaAssigned<E> {
    fn drop(&mut self) {
        let (consumer, parts) = (self.consumer.take(), std::mem::take(&mut self.parts));
        detach("kafka-close", move || {
            drop(parts);
            drop(consumer);
        });
    }
}
