//! The publisher's side: topics made sure of, documents sent in order until acknowledged, events read by assignment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;

use super::KafkaConfig;
use super::outbox::{TOO_LARGE, UNKNOWN_TOPIC, dead_letter, event_records, pinned_partition, refusal};
use crate::env::Env;
use crate::event::{self, Event};
use crate::identity::{Envelope, RunId, TopicPartition};
use crate::machines::hlc::Hlc;
use crate::messenger::{EventSource, MessengerError, Opened, Outbound, PublicationSender, PublisherMessenger};
use crate::transport::{
    Admin, Assigned, Delivery, ErrorKind, Header, NewTopic, Outgoing, Producer, Transport, TransportError,
};

/// Time between two tries of a request that may succeed later.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// Tries of a request before a run is given up that has not begun.
const OPEN_TRIES_MAX: usize = 150;
/// Tries before a topic does not exist: brokers hear of a new one at different times.
const SEEN_TRIES_MAX: usize = 25;
/// Documents sent and not acknowledged.
const UNACKNOWLEDGED_RECORDS_MAX: usize = 10_000;
/// Bytes of them.
const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 20;
/// Polls for the last records of the partitions.
const TAIL_POLLS_MAX: usize = OPEN_TRIES_MAX;
/// Events records asked for in one poll.
const EVENT_RECORDS_MAX: usize = 500;

/// The messenger of a run's publisher.
#[derive(Debug)]
pub struct KafkaPublisher<E, T> {
    env: E,
    transport: T,
    config: Arc<KafkaConfig>,
    /// Whether documents go from workers to indexers through a topic.
    has_dest: bool,
}

impl<E: Env, T: Transport> KafkaPublisher<E, T> {
    pub(in crate::messenger) fn new(env: E, transport: T, config: Arc<KafkaConfig>, has_dest: bool) -> Self {
        KafkaPublisher { env, transport, config, has_dest }
    }

    /// Repeats `request` while its error may pass.
    async fn retried<R, F>(&self, mut request: impl FnMut() -> F) -> Result<R, TransportError>
    where
        F: Future<Output = Result<R, TransportError>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match request().await {
                Err(error) if tries < tries_max(&error) => {
                    self.env.sleep(RETRY_WAIT).await;
                }
                result => return result,
            }
        }
    }

    async fn partition_count(&self, topic: &Arc<str>) -> Result<u32, MessengerError> {
        let admin = self.transport.admin();
        let counted = self.retried(|| first(admin.partition_counts(vec![topic.clone()]))).await;
        counted.map_err(|error| MessengerError::Topic {
            topic: topic.to_string(),
            problem: format!("{error}; create it before the run, with the number of partitions that it shall have"),
        })
    }

    /// Creates the event topic and waits until it can be seen. Nobody else creates it.
    async fn create_event_topic(&self, topic: &Arc<str>) -> Result<(), MessengerError> {
        let admin = self.transport.admin();
        let new = NewTopic { name: topic.clone(), partitions: 1, replication: self.config.event_replication };
        match self.retried(|| first(admin.create_topics(vec![new.clone()]))).await {
            Ok(()) => {}
            Err(error) if error.code == "TOPIC_ALREADY_EXISTS" => {}
            Err(error) => return Err(error.into()),
        }
        let seen = self.retried(|| first(admin.partition_counts(vec![topic.clone()]))).await;
        seen.map(drop).map_err(|error| {
            let problem = format!("it was created and cannot be seen ({error}); is the cluster healthy?");
            MessengerError::Topic { topic: topic.to_string(), problem }
        })
    }

    /// The highest clock reading at the tails of the source partitions; 0 for an empty topic.
    async fn clock_floor(&self, partitions: u32) -> Result<u64, MessengerError> {
        let source = &self.config.topics.source;
        let all: Vec<_> = (0..partitions).map(|one| TopicPartition::new(source.clone(), one as i32)).collect();
        let admin = self.transport.admin();
        let marks = self.retried(|| admin.watermarks(all.clone())).await?;
        let filled = all.into_iter().zip(&marks).filter(|(_, marks)| marks.end > marks.start);
        let (tails, ends): (Vec<_>, Vec<_>) =
            filled.map(|(partition, marks)| ((partition, marks.end - 1), marks.end)).unzip();
        if tails.is_empty() {
            return Ok(0);
        }
        let mut reader = self.retried(|| self.transport.assign("seriatim-tails".into(), tails.clone())).await?;
        let mut floor = 0;
        for _ in 0..TAIL_POLLS_MAX {
            let records = match reader.poll(tails.len(), RETRY_WAIT).await {
                Err(error) if error.kind == ErrorKind::Retriable => {
                    self.env.sleep(RETRY_WAIT).await;
                    Vec::new()
                }
                records => records?,
            };
            let headers = records.iter().filter_map(|record| record.header(Envelope::HEADER));
            let versions = headers.filter_map(|header| Some(Envelope::decode(header).ok()?.version.hlc()));
            // No clock of this system gave a reading beyond the end: it would use the clock up.
            floor = versions.filter(|reading| *reading < Hlc::WALL_END).fold(floor, u64::max);
            if reader.positions().iter().zip(&ends).all(|((_, next), end)| next >= end) {
                return Ok(floor);
            }
        }
        let problem = "its last records could not be read, and the versions of a run must lie above theirs; \
            has every partition a leader?";
        Err(MessengerError::Topic { topic: source.to_string(), problem: problem.to_owned() })
    }
}

