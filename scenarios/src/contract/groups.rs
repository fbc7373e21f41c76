//! Rules of assignment and release.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use seriatim_core::env::Env;
use seriatim_core::identity::Epoch;
use seriatim_core::transport::{Assignor, Commit, ErrorKind, Group, GroupConfig, RebalanceId};

use super::Site;
use super::member::{Member, during, owning, until};
use super::support::{SESSION, at, commit, committed, fill_each, group};

fn cooperative(config: GroupConfig) -> GroupConfig {
    GroupConfig { assignors: vec![Assignor::CooperativeSticky], ..config }
}

pub async fn every_partition_has_one_owner<S: Site>(site: &S) -> Result<()> {
    for assignors in [vec![Assignor::Range], vec![Assignor::RoundRobin], vec![Assignor::CooperativeSticky]] {
        let (topic, name) = (site.topic("shared", 7).await?, site.fresh("g"));
        let config = || GroupConfig { assignors: assignors.clone(), ..group(&name, &topic) };
        let mut one = Member::join(site, config()).await?;
        let mut two = Member::join(site, config()).await?;
        let mut three = Member::join(site, config()).await?;
        let balanced = |members: &[&mut Member<S::Transport>]| {
            let mut all: Vec<i32> = members.iter().flat_map(|member| member.partitions()).collect();
            all.sort_unstable();
            let mut sizes: Vec<usize> = members.iter().map(|member| member.owned.len()).collect();
            sizes.sort_unstable();
            all == (0..7).collect::<Vec<_>>() && sizes == [2, 2, 3]
        };
        let mut members = [&mut one, &mut two, &mut three];
        until(site, &format!("all is shared by {assignors:?}"), &mut members, balanced).await?;
        // It stays so.
        during(site, Duration::from_secs(2), &mut members).await?;
        ensure!(balanced(&members), "what was shared by {assignors:?} is shared no more");
    }
    Ok(())
}

pub async fn drain_before_handover<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("drain", 2).await?, site.fresh("g"));
    let mut old = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[2], &mut [&mut old]).await?;
    old.releases = false;
    let mut new = Member::join(site, group(&name, &topic)).await?;
    until(site, "all is revoked", &mut [&mut old, &mut new], |members| !members[0].held.is_empty()).await?;
    let held = old.held[0].clone();
    let mut named: Vec<i32> = held.partitions.iter().map(|(partition, _)| partition.partition).collect();
    named.sort_unstable();
    ensure!(named == [0, 1], "an eager member gives up all, not {named:?}");
    let left = held.deadline.context("a revocation has a deadline")?.since(site.env().now());
    let limit = group(&name, &topic).poll_limit;
    ensure!(left < limit && left > limit / 2, "{left:?} are left of a poll limit of {limit:?}");
    fill_each(site, &topic, 2, 20).await?;
    old.group.resume(&[at(&topic, 0), at(&topic, 1)]);
    // A member checks by itself that nothing is delivered meanwhile.
    during(site, SESSION + Duration::from_secs(3), &mut [&mut old, &mut new]).await?;
    ensure!(old.held.len() == 1 && old.lost.is_empty(), "the drain was cut short: {:?}", old.held);
    ensure!(new.owned.is_empty(), "the other has {:?} before the release", new.partitions());
    old.releases = true;
    old.release().await?;
    owning(site, &[1, 1], &mut [&mut old, &mut new]).await?;
    let all =
        |members: &[&mut Member<S::Transport>]| members.iter().map(|member| member.records.len()).sum::<usize>() == 40;
    until(site, "all is read after the release", &mut [&mut old, &mut new], all).await
}

