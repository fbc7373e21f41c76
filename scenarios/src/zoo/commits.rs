//! Group handles with a mistake in what they commit, or when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Commit, Group, GroupConfig, Polled, Poller, RebalanceId, TransportError};
use seriatim_sim::{SimGroup, SimPoller, UnfencedCommit};

use super::commit_on_poll::past;
use crate::drive::any::{AnyEnv, AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// What a handle does otherwise than the group behind it.
trait Mistake<G: Group>: Clone + Send + Sync + 'static {
    fn commit(&self, group: &G, commits: Vec<Commit>) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send {
        group.commit(commits)
    }

    fn release(&self, group: &G, event: RebalanceId) -> impl Future<Output = Result<(), TransportError>> + Send {
        group.release(event)
    }
}

#[derive(Clone)]
struct Mistaken<G, M> {
    group: G,
    mistake: M,
}

impl<G: Group, M: Mistake<G>> Group for Mistaken<G, M> {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        self.mistake.commit(&self.group, commits).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        self.mistake.release(&self.group, event).await
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        self.group.pause(partitions);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.group.resume(partitions);
    }

    async fn leave(&self) {
        self.group.leave().await;
    }
}

/// A pipeline that commits where its consumers have read to, whenever it has something to commit: the highest offset
/// instead of the low-water mark, as `commitSync()` does without arguments.
#[derive(Clone, Copy, Debug)]
pub struct CommitPosition;

/// How far each ownership has read.
type Read = Arc<Mutex<BTreeMap<(TopicPartition, Epoch), i64>>>;

impl Variant for CommitPosition {
    fn consumer(&self, _: &Place, poller: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        let read = Read::default();
        let poller = Reader { inner: poller, read: read.clone() };
        (AnyPoller::new(poller), AnyGroup::new(Mistaken { group, mistake: Highest { read } }))
    }
}

struct Reader {
    inner: AnyPoller,
    read: Read,
}

impl Poller for Reader {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await?;
        if let Polled::Records(records) = &polled {
            let mut read = self.read.lock().expect("no code panics while it holds the offsets");
            read.extend(past(records).into_iter().map(|commit| ((commit.partition, commit.epoch), commit.offset)));
        }
        Ok(polled)
    }
}

#[derive(Clone)]
struct Highest {
    read: Read,
}

impl Mistake<AnyGroup> for Highest {
    async fn commit(&self, group: &AnyGroup, mut commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        for commit in &mut commits {
            let read = self.read.lock().expect("no code panics while it holds the offsets");
            let highest = read.get(&(commit.partition.clone(), commit.epoch)).copied();
            commit.offset = highest.unwrap_or(commit.offset);
        }
        group.commit(commits).await
    }
}

/// How long a commit may lie in the client's queue.
const QUEUED: Duration = Duration::from_secs(8);

/// A pipeline whose client repeats its last commits once it has rejoined: queued before a release, sent after it, when
/// the partition may be another's.
///
/// What breaks it in the wild is a queue of commits in the client, each stamped with the member's generation when it is
/// sent and not when its records were read: the coordinator checks member and generation, and never who owns what.
#[derive(Clone, Copy, Debug)]
pub struct LateCommit;

impl Variant for LateCommit {
    fn client(&self, at: &Place, _: &GroupConfig, poller: SimPoller, group: SimGroup) -> (AnyPoller, AnyGroup) {
        let mistake = Late { env: at.env.clone(), last: Arc::default() };
        (AnyPoller::new(poller), AnyGroup::new(Mistaken { group, mistake }))
    }
}

#[derive(Clone)]
struct Late {
    env: AnyEnv,
    last: Arc<Mutex<Vec<Commit>>>,
}

impl Mistake<SimGroup> for Late {
    async fn commit(&self, group: &SimGroup, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        self.last.lock().expect("no code panics while it holds the commits").clone_from(&commits);
        group.commit(commits).await
    }

    async fn release(&self, group: &SimGroup, event: RebalanceId) -> Result<(), TransportError> {
        let released = group.release(event).await;
        let queued = std::mem::take(&mut *self.last.lock().expect("no code panics while it holds the commits"));
        let (env, group) = (self.env.clone(), group.clone());
        self.env.spawn(async move {
            env.sleep(QUEUED).await;
            if !queued.is_empty() {
                // Nobody waits for it any more.
                let _ = group.commit_unfenced(queued).await;
            }
        });
        released
    }
}