/// How often the same request is tried that may succeed later. All of them may be repeated when their outcome is
/// unknown.
fn tries_max(error: &TransportError) -> usize {
    match error.kind {
        ErrorKind::Retriable | ErrorKind::UnknownOutcome => OPEN_TRIES_MAX,
        _ if error.code == UNKNOWN_TOPIC => SEEN_TRIES_MAX,
        _ => 0,
    }
}

/// What a run is told whose topic was deleted under it.
fn gone(topic: &str, error: &TransportError) -> MessengerError {
    let problem = format!(
        "it was deleted or made anew while the run needed it ({error}), so that the run cannot know what became of its \
         documents; publish the input again as a new run, and keep the topics of a run until it has ended"
    );
    MessengerError::Topic { topic: topic.to_owned(), problem }
}

/// The only result of a request about one thing.
async fn first<R>(request: impl Future<Output = Vec<Result<R, TransportError>>>) -> Result<R, TransportError> {
    request
        .await
        .into_iter()
        .next()
        .unwrap_or_else(|| Err(TransportError::new(ErrorKind::Retriable, "NO_ANSWER", "asking the cluster")))
}

impl<E: Env, T: Transport> PublisherMessenger for KafkaPublisher<E, T> {
    type Sender = KafkaSender<E, T>;
    type Events = KafkaEvents<E, T>;

    async fn open(self, run: RunId) -> Result<(Opened, Self::Sender, Self::Events), MessengerError> {
        let source_partitions = self.partition_count(&self.config.topics.source).await?;
        let dest_partitions = match self.has_dest {
            true => self.partition_count(&self.config.topics.dest).await?,
            false => 0,
        };
        let event_topic = self.config.topics.event(run);
        self.create_event_topic(&event_topic).await?;
        let clock_floor = self.clock_floor(source_partitions).await?;
        let from = vec![(TopicPartition::new(event_topic.clone(), 0), 0)];
        let reader = self.retried(|| self.transport.assign("seriatim-events".into(), from.clone())).await?;
        let producer = self.retried(|| self.transport.producer(self.config.producer.clone())).await?;
        let sender = KafkaSender {
            env: self.env.clone(),
            transport: self.transport.clone(),
            config: self.config,
            producer,
            unacknowledged: VecDeque::new(),
            records_out: 0,
            bytes_out: 0,
        };
        let admin = self.transport.admin();
        let events = KafkaEvents::<E, T> { env: self.env, topic: event_topic, admin, reader };
        Ok((Opened { clock_floor, source_partitions, dest_partitions }, sender, events))
    }
}

/// Sends documents to the source topic and keeps them until they are acknowledged.
#[derive(Debug)]
pub struct KafkaSender<E, T: Transport> {
    env: E,
    transport: T,
    config: Arc<KafkaConfig>,
    producer: T::Producer,
    unacknowledged: VecDeque<(Vec<Outgoing>, Delivery)>,
    records_out: usize,
    bytes_out: usize,
}

impl<E: Env, T: Transport> KafkaSender<E, T> {
    fn outgoing(&self, item: &Outbound) -> Outgoing {
        let key = Bytes::copy_from_slice(item.document.id().as_bytes());
        Outgoing {
            topic: self.config.topics.source.clone(),
            partition: pinned_partition(&key, item.envelope.source_partitions),
            key: Some(key),
            value: Some(item.document.to_json()),
            headers: vec![Header { name: Envelope::HEADER.into(), value: item.envelope.encode() }],
        }
    }

