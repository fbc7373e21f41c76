//! The background half of a group member: joins, heartbeats, and notices what was lost.
//!
//! The classic protocol, eager: before each join everything owned is given up, and the application must have released
//! every event first. Heartbeats go on during a drain, so that a drain may last longer than the session.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Assignment, Committed, ErrorKind, Polled};

use super::assignor::{Assignor, Range};
use super::group::{Member, Owned};
use super::{broker_error, error_kind, fetcher};
use crate::cluster::protocol::{
    BrokerId, CommittedOffset, ErrorCode, GroupProtocol, JoinGroup, Joined, Request, Response, Subscription,
};

/// Part of the poll limit that is kept for the last commit of a drain, at most.
const COMMIT_RESERVE_MAX: Duration = Duration::from_secs(1);

/// A rebalance is to be begun again.
struct Again;

/// Until the member is closed or fails for good.
pub(super) async fn run(member: Arc<Member>) {
    loop {
        if !may_join(&member).await {
            return;
        }
        if let Ok(counts) = join(&member).await {
            steady(&member, counts).await;
        }
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

fn fail(member: &Member, code: ErrorCode) {
    member.lock().fatal = Some(broker_error(code, format!("joining group `{}`", member.group)));
    member.for_poller.notify_one();
}

/// The coordinator, looked up for as long as it takes; `None` when the member is closed meanwhile.
async fn coordinator(member: &Member) -> Option<BrokerId> {
    loop {
        if is_closed(member) {
            return None;
        }
        let known = member.lock().coordinator;
        if known.is_some() {
            return known;
        }
        match member.client.find_coordinator(&member.group).await {
            Some(found) => member.lock().coordinator = Some(found),
            None => member.client.back_off().await,
        }
    }
}

/// One join, from `JoinGroup` to an `Assigned` event. Gives the topics' partition counts that it saw.
async fn join(member: &Member) -> Result<BTreeMap<Arc<str>, u32>, Again> {
    let to = coordinator(member).await.ok_or(Again)?;
    // What was known of the topics when the subscription was sent is what a later refresh is compared with.
    if member.client.refresh(member.config.topics.clone()).await.is_err() {
        member.client.back_off().await;
        return Err(Again);
    }
    let counts = counts(member, &member.config.topics);
    let member_id = member.lock().member_id.clone();
    let protocol = GroupProtocol {
        name: Range::NAME.into(),
        subscription: Subscription { topics: member.config.topics.clone(), owned: Vec::new() },
    };
    let request = Request::JoinGroup(JoinGroup {
        group: member.group.clone(),
        client_id: member.config.client_id.as_str().into(),
        member_id,
        instance_id: None,
        session_timeout: member.config.session_timeout,
        rebalance_timeout: member.config.poll_limit,
        protocols: vec![protocol],
    });
    let limit = member.config.poll_limit + member.client.request_timeout();
    let Ok(Response::JoinGroup(joined)) = member.client.send(to, request, limit).await else {
        return retry_coordinator(member).await;
    };
    take_join(member, &joined).await?;
    let assignment = sync(member, to, &joined).await?;
    let committed = committed(member, to, &assignment).await?;
    install(member, committed).await?;
    Ok(counts)
}

async fn retry_coordinator<T>(member: &Member) -> Result<T, Again> {
    member.lock().coordinator = None;
    member.client.back_off().await;
    Err(Again)
}

/// Takes the identity that a join gave.
async fn take_join(member: &Member, joined: &Joined) -> Result<(), Again> {
    match joined.error {
        ErrorCode::None => {
            let mut state = member.lock();
            state.member_id = joined.member_id.clone();
            state.generation = joined.generation;
            state.lost_by_commit = false;
            Ok(())
        }
        ErrorCode::MemberIdRequired => {
            member.lock().member_id = joined.member_id.clone();
            Err(Again)
        }
        code => refused(member, code).await,
    }
}

/// What a refused join or sync means for the next one.
async fn refused<T>(member: &Member, code: ErrorCode) -> Result<T, Again> {
    match code {
        ErrorCode::UnknownMemberId => member.lock().member_id = "".into(),
        ErrorCode::IllegalGeneration => {}
        code if error_kind(code) == ErrorKind::Retriable => {
            if code != ErrorCode::RebalanceInProgress {
                return retry_coordinator(member).await;
            }
        }
        code => fail(member, code),
    }
    Err(Again)
}

/// Partition counts of `topics`, as far as they exist.
fn counts(member: &Member, topics: &[Arc<str>]) -> BTreeMap<Arc<str>, u32> {
    topics.iter().filter_map(|topic| Some((topic.clone(), member.client.partitions(topic)?))).collect()
}

/// `SyncGroup`: as the leader with everybody's assignment, as a follower without.
async fn sync(member: &Member, to: BrokerId, joined: &Joined) -> Result<Vec<TopicPartition>, Again> {
    let mut assignments = Vec::new();
    if joined.leader == joined.member_id {
        let mut topics: Vec<_> =
            joined.members.iter().flat_map(|member| member.subscription.topics.iter().cloned()).collect();
        topics.sort();
        topics.dedup();
        if counts(member, &topics).len() < topics.len() {
            let _ = member.client.refresh(topics.clone()).await;
        }
        assignments = Range::assign(&joined.members, &counts(member, &topics));
    }
    let request = Request::SyncGroup {
        group: member.group.clone(),
        generation: joined.generation,
        member_id: joined.member_id.clone(),
        instance_id: None,
        assignments,
    };
    let limit = member.config.poll_limit + member.client.request_timeout();
    match member.client.send(to, request, limit).await {
        Ok(Response::SyncGroup { error: ErrorCode::None, mut assignment }) => {
            assignment.sort();
            Ok(assignment)
        }
        Ok(Response::SyncGroup { error, .. }) => refused(member, error).await,
        _ => retry_coordinator(member).await,
    }
}

/// What the group committed for `partitions`.
async fn committed(
    member: &Member,
    to: BrokerId,
    partitions: &[TopicPartition],
) -> Result<Vec<CommittedOffset>, Again> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let request = Request::OffsetFetch { group: member.group.clone(), partitions: partitions.to_vec() };
    match member.client.send(to, request, member.client.request_timeout()).await {
        Ok(Response::OffsetFetch { error: ErrorCode::None, partitions }) => Ok(partitions),
        Ok(Response::OffsetFetch { error, .. }) if error_kind(error) != ErrorKind::Retriable => {
            fail(member, error);
            Err(Again)
        }
        _ => retry_coordinator(member).await,
    }
}

/// Takes the assignment over and announces it.
async fn install(member: &Member, committed: Vec<CommittedOffset>) -> Result<(), Again> {
    let mut starts = Vec::with_capacity(committed.len());
    for part in &committed {
        let mut start = (part.offset >= 0).then_some(part.offset);
        while start.is_none() {
            if is_closed(member) {
                return Err(Again);
            }
            let spec = fetcher::reset_spec(member.config.offset_reset);
            start = member.client.list_offset(&part.partition, spec).await;
            if start.is_none() {
                member.client.back_off().await;
            }
        }
        starts.push(start.expect("the loop ends with an offset"));
    }
    let mut state = member.lock();
    if state.closed {
        return Err(Again);
    }
    let mut assignments = Vec::with_capacity(committed.len());
    for (part, start) in committed.into_iter().zip(starts) {
        let epoch = Epoch(state.next_epoch);
        state.next_epoch += 1;
        let fresh = Owned {
            epoch,
            next: start,
            buffer: Default::default(),
            buffered: 0,
            paused: false,
            ending: false,
            starved: false,
            out_of_range: false,
        };
        state.owned.insert(part.partition.clone(), fresh);
        let read = |offset| Committed { offset, metadata: part.metadata.to_string() };
        let committed = (part.offset >= 0).then(|| read(part.offset));
        assignments.push(Assignment { partition: part.partition, epoch, committed, start });
    }
    state.events.push_back(Polled::Assigned(assignments));
    drop(state);
    member.for_poller.notify_one();
    member.for_fetcher.notify_one();
    Ok(())
}

/// What the steady part waits for.
struct Clock {
    next_heartbeat: Instant,
    /// The last answer of the coordinator that this member lives.
    last_alive: Instant,
    next_refresh: Instant,
    /// A rebalance was announced: rejoin when everything is released.
    rebalancing: bool,
}

/// From an assignment to the moment when the member has to join again.
async fn steady(member: &Member, mut counts: BTreeMap<Arc<str>, u32>) {
    let host = &member.client.host;
    let now = host.now();
    let max_age = host.shared.config.metadata_max_age;
    let mut clock = Clock {
        next_heartbeat: now + member.config.heartbeat_interval,
        last_alive: now,
        next_refresh: now + max_age,
        rebalancing: false,
    };
    loop {
        let wake = {
            let mut state = member.lock();
            if state.closed || state.fatal.is_some() {
                return;
            }
            if state.lost_by_commit {
                state.lose();
                drop(state);
                member.for_poller.notify_one();
                return;
            }
            if clock.rebalancing && state.unreleased.is_empty() {
                return;
            }
            let limit = (!state.polling).then(|| state.last_poll + member.config.poll_limit);
            clock.next_heartbeat.min(clock.next_refresh).min(limit.unwrap_or(clock.next_heartbeat))
        };
        select(pin!(member.for_membership.notified()), pin!(host.shared.executor.sleep_until(wake))).await;
        let now = host.now();
        if poll_limit_exceeded(member, now).await {
            return;
        }
        if now >= clock.next_heartbeat && !is_closed(member) && !heartbeat(member, &mut clock).await {
            return;
        }
        if now >= clock.next_refresh && !clock.rebalancing {
            clock.next_refresh = now + max_age;
            if grew(member, &mut counts).await {
                begin_rebalance(member, &mut clock);
            }
        }
    }
}

/// Leaves when nobody polled for too long; the loss is told at the next poll, and the next join follows that.
async fn poll_limit_exceeded(member: &Member, now: Instant) -> bool {
    let (coordinator, member_id) = {
        let mut state = member.lock();
        if state.closed || state.polling || now.since(state.last_poll) < member.config.poll_limit {
            return false;
        }
        state.exceeded = true;
        state.lose();
        (state.coordinator, std::mem::replace(&mut state.member_id, "".into()))
    };
    if let Some(coordinator) = coordinator {
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
    let now = counts(member, &member.config.topics);
    let grew = now != *counts_before;
    *counts_before = now;
    grew
}

/// Announces that everything goes, or rejoins at once when nothing is owned.
fn begin_rebalance(member: &Member, clock: &mut Clock) {
    if clock.rebalancing {
        return;
    }
    clock.rebalancing = true;
    let config = &member.config;
    let reserve = COMMIT_RESERVE_MAX.min(config.poll_limit / 10);
    let drain = config.poll_limit.saturating_sub(config.heartbeat_interval).saturating_sub(reserve);
    member.lock().revoke(member.client.host.now() + drain);
    member.for_poller.notify_one();
    // Nothing owned raises no event: the loop then finds nothing unreleased and rejoins.
    member.for_membership.notify_one();
}

/// One heartbeat. False when the membership is over.
async fn heartbeat(member: &Member, clock: &mut Clock) -> bool {
    let session = member.config.session_timeout;
    let host = &member.client.host;
    let sent_at = host.now();
    let (to, request) = {
        let state = member.lock();
        let request = Request::Heartbeat {
            group: member.group.clone(),
            generation: state.generation,
            member_id: state.member_id.clone(),
            instance_id: None,
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
        ErrorCode::None => {
            let mut state = member.lock();
            (clock.last_alive, state.coordinator) = (sent_at, to);
        }
        ErrorCode::RebalanceInProgress => {
            member.lock().coordinator = to;
            clock.last_alive = sent_at;
            begin_rebalance(member, clock);
        }
        ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration => {
            let mut state = member.lock();
            if error == ErrorCode::UnknownMemberId {
                state.member_id = "".into();
            }
            state.lose();
            drop(state);
            member.for_poller.notify_one();
            return false;
        }
        ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable => {
            member.lock().coordinator = None;
            clock.next_heartbeat = host.now() + host.shared.config.retry_backoff;
            if host.now() >= clock.last_alive + session {
                // The coordinator must have given this member up by now.
                let mut state = member.lock();
                state.member_id = "".into();
                state.lose();
                drop(state);
                member.for_poller.notify_one();
                return false;
            }
        }
        code => {
            member.lock().lose();
            fail(member, code);
            return false;
        }
    }
    true
}
