//! One join, from `JoinGroup` to an `Assigned` event.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Assignment, Assignor, Committed, ErrorKind, Polled};

use super::{Again, fail, is_closed, refused, retry_coordinator};
use crate::client::group::{Member, Owned};
use crate::client::{assignor, error_kind, fetcher};
use crate::cluster::protocol::{
    BrokerId, CommittedOffset, ErrorCode, GroupProtocol, JoinGroup, Joined, Request, Response, Subscription,
};

/// `JoinGroup` and `SyncGroup`: the new generation's assignment.
pub(super) async fn join(member: &Member) -> Result<Vec<TopicPartition>, Again> {
    let to = coordinator(member).await.ok_or(Again)?;
    know_topics(member).await?;
    let (member_id, protocols) = {
        let state = member.lock();
        let protocols = member.config.assignors.iter().map(|assignor| protocol(member, &state, *assignor));
        (state.member_id.clone(), protocols.collect())
    };
    let request = Request::JoinGroup(JoinGroup {
        group: member.group.clone(),
        client_id: member.config.client_id.as_str().into(),
        member_id,
        instance_id: member.instance_id.clone(),
        session_timeout: member.config.session_timeout,
        rebalance_timeout: member.config.poll_limit,
        protocols,
    });
    let limit = member.config.poll_limit + member.client.request_timeout();
    let Ok(Response::JoinGroup(joined)) = member.client.send(to, request, limit).await else {
        return retry_coordinator(member).await;
    };
    take_join(member, &joined).await?;
    let assignment = sync(member, to, &joined).await?;
    member.lock().last_assignment = (assignment.clone(), joined.generation);
    Ok(assignment)
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

/// Looks topics up that are not known. What is known is not asked for again: growth is noticed at its age.
async fn know_topics(member: &Member) -> Result<(), Again> {
    let topics = &member.config.topics;
    if counts(member, topics).len() < topics.len() && member.client.refresh(topics.clone()).await.is_err() {
        member.client.back_off().await;
        return Err(Again);
    }
    Ok(())
}

/// What this member says under `assignor`. Only sticky ones say what it has: a cooperative member what it owns, an
/// eager one what it was assigned last.
fn protocol(member: &Member, state: &crate::client::group::State, assignor: Assignor) -> GroupProtocol {
    let (last, generation) = &state.last_assignment;
    let (owned, generation) = match assignor {
        Assignor::CooperativeSticky if member.is_cooperative => (state.owned.keys().cloned().collect(), *generation),
        Assignor::Sticky => (last.clone(), *generation),
        Assignor::Range | Assignor::RoundRobin | Assignor::CooperativeSticky => (Vec::new(), -1),
    };
    let subscription = Subscription { topics: member.config.topics.clone(), owned, generation };
    GroupProtocol { name: assignor.name().into(), subscription }
}

/// Takes the identity that a join gave.
async fn take_join(member: &Member, joined: &Joined) -> Result<(), Again> {
    match joined.error {
        ErrorCode::None => {
            let mut state = member.lock();
            state.member_id = joined.member_id.clone();
            state.generation = joined.generation;
            Ok(())
        }
        ErrorCode::MemberIdRequired => {
            member.lock().member_id = joined.member_id.clone();
            Err(Again)
        }
        code => refused(member, code).await,
    }
}

/// Partition counts of `topics`, as far as they exist.
pub(super) fn counts(member: &Member, topics: &[Arc<str>]) -> BTreeMap<Arc<str>, u32> {
    topics.iter().filter_map(|topic| Some((topic.clone(), member.client.partitions(topic)?))).collect()
}

/// `SyncGroup`: as the leader with everybody's assignment, as a follower without.
async fn sync(member: &Member, to: BrokerId, joined: &Joined) -> Result<Vec<TopicPartition>, Again> {
    let mut assignments = Vec::new();
    if joined.leader == joined.member_id {
        let Some(assignor) = assignor::find(&joined.protocol) else {
            fail(member, ErrorCode::InconsistentGroupProtocol);
            return Err(Again);
        };
        let mut topics: Vec<_> =
            joined.members.iter().flat_map(|member| member.subscription.topics.iter().cloned()).collect();
        topics.sort();
        topics.dedup();
        // A leader assigns by what there is now, whatever it knew before.
        if member.client.refresh(topics.clone()).await.is_err() {
            member.client.back_off().await;
            return Err(Again);
        }
        assignments = assignor::assign(assignor, &joined.members, &counts(member, &topics));
    }
    let request = Request::SyncGroup {
        group: member.group.clone(),
        generation: joined.generation,
        member_id: joined.member_id.clone(),
        instance_id: member.instance_id.clone(),
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

/// What the group committed for `partitions`, asked for as long as it takes.
async fn committed(member: &Member, partitions: &[TopicPartition]) -> Result<Vec<CommittedOffset>, Again> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    loop {
        let to = coordinator(member).await.ok_or(Again)?;
        let request = Request::OffsetFetch { group: member.group.clone(), partitions: partitions.to_vec() };
        match member.client.send(to, request, member.client.request_timeout()).await {
            Ok(Response::OffsetFetch { error: ErrorCode::None, partitions }) => return Ok(partitions),
            Ok(Response::OffsetFetch { error, .. }) if error_kind(error) != ErrorKind::Retriable => {
                fail(member, error);
                return Err(Again);
            }
            _ => {
                member.lock().coordinator = None;
                member.client.back_off().await;
            }
        }
    }
}

/// Where reading of a partition starts without a committed offset.
async fn reset_start(member: &Member, partition: &TopicPartition) -> Result<i64, Again> {
    let spec = fetcher::reset_spec(member.config.offset_reset);
    loop {
        if is_closed(member) {
            return Err(Again);
        }
        if let Some(start) = member.client.list_offset(partition, spec).await {
            return Ok(start);
        }
        member.client.back_off().await;
    }
}

/// Takes new partitions over and announces them, none of them too.
pub(super) async fn install(member: &Member, added: Vec<TopicPartition>) -> Result<(), Again> {
    let committed = committed(member, &added).await?;
    let mut starts = Vec::with_capacity(committed.len());
    for part in &committed {
        starts.push(if part.offset >= 0 { part.offset } else { reset_start(member, &part.partition).await? });
    }
    let mut state = member.lock();
    if state.closed || state.fatal.is_some() {
        return Err(Again);
    }
    let mut assignments = Vec::with_capacity(committed.len());
    for (part, start) in committed.into_iter().zip(starts) {
        let epoch = Epoch(member.client.host.life.next_epoch());
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
