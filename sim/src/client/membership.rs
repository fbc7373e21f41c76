//! The background half of a group member: joins, heartbeats, and notices what was lost.
//!
//! The classic protocol. An eager member gives up everything it owns before each join, and the application must have
//! released every event first. A cooperative member joins with what it owns, learns from the assignment what goes,
//! has that released, and joins again. Heartbeats go on during a drain, so that a drain may last longer than the
//! session; none are sent while a join is parked, as librdkafka does it. So a cooperative member whose join was lost
//! on the way believes in its partitions until a commit is refused or the join is given up.

mod joining;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::ErrorKind;

use super::group::{Member, State};
use super::{broker_error, error_kind};
use crate::cluster::protocol::{BrokerId, ErrorCode, Request, Response};

/// Part of the poll limit that is kept for the last commit of a drain, at most.
const COMMIT_RESERVE_MAX: Duration = Duration::from_secs(1);

/// The present turn of the membership is over: begin a new one.
struct Again;

/// What the membership waits for, beside its work.
struct Clock {
    next_heartbeat: Instant,
    /// The last answer of the coordinator that this member lives.
    last_alive: Instant,
    next_refresh: Instant,
    max_age: Duration,
    /// Partition counts of the subscribed topics, as last compared. As with librdkafka, what a leader learns for its
    /// assignment does not count: its own refresh finds the growth once more, and rebalances once more.
    counts: BTreeMap<Arc<str>, u32>,
}

/// Which part of a turn is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A join is parked, or a sync: no heartbeats.
    Joining,
    /// An assignment is taken over, or a revocation is drained.
    Changing,
    /// Nothing to do but to read.
    Steady,
}

/// Until the member is closed or fails for good.
pub(super) async fn run(member: Arc<Member>) {
    let now = member.client.host.now();
    let max_age = member.config.metadata_max_age.unwrap_or(member.client.host.shared.config.metadata_max_age);
    let max_age = max_age.max(Duration::from_millis(1));
    let mut clock =
        Clock { next_heartbeat: now, last_alive: now, next_refresh: now + max_age, max_age, counts: BTreeMap::new() };
    while may_join(&member).await {
        // Whichever way a turn ends, the next one begins where the state says.
        let _ = turn(&member, &mut clock).await;
    }
}

/// Waits until everything is released and somebody polls. False when the member is closed or failed.
async fn may_join(member: &Member) -> bool {
    loop {
        {
            let state = member.lock();
            if state.closed || state.fatal.is_some() {
                return false;
            }
            if state.unreleased.is_empty() && !state.exceeded {
                return true;
            }
        }
        member.for_membership.notified().await;
    }
}

fn is_closed(member: &Member) -> bool {
    let state = member.lock();
    state.closed || state.fatal.is_some()
}

/// Ends the member for good: what it owned is gone, and polls say why.
pub(super) fn fail(member: &Member, code: ErrorCode) {
    let mut state = member.lock();
    state.lose();
    state.fatal = Some(broker_error(code, format!("being a member of group `{}`", member.group)));
    drop(state);
    member.for_poller.notify_one();
    member.for_membership.notify_one();
}

/// What is owned is gone, by what the coordinator said or must have done.
fn lose(member: &Member, forget_id: bool) {
    let mut state = member.lock();
    if forget_id {
        state.member_id = "".into();
    }
    state.lose();
    drop(state);
    member.for_poller.notify_one();
}

