//! Hand-written clients of the bare hops: settings that are those of the pipeline, and deliveries that are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfig, FromClientConfigAndContext};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use seriatim_core::machines::custody::CustodyConfig;
use seriatim_core::transport::{GroupConfig, ProducerConfig};

use crate::Instant;

/// Ticks for each look at the clock.
const TICKS: usize = 100;

/// A producer's settings: idempotent, and everything as in the pipeline.
pub fn producer_config(kafka: &str, linger: Duration) -> ClientConfig {
    let of_pipeline = ProducerConfig::default();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka).set("enable.idempotence", "true").set("acks", "all");
    config.set("message.timeout.ms", "0").set("partitioner", "murmur2_random");
    config.set("linger.ms", linger.as_millis().to_string());
    config.set("batch.num.messages", of_pipeline.batch_records_max.to_string());
    config.set("batch.size", of_pipeline.batch_bytes_max.to_string());
    config.set("queue.buffering.max.messages", of_pipeline.queue_records_max.to_string());
    config
}

/// A consumer's settings, as in the pipeline.
pub fn consumer_config(kafka: &str, group: &str) -> ClientConfig {
    let of_pipeline = GroupConfig::new(group, Vec::new());
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka).set("group.id", group).set("auto.offset.reset", "earliest");
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    config.set("queued.min.messages", of_pipeline.prefetch_records_max.to_string());
    config.set("fetch.queue.backoff.ms", "10");
    config
}

/// A member of `group` that reads `topic`.
pub fn member(kafka: &str, group: &str, topic: &str) -> anyhow::Result<BaseConsumer> {
    let consumer = BaseConsumer::from_config(&consumer_config(kafka, group)).context("making a consumer")?;
    consumer.subscribe(&[topic])?;
    Ok(consumer)
}

/// The next record, if one comes in time. That a topic which was just made is not known everywhere passes.
pub fn next(consumer: &BaseConsumer, wait: Duration) -> anyhow::Result<Option<BorrowedMessage<'_>>> {
    match consumer.poll(wait) {
        None | Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::UnknownTopicOrPartition))) => Ok(None),
        Some(message) => message.map(Some).context("reading"),
    }
}

/// Records that are not acknowledged yet, by the parity of the commit that waits for them.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    of: [AtomicU64; 2],
    refused: AtomicU64,
}

impl Unacknowledged {
    /// Of a commit.
    pub fn of(&self, commit: usize) -> u64 {
        self.of[commit % 2].load(Ordering::Acquire)
    }

    /// Of all.
    pub fn all(&self) -> u64 {
        self.of(0) + self.of(1)
    }
}

/// Counts deliveries.
#[derive(Clone, Debug, Default)]
pub struct Counting(pub Arc<Unacknowledged>);

impl ClientContext for Counting {}

impl ProducerContext for Counting {
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, commit: usize) {
        if report.is_err() {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.0.of[commit % 2].fetch_sub(1, Ordering::Release);
    }
}

/// A producer whose deliveries are counted.
pub struct CountingProducer {
    producer: ThreadedProducer<Counting>,
    pub unacknowledged: Arc<Unacknowledged>,
}

impl CountingProducer {
    pub fn new(config: &ClientConfig) -> anyhow::Result<Self> {
        let counting = Counting::default();
        let unacknowledged = counting.0.clone();
        let producer = ThreadedProducer::from_config_and_context(config, counting).context("making a producer")?;
        Ok(CountingProducer { producer, unacknowledged })
    }

    /// Enqueues a record, whose opaque is the number of a commit; waits while the queue is full.
    pub fn send(&self, mut record: BaseRecord<'_, str, [u8], usize>) -> anyhow::Result<()> {
        let parity = record.delivery_opaque % 2;
        self.unacknowledged.of[parity].fetch_add(1, Ordering::Relaxed);
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    record = back;
                    pause(Duration::from_millis(1));
                }
                Err((error, _)) => return Err(error).context("producing"),
            }
        }
    }

    /// Waits until everything is acknowledged.
    pub fn settle(&self) -> anyhow::Result<()> {
        while self.unacknowledged.all() > 0 {
            pause(Duration::from_millis(1));
        }
        let refused = self.unacknowledged.refused.load(Ordering::Relaxed);
        anyhow::ensure!(refused == 0, "{refused} records were refused");
        Ok(())
    }
}

/// Commits as the pipeline does: every second, what lies below everything that is not acknowledged.
pub struct Commits {
    interval: Duration,
    /// The commit that what is sent now belongs to.
    pub number: usize,
    /// What was read, one past the last offset of each partition.
    read: Vec<i64>,
    /// What is committed once commit `number - 1` has nothing open.
    waiting: Option<Vec<i64>>,
    at: Instant,
    /// Ticks since the clock was last looked at.
    ticks: usize,
    topic: String,
}

impl Commits {
    pub fn new(topic: &str) -> Self {
        let interval = CustodyConfig::default().commit_interval;
        Commits {
            interval,
            number: 0,
            read: Vec::new(),
            waiting: None,
            at: Instant::now(),
            ticks: 0,
            topic: topic.to_owned(),
        }
    }

    /// A record was read.
    pub fn read(&mut self, message: &impl Message) {
        let partition = message.partition().max(0) as usize;
        if partition >= self.read.len() {
            self.read.resize(partition + 1, -1);
        }
        self.read[partition] = message.offset() + 1;
    }

    /// Commits what is due, as far as a clock tells that is not looked at for every record. Everything that was read is
    /// sent already.
    pub fn tick(&mut self, consumer: &BaseConsumer, unacknowledged: &Unacknowledged, idle: bool) -> anyhow::Result<()> {
        self.ticks += 1;
        if !idle && self.ticks < TICKS {
            return Ok(());
        }
        self.ticks = 0;
        if self.at.elapsed() < self.interval {
            return Ok(());
        }
        if let Some(waiting) = &self.waiting {
            if unacknowledged.of(self.number + 1) > 0 {
                return Ok(());
            }
            let mut list = TopicPartitionList::new();
            for (partition, offset) in waiting.iter().enumerate().filter(|(_, offset)| **offset >= 0) {
                list.add_partition_offset(&self.topic, partition as i32, Offset::Offset(*offset))?;
            }
            if list.count() > 0 {
                consumer.commit(&list, CommitMode::Async)?;
            }
        }
        self.waiting = Some(self.read.clone());
        self.number += 1;
        self.at = Instant::now();
        Ok(())
    }
}

/// Waits, on a thread that may.
#[expect(clippy::disallowed_methods, reason = "a hand-written program waits as it likes")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
