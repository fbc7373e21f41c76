//! Clients that give what they should not: behind the recorder, so that the history shows what they gave.

use std::collections::BTreeMap;
use std::time::Duration;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{GroupConfig, Polled, Poller, Record, TransportError};
use seriatim_sim::{SimGroup, SimPoller};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

macro_rules! client {
    ($(#[$doc:meta])* $name:ident, $poller:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Variant for $name {
            fn client(&self, _: &Place, _: &GroupConfig, inner: SimPoller, group: SimGroup) -> (AnyPoller, AnyGroup) {
                (AnyPoller::new($poller { inner, state: Default::default() }), AnyGroup::new(group))
            }
        }
    };
}

client! {
    /// A client that loses one record in a while between two fetches.
    Skips, Skipping
}

client! {
    /// A client that gives the last record again when a fetch was interrupted.
    Repeats, Repeating
}

client! {
    /// A client that keeps its position over a rebalance instead of reading what the group has committed.
    KeepsPosition, Keeping
}

client! {
    /// A client that empties its own queue after it told of a revocation.
    GivesAfterRevocation, Late
}

/// Polls that gave something between two mistakes.
const NOW_AND_THEN: u64 = 40;

struct Skipping {
    inner: SimPoller,
    state: u64,
}

impl Poller for Skipping {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let mut polled = self.inner.poll(records_max, wait).await?;
        if let Polled::Records(records) = &mut polled
            && !records.is_empty()
        {
            self.state += 1;
            if self.state.is_multiple_of(NOW_AND_THEN) {
                records.remove(0);
            }
        }
        Ok(polled)
    }
}

struct Repeating {
    inner: SimPoller,
    state: (u64, Option<Record>),
}

impl Poller for Repeating {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let mut polled = self.inner.poll(records_max, wait).await?;
        let (count, last) = &mut self.state;
        match &mut polled {
            Polled::Records(records) if !records.is_empty() => {
                *count += 1;
                if let (true, Some(last)) = (count.is_multiple_of(NOW_AND_THEN), last.take()) {
                    records.insert(0, last);
                }
                *last = records.last().cloned();
            }
            Polled::Records(_) => {}
            // The partition may go: what was given of it is forgotten.
            Polled::Assigned(_) | Polled::Revoking { .. } | Polled::Lost { .. } => *last = None,
        }
        Ok(polled)
    }
}

struct Keeping {
    inner: SimPoller,
    /// The next offset of every partition that it ever read.
    state: BTreeMap<TopicPartition, i64>,
}

impl Poller for Keeping {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let mut polled = self.inner.poll(records_max, wait).await?;
        match &mut polled {
            Polled::Assigned(assigned) => {
                for one in assigned {
                    let position = self.state.entry(one.partition.clone()).or_default();
                    *position = (*position).max(one.start);
                    one.start = *position;
                }
            }
            Polled::Records(records) => {
                let due = |record: &Record| {
                    self.state.get(&record.position.partition).is_none_or(|due| record.position.offset >= *due)
                };
                records.retain(due);
                for record in records {
                    self.state.insert(record.position.partition.clone(), record.position.offset + 1);
                }
            }
            Polled::Revoking { .. } | Polled::Lost { .. } => {}
        }
        Ok(polled)
    }
}

struct Late {
    inner: SimPoller,
    /// The last record of the last poll, and whether its partition was revoked since.
    state: (Vec<Record>, bool),
}

impl Poller for Late {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let (held, revoked) = &mut self.state;
        if std::mem::take(revoked) {
            return Ok(Polled::Records(std::mem::take(held)));
        }
        let mut polled = self.inner.poll(records_max, wait).await?;
        match &mut polled {
            Polled::Records(records) => {
                let newest = records.pop();
                records.splice(0..0, std::mem::take(held));
                held.extend(newest);
            }
            Polled::Revoking { partitions, .. } | Polled::Lost { partitions, .. } => {
                held.retain(|record| partitions.iter().any(|(gone, _)| *gone == record.position.partition));
                *revoked = !held.is_empty();
            }
            Polled::Assigned(_) => {}
        }
        Ok(polled)
    }
}
