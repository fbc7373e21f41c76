//! Bare hops: hand-written programs that make the hops of the pipeline with as many bytes. They read no document.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rdkafka::TopicPartitionList;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use rdkafka::{ClientConfig, Offset};
use seriatim_core::identity::Envelope;
use seriatim_core::indexer::IndexerConfig;

use crate::client::{Commits, CountingProducer, consumer_config, member, next, producer_config};
use crate::part::{Clock, Names, Work};
use crate::payload::{Sizes, source_record};

const POLL: Duration = Duration::from_millis(100);
/// An event record begins with the number of its events.
const COUNT_BYTES: usize = 8;

/// Publishes, and waits until as many events have come back: once to warm up, once on the clock.
pub fn publisher(work: &Work, names: &Names) -> anyhow::Result<()> {
    let records = (0..work.warm_up + work.docs).map(source_record).collect::<anyhow::Result<Vec<_>>>()?;
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    let events = BaseConsumer::from_config(&consumer_config(&work.kafka, "seriatim-assigned"))?;
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(&names.event, 0, Offset::Beginning)?;
    events.assign(&from)?;
    let mut told = 0;
    let (warm_up, measured) = records.split_at(work.warm_up);
    for (records, due, is_measured) in [(warm_up, work.warm_up, false), (measured, records.len(), true)] {
        let clock = Clock::start(is_measured);
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let publishing = scope.spawn(|| {
                records.iter().try_for_each(|record| {
                    let headers = OwnedHeaders::new_with_capacity(1);
                    let headers = headers.insert(Header { key: Envelope::HEADER, value: Some(&record.header[..]) });
                    let to = BaseRecord::with_opaque_to(&names.source, 0).key(&*record.key).payload(&record.value[..]);
                    producer.send(to.headers(headers))
                })
            });
            while told < due {
                let Some(message) = next(&events, POLL)? else { continue };
                let count =
                    message.payload().and_then(|value| value.get(..COUNT_BYTES)).context("a count of events")?;
                told += usize::from_be_bytes(count.try_into()?);
            }
            publishing.join().map_err(|_| anyhow::anyhow!("the publishing thread panicked"))?
        })?;
        producer.settle()?;
        clock.stop(records.len());
    }
    Ok(())
}

/// Consumes and produces, every value longer by what the stages add; until asked to stop, or through with `limit`.
pub fn copier(work: &Work, names: &Names, sizes: Sizes, limit: Option<usize>, stop: &AtomicBool) -> anyhow::Result<()> {
    let consumer = member(&work.kafka, &names.worker_group, &names.source)?;
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    let (mut commits, mut value, mut copied, mut clock) = (Commits::new(&names.source), Vec::new(), 0, None);
    while !stop.load(Ordering::Relaxed) && limit.is_none_or(|limit| copied < limit) {
        let message = next(&consumer, POLL)?;
        let idle = message.is_none();
        if let Some(message) = message {
            clock.get_or_insert_with(|| Clock::start(true));
            value.clear();
            value.extend_from_slice(message.payload().unwrap_or_default());
            value.resize(value.len() + sizes.grown, b' ');
            let to = BaseRecord::with_opaque_to(&names.dest, commits.number).payload(&value[..]);
            let to = to.key(std::str::from_utf8(message.key().unwrap_or_default())?);
            producer.send(match message.headers() {
                Some(headers) => to.headers(headers.detach()),
                None => to,
            })?;
            commits.read(&message);
            copied += 1;
        }
        commits.tick(&consumer, &producer.unacknowledged, idle)?;
    }
    producer.settle()?;
    if let (Some(clock), Some(_)) = (clock, limit) {
        clock.stop(copied);
    }
    Ok(())
}

/// A plain copy with the client's own commits, as fast as a program of a page is: what came is sent on as it is.
pub fn plain_copy(work: &Work, names: &Names, limit: usize) -> anyhow::Result<()> {
    let mut config = consumer_config(&work.kafka, &names.worker_group);
    config.set("enable.auto.commit", "true").set("enable.auto.offset.store", "true");
    let consumer = BaseConsumer::from_config(&config)?;
    consumer.subscribe(&[&names.source])?;
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    let mut clock = None;
    let mut copied = 0;
    while copied < limit {
        let Some(message) = next(&consumer, POLL)? else { continue };
        clock.get_or_insert_with(|| Clock::start(true));
        let to = BaseRecord::with_opaque_to(&names.dest, 0).payload(message.payload().unwrap_or_default());
        let to = to.key(std::str::from_utf8(message.key().unwrap_or_default())?);
        producer.send(match message.headers() {
            Some(headers) => to.headers(headers.detach()),
            None => to,
        })?;
        copied += 1;
    }
    producer.settle()?;
    clock.context("nothing was copied")?.stop(copied);
    Ok(())
}

