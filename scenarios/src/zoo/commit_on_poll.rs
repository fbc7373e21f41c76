//! Commits before the work is done, as the documented system's indexer does: every poll commits what it gives.

use std::time::Duration;

use seriatim_core::transport::{Commit, Group, Polled, Poller, Record, TransportError};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Part, Place, Variant};

/// A pipeline whose indexers commit what they polled before it is indexed.
#[derive(Clone, Copy, Debug)]
pub struct CommitOnPoll;

impl Variant for CommitOnPoll {
    fn consumer(&self, at: &Place, inner: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        if at.part != Part::Indexer {
            return (inner, group);
        }
        (AnyPoller::new(Hasty { inner, group: group.clone() }), group)
    }
}

struct Hasty {
    inner: AnyPoller,
    group: AnyGroup,
}

impl Poller for Hasty {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await?;
        if let Polled::Records(records) = &polled
            && !records.is_empty()
        {
            // The mistake does not look at the answer either.
            let _ = self.group.commit(past(records)).await;
        }
        Ok(polled)
    }
}

/// Commits past the last record of each partition.
pub(super) fn past(records: &[Record]) -> Vec<Commit> {
    let mut commits: Vec<Commit> = Vec::new();
    for record in records {
        let position = &record.position;
        let offset = position.offset + 1;
        match commits.last_mut().filter(|last| last.partition == position.partition) {
            Some(last) => last.offset = offset,
            None => commits.push(Commit {
                partition: position.partition.clone(),
                epoch: position.epoch,
                offset,
                metadata: "polled".into(),
            }),
        }
    }
    commits
}
