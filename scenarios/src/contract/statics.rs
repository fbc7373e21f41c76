//! Rules of static members (`group.instance.id`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use seriatim_core::env::Env;
use seriatim_core::transport::{Assignor, ErrorKind, Group, GroupConfig};

use super::member::{Member, during, owning, sharing, until};
use super::puppet::{self, Report, Script};
use super::support::{SESSION, at, commit, committed, group};
use super::{PATIENCE, Puppet, Site};

fn named(id: &str, config: GroupConfig) -> GroupConfig {
    GroupConfig { instance_id: Some(id.into()), ..config }
}

pub async fn static_restart_moves_nothing<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("static", 4).await?, site.fresh("g"));
    let script = Script { instance_id: Some("puppet".into()), ..Script::new(&name, &topic) };
    let mut member = Member::join(site, named("member", group(&name, &topic))).await?;
    let mut first = site.puppet(script.clone()).await?;
    sharing(site, &mut member, &mut first, (2, 2)).await?;
    let (theirs, events) = (puppet::owned(&first.reports()), member.events());
    first.kill();
    during(site, Duration::from_secs(1), &mut [&mut member]).await?;
    let mut second = site.puppet(script).await?;
    sharing(site, &mut member, &mut second, (2, 2)).await?;
    ensure!(puppet::owned(&second.reports()) == theirs, "{theirs:?} became {:?}", second.reports());
    during(site, SESSION + Duration::from_secs(3), &mut [&mut member]).await?;
    ensure!(member.events() == events, "the other member noticed: revoked {:?}", member.revoked);
    ensure!(puppet::owned(&second.reports()) == theirs, "it did not last: {:?}", second.reports());
    Ok(())
}

pub async fn static_leave_is_silent<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("silent", 2).await?, site.fresh("g"));
    let mut leaver = Member::join(site, named("leaver", group(&name, &topic))).await?;
    let mut other = Member::join(site, named("other", group(&name, &topic))).await?;
    owning(site, &[1, 1], &mut [&mut leaver, &mut other]).await?;
    leaver.group.leave().await;
    let since = site.env().now();
    owning(site, &[2], &mut [&mut other]).await?;
    let took = site.env().now().since(since);
    ensure!(took > SESSION - Duration::from_secs(2), "it moved after {took:?} of a session of {SESSION:?}");
    Ok(())
}

pub async fn static_twin_fences_the_older<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("twin", 2).await?, site.fresh("g"));
    let mut old = Member::join(site, named("twin", group(&name, &topic))).await?;
    owning(site, &[2], &mut [&mut old]).await?;
    let mut new = Member::join(site, named("twin", group(&name, &topic))).await?;
    owning(site, &[2], &mut [&mut new]).await?;
    let refused = commit(&old.group, old.commit_of(&at(&topic, 0), 7)?).await.err().context("its commit was taken")?;
    ensure!(matches!(refused.kind, ErrorKind::Fenced | ErrorKind::Fatal), "{refused:?}");
    let since = site.env().now();
    let error = loop {
        match old.poll(1, Duration::from_millis(100)).await {
            Err(error) if error.kind != ErrorKind::Retriable => break error,
            _ => ensure!(site.env().now().since(since) < PATIENCE, "the older was not fenced"),
        }
    };
    ensure!(error.kind == ErrorKind::Fatal && error.code == "FENCED_INSTANCE_ID", "{error:?}");
    ensure!(committed(site, &name, &at(&topic, 0)).await?.is_none(), "its commit changed the offset");
    during(site, Duration::from_secs(1), &mut [&mut new]).await?;
    ensure!(new.owned.len() == 2, "the newer has {:?}", new.partitions());
    Ok(())
}

pub async fn static_death_between_generations<S: Site>(site: &S) -> Result<()> {
    let (topic, name) = (site.topic("between", 2).await?, site.fresh("g"));
    let cooperative = |config| GroupConfig { assignors: vec![Assignor::CooperativeSticky], ..config };
    let script = Script { instance_id: Some("puppet".into()), cooperative: true, ..Script::new(&name, &topic) };
    let mut first = site.puppet(Script { holds: true, ..script.clone() }).await?;
    let until_owned = site.env().now() + PATIENCE;
    while puppet::owned(&first.reports()).len() != 2 {
        ensure!(site.env().now() < until_owned, "the puppet reports {:?}", first.reports());
        site.env().sleep(Duration::from_millis(50)).await;
    }
    let mut member = Member::join(site, cooperative(named("member", group(&name, &topic)))).await?;
    let revoking = |report: &Report| matches!(report, Report::Revoking(_));
    let is_told = |_: &[&mut Member<S::Transport>]| first.reports().iter().any(revoking);
    until(site, "the puppet is told to give something up", &mut [&mut member], is_told).await?;
    ensure!(member.owned.is_empty(), "the member has {:?} before the release", member.partitions());
    first.kill();
    let mut second = site.puppet(script).await?;
    sharing(site, &mut member, &mut second, (0, 1)).await?;
    // No rebalance: nobody owns what was given up, long after the session.
    during(site, SESSION + Duration::from_secs(4), &mut [&mut member]).await?;
    let (own, theirs) = (member.partitions(), puppet::owned(&second.reports()));
    ensure!(own.is_empty() && theirs.len() == 1, "the member owns {own:?} by now, and the puppet {theirs:?}");
    let mut third = Member::join(site, cooperative(named("third", group(&name, &topic)))).await?;
    // The next rebalance gives it to somebody.
    until(site, "all is owned again", &mut [&mut member, &mut third], |members| {
        let others: usize = members.iter().map(|member| member.partitions().len()).sum();
        others + puppet::owned(&second.reports()).len() == 2
    })
    .await
}
