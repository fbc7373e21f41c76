//! Commits of the highest offset instead of the low-water mark: `commitSync()` without arguments, which commits how far
//! the consumer has read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Commit, Group, Polled, Poller, RebalanceId, TransportError};

use super::commit_on_poll::past;
use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// A pipeline that commits where its consumers have read to, whenever it has something to commit.
#[derive(Clone, Copy, Debug)]
pub struct CommitPosition;

/// How far each ownership has read.
type Read = Arc<Mutex<BTreeMap<(TopicPartition, Epoch), i64>>>;

impl Variant for CommitPosition {
    fn consumer(&self, _: &Place, poller: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        let read = Read::default();
        let poller = Reader { inner: poller, read: read.clone() };
        (AnyPoller::new(poller), AnyGroup::new(Highest { inner: group, read }))
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
    inner: AnyGroup,
    read: Read,
}

impl Group for Highest {
    async fn commit(&self, mut commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        for commit in &mut commits {
            let read = self.read.lock().expect("no code panics while it holds the offsets");
            let highest = read.get(&(commit.partition.clone(), commit.epoch)).copied();
            commit.offset = highest.unwrap_or(commit.offset);
        }
        self.inner.commit(commits).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        self.inner.release(event).await
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
