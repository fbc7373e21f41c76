//! Messages over Kafka: topics between the components, offsets committed once all about a record is acknowledged.
//!
//! Written once over [`Transport`], so that the simulation and rdkafka run the same code. A worker reads
//! `<pipeline>_source` and writes `<pipeline>_dest`, an indexer reads that; both report to `<pipeline>_event_<run>`,
//! which the publisher creates before it publishes and reads by assignment, from its beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use compact_str::CompactString;

use super::{Emission, IndexerMessenger, MessengerError, MessengerFactory, Payload, Sides, Work, WorkerMessenger};
use crate::document::Document;
use crate::env::Env;
use crate::identity::{Envelope, RunId};
use crate::intake::{Claim, Intake, IntakeConfig};
use crate::transport::{GroupConfig, ProducerConfig, Record, Transport};

mod outbox;
mod publisher;
pub(in crate::messenger) use outbox::Outbox;
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
        let failure = intake.failure_handle();
        let late_events = self.late_events.clone();
        let outbox = Outbox::new(self.env.clone(), producer, self.config.topics.clone(), failure, late_events);
        Ok(Consumer { intake, outbox })
    }
}

impl<E: Env, T: Transport> MessengerFactory for KafkaMessengers<E, T> {
    type Worker = Consumer<E, T>;
    type Indexer = Consumer<E, T>;
    type Publisher = KafkaPublisher<E, T>;

    fn sides(&self) -> Sides {
        Sides { workers: 1, indexers: 1 }
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        self.consumer(&self.config.worker).await
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        self.consumer(&self.config.indexer).await
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        Ok(KafkaPublisher::new(self.env.clone(), self.transport.clone(), self.config.clone(), true))
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

    fn drain(&mut self) {
        self.intake.drain();
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

    fn drain(&mut self) {
        self.intake.drain();
    }

    async fn close(&mut self) {
        self.intake.close().await;
    }
}

/// Reads a record. Never fails: what cannot be read is handed on as such.
pub(super) fn work(record: Record, claim: Claim) -> Work {
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

#[cfg(test)]
mod tests;
