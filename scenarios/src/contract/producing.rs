//! Rules of a producer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::FutureExt;
use seriatim_core::env::Env;
use seriatim_core::partitioner;
use seriatim_core::transport::{ErrorKind, Header, Outgoing, Producer, ProducerConfig, Record, Transport};

use super::support::{at, fill, log, numbered, outcomes, record, send, text, watermarks};
use super::{PATIENCE, Site};

/// Keys of the partitioner's vectors, and where they lie among three partitions.
const KEYS: [(&str, i32); 6] = [("doc-1", 2), ("doc-2", 2), ("doc-3", 0), ("user:42", 1), ("kafka", 1), ("foobar", 0)];

pub async fn key_to_partition<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("keys", 3).await?;
    let mut expected: Vec<(&str, i32)> = KEYS.to_vec();
    expected.push(("", partitioner::partition(b"", 3)));
    let keyed = |(key, _): &(&str, i32)| record(&topic, None, Some(key), key);
    let mut records: Vec<Outgoing> = expected.iter().cycle().take(3 * expected.len()).map(keyed).collect();
    records.push(record(&topic, None, None, "without a key"));
    let appended = fill(site, records).await?;
    for (place, one) in appended.iter().enumerate().take(3 * expected.len()) {
        let (key, partition) = expected[place % expected.len()];
        ensure!(one.partition == partition, "key `{key}` lies in {} and not in {partition}", one.partition);
    }
    ensure!(appended.last().is_some_and(|one| (0..3).contains(&one.partition)), "{:?}", appended.last());
    for partition in 0..3 {
        for found in log(site, &at(&topic, partition)).await? {
            let Some(key) = &found.key else { continue };
            let home = expected.iter().find(|(known, _)| known.as_bytes() == &key[..]).map(|(_, home)| *home);
            ensure!(home == Some(partition), "{key:?} was read from {partition}");
        }
    }
    Ok(())
}

pub async fn named_partition<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("named", 3).await?;
    let records = KEYS.map(|(key, home)| record(&topic, (home + 1) % 3, Some(key), key));
    for ((key, home), one) in KEYS.iter().zip(fill(site, records.to_vec()).await?) {
        ensure!(one.partition == (home + 1) % 3, "key `{key}` lies in {} and not where it was sent", one.partition);
    }
    Ok(())
}

/// Whether a partition holds the numbers from 0 to `count` in order, at the offsets from 0.
async fn holds_numbers<S: Site>(
    site: &S,
    partition: &seriatim_core::identity::TopicPartition,
    count: usize,
) -> Result<()> {
    let found = log(site, partition).await?;
    ensure!(found.len() == count, "{count} records were sent, and {} lie there", found.len());
    for (place, one) in found.iter().enumerate() {
        let (offset, value) = (one.position.offset, text(one));
        ensure!(offset == place as i64 && value == place.to_string(), "offset {offset} holds `{value}`, not {place}");
    }
    Ok(())
}

pub async fn order_in_partition<S: Site>(site: &S) -> Result<()> {
    const CALLS: usize = 20;
    const EACH: usize = 25;
    let topic = site.topic("order", 2).await?;
    let config = ProducerConfig { batch_records_max: 7, ..ProducerConfig::default() };
    let producer = site.transport().producer(config).await?;
    let mut deliveries = Vec::new();
    for call in 0..CALLS {
        let mut records = Vec::new();
        for pair in numbered(&topic, 0, call * EACH, EACH).into_iter().zip(numbered(&topic, 1, call * EACH, EACH)) {
            records.extend([pair.0, pair.1]);
        }
        deliveries.push(producer.send_all(records).await);
    }
    let mut next = [0; 2];
    for delivery in deliveries {
        for outcome in site.env().timeout(PATIENCE, delivery).await.context("acknowledgements did not come")? {
            let one = outcome?;
            let expected = &mut next[usize::try_from(one.partition)?];
            ensure!(one.offset == *expected, "{one:?} was acknowledged, and offset {expected} was due");
            *expected += 1;
        }
    }
    holds_numbers(site, &at(&topic, 0), CALLS * EACH).await?;
    holds_numbers(site, &at(&topic, 1), CALLS * EACH).await
}

pub async fn idempotent_retry<S: Site>(site: &S) -> Result<()> {
    const ROUNDS: usize = 6;
    const EACH: usize = 30;
    let topic = site.topic("retry", 1).await?;
    let (transport, lose) = site.lossy().await?;
    let producer = transport.producer(ProducerConfig { batch_records_max: 10, ..ProducerConfig::default() }).await?;
    send(site, &producer, numbered(&topic, 0, 0, EACH)).await?;
    for round in 1..=ROUNDS {
        lose(1 + round as u64 % 2);
        let appended = send(site, &producer, numbered(&topic, 0, round * EACH, EACH)).await?;
        for (place, one) in appended.iter().enumerate() {
            let expected = (round * EACH + place) as i64;
            ensure!(one.offset == expected, "{one:?} was acknowledged, and offset {expected} was due");
        }
    }
    lose(0);
    holds_numbers(site, &at(&topic, 0), (ROUNDS + 1) * EACH).await
}

