//! A transport that leaks the order of a hash map into the run.

use std::collections::HashMap;
use std::hash::RandomState;
use std::time::Duration;

use seriatim_core::identity::{RunId, TopicPartition};
use seriatim_core::machines::ledger::Ledger;
use seriatim_core::transport::{GroupConfig, Polled, Poller, ProducerConfig, Record, Transport, TransportError};

use crate::drive::{NodeTransport, Variant};
use crate::fault::Role;

/// A pipeline whose consumers give the partitions of a poll in the order of a hash map. That is right, and no run is
/// the same twice: comparing runs must find it.
#[derive(Clone, Debug)]
pub struct HashOrder<V> {
    inner: V,
    state: RandomState,
}

impl<V> HashOrder<V> {
    /// To be called outside of any simulated run, where the hasher's keys come from the operating system.
    pub fn new(inner: V) -> Self {
        HashOrder { inner, state: RandomState::new() }
    }
}

impl<V: Variant> Variant for HashOrder<V> {
    type Transport = Leaking<V::Transport>;

    fn transport(&self, role: Role, inner: NodeTransport) -> Self::Transport {
        Leaking { inner: self.inner.transport(role, inner), state: self.state.clone() }
    }

    fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
        self.inner.ledger(run)
    }
}

/// A transport whose pollers leak.
#[derive(Clone, Debug)]
pub struct Leaking<T> {
    inner: T,
    state: RandomState,
}

impl<T: Transport> Transport for Leaking<T> {
    type Producer = T::Producer;
    type Poller = LeakingPoller<T::Poller>;
    type Group = T::Group;
    type Assigned = T::Assigned;
    type Admin = T::Admin;

    fn producer(&self, config: ProducerConfig) -> impl Future<Output = Result<Self::Producer, TransportError>> + Send {
        self.inner.producer(config)
    }

    async fn join(&self, config: GroupConfig) -> Result<(Self::Poller, Self::Group), TransportError> {
        let (inner, group) = self.inner.join(config).await?;
        Ok((LeakingPoller { inner, state: self.state.clone() }, group))
    }

    fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> impl Future<Output = Result<Self::Assigned, TransportError>> + Send {
        self.inner.assign(client_id, from)
    }

    fn admin(&self) -> Self::Admin {
        self.inner.admin()
    }
}

/// The poller of a [`Leaking`] transport.
#[derive(Debug)]
pub struct LeakingPoller<P> {
    inner: P,
    state: RandomState,
}

impl<P: Poller> Poller for LeakingPoller<P> {
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
