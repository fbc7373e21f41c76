//! Rules of members that die, freeze, or do not poll.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use seriatim_core::env::Env;
use seriatim_core::transport::{Commit, ErrorKind, Group, GroupConfig, Polled};

use super::member::{Member, during, owning, sharing, until};
use super::puppet::{self, Order, Report, Script};
use super::support::{SESSION, at, commit, committed_offset, fill_each, group};
use super::{Puppet, Site};

/// Twice the session and a while: by then a member that is silent is gone for sure.
const SURELY_GONE: Duration = Duration::from_secs(20);

/// Waits until `puppet` has reported such a thing.
async fn reported<S: Site>(
    site: &S,
    puppet: &mut S::Puppet,
    member: &mut Member<S::Transport>,
    what: &str,
    mut is_it: impl FnMut(&Report) -> bool,
) -> Result<()> {
    until(site, what, &mut [member], |_| puppet.reports().iter().any(&mut is_it)).await
}

pub async fn dead_member_keeps_its_session<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("dead", 2).await?, site.fresh("g"));
    fill_each(site, &topic, 2, 10).await?;
    let mut member = Member::join(site, group(&name, &topic)).await?;
    let mut dead = site.puppet(Script::new(&name, &topic)).await?;
    sharing(site, &mut member, &mut dead, (1, 1)).await?;
    let theirs = puppet::owned(&dead.reports())[0];
    dead.order(Order::Commit { partition: theirs, offset: 7 });
    let taken = |report: &Report| *report == Report::Committed(theirs, None);
    reported(site, &mut dead, &mut member, "the puppet commits", taken).await?;
    dead.kill();
    let since = site.env().now();
    owning(site, &[2], &mut [&mut member]).await?;
    let took = site.env().now().since(since);
    // The session begins anew with each heartbeat, and these come every second.
    ensure!(took > SESSION - Duration::from_secs(2), "its partition moved after {took:?} of a session of {SESSION:?}");
    ensure!(took < SURELY_GONE, "its partition moved only after {took:?} of a session of {SESSION:?}");
    let start = member.assignment(&at(&topic, theirs))?.start;
    ensure!(start == 7, "it had committed 7, and its next owner starts at {start}");
    Ok(())
}

pub async fn frozen_member_is_fenced<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("frozen", 2).await?, site.fresh("g"));
    fill_each(site, &topic, 2, 10).await?;
    let mut member = Member::join(site, group(&name, &topic)).await?;
    let mut frozen = site.puppet(Script::new(&name, &topic)).await?;
    sharing(site, &mut member, &mut frozen, (1, 1)).await?;
    let theirs = puppet::owned(&frozen.reports())[0];
    frozen.freeze();
    owning(site, &[2], &mut [&mut member]).await?;
    member.commit(&at(&topic, theirs), 9).await?;
    frozen.order(Order::Commit { partition: theirs, offset: 3 });
    frozen.thaw();
    let told = |report: &Report| *report == Report::Lost(vec![theirs]);
    reported(site, &mut frozen, &mut member, "the puppet is told of its loss", told).await?;
    let refused = |report: &Report| matches!(report, Report::Committed(_, Some(_)));
    reported(site, &mut frozen, &mut member, "its commit is refused", refused).await?;
    let found = committed_offset(site, &name, &at(&topic, theirs)).await?;
    ensure!(found == Some(9), "the frozen member's commit changed the offset to {found:?}");
    sharing(site, &mut member, &mut frozen, (1, 1)).await
}

pub async fn poll_limit_evicts<S: Site>(site: &S) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(8);
    let (topic, name) = (site.topic("limit", 2).await?, site.fresh("g"));
    fill_each(site, &topic, 2, 10).await?;
    let config = || GroupConfig { poll_limit: LIMIT, ..group(&name, &topic) };
    let mut lazy = Member::join(site, config()).await?;
    let mut other = Member::join(site, config()).await?;
    owning(site, &[1, 1], &mut [&mut lazy, &mut other]).await?;
    let (partition, epoch) = lazy.owned.first_key_value().map(|(one, epoch)| (one.clone(), *epoch)).context("one")?;
    let since = site.env().now();
    owning(site, &[2], &mut [&mut other]).await?;
    let took = site.env().now().since(since);
    ensure!(took > LIMIT - Duration::from_secs(1), "it was evicted after {took:?} of a limit of {LIMIT:?}");
    ensure!(took < SURELY_GONE, "it was evicted only after {took:?} of a limit of {LIMIT:?}");
    other.commit(&partition, 9).await?;
    let late = Commit { partition: partition.clone(), epoch, offset: 3, metadata: String::new() };
    let refused = commit(&lazy.group, late).await.err().context("its commit was taken")?;
    ensure!(refused.kind == ErrorKind::Fenced, "{refused:?}");
    until(site, "it is told", &mut [&mut lazy, &mut other], |members| !members[0].lost.is_empty()).await?;
    ensure!(lazy.lost[0] == [(partition.clone(), epoch)], "it lost {:?}", lazy.lost);
    owning(site, &[1, 1], &mut [&mut lazy, &mut other]).await?;
    let found = committed_offset(site, &name, &partition).await?;
    ensure!(found == Some(9), "the evicted member's commit changed the offset to {found:?}");
    Ok(())
}

pub async fn drain_past_the_limit<S: Site>(site: &S) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(8);
    let (topic, name) = (site.topic("late", 2).await?, site.fresh("g"));
    fill_each(site, &topic, 2, 10).await?;
    let config = || GroupConfig { poll_limit: LIMIT, ..group(&name, &topic) };
    let mut slow = Member::join(site, config()).await?;
    owning(site, &[2], &mut [&mut slow]).await?;
    slow.releases = false;
    let mut other = Member::join(site, config()).await?;
    until(site, "all is revoked", &mut [&mut slow, &mut other], |members| !members[0].held.is_empty()).await?;
    let held = slow.held[0].partitions.clone();
    // The slow member polls all along, and says nothing of its release.
    let both = |members: &[&mut Member<S::Transport>]| members[1].owned.len() == 2;
    until(site, "the other has both", &mut [&mut slow, &mut other], both).await?;
    for (partition, epoch) in &held {
        other.commit(partition, 9).await?;
        let late = Commit { partition: partition.clone(), epoch: *epoch, offset: 3, metadata: String::new() };
        let refused = commit(&slow.group, late).await.err().context("a commit after the limit was taken")?;
        ensure!(refused.kind == ErrorKind::Fenced, "{refused:?}");
    }
    during(site, Duration::from_secs(1), &mut [&mut slow, &mut other]).await?;
    slow.releases = true;
    slow.release().await?;
    owning(site, &[1, 1], &mut [&mut slow, &mut other]).await?;
    for (partition, _) in &held {
        let found = committed_offset(site, &name, partition).await?;
        ensure!(found == Some(9), "a commit after the limit changed the offset to {found:?}");
    }
    // The loss, where it was told, was told of what was owned; a member checks that by itself.
    ensure!(matches!(slow.poll(0, Duration::ZERO).await, Ok(Polled::Records(_))), "something is left to be told");
    slow.group.leave().await;
    Ok(())
}
