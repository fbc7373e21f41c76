//! Commits of a group member: fenced by epoch before they are sent, one request out at a time.
//!
//! librdkafka stamps a commit with the generation that it has when it sends it, and a broker asks neither who owns the
//! partition nor whether the offset goes back. So the epoch is looked at here, at the last moment before the wire, and
//! whoever releases a partition waits for what is on the wire.
//!
//! rdkafka tells the outcome only of a commit that is waited for, and then one outcome for all its partitions: no error
//! means that none failed. So commits are sent from a thread of their own, which waits; where one was refused, each is
//! sent again alone, which is harmless. The thread is no task: a broker that does not answer must not hold up the end
//! of a runtime. It does not poll either: a member that only commits is thrown out in time.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdkafka::Offset;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{CommitMode, Consumer as _};
use seriatim_core::env::Env;
use seriatim_core::transport::{Commit, ErrorKind, TransportError};
use tokio::sync::oneshot;

use super::context::Shared;
use super::state::{Going, State};
use super::{Consumer, Member};
use crate::client::{check_topic, lock};
use crate::error;

/// Tries of a commit whose generation ended while the next one is joined.
const TRIES_MAX: usize = 40;
/// Time between two of them.
const RETRY_WAIT: Duration = Duration::from_millis(100);

/// A commit under an epoch that is not current.
const STALE_EPOCH: &str = "STALE_EPOCH";

type Outcome = Result<(), TransportError>;

/// What the thread does: one request, unless whoever asked has lost interest.
struct Job {
    consumer: Arc<Consumer>,
    commits: Vec<Commit>,
    answer: oneshot::Sender<Vec<Outcome>>,
}

/// The way to a member's thread, which ends with it.
#[derive(Debug)]
pub(super) struct Sender(mpsc::Sender<Job>);

impl Sender {
    /// Starts the thread.
    pub(super) fn start(shared: Arc<Shared>, group: String) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let work = move || {
            for Job { consumer, commits, answer } in jobs {
                if !answer.is_closed() {
                    // Whoever asked may lose interest meanwhile.
                    let _ = answer.send(send(&shared, &group, &consumer, &commits));
                    shared.changed();
                }
            }
        };
        std::thread::Builder::new().name("kafka-commit".into()).spawn(work)?;
        Ok(Sender(sender))
    }
}

/// Sends what is current, waits for the answer, and says how each went.
fn send(shared: &Shared, group: &str, consumer: &Consumer, commits: &[Commit]) -> Vec<Outcome> {
    let (current, mut outcomes) = fence(shared, group, commits);
    let Err(error) = send_all(consumer, &current) else { return finish(shared, outcomes) };
    let each_alone = current.len() > 1 && error.kind == ErrorKind::Refused;
    for (commit, outcome) in commits.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok()) {
        let sent = match each_alone {
            // Still on the wire, as far as a release is concerned: it waits for all of them.
            true => send_all(consumer, &[commit]),
            false => Err(error.clone()),
        };
        *outcome = sent.map_err(|error| TransportError { context: doing(group, commit), ..error });
    }
    finish(shared, outcomes)
}

/// Nothing is on the wire any more.
fn finish(shared: &Shared, outcomes: Vec<Outcome>) -> Vec<Outcome> {
    lock(&shared.wire).clear();
    outcomes
}

/// What may be sent, and what is to be said of the rest. From here on what may be sent counts as on the wire: a release
/// that begins later waits for it.
fn fence<'a>(shared: &Shared, group: &str, commits: &'a [Commit]) -> (Vec<&'a Commit>, Vec<Outcome>) {
    let state = lock(&shared.state);
    let outcomes: Vec<_> = commits.iter().map(|commit| may_send(&state, group, commit)).collect();
    let current = commits.iter().zip(&outcomes).filter(|(_, may)| may.is_ok()).map(|(commit, _)| commit);
    let current: Vec<_> = current.collect();
    *lock(&shared.wire) = current.iter().map(|commit| commit.partition.clone()).collect();
    (current, outcomes)
}

/// The fence itself.
fn may_send(state: &State, group: &str, commit: &Commit) -> Outcome {
    check_topic(&commit.partition.topic, "committing")?;
    if state.is_current(&commit.partition, commit.epoch) {
        return Ok(());
    }
    let context = format!("{} under {:?}, which is not current", doing(group, commit), commit.epoch);
    Err(TransportError::new(ErrorKind::Fenced, STALE_EPOCH, context))
}

