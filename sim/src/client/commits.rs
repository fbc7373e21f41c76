//! Commits of a group member: fenced by epoch before they are sent, stamped with the current generation when they are.
//!
//! [`UnfencedCommit`] leaves the fence out: it is there for flawed consumers, and nothing that must be right calls it.

use std::sync::Arc;

use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Commit, ErrorKind, Group, TransportError};

use super::group::Member;
use super::{TRIES_MAX, broker_error, unanswered};
use crate::cluster::protocol::{CommitPartition, ErrorCode, OffsetCommit, Request, Response};

/// What a consumer without epochs can do, and librdkafka's `rd_kafka_commit` does. **For flawed consumers only.**
///
/// The commits are stamped with the member's generation when they are *sent*, not when their records were read, and
/// nobody asks whether the partition is owned: a late commit of a member that lost a partition is accepted and moves
/// its offset back, as long as the member is in the group's generation. The epochs of the commits are passed over, but
/// a history shows them.
pub trait UnfencedCommit: Group {
    /// Commits, all or each on its own: one result a commit, in order.
    fn commit_unfenced(&self, commits: Vec<Commit>) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send;
}

/// A commit that `release` waits for, until it is dropped.
struct Out<'a> {
    member: &'a Member,
    id: u64,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.member.lock().commits_out.remove(&self.id);
        if !self.member.client.host.is_dead() {
            self.member.commit_answered.notify_waiters();
        }
    }
}

/// Waits until no commit of `partitions` is out; of any, when that is empty.
pub(super) async fn settled(member: &Member, partitions: &[(TopicPartition, Epoch)]) {
    loop {
        let answered = member.commit_answered.notified();
        let concerns = |out: &Vec<TopicPartition>| {
            partitions.is_empty() || partitions.iter().any(|(partition, _)| out.contains(partition))
        };
        if !member.lock().commits_out.values().any(concerns) {
            return;
        }
        answered.await;
    }
}

fn fenced(member: &Member, commit: &Commit) -> TransportError {
    let context = format!(
        "committing {} of {} for group `{}` under {:?}, which is not current",
        commit.offset, commit.partition, member.group, commit.epoch
    );
    TransportError::new(ErrorKind::Fenced, "STALE_EPOCH", context)
}

/// What is looked at before a commit is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Its epoch must be current.
    Epoch,
    /// Nothing, as in librdkafka: the broker alone decides.
    Nothing,
}

/// Commits what passes `check`; one result a commit, in order.
pub(super) async fn commit(member: &Member, commits: Vec<Commit>, check: Check) -> Vec<Result<(), TransportError>> {
    let mut results: Vec<Option<Result<(), TransportError>>> = commits.iter().map(|_| None).collect();
    let out = {
        let mut state = member.lock();
        let id = state.next_commit;
        state.next_commit += 1;
        state.commits_out.insert(id, commits.iter().map(|commit| commit.partition.clone()).collect());
        Out { member, id }
    };
    for attempt in 0..TRIES_MAX {
        let Some((coordinator, request, places)) = prepare(member, (&commits, check), &mut results, attempt).await
        else {
            continue;
        };
        if places.is_empty() {
            break;
        }
        let sent_as = (request.member_id.clone(), request.generation);
        let trip = member.client.send(coordinator, Request::OffsetCommit(request), member.client.request_timeout());
        match trip.await {
            Ok(Response::OffsetCommit { partitions }) => {
                for (place, (_, code)) in places.into_iter().zip(partitions) {
                    results[place] = judge(member, &commits[place], code, &sent_as);
                }
            }
            Ok(other) => unreachable!("an OffsetCommit was answered with {other}"),
            Err(error) => {
                member.lock().coordinator = None;
                for place in places {
                    results[place] = Some(Err(unanswered(error, context(member, &commits[place]))));
                }
            }
        }
        if results.iter().all(Option::is_some) {
            break;
        }
    }
    drop(out);
    let given_up = |commit| TransportError::new(ErrorKind::Retriable, "NOT_COORDINATOR", context(member, commit));
    results.into_iter().zip(&commits).map(|(result, commit)| result.unwrap_or_else(|| Err(given_up(commit)))).collect()
}

fn context(member: &Member, commit: &Commit) -> String {
    format!("committing {} of {} for group `{}`", commit.offset, commit.partition, member.group)
}

/// The request of everything that is still open and passes its check, stamped now. `None` when there is no coordinator.
async fn prepare(
    member: &Member,
    (commits, check): (&[Commit], Check),
    results: &mut [Option<Result<(), TransportError>>],
    attempt: usize,
) -> Option<(crate::cluster::protocol::BrokerId, OffsetCommit, Vec<usize>)> {
    if attempt > 0 {
        member.client.back_off().await;
    }
    let known = member.lock().coordinator;
    let found = match known {
        Some(coordinator) => Some(coordinator),
        None => member.client.find_coordinator(&member.group).await,
    };
    let mut state = member.lock();
    let mut places = Vec::new();
    for (place, commit) in commits.iter().enumerate() {
        if results[place].is_none() {
            if check == Check::Nothing || state.is_current(&commit.partition, commit.epoch) {
                places.push(place);
            } else {
                results[place] = Some(Err(fenced(member, commit)));
            }
        }
    }
    let coordinator = match found {
        Some(coordinator) => coordinator,
        None if places.is_empty() => crate::cluster::protocol::BrokerId(0),
        None => return None,
    };
    state.coordinator = Some(coordinator);
    let partitions = places
        .iter()
        .map(|place| CommitPartition {
            partition: commits[*place].partition.clone(),
            offset: commits[*place].offset,
            metadata: Some(Arc::from(commits[*place].metadata.as_str())),
        })
        .collect();
    let request = OffsetCommit {
        group: member.group.clone(),
        generation: state.generation,
        member_id: state.member_id.clone(),
        instance_id: member.instance_id.clone(),
        partitions,
    };
    Some((coordinator, request, places))
}

/// What an answer means; `None` when the commit is to be tried again. A generation that ended while the next one is
/// joined is no loss: what was retained is committed again under the new one.
fn judge(
    member: &Member,
    commit: &Commit,
    code: ErrorCode,
    (sent_as, generation): &(Arc<str>, i32),
) -> Option<Result<(), TransportError>> {
    match code {
        ErrorCode::None => Some(Ok(())),
        ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable => {
            member.lock().coordinator = None;
            None
        }
        ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration => {
            let mut state = member.lock();
            let is_over = state.member_id == *sent_as && state.generation == *generation;
            if code == ErrorCode::IllegalGeneration && (state.rejoining || !is_over) {
                return None;
            }
            if is_over {
                state.lost_by_commit = true;
                if code == ErrorCode::UnknownMemberId {
                    state.member_id = "".into();
                }
                member.for_membership.notify_one();
            }
            Some(Err(TransportError::new(ErrorKind::Fenced, code.name(), context(member, commit))))
        }
        ErrorCode::FencedInstanceId => {
            super::membership::fail(member, code);
            Some(Err(broker_error(code, context(member, commit))))
        }
        code => Some(Err(broker_error(code, context(member, commit)))),
    }
}
