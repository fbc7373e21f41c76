//! Rules of commits: what comes back, and what one that should not be does.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use seriatim_core::identity::Epoch;
use seriatim_core::transport::{Commit, Committed, ErrorKind, Group, TransportError};

use super::Site;
use super::member::{Member, owning, until};
use super::support::{at, commit, committed, committed_offset, fill_each, group};

/// A topic of `partitions` with 50 records each, and a member that owns all of it.
async fn owner<S: Site>(site: &S, partitions: u32) -> Result<(Arc<str>, String, Member<S::Transport>)> {
    let (topic, name) = (site.topic("commits", partitions).await?, site.fresh("g"));
    fill_each(site, &topic, partitions.cast_signed(), 50).await?;
    let mut member = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[partitions as usize], &mut [&mut member]).await?;
    Ok((topic, name, member))
}

fn is_fenced(outcome: Result<(), TransportError>) -> Result<()> {
    let error = outcome.err().context("it was taken")?;
    ensure!(error.kind == ErrorKind::Fenced, "it was not fenced: {error:?}");
    Ok(())
}

pub async fn commit_with_metadata<S: Site>(site: &S) -> Result<()> {
    const METADATA_MAX: usize = 4_096;
    let (topic, name, member) = owner(site, 1).await?;
    let place = at(&topic, 0);
    ensure!(committed(site, &name, &place).await?.is_none(), "something is committed before the first commit");
    let start = member.assignment(&place)?;
    ensure!(start.committed.is_none() && start.start == 0, "{start:?}");
    let (longest, too_long) = ("x".repeat(METADATA_MAX), "x".repeat(METADATA_MAX + 1));
    for (offset, metadata) in [(40, "words ✓"), (41, ""), (42, longest.as_str())] {
        let one = Commit { metadata: metadata.into(), ..member.commit_of(&place, offset)? };
        commit(&member.group, one).await?;
        let found = committed(site, &name, &place).await?;
        ensure!(found == Some(Committed { offset, metadata: metadata.into() }), "{offset} became {found:?}");
    }
    let one = Commit { metadata: too_long, ..member.commit_of(&place, 43)? };
    let refused = commit(&member.group, one).await.err().context("4,097 bytes of metadata were taken")?;
    ensure!(refused.kind == ErrorKind::Refused, "{refused:?}");
    ensure!(committed_offset(site, &name, &place).await? == Some(42), "a refused commit changed the offset");
    member.group.leave().await;
    let mut next = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[1], &mut [&mut next]).await?;
    let start = next.assignment(&place)?.clone();
    ensure!(start.committed == Some(Committed { offset: 42, metadata: longest }) && start.start == 42, "{start:?}");
    until(site, "the rest is read", &mut [&mut next], |members| members[0].records.len() == 8).await?;
    ensure!(next.records[0].position.offset == 42, "{:?}", next.records[0].position);
    Ok(())
}

pub async fn commit_backwards_is_taken<S: Site>(site: &S) -> Result<()> {
    let (topic, name, member) = owner(site, 1).await?;
    for offset in [40, 7] {
        member.commit(&at(&topic, 0), offset).await?;
        let found = committed_offset(site, &name, &at(&topic, 0)).await?;
        ensure!(found == Some(offset), "{offset} was committed, and {found:?} is");
    }
    Ok(())
}

pub async fn commit_past_the_end_is_taken<S: Site>(site: &S) -> Result<()> {
    let (topic, name, member) = owner(site, 1).await?;
    member.commit(&at(&topic, 0), 1_000_050).await?;
    let found = committed_offset(site, &name, &at(&topic, 0)).await?;
    ensure!(found == Some(1_000_050), "{found:?}");
    Ok(())
}

pub async fn foreign_commit_is_fenced<S: Site>(site: &S) -> Result<()> {
    let (topic, name, mut member) = owner(site, 2).await?;
    let mut other = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[1, 1], &mut [&mut member, &mut other]).await?;
    let own = member.owned.keys().next().context("it owns one")?.clone();
    let foreign = at(&topic, 1 - own.partition);
    let epoch = other.epoch(&foreign)?;
    let made_up = |epoch| Commit { partition: foreign.clone(), epoch, offset: 7, metadata: String::new() };
    // Under the owner's epoch, under one of its own for another partition, and under none that ever was.
    let epochs = [epoch, member.epoch(&own)?, Epoch(u64::MAX)];
    let mut commits: Vec<Commit> = epochs.map(made_up).to_vec();
    commits.push(member.commit_of(&own, 9)?);
    let mut outcomes = member.group.commit(commits).await;
    ensure!(outcomes.pop() == Some(Ok(())), "the commit of what is owned was not taken");
    for outcome in outcomes {
        is_fenced(outcome)?;
    }
    ensure!(committed(site, &name, &foreign).await?.is_none(), "the foreign commit reached the cluster");
    ensure!(committed_offset(site, &name, &own).await? == Some(9), "the own commit did not");
    Ok(())
}

pub async fn late_commit_is_fenced<S: Site>(site: &S) -> Result<()> {
    let (topic, name, mut member) = owner(site, 2).await?;
    let old: Vec<Commit> = (0..2).map(|one| member.commit_of(&at(&topic, one), 5)).collect::<Result<_>>()?;
    for one in &old {
        commit(&member.group, one.clone()).await?;
    }
    let late = |one: &Commit| Commit { offset: 3, ..one.clone() };
    let mut other = Member::join(site, group(&name, &topic)).await?;
    owning(site, &[1, 1], &mut [&mut member, &mut other]).await?;
    for one in &old {
        is_fenced(commit(&member.group, late(one)).await).context("shared with another")?;
    }
    other.group.leave().await;
    owning(site, &[2], &mut [&mut member]).await?;
    for one in &old {
        is_fenced(commit(&member.group, late(one)).await).context("back again")?;
        let found = committed_offset(site, &name, &one.partition).await?;
        ensure!(found == Some(5), "a fenced commit changed the offset to {found:?}");
        member.commit(&one.partition, 6).await.context("under the new epoch")?;
    }
    Ok(())
}

pub async fn commits_while_draining<S: Site>(site: &S) -> Result<()> {
    let (topic, name, mut member) = owner(site, 2).await?;
    member.releases = false;
    let mut other = Member::join(site, group(&name, &topic)).await?;
    let revoked = |members: &[&mut Member<S::Transport>]| !members[0].held.is_empty();
    until(site, "all is revoked", &mut [&mut member, &mut other], revoked).await?;
    for (offset, partition) in [(11, 0), (12, 1), (13, 0)] {
        member.commit(&at(&topic, partition), offset).await.context("before the release")?;
    }
    member.releases = true;
    member.release().await?;
    owning(site, &[1, 1], &mut [&mut member, &mut other]).await?;
    for (partition, offset) in [(0, 13), (1, 12)] {
        let owner = if member.owned.contains_key(&at(&topic, partition)) { &member } else { &other };
        let start = owner.assignment(&at(&topic, partition))?;
        ensure!(start.start == offset, "{offset} was committed in the drain, and its next owner has {start:?}");
    }
    Ok(())
}
