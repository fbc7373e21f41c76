//! Rules of topics: that there are none, that they grow, what they keep.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use seriatim_core::env::Env;
use seriatim_core::transport::{
    Admin, Assignor, ErrorKind, GroupConfig, NewTopic, ProducerConfig, Transport, TransportError, Watermarks,
};

use super::member::{Member, owning, until};
use super::support::{all_watermarks, at, fill, fill_each, group, log, outcomes, record, send, watermarks};
use super::{PATIENCE, Site};

/// An age of metadata that passes soon.
const YOUNG: Option<Duration> = Some(Duration::from_secs(1));

fn is_refused<T>(outcome: Result<T, TransportError>, code: &str) -> Result<()> {
    let error = outcome.err().context("it was not refused")?;
    ensure!(error.kind == ErrorKind::Refused && error.code == code, "{code} was due, not {error:?}");
    Ok(())
}

pub async fn unknown_topic_refused<S: Site>(site: &S) -> Result<()> {
    let (topic, nowhere) = (site.topic("known", 2).await?, site.fresh("unknown").into());
    let config = ProducerConfig { topic_propagation_max: Duration::from_secs(2), ..ProducerConfig::default() };
    let producer = site.transport().producer(config).await?;
    let records = vec![record(&topic, 0, None, "a"), record(&nowhere, 0, None, "b"), record(&topic, 0, None, "c")];
    let mut outcomes = outcomes(site, &producer, records).await?;
    ensure!(outcomes[0].is_ok() && outcomes[2].is_ok(), "others were refused too: {outcomes:?}");
    is_refused(outcomes.remove(1), "UNKNOWN_TOPIC_OR_PARTITION").context("a record to an unknown topic")?;
    let records = vec![record(&topic, 0, None, "d"), record(&topic, 99, None, "e"), record(&topic, 1, None, "f")];
    let mut outcomes = self::outcomes(site, &producer, records).await?;
    ensure!(outcomes[0].is_ok() && outcomes[2].is_ok(), "others were refused too: {outcomes:?}");
    let refused = outcomes.remove(1).err().context("a record to an unknown partition was taken")?;
    ensure!(refused.kind == ErrorKind::Refused, "a record to an unknown partition: {refused:?}");
    let mut counts = site.transport().admin().partition_counts(vec![nowhere]).await;
    is_refused(counts.remove(0), "UNKNOWN_TOPIC_OR_PARTITION").context("the count of an unknown topic")?;
    site.settled(&topic, 2).await
}

pub async fn topic_exists_once<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("once", 2).await?;
    let admin = site.transport().admin();
    let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, replication: site.replication() };
    let wanted = vec![new(&topic, 3), new("no name", 1), new(&site.fresh("none"), 0)];
    let codes = ["TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_EXCEPTION", "INVALID_PARTITIONS"];
    for (outcome, code) in admin.create_topics(wanted).await.into_iter().zip(codes) {
        is_refused(outcome, code)?;
    }
    site.settled(&topic, 2).await.context("the topic that exists")
}

pub async fn watermarks_tell_what_is_kept<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("kept", 2).await?;
    fill_each(site, &topic, 1, 50).await?;
    let admin = site.transport().admin();
    let both = || vec![at(&topic, 1), at(&topic, 0)];
    let marks = |start, end| Watermarks { start, end };
    let found = all_watermarks(site, both()).await?;
    ensure!(found == [marks(0, 0), marks(0, 50)], "{found:?}");
    site.delete_records(at(&topic, 0), 30).await?;
    let found = all_watermarks(site, both()).await?;
    ensure!(found == [marks(0, 0), marks(30, 50)], "after a deletion below 30: {found:?}");
    is_refused(admin.watermarks(vec![at(&topic, 2)]).await, "UNKNOWN_TOPIC_OR_PARTITION")
}