pub async fn flush_awaits_all<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("flush", 1).await?;
    let config = ProducerConfig { linger: Duration::from_millis(100), ..ProducerConfig::default() };
    let producer = site.transport().producer(config).await?;
    let mut deliveries = Vec::new();
    for call in 0..5 {
        deliveries.push(producer.send_all(numbered(&topic, 0, call * 100, 100)).await);
    }
    site.env().timeout(PATIENCE, producer.flush()).await.context("the flush did not end")?;
    for delivery in deliveries {
        let outcomes = delivery.now_or_never().context("after the flush something was not acknowledged")?;
        ensure!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
    let end = watermarks(site, &at(&topic, 0)).await?.end;
    ensure!(end == 500, "after the flush the partition ends at {end}, not at 500");
    Ok(())
}

pub async fn full_queue_waits<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("full", 1).await?;
    let config = ProducerConfig { queue_records_max: 10, ..ProducerConfig::default() };
    let producer = site.transport().producer(config).await?;
    send(site, &producer, numbered(&topic, 0, 0, 200)).await?;
    holds_numbers(site, &at(&topic, 0), 200).await
}

pub async fn tombstones_and_empty_keys<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("empty", 1).await?;
    let parts = [None, Some(""), Some("x")];
    let bytes = |part: Option<&str>| part.map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let all: Vec<_> = parts.iter().flat_map(|key| parts.map(|value| (bytes(*key), bytes(value)))).collect();
    let outgoing = |(key, value): &(Option<Bytes>, Option<Bytes>)| Outgoing {
        topic: topic.clone(),
        partition: Some(0),
        key: key.clone(),
        value: value.clone(),
        headers: Vec::new(),
    };
    fill(site, all.iter().map(outgoing).collect()).await?;
    let read = |one: Record| (one.key, one.value);
    let found: Vec<_> = log(site, &at(&topic, 0)).await?.into_iter().map(read).collect();
    ensure!(found == all, "{all:?} were sent, and {found:?} came back");
    Ok(())
}

pub async fn headers_in_order<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("headers", 1).await?;
    let header = |(name, value): (&str, &'static [u8])| Header { name: name.into(), value: Bytes::from_static(value) };
    let headers = [("b", &b"1"[..]), ("a", &[0, 255]), ("b", b"2"), ("empty", b""), ("a", b"3")].map(header).to_vec();
    fill(site, vec![Outgoing { headers: headers.clone(), ..record(&topic, 0, None, "v") }]).await?;
    let found = log(site, &at(&topic, 0)).await?.remove(0).headers;
    ensure!(found == headers, "{headers:?} were sent, and {found:?} came back");
    Ok(())
}

pub async fn timestamp_of_producer<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("timestamp", 1).await?;
    let millis = || (site.env().wall_micros() / 1_000).cast_signed();
    let before = millis();
    fill(site, vec![record(&topic, 0, None, "v")]).await?;
    let (after, found) = (millis(), log(site, &at(&topic, 0)).await?.remove(0).timestamp_millis);
    ensure!((before..=after).contains(&found), "sent from {before} to {after}, and stamped {found}");
    Ok(())
}

/// Bytes that do not compress, and differ all along.
fn noise(length: usize) -> Bytes {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub async fn large_records<S: Site>(site: &S) -> Result<()> {
    const LARGE: usize = 900_000;
    let topic = site.topic("large", 1).await?;
    let sized = |length| Outgoing { value: Some(noise(length)), ..record(&topic, 0, None, "") };
    fill(site, vec![sized(LARGE)]).await?;
    let found = log(site, &at(&topic, 0)).await?.remove(0).value;
    let length = found.as_ref().map_or(0, Bytes::len);
    ensure!(found == Some(noise(LARGE)), "{LARGE} bytes were sent, and {length} came back, or others");

    // The client's own limit first, then the broker's (message.max.bytes, 1 MiB by default).
    for (own_limit, too_large) in [(100_000, 200_000), (3_000_000, 1_500_000)] {
        let config = ProducerConfig { record_bytes_max: own_limit, ..ProducerConfig::default() };
        let producer = site.transport().producer(config).await?;
        let (before, after) = (record(&topic, 0, None, "before"), record(&topic, 0, None, "after"));
        let outcomes = outcomes(site, &producer, vec![before, sized(too_large), after]).await?;
        let refused = outcomes[1].as_ref().err().with_context(|| format!("{too_large} bytes were taken"))?;
        ensure!(refused.kind == ErrorKind::Refused, "{refused:?}");
        ensure!(outcomes[0].is_ok() && outcomes[2].is_ok(), "its neighbours were refused too: {outcomes:?}");
    }
    Ok(())
}
