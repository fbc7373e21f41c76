//! Messages over Kafka: topics between the components, offsets committed once all about a record is acknowledged.
//!
//! Written once over [`Transport`], so that the simulation and rdkafka run the same code. A worker reads
//! `<pipeline>_source` and writes `<pipeline>_dest`, an indexer reads that; both report to `<pipeline>_event_<run>`,
//! which the publisher creates before it publishes and reads by assignment, from its beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use compact_str::CompactString;

use super::{
    DeadLetter, Emission, IndexerMessenger, MessengerError, MessengerFactory, Outbound, Payload, Work, WorkerMessenger,
};
use crate::document::Document;
use crate::env::Env;
use crate::event::{self, Event};
use crate::identity::{Envelope, RunId};
use crate::intake::{Claim, FailureHandle, Intake, IntakeConfig};
use crate::partitioner::partition;
use crate::transport::{
    Appended, Delivery, ErrorKind, GroupConfig, Header, Outgoing, Producer, ProducerConfig, Record, Transport,
    TransportError,
};

mod publisher;
pub use publisher::{KafkaEvents, KafkaPublisher, KafkaSender};

/// Names of a pipeline's topics and groups.
#[derive(Clone, Debug)]
pub struct Topics {
    pipeline: Arc<str>,
    /// What workers read.
    pub source: Arc<str>,
    /// What indexers read.
    pub dest: Arc<str>,
    /// Dead letters.
    pub fail: Arc<str>,
}

impl Topics {
    /// Of the pipeline called `pipeline`.
    pub fn of(pipeline: &str) -> Self {
        Topics {
            pipeline: pipeline.into(),
            source: format!("{pipeline}_source").into(),
            dest: format!("{pipeline}_dest").into(),
            fail: format!("{pipeline}_fail").into(),
        }
    }

    /// The event topic of a run.
    pub fn event(&self, run: RunId) -> Arc<str> {
        format!("{}_event_{run}", self.pipeline).into()
    }

    /// The workers' consumer group.
    pub fn worker_group(&self) -> String {
        format!("{}_workers", self.pipeline)
    }

    /// The indexers' consumer group.
    pub fn indexer_group(&self) -> String {
        format!("{}_indexers", self.pipeline)
    }
}

/// How the messengers of one pipeline use Kafka.
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    /// The topics.
    pub topics: Topics,
    /// Consumption of workers.
    pub worker: IntakeConfig,
    /// Consumption of indexers.
    pub indexer: IntakeConfig,
    /// All producers.
    pub producer: ProducerConfig,
    /// Copies of the event topic that a run creates.
    pub event_replication: u16,
}

impl KafkaConfig {
    /// The defaults for the pipeline called `pipeline`.
    pub fn new(pipeline: &str) -> Self {
        let topics = Topics::of(pipeline);
        let worker = GroupConfig::new(topics.worker_group(), vec![topics.source.clone()]);
        let indexer = GroupConfig::new(topics.indexer_group(), vec![topics.dest.clone()]);
        KafkaConfig {
            topics,
            worker: IntakeConfig::new(worker),
            indexer: IntakeConfig::new(indexer),
            producer: ProducerConfig::default(),
            event_replication: 1,
        }
    }
}

/// Makes messengers over one transport.
#[derive(Clone, Debug)]
pub struct KafkaMessengers<E, T> {
    env: E,
    transport: T,
    config: Arc<KafkaConfig>,
    late_events: Arc<AtomicU64>,
}

impl<E: Env, T: Transport> KafkaMessengers<E, T> {
    /// Messengers of one pipeline over `transport`.
    pub fn new(env: E, transport: T, config: KafkaConfig) -> Self {
        KafkaMessengers { env, transport, config: Arc::new(config), late_events: Arc::default() }
    }

    async fn consumer(&self, intake: &IntakeConfig) -> Result<Consumer<E, T>, MessengerError> {
        let producer = self.transport.producer(self.config.producer.clone()).await?;
        let intake = Intake::start(self.env.clone(), &self.transport, intake.clone()).await?;
        let outbox = Outbox {
            env: self.env.clone(),
            producer,
            topics: self.config.topics.clone(),
            failure: intake.failure_handle(),
            late_events: self.late_events.clone(),
        };
        Ok(Consumer { intake, outbox })
    }
}

impl<E: Env, T: Transport> MessengerFactory for KafkaMessengers<E, T> {
    type Worker = Consumer<E, T>;
    type Indexer = Consumer<E, T>;
    type Publisher = KafkaPublisher<E, T>;

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        self.consumer(&self.config.worker).await
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        self.consumer(&self.config.indexer).await
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        Ok(KafkaPublisher::new(self.env.clone(), self.transport.clone(), self.config.clone()))
    }

    fn late_events(&self) -> u64 {
        self.late_events.load(Ordering::Relaxed)
    }
}

/// The messenger of a worker or an indexer: an intake, and a way out whose acknowledgements settle claims.
#[derive(Debug)]
pub struct Consumer<E: Env, T: Transport> {
    intake: Intake<E>,
    outbox: Outbox<E, T::Producer>,
}