/// From one join to the moment when the member has to join again.
async fn turn(member: &Member, clock: &mut Clock) -> Result<(), Again> {
    {
        let mut state = member.lock();
        state.rebalancing = false;
        state.rejoining = !state.owned.is_empty();
    }
    let joined = attend(member, clock, Stage::Joining, joining::join(member)).await;
    member.lock().rejoining = false;
    let assignment = joined??;
    let now = member.client.host.now();
    (clock.last_alive, clock.next_heartbeat) = (now, now + member.config.heartbeat_interval);
    if clock.counts.is_empty() {
        clock.counts = joining::counts(member, &member.config.topics);
    }

    let revoked = revoke(member, |partition| !assignment.contains(partition));
    if revoked {
        attend(member, clock, Stage::Changing, until(member, |state| state.unreleased.is_empty())).await?;
    }
    let added = {
        let state = member.lock();
        assignment.into_iter().filter(|partition| !state.owned.contains_key(partition)).collect()
    };
    attend(member, clock, Stage::Changing, joining::install(member, added)).await??;
    if revoked {
        // What was given up may go to its next owner now: only another generation says so.
        return Ok(());
    }
    attend(member, clock, Stage::Steady, until(member, |state| state.rebalancing)).await?;
    if !member.is_cooperative && revoke(member, |_| true) {
        attend(member, clock, Stage::Changing, until(member, |state| state.unreleased.is_empty())).await?;
    }
    Ok(())
}

/// Announces that what `goes` will go. False when none of it is owned.
fn revoke(member: &Member, goes: impl Fn(&TopicPartition) -> bool) -> bool {
    let config = &member.config;
    let reserve = COMMIT_RESERVE_MAX.min(config.poll_limit / 10);
    let drain = config.poll_limit.saturating_sub(config.heartbeat_interval).saturating_sub(reserve);
    let revoked = member.lock().revoke(member.client.host.now() + drain, goes);
    if revoked {
        member.for_poller.notify_one();
    }
    revoked
}

