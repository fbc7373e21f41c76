//! Rules of reading: where it starts, what it skips, and that nothing else is missing.

use std::time::Duration;

use anyhow::{Result, ensure};
use seriatim_core::env::Env;
use seriatim_core::transport::{Assigned, Group, GroupConfig, OffsetReset, Polled, Transport};

use super::member::{Member, during, owning, until};
use super::support::{at, fill, fill_each, group, numbered, record};
use super::{PATIENCE, Site};

pub async fn offset_reset<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("reset", 1).await?;
    let place = at(&topic, 0);
    fill_each(site, &topic, 1, 10).await?;
    for (offset_reset, start) in [(OffsetReset::Earliest, 0), (OffsetReset::Latest, 10)] {
        let config = GroupConfig { offset_reset, ..group(&site.fresh("g"), &topic) };
        let mut member = Member::join(site, config).await?;
        owning(site, &[1], &mut [&mut member]).await?;
        let told = member.assignment(&place)?.clone();
        ensure!(told.committed.is_none() && told.start == start, "{offset_reset:?} starts at {start}, not as {told:?}");
        if offset_reset == OffsetReset::Latest {
            during(site, Duration::from_secs(2), &mut [&mut member]).await?;
            fill(site, numbered(&topic, 0, 10, 1)).await?;
        }
        until(site, "something is read", &mut [&mut member], |members| !members[0].records.is_empty()).await?;
        let first = member.records[0].position.offset;
        ensure!(first == start, "{offset_reset:?} reads {first} first, not {start}");
        member.group.leave().await;
    }
    Ok(())
}

pub async fn records_deleted_before<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("before", 1).await?, site.fresh("g"));
    let place = at(&topic, 0);
    fill_each(site, &topic, 1, 50).await?;
    // A member that has committed below what is kept, and one that has committed nothing.
    let mut early = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[1], &mut [&mut early]).await?;
    early.commit(&place, 5).await?;
    early.group.leave().await;
    site.delete_records(place.clone(), 30).await?;
    for name in [name, site.fresh("g")] {
        let mut member = Member::join(site, group(&name, &topic)).await?;
        until(site, "the rest is read", &mut [&mut member], |members| {
            members[0].records.last().is_some_and(|last| last.position.offset == 49)
        })
        .await?;
        let offsets: Vec<i64> = member.records.iter().map(|record| record.position.offset).collect();
        ensure!(offsets == (30..50).collect::<Vec<_>>(), "{offsets:?}");
        member.group.leave().await;
    }
    Ok(())
}

pub async fn records_deleted_under_a_reader<S: Site>(site: &S) -> Result<()> {
    // More than a client reads ahead: a fetch brings a mebibyte of a partition.
    const COUNT: usize = 3_000;
    const BYTES: usize = 2_000;
    let (topic, name) = (site.topic("under", 1).await?, site.fresh("g"));
    let place = at(&topic, 0);
    let config = GroupConfig { prefetch_records_max: 10, ..group(&name, &topic) };
    let mut member = Member::join(site, config).await?;
    owning(site, &[1], &mut [&mut member]).await?;
    fill_each(site, &topic, 1, 10).await?;
    until(site, "it reads", &mut [&mut member], |members| members[0].records.len() == 10).await?;
    member.group.pause(std::slice::from_ref(&place));
    during(site, Duration::from_secs(1), &mut [&mut member]).await?;
    let big = (0..COUNT).map(|_| record(&topic, 0, None, &"x".repeat(BYTES))).collect();
    fill(site, big).await?;
    let (kept, end) = (COUNT as i64, (10 + COUNT) as i64);
    site.delete_records(place.clone(), kept).await?;
    member.group.resume(std::slice::from_ref(&place));
    until(site, "it reads to the end", &mut [&mut member], |members| {
        members[0].records.last().is_some_and(|last| last.position.offset + 1 == end)
    })
    .await?;
    let offsets: Vec<i64> = member.records.iter().map(|record| record.position.offset).collect();
    let rest: Vec<i64> = offsets.iter().copied().filter(|offset| *offset >= kept).collect();
    ensure!(rest == (kept..end).collect::<Vec<_>>(), "what is kept was read as {rest:?}");
    ensure!(offsets.len() < COUNT, "nothing was deleted under it: it read all {} records", offsets.len());
    ensure!(member.lost.is_empty() && member.revoked.is_empty(), "it lost its partition");
    Ok(())
}