/// Consumes, and tells of every batch, as long as that of an indexer, with as many bytes as its events have.
pub fn reader(work: &Work, names: &Names, sizes: Sizes, hybrid: bool, stop: &AtomicBool) -> anyhow::Result<()> {
    let (topic, group) = match hybrid {
        true => (&names.source, &names.worker_group),
        false => (&names.dest, &names.indexer_group),
    };
    let consumer = member(&work.kafka, group, topic)?;
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    let limits = IndexerConfig::default().batch;
    let (mut commits, mut untold, mut since) = (Commits::new(topic), 0_usize, crate::Instant::now());
    let mut events = vec![b' '; sizes.event * limits.items_max];
    while !stop.load(Ordering::Relaxed) {
        if let Some(message) = next(&consumer, if untold > 0 { Duration::from_millis(20) } else { POLL })? {
            if untold == 0 {
                since = crate::Instant::now();
            }
            commits.read(&message);
            untold += 1;
        }
        if untold == limits.items_max || untold > 0 && since.elapsed() >= limits.age_max {
            events[..COUNT_BYTES].copy_from_slice(&untold.to_be_bytes());
            let record = BaseRecord::with_opaque_to(&names.event, commits.number).partition(0);
            producer.send(record.payload(&events[..sizes.event * untold]))?;
            untold = 0;
        }
        if untold == 0 {
            commits.tick(&consumer, &producer.unacknowledged, true)?;
        }
    }
    producer.settle()
}

/// Fills the source topic.
pub fn fill(work: &Work, names: &Names) -> anyhow::Result<()> {
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    for number in 0..work.docs {
        let record = source_record(number)?;
        let headers = OwnedHeaders::new_with_capacity(1);
        let headers = headers.insert(Header { key: Envelope::HEADER, value: Some(&record.header[..]) });
        let to = BaseRecord::with_opaque_to(&names.source, 0).key(&*record.key).payload(&record.value[..]);
        producer.send(to.headers(headers))?;
    }
    producer.settle()
}

/// Where a step of the documented system's cost pattern reads and writes.
pub struct Step<'a> {
    pub group: &'a str,
    pub from: &'a str,
    pub to: &'a str,
}

/// The documented system's cost pattern: one record a poll, a send that is awaited, a commit that is awaited.
pub fn one_by_one(work: &Work, step: &Step<'_>, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let consumer = member(&work.kafka, step.group, step.from)?;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &work.kafka).set("enable.idempotence", "true");
    if let Some(linger) = work.linger {
        config.set("linger.ms", linger.to_string());
    }
    let producer = CountingProducer::new(&config)?;
    while !stop.load(Ordering::Relaxed) {
        let Some(message) = next(&consumer, POLL)? else { continue };
        let mut to = BaseRecord::with_opaque_to(step.to, 0).payload(message.payload().unwrap_or_default());
        to.key = message.key().map(std::str::from_utf8).transpose()?;
        producer.send(to)?;
        while producer.unacknowledged.all() > 0 {
            std::hint::spin_loop();
            std::thread::yield_now();
        }
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
    Ok(())
}

/// The publisher of that pattern: what it publishes comes back one event a document.
pub fn one_by_one_publisher(work: &Work, names: &Names) -> anyhow::Result<()> {
    let records = (0..work.warm_up + work.docs).map(source_record).collect::<anyhow::Result<Vec<_>>>()?;
    let producer = CountingProducer::new(&producer_config(&work.kafka, work.linger()))?;
    let events = BaseConsumer::from_config(&consumer_config(&work.kafka, "seriatim-assigned"))?;
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(&names.event, 0, Offset::Beginning)?;
    events.assign(&from)?;
    let (warm_up, measured) = records.split_at(work.warm_up);
    for (records, is_measured) in [(warm_up, false), (measured, true)] {
        let clock = Clock::start(is_measured);
        for record in records {
            producer.send(BaseRecord::with_opaque_to(&names.source, 0).key(&*record.key).payload(&record.value[..]))?;
        }
        let mut told = 0;
        while told < records.len() {
            told += usize::from(next(&events, POLL)?.is_some());
        }
        clock.stop(records.len());
    }
    Ok(())
}