/// Resolves when the state is such. Looked at whenever the membership is woken, which whoever changes it does.
async fn until(member: &Member, is_such: impl Fn(&State) -> bool) {
    std::future::poll_fn(|_| if is_such(&member.lock()) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Does `work`, and beside it all that keeps a member a member. Ends early when it is one no more.
async fn attend<T>(
    member: &Member,
    clock: &mut Clock,
    stage: Stage,
    work: impl Future<Output = T>,
) -> Result<T, Again> {
    let mut work = pin!(work);
    loop {
        let wake = next_wake(member, clock, stage)?;
        let sleep = pin!(member.client.host.shared.executor.sleep_until(wake));
        let woken = pin!(member.for_membership.notified());
        if let Either::Left((output, _)) = select(work.as_mut(), select(woken, sleep)).await {
            return Ok(output);
        }
        let now = member.client.host.now();
        if poll_limit_exceeded(member, now, stage).await {
            return Err(Again);
        }
        if stage != Stage::Joining && now >= clock.next_heartbeat && !is_closed(member) {
            heartbeat(member, clock).await?;
        }
        if stage == Stage::Steady && now >= clock.next_refresh && !member.lock().rebalancing {
            clock.next_refresh = now + clock.max_age;
            if grew(member, &mut clock.counts).await {
                member.lock().rebalancing = true;
            }
        }
    }
}

/// When there is something to do at the latest. An error when the membership is over.
fn next_wake(member: &Member, clock: &Clock, stage: Stage) -> Result<Instant, Again> {
    let mut state = member.lock();
    if state.closed || state.fatal.is_some() {
        return Err(Again);
    }
    if state.lost_by_commit {
        state.lose();
        drop(state);
        member.for_poller.notify_one();
        return Err(Again);
    }
    let far = member.client.host.now() + Duration::from_secs(3_600);
    let limited = !state.polling && (stage != Stage::Joining || !state.owned.is_empty());
    let limit = limited.then(|| state.last_poll + member.config.poll_limit);
    let heartbeat = (stage != Stage::Joining).then_some(clock.next_heartbeat);
    let refresh = (stage == Stage::Steady).then_some(clock.next_refresh);
    Ok([limit, heartbeat, refresh].into_iter().flatten().fold(far, Instant::min))
}

/// Leaves when nobody polled for too long; the loss is told at the next poll, and the next join follows that. A static
/// member goes without a word.
async fn poll_limit_exceeded(member: &Member, now: Instant, stage: Stage) -> bool {
    let (coordinator, member_id) = {
        let mut state = member.lock();
        let is_limited = !state.closed && !state.polling && (stage != Stage::Joining || !state.owned.is_empty());
        if !is_limited || now.since(state.last_poll) < member.config.poll_limit {
            return false;
        }
        state.exceeded = true;
        state.lose();
        (state.coordinator, std::mem::replace(&mut state.member_id, "".into()))
    };
    if let Some(coordinator) = coordinator.filter(|_| member.instance_id.is_none()) {
        send_leave(member, coordinator, member_id).await;
    }
    true
}

/// Tells the coordinator that the member leaves. One try: its session ends by itself otherwise.
pub(super) async fn send_leave(member: &Member, coordinator: BrokerId, member_id: Arc<str>) {
    let request = Request::LeaveGroup { group: member.group.clone(), member_id, instance_id: None };
    let _ = member.client.send(coordinator, request, member.client.request_timeout()).await;
}

/// Whether a subscribed topic has other partitions than the last time.
async fn grew(member: &Member, counts_before: &mut BTreeMap<Arc<str>, u32>) -> bool {
    if member.client.refresh(member.config.topics.clone()).await.is_err() {
        return false;
    }
    let now = joining::counts(member, &member.config.topics);
    let grew = now != *counts_before;
    *counts_before = now;
    grew
}

/// One heartbeat. An error when the membership is over.
async fn heartbeat(member: &Member, clock: &mut Clock) -> Result<(), Again> {
    let session = member.config.session_timeout;
    let host = &member.client.host;
    let sent_at = host.now();
    let (to, request) = {
        let state = member.lock();
        let request = Request::Heartbeat {
            group: member.group.clone(),
            generation: state.generation,
            member_id: state.member_id.clone(),
            instance_id: member.instance_id.clone(),
        };
        (state.coordinator, request)
    };
    let to = match to {
        Some(coordinator) => Some(coordinator),
        None => member.client.find_coordinator(&member.group).await,
    };
    let left = (clock.last_alive + session).since(sent_at).max(Duration::from_millis(1));
    let answer = match to {
        Some(to) => Some(member.client.send(to, request, left.min(member.client.request_timeout())).await),
        None => None,
    };
    clock.next_heartbeat = host.now().max(sent_at + member.config.heartbeat_interval);
    let error = match answer {
        Some(Ok(Response::Heartbeat { error })) => error,
        _ => ErrorCode::NotCoordinator,
    };
    match error {
        ErrorCode::None | ErrorCode::RebalanceInProgress => {
            let mut state = member.lock();
            (clock.last_alive, state.coordinator) = (sent_at, to);
            state.rebalancing |= error == ErrorCode::RebalanceInProgress;
        }
        ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration => {
            lose(member, error == ErrorCode::UnknownMemberId);
            return Err(Again);
        }
        ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable => {
            member.lock().coordinator = None;
            clock.next_heartbeat = host.now() + host.shared.config.retry_backoff;
            if host.now() >= clock.last_alive + session {
                // The coordinator must have given this member up by now.
                lose(member, true);
                return Err(Again);
            }
        }
        code => {
            fail(member, code);
            return Err(Again);
        }
    }
    Ok(())
}

/// What a refused join or sync means for the next one.
async fn refused<T>(member: &Member, code: ErrorCode) -> Result<T, Again> {
    match code {
        ErrorCode::UnknownMemberId => lose(member, true),
        ErrorCode::IllegalGeneration => lose(member, false),
        ErrorCode::RebalanceInProgress => {}
        code if error_kind(code) == ErrorKind::Retriable => return retry_coordinator(member).await,
        code => fail(member, code),
    }
    Err(Again)
}

async fn retry_coordinator<T>(member: &Member) -> Result<T, Again> {
    member.lock().coordinator = None;
    member.client.back_off().await;
    Err(Again)
}