    /// Waits for the oldest hand-over. A document that is too large fails; another refusal ends the run. After an error
    /// of the producer itself everything unacknowledged is sent again through a new one, in order and with the same
    /// tickets.
    async fn settle_oldest(&mut self) -> Result<(), MessengerError> {
        let Some((records, delivery)) = self.unacknowledged.pop_front() else { return Ok(()) };
        let results = delivery.await;
        let (mut reports, mut died) = (Vec::new(), false);
        for (record, result) in records.iter().zip(&results) {
            match result {
                Ok(_) => {}
                Err(error) if error.kind != ErrorKind::Refused => died = true,
                Err(error) if error.code == TOO_LARGE && record.topic == self.config.topics.source => {
                    reports.extend(self.reports(record, error));
                }
                // Of a dead letter: its cause is told in the event too.
                Err(_) if record.topic == self.config.topics.fail => {}
                Err(error) if error.code == UNKNOWN_TOPIC => return Err(gone(&record.topic, error)),
                Err(error) => return Err(error.clone().into()),
            }
        }
        if !died {
            self.records_out -= records.len();
            self.bytes_out -= bytes(&records);
            if !reports.is_empty() {
                self.hand_over(reports).await;
            }
            return Ok(());
        }
        let again = std::iter::once(records).chain(self.unacknowledged.drain(..).map(|(records, _)| records));
        let again: Vec<_> = again.collect();
        self.env.sleep(RETRY_WAIT).await;
        self.producer = loop {
            match self.transport.producer(self.config.producer.clone()).await {
                Err(error) if error.kind == ErrorKind::Retriable => self.env.sleep(RETRY_WAIT).await,
                producer => break producer?,
            }
        };
        for records in again {
            let delivery = self.producer.send_all(records.clone()).await;
            self.unacknowledged.push_back((records, delivery));
        }
        Ok(())
    }

    /// The dead letter and the event of a document that was refused.
    fn reports(&self, refused: &Outgoing, error: &TransportError) -> Vec<Outgoing> {
        let Some(Ok(envelope)) = refused.headers.first().map(|header| Envelope::decode(&header.value)) else {
            return Vec::new();
        };
        let id = refused.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        // It was never taken: this stands for an attempt with one output.
        let envelope = Envelope { is_parent: true, ..envelope };
        let (event, dead) = refusal(CompactString::from(id), envelope, error, self.env.wall_micros());
        let topics = &self.config.topics;
        std::iter::once(dead_letter(topics, &dead)).chain(event_records(topics, vec![event])).collect()
    }

    async fn hand_over(&mut self, records: Vec<Outgoing>) {
        self.records_out += records.len();
        self.bytes_out += bytes(&records);
        let delivery = self.producer.send_all(records.clone()).await;
        self.unacknowledged.push_back((records, delivery));
    }
}

fn bytes(records: &[Outgoing]) -> usize {
    records.iter().map(|record| record.value.as_ref().map_or(0, Bytes::len)).sum()
}

impl<E: Env, T: Transport> PublicationSender for KafkaSender<E, T> {
    async fn send(&mut self, batch: Vec<Outbound>) -> Result<(), MessengerError> {
        self.hand_over(batch.iter().map(|item| self.outgoing(item)).collect()).await;
        while self.records_out > UNACKNOWLEDGED_RECORDS_MAX || self.bytes_out > UNACKNOWLEDGED_BYTES_MAX {
            self.settle_oldest().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), MessengerError> {
        while !self.unacknowledged.is_empty() {
            self.settle_oldest().await?;
        }
        Ok(())
    }
}

/// Reads the event topic of a run from its beginning. Once the topic is confirmed to be gone the run is over.
#[derive(Debug)]
pub struct KafkaEvents<E, T: Transport> {
    env: E,
    topic: Arc<str>,
    admin: T::Admin,
    reader: T::Assigned,
}

impl<E: Env, T: Transport> EventSource for KafkaEvents<E, T> {
    async fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, MessengerError> {
        let records = match self.reader.poll(EVENT_RECORDS_MAX, wait).await {
            Ok(records) => records,
            Err(error) if error.kind == ErrorKind::Retriable => {
                self.env.sleep(RETRY_WAIT).await;
                return Ok(Vec::new());
            }
            Err(error) if error.code == UNKNOWN_TOPIC => {
                // Whoever said so may not have heard of it yet.
                for _ in 0..SEEN_TRIES_MAX {
                    let seen = first(self.admin.partition_counts(vec![self.topic.clone()])).await;
                    self.env.sleep(RETRY_WAIT).await;
                    if !matches!(seen, Err(absent) if absent.code == UNKNOWN_TOPIC) {
                        return Ok(Vec::new());
                    }
                }
                return Err(gone(&self.topic, &error));
            }
            Err(error) if error.code == "OFFSET_OUT_OF_RANGE" => return Err(gone(&self.topic, &error)),
            Err(error) => return Err(error.into()),
        };
        let mut events = Vec::new();
        for record in records {
            // What cannot be read here was not written by this system: the topic is the run's own.
            if let Some(Ok(mut more)) = record.value.as_deref().map(event::decode_batch) {
                events.append(&mut more);
            }
        }
        Ok(events)
    }
}
