//! Flawed pipelines: each another implementation of a port, with a mistake that somebody has made.
//!
//! They are here to be caught. A checker that has never caught one of them has shown nothing.

use std::time::Duration;

use seriatim_core::identity::{RunId, TopicPartition};
use seriatim_core::machines::ledger::Ledger;
use seriatim_core::transport::{Commit, Group, GroupConfig, Polled, Poller, ProducerConfig, Transport, TransportError};

use crate::drive::{NodeTransport, Variant};
use crate::fault::Role;

mod count_ids;
mod hash_order;
pub mod hunt;
pub use count_ids::{CountIds, IdLedger};
pub use hash_order::{HashOrder, Leaking, LeakingPoller};

/// A pipeline whose rebalances are released at once: nothing drains, nothing is told, and what was taken goes on.
#[derive(Clone, Copy, Debug)]
pub struct NoDrain<V>(pub V);

impl<V: Variant> Variant for NoDrain<V> {
    type Transport = Flawed<V::Transport>;

    fn transport(&self, role: Role, inner: NodeTransport) -> Self::Transport {
        Flawed { inner: self.0.transport(role, inner), flaw: Flaw::NoDrain }
    }

    fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
        self.0.ledger(run)
    }
}

/// A pipeline whose indexers commit what they polled before it is indexed, as the documented system does.
#[derive(Clone, Copy, Debug)]
pub struct CommitOnPoll<V>(pub V);

impl<V: Variant> Variant for CommitOnPoll<V> {
    type Transport = Flawed<V::Transport>;

    fn transport(&self, role: Role, inner: NodeTransport) -> Self::Transport {
        let flaw = if role == Role::Indexer { Flaw::CommitOnPoll } else { Flaw::None };
        Flawed { inner: self.0.transport(role, inner), flaw }
    }

    fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
        self.0.ledger(run)
    }
}

/// What is wrong with a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Revocations are released before the application hears of them, which it never does.
    NoDrain,
    /// Every poll commits what it gives.
    CommitOnPoll,
}

/// A transport whose group consumers have a flaw.
#[derive(Clone, Debug)]
pub struct Flawed<T> {
    inner: T,
    flaw: Flaw,
}

impl<T: Transport> Transport for Flawed<T> {
    type Producer = T::Producer;
    type Poller = FlawedPoller<T>;
    type Group = T::Group;
    type Assigned = T::Assigned;
    type Admin = T::Admin;

    fn producer(&self, config: ProducerConfig) -> impl Future<Output = Result<Self::Producer, TransportError>> + Send {
        self.inner.producer(config)
    }

    async fn join(&self, config: GroupConfig) -> Result<(Self::Poller, Self::Group), TransportError> {
        let (inner, group) = self.inner.join(config).await?;
        Ok((FlawedPoller { inner, group: group.clone(), flaw: self.flaw }, group))
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

/// The poller of a [`Flawed`] transport.
#[derive(Debug)]
pub struct FlawedPoller<T: Transport> {
    inner: T::Poller,
    group: T::Group,
    flaw: Flaw,
}

impl<T: Transport> Poller for FlawedPoller<T> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await?;
        match (self.flaw, polled) {
            (Flaw::NoDrain, Polled::Revoking { event, .. }) => {
                self.group.release(event).await?;
                Ok(Polled::Records(Vec::new()))
            }
            (Flaw::CommitOnPoll, Polled::Records(records)) => {
                let mut commits: Vec<Commit> = Vec::new();
                for record in &records {
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
                if !commits.is_empty() {
                    // The mistake does not look at the answer either.
                    let _ = self.group.commit(commits).await;
                }
                Ok(Polled::Records(records))
            }
            (_, polled) => Ok(polled),
        }
    }
}