pub async fn cooperative_keeps_epochs<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("keeps", 4).await?, site.fresh("g"));
    let mut old = Member::join(site, cooperative(group(&name, &topic))).await?;
    owning(site, &[4], &mut [&mut old]).await?;
    let before = old.owned.clone();
    old.releases = false;
    let mut new = Member::join(site, cooperative(group(&name, &topic))).await?;
    until(site, "something is revoked", &mut [&mut old, &mut new], |members| !members[0].held.is_empty()).await?;
    let going = old.held[0].partitions.clone();
    ensure!(going.len() == 2, "two of four move, not {going:?}");
    fill_each(site, &topic, 4, 10).await?;
    // A member checks by itself that nothing is delivered meanwhile, of what stays neither.
    during(site, Duration::from_secs(3), &mut [&mut old, &mut new]).await?;
    ensure!(new.owned.is_empty(), "the other has {:?} before the release", new.partitions());
    for partition in 0..4 {
        old.commit(&at(&topic, partition), 3).await.with_context(|| format!("{partition} before the release"))?;
    }
    let named = old.assigned.len();
    old.releases = true;
    old.release().await?;
    let kept = old.owned.clone();
    for partition in kept.keys() {
        old.commit(partition, 4).await.with_context(|| format!("{partition} stays, right after the release"))?;
    }
    owning(site, &[2, 2], &mut [&mut old, &mut new]).await?;
    ensure!(kept.iter().all(|one| before.get(one.0) == Some(one.1)), "{before:?} became {kept:?}");
    ensure!(old.owned == kept, "{kept:?} became {:?}", old.owned);
    ensure!(old.assigned.len() == named, "what stays was named again: {:?}", old.assigned.last());
    for (partition, epoch) in &going {
        let late = Commit { partition: partition.clone(), epoch: *epoch, offset: 9, metadata: String::new() };
        let refused = commit(&old.group, late).await.err().context("a commit of what moved was taken")?;
        ensure!(refused.kind == ErrorKind::Fenced, "{refused:?}");
        let start = new.assignment(partition)?.start;
        ensure!(start == 3, "{partition} starts at {start}, and 3 was committed in the drain");
    }
    let read = |members: &[&mut Member<S::Transport>]| members[0].records.len() == 20 && members[1].records.len() == 14;
    until(site, "what stays is read on, what moved from its commit", &mut [&mut old, &mut new], read).await
}

pub async fn epochs_rise<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("epochs", 4).await?, site.fresh("g"));
    let mut one = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[4], &mut [&mut one]).await?;
    let before = one.owned.clone();
    let mut two = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[2, 2], &mut [&mut one, &mut two]).await?;
    // A member checks by itself that its epochs rise.
    let highest = before.values().max().copied().unwrap_or(Epoch(0));
    ensure!(one.owned.values().all(|epoch| *epoch > highest), "{before:?} became {:?}", one.owned);
    let mut all: Vec<Epoch> = one.assigned.iter().chain(&two.assigned).map(|one| one.epoch).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    ensure!(all.len() == count, "ownerships share epochs: {:?} and {:?}", one.assigned, two.assigned);
    Ok(())
}

pub async fn release_once<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("release", 2).await?, site.fresh("g"));
    let mut old = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[2], &mut [&mut old]).await?;
    let never = RebalanceId(u64::MAX);
    ensure!(old.group.release(never).await.is_err(), "an event that was never raised was released");
    old.releases = false;
    let mut new = Member::join(site, group(&name, &topic)).await?;
    until(site, "all is revoked", &mut [&mut old, &mut new], |members| !members[0].held.is_empty()).await?;
    let event = old.held[0].event;
    old.releases = true;
    old.release().await?;
    let again = old.group.release(event).await.err().context("an event was released twice")?;
    ensure!(again.kind == ErrorKind::Refused, "{again:?}");
    owning(site, &[1, 1], &mut [&mut old, &mut new]).await
}

pub async fn leave_hands_over_at_once<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("leave", 2).await?, site.fresh("g"));
    fill_each(site, &topic, 2, 10).await?;
    let config = || GroupConfig { session_timeout: Duration::from_secs(25), ..group(&name, &topic) };
    let mut leaver = Member::join(site, config()).await?;
    let mut other = Member::join(site, config()).await?;
    owning(site, &[1, 1], &mut [&mut leaver, &mut other]).await?;
    let gone = leaver.owned.keys().next().context("it owns one")?.clone();
    leaver.group.leave().await;
    let since = site.env().now();
    owning(site, &[2], &mut [&mut other]).await?;
    let took = site.env().now().since(since);
    ensure!(took < Duration::from_secs(15), "it took {took:?}, as if the member had died");
    let error = leaver.poll(1, Duration::from_secs(1)).await.err().context("a member that left polls on")?;
    ensure!(error.kind == ErrorKind::Fatal && error.code == "CONSUMER_CLOSED", "{error:?}");
    ensure!(committed(site, &name, &gone).await?.is_none(), "leaving committed something");
    Ok(())
}