/// One request. No error: none of them failed.
fn send_all(consumer: &Consumer, commits: &[&Commit]) -> Outcome {
    if commits.is_empty() {
        return Ok(());
    }
    let mut offsets = TopicPartitionList::with_capacity(commits.len());
    for commit in commits {
        let mut element = offsets.add_partition(&commit.partition.topic, commit.partition.partition);
        element.set_metadata(&commit.metadata);
        // Only an offset that has no number is refused.
        let _ = element.set_offset(Offset::Offset(commit.offset));
    }
    let outcome = consumer.commit(&offsets, CommitMode::Sync);
    outcome.map_err(|error| error::of(&error, "committing"))
}

fn doing(group: &str, commit: &Commit) -> String {
    format!("committing {} of {} for group `{group}`", commit.offset, commit.partition)
}

/// A call to `commit` that `release` waits for, until it is dropped.
struct Out<'a> {
    shared: &'a Shared,
    id: u64,
}

impl<'a> Out<'a> {
    fn new(shared: &'a Shared, commits: &[Commit]) -> Self {
        let mut state = lock(&shared.state);
        let id = state.next_commit;
        state.next_commit += 1;
        state.commits_out.insert(id, commits.iter().map(|commit| commit.partition.clone()).collect());
        Out { shared, id }
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).commits_out.remove(&self.id);
        self.shared.for_commits.notify_waiters();
    }
}

/// Resolves when no commit of `partitions` is out: neither waiting for its turn, nor on the wire.
pub(super) async fn settled<E: Env>(member: &Arc<Member<E>>, partitions: &Going) {
    loop {
        let answered = member.shared.for_commits.notified();
        let concerns = |out: &Vec<_>| partitions.iter().any(|(partition, _)| out.contains(partition));
        let waits = lock(&member.shared.state).commits_out.values().any(concerns);
        if !waits && !concerns(&*lock(&member.shared.wire)) {
            return;
        }
        answered.await;
    }
}

/// Commits what is current; one result a commit, in order.
pub(super) async fn commit<E: Env>(member: &Arc<Member<E>>, commits: Vec<Commit>) -> Vec<Outcome> {
    let group = &member.config.group;
    let mut results: Vec<Option<Outcome>> = commits.iter().map(|_| None).collect();
    let out = Out::new(&member.shared, &commits);
    let gate = member.gate.lock().await;
    for attempt in 0..TRIES_MAX {
        if attempt > 0 {
            member.env.sleep(RETRY_WAIT).await;
        }
        let places: Vec<_> = (0..commits.len()).filter(|place| results[*place].is_none()).collect();
        if places.is_empty() {
            break;
        }
        let Some(consumer) = member.consumer() else {
            // A member that left owns nothing.
            let state = lock(&member.shared.state);
            for place in places {
                results[place] = Some(may_send(&state, group, &commits[place]));
            }
            break;
        };
        let (answer, answered) = oneshot::channel();
        let commits_now = places.iter().map(|place| commits[*place].clone()).collect();
        let job = Job { consumer, commits: commits_now, answer };
        if member.commits.0.send(job).is_err() {
            break;
        }
        let Ok(outcomes) = answered.await else { break };
        for (place, outcome) in places.into_iter().zip(outcomes) {
            results[place] = judge(member, outcome);
        }
    }
    drop(gate);
    drop(out);
    let open = |commit: &Commit| TransportError::new(ErrorKind::Retriable, "ILLEGAL_GENERATION", doing(group, commit));
    results.into_iter().zip(&commits).map(|(result, commit)| result.unwrap_or_else(|| Err(open(commit)))).collect()
}

/// What an outcome means; `None` when the commit is to be tried again under the same epoch.
fn judge<E: Env>(member: &Arc<Member<E>>, outcome: Outcome) -> Option<Outcome> {
    let Err(error) = outcome else { return Some(Ok(())) };
    match error.code {
        // A generation that ended while the next one is joined is no loss: what is retained is committed again under
        // the new one. If it is a loss, the epoch is not current by the next try.
        "ILLEGAL_GENERATION" | "REBALANCE_IN_PROGRESS" => return None,
        "UNKNOWN_MEMBER_ID" => member.thrown_out(),
        _ if error.kind == ErrorKind::Fatal => member.fatal(&error),
        _ => {}
    }
    Some(Err(error))
}