impl<E: Env, T: Transport> Consumer<E, T> {
    async fn next(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let records = self.intake.next(records_max).await?;
        Ok(records.map(|records| records.into_iter().map(|(record, claim)| work(record, claim)).collect()))
    }
}

impl<E: Env, T: Transport> WorkerMessenger for Consumer<E, T> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.next(records_max).await
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.outbox.send(emissions).await;
        Ok(())
    }

    async fn close(&mut self) {
        self.intake.close().await;
    }
}

impl<E: Env, T: Transport> IndexerMessenger for Consumer<E, T> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.next(records_max).await
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.outbox.send(outcomes).await;
        Ok(())
    }

    async fn close(&mut self) {
        self.intake.close().await;
    }
}

/// Reads a record. Never fails: what cannot be read is handed on as such.
fn work(record: Record, claim: Claim) -> Work {
    let key = record.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let envelope = match record.header(Envelope::HEADER) {
        Some(header) => Envelope::decode(header).map_err(|error| error.to_string()),
        None => Err(crate::identity::EnvelopeError::Missing.to_string()),
    };
    let document = match &record.value {
        Some(value) => Document::parse(value.clone()).map_err(|error| error.to_string()),
        None => Err("the record has no value".to_owned()),
    };
    let payload = match (document, envelope) {
        (Ok(document), Ok(envelope)) => Payload::Document(document, envelope),
        (document, envelope) => {
            let reason = document.err().into_iter().chain(envelope.as_ref().err().cloned()).collect::<Vec<_>>();
            Payload::Undecodable {
                envelope: envelope.ok(),
                key: CompactString::from(key),
                value: record.value.clone(),
                reason: reason.join("; "),
            }
        }
    };
    Work { payload, claim }
}

/// What leaves a worker or an indexer.
#[derive(Clone, Debug)]
struct Outbox<E, P> {
    env: E,
    producer: P,
    topics: Topics,
    failure: FailureHandle,
    /// Events of runs that were over.
    late_events: Arc<AtomicU64>,
}

/// What one record of a hand-over stands for: whose claim waits for it, and what to say when it is refused.
#[derive(Clone, Debug)]
struct Pending {
    emission: usize,
    id: CompactString,
    envelope: Envelope,
    /// Of a dead letter: why there is one.
    cause: Option<String>,
}

impl<E: Env, P: Producer> Outbox<E, P> {
    /// Enqueues everything, in order; the claims are done when all of it is acknowledged.
    async fn send(&self, emissions: Vec<Emission>) {
        let mut outgoing = Vec::new();
        let mut pending = Vec::new();
        let mut events: Vec<Event> = Vec::new();
        let mut claims = Vec::with_capacity(emissions.len());
        for (index, emission) in emissions.into_iter().enumerate() {
            for output in &emission.outputs {
                let id = output.document.id().clone();
                pending.push(Pending { emission: index, id, envelope: output.envelope, cause: None });
                outgoing.push(self.output(output));
            }
            for dead in emission.dead_letters {
                outgoing.push(dead_letter(&self.topics, &dead));
                let DeadLetter { id, envelope, cause, .. } = dead;
                pending.push(Pending { emission: index, id, envelope, cause: Some(cause) });
            }
            let reports = emission.events.len();
            events.extend(emission.events);
            claims.push((emission.claim, reports > 0));
        }
        let outputs = outgoing.len();
        outgoing.extend(event_records(&self.topics, events));
        let reports = outgoing[outputs..].iter().map(|record| record.value.clone()).collect();
        let delivery = self.producer.send_all(outgoing).await;
        let outbox = self.clone();
        self.env.spawn(async move { outbox.settle(delivery, reports, pending, claims).await });
    }

    /// Waits for the acknowledgements and settles the claims.
    async fn settle(
        self,
        delivery: Delivery,
        reported: Vec<Option<Bytes>>,
        pending: Vec<Pending>,
        claims: Vec<(Claim, bool)>,
    ) {
        let results = delivery.await;
        let (sent, reports) = results.split_at(pending.len().min(results.len()));
        self.count_late(reports, &reported);
        // A refused report: no event topic any more, so the run is over, and so is the need to report to it.
        let reported = fatal(reports).is_none();
        let mut acknowledged = vec![true; claims.len()];
        let (mut failed, mut dead) = (Vec::new(), Vec::new());
        for (result, Pending { emission, id, envelope, cause }) in sent.iter().zip(pending) {
            match (result, cause) {
                (Ok(_), _) => {}
                (Err(error), None) if error.kind == ErrorKind::Refused => {
                    let (event, letter) = refusal(id, envelope, error, self.env.wall_micros());
                    failed.push(event);
                    dead.push(letter);
                }
                (Err(error), Some(cause)) if error.code == TOO_LARGE => {
                    let cause = format!("{}; without the document: {error}", cut(&cause, TEXT_BYTES_MAX));
                    dead.push(DeadLetter { id, envelope, body: None, cause });
                }
                (Err(error), Some(_)) if error.kind == ErrorKind::Refused => {}
                (Err(_), _) => acknowledged[emission] = false,
            }
        }
        if !dead.is_empty() {
            let mut outgoing: Vec<Outgoing> = dead.iter().map(|dead| dead_letter(&self.topics, dead)).collect();
            outgoing.extend(event_records(&self.topics, failed));
            let reported: Vec<_> = outgoing[dead.len()..].iter().map(|record| record.value.clone()).collect();
            let results = self.producer.send_all(outgoing).await.await;
            self.count_late(&results[dead.len().min(results.len())..], &reported);
            if let Some(error) = fatal(&results) {
                self.failure.fail(error);
                return;
            }
        }
        if let Some(error) = fatal(&results) {
            self.failure.fail(error);
        }
        for ((claim, reports), acknowledged) in claims.into_iter().zip(acknowledged) {
            if acknowledged && (reported || !reports) {
                claim.done();
            }
        }
    }

