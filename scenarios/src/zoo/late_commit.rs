//! A commit by an old owner: queued before a release, sent after it, when the partition may be another's.
//!
//! What breaks it in the wild is a queue of commits in the client, each stamped with the member's generation when it is
//! sent and not when its records were read: the coordinator checks member and generation, and never who owns what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::transport::{Commit, Group, GroupConfig, RebalanceId, TransportError};
use seriatim_sim::{SimGroup, SimPoller, UnfencedCommit};

use crate::drive::any::{AnyEnv, AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};
use seriatim_core::identity::TopicPartition;

/// How long a commit may lie in the client's queue.
const QUEUED: Duration = Duration::from_secs(8);

/// A pipeline whose client repeats its last commits once it has rejoined.
#[derive(Clone, Copy, Debug)]
pub struct LateCommit;

impl Variant for LateCommit {
    fn client(&self, at: &Place, _: &GroupConfig, poller: SimPoller, inner: SimGroup) -> (AnyPoller, AnyGroup) {
        let group = Late { inner, env: at.env.clone(), last: Arc::default() };
        (AnyPoller::new(poller), AnyGroup::new(group))
    }
}

#[derive(Clone)]
struct Late {
    inner: SimGroup,
    env: AnyEnv,
    last: Arc<Mutex<Vec<Commit>>>,
}

impl Group for Late {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        self.last.lock().expect("no code panics while it holds the commits").clone_from(&commits);
        self.inner.commit(commits).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        let released = self.inner.release(event).await;
        let queued = std::mem::take(&mut *self.last.lock().expect("no code panics while it holds the commits"));
        let late = self.clone();
        self.env.spawn(async move {
            late.env.sleep(QUEUED).await;
            if !queued.is_empty() {
                // Nobody waits for it any more.
                let _ = late.inner.commit_unfenced(queued).await;
            }
        });
        released
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        self.inner.pause(partitions);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.inner.resume(partitions);
    }

    async fn leave(&self) {
        self.inner.leave().await;
    }
}