pub async fn growth_seen_by_producer<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("growing", 3).await?;
    let producer = site.transport().producer(ProducerConfig { metadata_max_age: YOUNG, ..Default::default() }).await?;
    // `doc-1` lies in 2 of three and in 5 of six.
    let place = || send(site, &producer, vec![record(&topic, None, Some("doc-1"), "v")]);
    let before = place().await?[0].partition;
    ensure!(before == 2, "it lies in {before} of three");
    site.grow_topic(&topic, 6).await?;
    let (since, mut places) = (site.env().now(), Vec::new());
    while places.last() != Some(&5) {
        ensure!(site.env().now().since(since) < PATIENCE, "the growth was not noticed: {places:?}");
        places.push(place().await?[0].partition);
        ensure!(matches!(places.last(), Some(2 | 5)), "it lay in {places:?}");
        site.env().sleep(Duration::from_millis(100)).await;
    }
    for _ in 0..5 {
        let after = place().await?[0].partition;
        ensure!(after == 5, "it lay in 5, and then in {after}");
    }
    Ok(())
}

pub async fn growth_can_be_written_at_once<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("written", 1).await?;
    // Its metadata are as old as they may be: nothing but the record itself tells it of the growth.
    let producer = site.transport().producer(ProducerConfig::default()).await?;
    send(site, &producer, vec![record(&topic, 0, None, "before")]).await?;
    site.grow_topic(&topic, 3).await?;
    let records = (0..3).rev().map(|partition| record(&topic, partition, None, "after")).collect();
    let appended = send(site, &producer, records).await?;
    let places: Vec<(i32, i64)> = appended.iter().map(|one| (one.partition, one.offset)).collect();
    ensure!(places == [(2, 0), (1, 0), (0, 1)], "{places:?}");
    Ok(())
}

pub async fn growth_seen_by_consumer<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("grown", 1).await?;
    let config = GroupConfig { metadata_max_age: YOUNG, ..group(&site.fresh("g"), &topic) };
    let mut member = Member::join(site, config).await?;
    owning(site, &[1], &mut [&mut member]).await?;
    let old = member.epoch(&at(&topic, 0))?;
    site.grow_topic(&topic, 3).await?;
    // Before the member knows of them.
    fill_each(site, &topic, 3, 10).await?;
    owning(site, &[3], &mut [&mut member]).await?;
    ensure!(!member.revoked.is_empty() && member.epoch(&at(&topic, 0))? > old, "an eager member gives up all it has");
    for partition in 0..3 {
        let start = member.assignment(&at(&topic, partition))?.start;
        ensure!(partition == 0 || start == 0, "new partition {partition} starts at {start}");
    }
    let all = |members: &[&mut Member<S::Transport>]| (1..3).all(|new| members[0].of(&at(&topic, new)).count() == 10);
    until(site, "what was written before the growth was noticed is read", &mut [&mut member], all).await
}

pub async fn growth_keeps_what_is_retained<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("retained", 2).await?;
    let assignors = vec![Assignor::CooperativeSticky];
    let config = GroupConfig { metadata_max_age: YOUNG, assignors, ..group(&site.fresh("g"), &topic) };
    let mut member = Member::join(site, config).await?;
    owning(site, &[2], &mut [&mut member]).await?;
    let old = member.owned.clone();
    site.grow_topic(&topic, 4).await?;
    owning(site, &[4], &mut [&mut member]).await?;
    let kept = old.iter().all(|(partition, epoch)| member.owned.get(partition) == Some(epoch));
    ensure!(kept, "{old:?} became {:?}", member.owned);
    ensure!(member.revoked.is_empty() && member.lost.is_empty(), "something was revoked: {:?}", member.revoked);
    fill(site, (0..4).map(|partition| record(&topic, partition, None, "v")).collect()).await?;
    until(site, "all four are read", &mut [&mut member], |members| members[0].records.len() == 4).await?;
    // It was read under the old epochs, or the member would have said so.
    ensure!(log(site, &at(&topic, 3)).await?.len() == 1, "{:?}", watermarks(site, &at(&topic, 3)).await?);
    Ok(())
}