    /// Counts the events that were refused: their run is over, and its event topic gone.
    fn count_late(&self, results: &[Result<Appended, TransportError>], reported: &[Option<Bytes>]) {
        let refused = results
            .iter()
            .zip(reported)
            .filter(|(result, _)| result.as_ref().is_err_and(|error| error.kind == ErrorKind::Refused));
        let events = |value: &Bytes| event::decode_batch(value).map_or(1, |events| events.len() as u64);
        let late = refused.map(|(_, value)| value.as_ref().map_or(0, events)).sum();
        self.late_events.fetch_add(late, Ordering::Relaxed);
    }

    fn output(&self, output: &Outbound) -> Outgoing {
        let key = Bytes::copy_from_slice(output.document.id().as_bytes());
        Outgoing {
            topic: self.topics.dest.clone(),
            partition: pinned_partition(&key, output.envelope.dest_partitions),
            key: Some(key),
            value: Some(output.document.to_json()),
            headers: vec![Header { name: Envelope::HEADER.into(), value: output.envelope.encode() }],
        }
    }
}

fn dead_letter(topics: &Topics, dead: &DeadLetter) -> Outgoing {
    Outgoing {
        topic: topics.fail.clone(),
        partition: None,
        key: Some(Bytes::copy_from_slice(dead.id.as_bytes())),
        value: dead.body.clone(),
        headers: vec![
            Header { name: Envelope::HEADER.into(), value: dead.envelope.encode() },
            Header { name: "cause".into(), value: Bytes::copy_from_slice(dead.cause.as_bytes()) },
        ],
    }
}

/// Records of events, each of one run and far below the smallest record limit that brokers are run with.
fn event_records(topics: &Topics, mut events: Vec<Event>) -> Vec<Outgoing> {
    for event in &mut events {
        event.document_id = cut(&event.document_id, TEXT_BYTES_MAX).into();
        event.message = event.message.take().map(|message| cut(&message, TEXT_BYTES_MAX).into());
    }
    events.sort_by_key(|event| event.ticket.run);
    let mut records = Vec::new();
    let mut rest = &events[..];
    while let Some(first) = rest.first() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|event| {
            bytes += event_bytes_max(event);
            event.ticket.run == first.ticket.run && bytes <= EVENT_RECORD_BYTES_MAX
        });
        let (chunk, later) = rest.split_at(fits.count().max(1));
        rest = later;
        records.push(Outgoing {
            topic: topics.event(first.ticket.run),
            partition: Some(0),
            key: None,
            value: Some(event::encode_batch(chunk)),
            headers: Vec::new(),
        });
    }
    records
}

/// The longest that an event can be, were every letter of its texts escaped.
fn event_bytes_max(event: &Event) -> usize {
    400 + 6 * (event.document_id.len() + event.message.as_ref().map_or(0, |message| message.len()))
}

/// What is told of a document that the broker refused.
fn refusal(id: CompactString, envelope: Envelope, error: &TransportError, wall_micros: u64) -> (Event, DeadLetter) {
    let cause = format!("the broker refused the document: {error}");
    let event = Event::failed(&envelope, &id, &cause, wall_micros);
    (event, DeadLetter { id, envelope, body: None, cause })
}

/// The start of `text`, in whole letters.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The partition of `key` among as many as the run pinned, so that growth in mid-run moves no key.
fn pinned_partition(key: &[u8], partitions: u32) -> Option<i32> {
    (partitions > 0).then(|| partition(key, partitions))
}

/// The first error that is not a refusal of one record: the producer is of no use any more.
fn fatal(results: &[Result<Appended, TransportError>]) -> Option<TransportError> {
    results.iter().filter_map(|result| result.as_ref().err()).find(|error| error.kind != ErrorKind::Refused).cloned()
}

/// What a broker or a client says of a record over its limit.
const TOO_LARGE: &str = "MESSAGE_TOO_LARGE";
/// What a client says of a topic that is not there.
const UNKNOWN_TOPIC: &str = "UNKNOWN_TOPIC_OR_PARTITION";
/// Of an id or a cause in a report.
const TEXT_BYTES_MAX: usize = 4_096;
/// Of the events in one record.
const EVENT_RECORD_BYTES_MAX: usize = 500_000;

#[cfg(test)]
mod tests;