pub async fn pause_and_resume<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("pause", 2).await?, site.fresh("g"));
    let (still, going) = (at(&topic, 0), at(&topic, 1));
    let mut member = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[2], &mut [&mut member]).await?;
    fill_each(site, &topic, 2, 500).await?;
    // In the middle of a batch: some were handed over, and more are fetched already.
    until(site, "it reads", &mut [&mut member], |members| members[0].of(&still).count() > 0).await?;
    // What is not assigned is passed over.
    member.group.pause(&[still.clone(), at(&topic, 7)]);
    let before = member.of(&still).count();
    until(site, "the other is read", &mut [&mut member], |members| members[0].of(&going).count() == 500).await?;
    fill(site, numbered(&topic, 0, 500, 10).into_iter().chain(numbered(&topic, 1, 500, 10)).collect()).await?;
    until(site, "the other is read on", &mut [&mut member], |members| members[0].of(&going).count() == 510).await?;
    during(site, Duration::from_secs(2), &mut [&mut member]).await?;
    let during = member.of(&still).count();
    ensure!(during == before, "{} records came of a partition that was paused", during - before);
    member.group.resume(&[still.clone(), at(&topic, 7)]);
    until(site, "the paused is read", &mut [&mut member], |members| members[0].of(&still).count() >= 510).await?;
    for partition in [&still, &going] {
        let offsets: Vec<i64> = member.of(partition).map(|record| record.position.offset).collect();
        ensure!(offsets == (0..510).collect::<Vec<_>>(), "{partition} was read as {offsets:?}");
    }
    Ok(())
}

pub async fn poll_keeps_its_bounds<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("bounds", 2).await?, site.fresh("g"));
    let mut member = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[2], &mut [&mut member]).await?;
    let (wait, slack) = (Duration::from_secs(2), Duration::from_millis(50));
    for _ in 0..2 {
        let since = site.env().now();
        let polled = member.poll(10, wait).await?;
        let took = site.env().now().since(since);
        ensure!(polled == Polled::Records(Vec::new()), "{polled:?}");
        // A poll may be a little early and, on a busy machine, late.
        ensure!(took + slack >= wait && took < 3 * wait, "a poll for {wait:?} took {took:?}");
    }
    fill_each(site, &topic, 2, 50).await?;
    let until = site.env().now() + PATIENCE;
    while member.records.len() < 100 {
        ensure!(site.env().now() < until, "only {} records came", member.records.len());
        let polled = member.poll(7, Duration::from_millis(100)).await?;
        if let Polled::Records(records) = &polled {
            ensure!(records.len() <= 7, "{} records came where 7 were asked for", records.len());
        }
        member.take(polled).await?;
    }
    Ok(())
}

pub async fn cancelled_polls_lose_nothing<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("cancelled", 1).await?, site.fresh("g"));
    let mut member = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[1], &mut [&mut member]).await?;
    let until = site.env().now() + PATIENCE;
    let mut cancelled = 0;
    for call in 0..20 {
        fill(site, numbered(&topic, 0, call * 10, 10)).await?;
        for millis in 0..10 {
            let short = Duration::from_millis(millis);
            match site.env().timeout(short, member.poll(3, Duration::from_secs(1))).await {
                Some(polled) => member.take(polled?).await?,
                None => cancelled += 1,
            }
        }
    }
    ensure!(cancelled > 0, "no poll was cancelled");
    while member.records.len() < 200 {
        ensure!(site.env().now() < until, "{} of 200 records came", member.records.len());
        member.step().await?;
    }
    let offsets: Vec<i64> = member.records.iter().map(|record| record.position.offset).collect();
    ensure!(offsets == (0..200).collect::<Vec<_>>(), "{offsets:?}");
    Ok(())
}

pub async fn assigned_positions<S: Site>(site: &S) -> Result<()> {
    let topic = site.topic("assigned", 2).await?;
    fill_each(site, &topic, 2, 20).await?;
    let from = vec![(at(&topic, 1), 4), (at(&topic, 0), 15)];
    let mut reader = site.transport().assign("contract".into(), from.clone()).await?;
    ensure!(reader.positions() == from, "it begins at {:?}", reader.positions());
    let mut seen: Vec<(i32, i64)> = Vec::new();
    let until = site.env().now() + PATIENCE;
    for total in [21, 25] {
        while seen.len() < total {
            ensure!(site.env().now() < until, "{} of {total} records came", seen.len());
            let records = reader.poll(5, Duration::from_millis(100)).await?;
            ensure!(records.len() <= 5, "{} records came where 5 were asked for", records.len());
            for record in records {
                ensure!(record.position.epoch.0 == 0, "{:?}", record.position);
                seen.push((record.position.partition.partition, record.position.offset));
            }
            let next =
                |number: i32, first: i64| seen.iter().rev().find(|one| one.0 == number).map_or(first, |one| one.1 + 1);
            let positions = reader.positions();
            let expected = vec![(at(&topic, 1), next(1, 4)), (at(&topic, 0), next(0, 15))];
            ensure!(positions == expected, "{positions:?} where {expected:?} is next");
        }
        if total == 21 {
            fill(site, numbered(&topic, 0, 20, 4)).await?;
        }
    }
    for (number, offsets) in [(0, 15..24), (1, 4..20)] {
        let found: Vec<i64> = seen.iter().filter(|one| one.0 == number).map(|one| one.1).collect();
        ensure!(found == offsets.collect::<Vec<_>>(), "partition {number} was read as {found:?}");
    }
    Ok(())
}
