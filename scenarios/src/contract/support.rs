//! What rules share: records to send, and a look at a whole log.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{
    Admin, Appended, Assigned, Commit, Committed, Group, GroupConfig, Outgoing, Producer, ProducerConfig, Record,
    Transport, TransportError, Watermarks,
};

use super::{PATIENCE, Site};

/// The session of members, the least that Kafka takes by default.
pub const SESSION: Duration = Duration::from_secs(6);

/// By then every broker has heard of a new topic.
const HEARD: Duration = Duration::from_secs(20);

/// A record of text.
pub fn record(topic: &Arc<str>, partition: impl Into<Option<i32>>, key: Option<&str>, value: &str) -> Outgoing {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Outgoing {
        topic: topic.clone(),
        partition: partition.into(),
        key: key.map(bytes),
        value: Some(bytes(value)),
        headers: Vec::new(),
    }
}

/// `count` records to one partition, numbered from `from`.
pub fn numbered(topic: &Arc<str>, partition: i32, from: usize, count: usize) -> Vec<Outgoing> {
    (from..from + count).map(|number| record(topic, partition, None, &number.to_string())).collect()
}

/// The value as text.
pub fn text(record: &Record) -> String {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
}

/// `partition` of `topic`.
pub fn at(topic: &Arc<str>, partition: i32) -> TopicPartition {
    TopicPartition::new(topic.clone(), partition)
}

/// Sends through a producer of the default kind and waits for all acknowledgements.
pub async fn fill<S: Site>(site: &S, records: Vec<Outgoing>) -> Result<Vec<Appended>> {
    let producer = site.transport().producer(ProducerConfig::default()).await?;
    send(site, &producer, records).await
}

/// Writes `count` numbered records to each of the first `partitions` partitions.
pub async fn fill_each<S: Site>(site: &S, topic: &Arc<str>, partitions: i32, count: usize) -> Result<()> {
    let records = (0..partitions).flat_map(|partition| numbered(topic, partition, 0, count)).collect();
    fill(site, records).await.map(drop)
}

/// Sends and waits for all acknowledgements.
pub async fn send<S: Site, P: Producer>(site: &S, producer: &P, records: Vec<Outgoing>) -> Result<Vec<Appended>> {
    let outcomes = outcomes(site, producer, records).await?;
    Ok(outcomes.into_iter().collect::<Result<Vec<_>, _>>()?)
}

/// Sends and waits for what became of each.
pub async fn outcomes<S: Site, P: Producer>(
    site: &S,
    producer: &P,
    records: Vec<Outgoing>,
) -> Result<Vec<Result<Appended, TransportError>>> {
    let count = records.len();
    let all = async { producer.send_all(records).await.await };
    let outcomes = site.env().timeout(PATIENCE, all).await.context("acknowledgements did not come")?;
    ensure!(outcomes.len() == count, "{count} records have {} outcomes", outcomes.len());
    Ok(outcomes)
}

/// First and next offsets of partitions that exist. A broker that has not heard of a topic yet is asked again: what
/// settled it may have asked another one.
pub async fn all_watermarks<S: Site>(site: &S, partitions: Vec<TopicPartition>) -> Result<Vec<Watermarks>> {
    let until = site.env().now() + HEARD;
    loop {
        match site.transport().admin().watermarks(partitions.clone()).await {
            Err(error) if error.code == "UNKNOWN_TOPIC_OR_PARTITION" && site.env().now() < until => {
                site.env().sleep(Duration::from_millis(100)).await;
            }
            found => return Ok(found?),
        }
    }
}

/// First and next offsets of one partition.
pub async fn watermarks<S: Site>(site: &S, partition: &TopicPartition) -> Result<Watermarks> {
    let found = all_watermarks(site, vec![partition.clone()]).await?;
    found.first().copied().context("no watermarks")
}

/// Every record of a partition that is kept.
pub async fn log<S: Site>(site: &S, partition: &TopicPartition) -> Result<Vec<Record>> {
    let marks = watermarks(site, partition).await?;
    let mut records: Vec<Record> = Vec::new();
    if marks.start == marks.end {
        return Ok(records);
    }
    let from = vec![(partition.clone(), marks.start)];
    let mut reader = site.transport().assign("contract".into(), from).await?;
    let until = site.env().now() + PATIENCE;
    while records.last().is_none_or(|last| last.position.offset + 1 < marks.end) {
        ensure!(site.env().now() < until, "{partition}: read {} records of {marks:?}", records.len());
        records.extend(reader.poll(1_000, Duration::from_millis(200)).await?);
    }
    Ok(records)
}

/// What `group` has committed for one partition.
pub async fn committed<S: Site>(site: &S, group: &str, partition: &TopicPartition) -> Result<Option<Committed>> {
    let found = site.transport().admin().committed(group.into(), vec![partition.clone()]).await?;
    Ok(found.into_iter().next().flatten())
}

/// The offset of it.
pub async fn committed_offset<S: Site>(site: &S, group: &str, partition: &TopicPartition) -> Result<Option<i64>> {
    Ok(committed(site, group, partition).await?.map(|committed| committed.offset))
}

/// Commits one partition.
pub async fn commit<G: Group>(group: &G, commit: Commit) -> Result<(), TransportError> {
    group.commit(vec![commit]).await.remove(0)
}

/// A member with short times.
pub fn group(name: &str, topic: &Arc<str>) -> GroupConfig {
    GroupConfig {
        client_id: "contract".into(),
        session_timeout: SESSION,
        heartbeat_interval: Duration::from_secs(1),
        poll_limit: Duration::from_secs(25),
        ..GroupConfig::new(name, vec![topic.clone()])
    }
}
