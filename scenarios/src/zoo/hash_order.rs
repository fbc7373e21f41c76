//! A transport that leaks the order of a hash map into the run.

use std::collections::HashMap;
use std::hash::RandomState;
use std::time::Duration;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Polled, Poller, Record, TransportError};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// A pipeline whose consumers give the partitions of a poll in the order of a hash map. That is right, and no run is
/// the same twice: comparing runs must find it.
#[derive(Clone, Debug)]
pub struct HashOrder(RandomState);

impl HashOrder {
    /// To be called outside of any simulated run, where the hasher's keys come from the operating system.
    #[expect(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> Self {
        HashOrder(RandomState::new())
    }
}

impl Variant for HashOrder {
    fn consumer(&self, _: &Place, inner: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        (AnyPoller::new(Leaking { inner, state: self.0.clone() }), group)
    }
}

struct Leaking {
    inner: AnyPoller,
    state: RandomState,
}

impl Poller for Leaking {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let records = match self.inner.poll(records_max, wait).await? {
            Polled::Records(records) => records,
            event => return Ok(event),
        };
        let mut by_partition: HashMap<TopicPartition, Vec<Record>, RandomState> =
            HashMap::with_hasher(self.state.clone());
        for record in records {
            by_partition.entry(record.position.partition.clone()).or_default().push(record);
        }
        Ok(Polled::Records(by_partition.into_values().flatten().collect()))
    }
}
