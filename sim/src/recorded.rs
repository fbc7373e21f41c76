//! Wrappers around the ports that write the [`history`](crate::history).
//!
//! Rules: forward faithfully; record on the same poll in which the wrapped call starts or ends; no await, no task and
//! no draw of their own, so that a recorded run is the run itself. They know no particular transport.

use std::time::Duration;

use compact_str::CompactString;
use futures_util::future::BoxFuture;
use seriatim_core::event::{Event as LifecycleEvent, EventKind, decode_batch};
use seriatim_core::identity::{Envelope, Epoch, TopicPartition};
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_core::transport::{
    Assigned, Commit, Delivery, ErrorKind, Group, GroupConfig, Header, OffsetReset, Outgoing, Polled, Poller, Producer,
    ProducerConfig, RebalanceId, Record, Transport, TransportError,
};

use crate::client::UnfencedCommit;
use crate::history::{
    Ack, AssignedPartition, Call, CommittedOffset, Delivered, IndexWrite, Lifecycle, LifecycleKind, NodeRecorder,
    Produced, Stamp, What, WriteKind, WriteOutcome, body_hash,
};

/// Finds the lifecycle events in a record that goes to an event topic; none in any other.
pub type DecodeLifecycle = fn(&Outgoing) -> Vec<Lifecycle>;

/// A [`DecodeLifecycle`] for both wire forms of this system's events.
pub fn decode_lifecycle(record: &Outgoing) -> Vec<Lifecycle> {
    let Some(value) = record.value.as_ref().filter(|_| record.topic.contains("_event_")) else { return Vec::new() };
    let header = record.headers.iter().find(|header| &*header.name == LifecycleEvent::HEADER);
    let events = match header {
        Some(header) => LifecycleEvent::from_json(value, Some(&header.value)).map(|event| vec![event]),
        None => decode_batch(value),
    };
    // What this cannot read, the publisher cannot either: it finishes nothing.
    events.unwrap_or_default().iter().map(lifecycle).collect()
}

/// What checkers need of an event.
pub fn lifecycle(event: &LifecycleEvent) -> Lifecycle {
    let kind = match (event.kind, event.superseded) {
        (EventKind::Create, _) => LifecycleKind::Created,
        (EventKind::Finish, false) => LifecycleKind::Indexed,
        (EventKind::Finish, true) => LifecycleKind::Superseded,
        (EventKind::Fail, _) => LifecycleKind::Failed,
        (EventKind::Drop, _) => LifecycleKind::Dropped,
    };
    Lifecycle { ticket: event.ticket, kind, is_parent: event.is_parent, digest: event.digest }
}

/// A [`DecodeLifecycle`] for runs whose events are not judged.
pub fn no_lifecycle(_: &Outgoing) -> Vec<Lifecycle> {
    Vec::new()
}

fn stamp(headers: &[Header]) -> Option<Stamp> {
    let header = headers.iter().find(|header| &*header.name == Envelope::HEADER)?;
    Envelope::decode(&header.value).ok().map(Stamp::from)
}

fn ack<T, U>(result: &Result<T, TransportError>, value: impl FnOnce(&T) -> U) -> Ack<U> {
    match result {
        Ok(ok) => Ack::Ok(value(ok)),
        Err(error) if error.kind == ErrorKind::UnknownOutcome => Ack::Unknown(error.code.into()),
        Err(error) => Ack::Fail(error.code.into()),
    }
}

/// Writes that a call was cancelled, unless it was resolved.
struct Pending<'a, F: Fn(Ack<()>) -> What> {
    node: &'a NodeRecorder,
    cancelled: F,
    resolved: bool,
}

impl<'a, F: Fn(Ack<()>) -> What> Pending<'a, F> {
    fn new(node: &'a NodeRecorder, cancelled: F) -> Self {
        Pending { node, cancelled, resolved: false }
    }

    fn resolve(mut self, what: What) {
        self.resolved = true;
        self.node.record(what);
    }
}

impl<F: Fn(Ack<()>) -> What> Drop for Pending<'_, F> {
    fn drop(&mut self) {
        if !self.resolved {
            self.node.record((self.cancelled)(Ack::Unknown("CANCELLED".into())));
        }
    }
}

/// A transport whose producers and consumers write the history.
#[derive(Clone, Debug)]
pub struct RecordedTransport<T> {
    inner: T,
    node: NodeRecorder,
    decode: DecodeLifecycle,
}

impl<T> RecordedTransport<T> {
    /// `inner`, as one life of one node uses it.
    pub fn new(inner: T, node: NodeRecorder, decode: DecodeLifecycle) -> Self {
        RecordedTransport { inner, node, decode }
    }
}

impl<T: Transport> Transport for RecordedTransport<T> {
    type Producer = RecordedProducer<T::Producer>;
    type Poller = RecordedPoller<T::Poller>;
    type Group = RecordedGroup<T::Group>;
    type Assigned = RecordedAssigned<T::Assigned>;
    type Admin = T::Admin;

    async fn producer(&self, config: ProducerConfig) -> Result<Self::Producer, TransportError> {
        let inner = self.inner.producer(config).await?;
        let number = self.node.call();
        Ok(RecordedProducer { inner, node: self.node.clone(), number, decode: self.decode })
    }

    async fn join(&self, config: GroupConfig) -> Result<(Self::Poller, Self::Group), TransportError> {
        let consumer = self.node.call();
        self.node.record(What::Joined {
            consumer,
            group: config.group.as_str().into(),
            name: config.instance_id.as_deref().unwrap_or(&config.client_id).into(),
            topics: config.topics.clone(),
            earliest: config.offset_reset == OffsetReset::Earliest,
        });
        let (poller, group) = self.inner.join(config).await?;
        let poller = RecordedPoller { inner: poller, node: self.node.clone(), consumer };
        Ok((poller, RecordedGroup { inner: group, node: self.node.clone(), consumer }))
    }

    async fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> Result<Self::Assigned, TransportError> {
        let inner = self.inner.assign(client_id, from).await?;
        Ok(RecordedAssigned { inner, node: self.node.clone(), consumer: self.node.call() })
    }

    fn admin(&self) -> Self::Admin {
        self.inner.admin()
    }
}

/// Writes that `records` are sent; the number of that call.
pub(crate) fn produce_invoked(
    node: &NodeRecorder,
    producer: Call,
    records: &[Outgoing],
    decode: DecodeLifecycle,
) -> Call {
    let call = node.call();
    let produced = records.iter().map(|record| Produced {
        topic: record.topic.clone(),
        partition: record.partition,
        key: record.key.clone(),
        stamp: stamp(&record.headers),
        size: record.value.as_ref().map_or(0, |value| u32::try_from(value.len()).unwrap_or(u32::MAX)),
        lifecycle: decode(record),
    });
    node.record(What::ProduceInvoked { call, producer, records: produced.collect() });
    call
}

/// A producer that writes the history. The end of a call is written when its [`Delivery`] gives it to the caller: what
/// the caller does not await, it does not know.
#[derive(Clone, Debug)]
pub struct RecordedProducer<P> {
    inner: P,
    node: NodeRecorder,
    number: Call,
    decode: DecodeLifecycle,
}

impl<P: Producer> Producer for RecordedProducer<P> {
    async fn send_all(&self, records: Vec<Outgoing>) -> Delivery {
        let call = produce_invoked(&self.node, self.number, &records, self.decode);
        let node = self.node.clone();
        self.inner.send_all(records).await.observed(move |outcomes| {
            let outcomes = outcomes.iter().map(|one| ack(one, |appended| (appended.partition, appended.offset)));
            node.record(What::ProduceResolved { call, outcomes: outcomes.collect() });
        })
    }

    async fn flush(&self) {
        self.inner.flush().await;
    }
}

fn delivered(records: &[Record]) -> Vec<Delivered> {
    let each = records.iter().map(|record| Delivered {
        position: record.position.clone(),
        key: record.key.clone(),
        stamp: stamp(&record.headers),
    });
    each.collect()
}

/// A poller that writes the history.
#[derive(Debug)]
pub struct RecordedPoller<P> {
    inner: P,
    node: NodeRecorder,
    consumer: Call,
}

impl<P: Poller> Poller for RecordedPoller<P> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await;
        let consumer = self.consumer;
        match &polled {
            Ok(Polled::Records(records)) if !records.is_empty() => {
                self.node.record(What::Polled { consumer, records: delivered(records) });
            }
            Ok(Polled::Assigned(partitions)) => {
                let partitions = partitions.iter().map(|one| AssignedPartition {
                    partition: one.partition.clone(),
                    epoch: one.epoch,
                    committed: one.committed.as_ref().map(|committed| committed.offset),
                    start: one.start,
                });
                self.node.record(What::Assigned { consumer, partitions: partitions.collect() });
            }
            Ok(Polled::Revoking { event, partitions, deadline }) => {
                let partitions: Vec<(TopicPartition, Epoch)> = partitions.clone();
                self.node.record(What::Revoking { consumer, event: event.0, partitions, deadline: *deadline });
            }
            Ok(Polled::Lost { event, partitions }) => {
                self.node.record(What::Lost { consumer, event: event.0, partitions: partitions.clone() });
            }
            Ok(Polled::Records(_)) | Err(_) => {}
        }
        polled
    }
}

/// A group handle that writes the history.
#[derive(Clone, Debug)]
pub struct RecordedGroup<G> {
    inner: G,
    node: NodeRecorder,
    consumer: Call,
}

impl<G: Group> RecordedGroup<G> {
    /// Writes a commit and how it ended; `send` is what carries it.
    async fn commit_by<F>(&self, commits: Vec<Commit>, send: impl FnOnce(Vec<Commit>) -> F) -> F::Output
    where
        F: Future<Output = Vec<Result<(), TransportError>>>,
    {
        let call = self.node.call();
        let count = commits.len();
        let noted = commits.iter().map(|commit| CommittedOffset {
            partition: commit.partition.clone(),
            epoch: commit.epoch,
            offset: commit.offset,
            metadata: CompactString::from(commit.metadata.as_str()),
        });
        self.node.record(What::CommitInvoked { call, consumer: self.consumer, commits: noted.collect() });
        let cancelled = move |end: Ack<()>| What::CommitResolved { call, outcomes: vec![end; count] };
        let pending = Pending::new(&self.node, cancelled);
        let results = send(commits).await;
        pending.resolve(What::CommitResolved { call, outcomes: results.iter().map(|one| ack(one, |()| ())).collect() });
        results
    }
}

impl<G: UnfencedCommit> UnfencedCommit for RecordedGroup<G> {
    async fn commit_unfenced(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        self.commit_by(commits, |commits| self.inner.commit_unfenced(commits)).await
    }
}

impl<G: Group> Group for RecordedGroup<G> {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        self.commit_by(commits, |commits| self.inner.commit(commits)).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        let call = self.node.call();
        self.node.record(What::ReleaseInvoked { call, consumer: self.consumer, event: event.0 });
        let pending = Pending::new(&self.node, move |outcome| What::ReleaseResolved { call, outcome });
        let result = self.inner.release(event).await;
        pending.resolve(What::ReleaseResolved { call, outcome: ack(&result, |()| ()) });
        result
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        self.inner.pause(partitions);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.inner.resume(partitions);
    }

    async fn leave(&self) {
        self.node.record(What::Left { consumer: self.consumer });
        self.inner.leave().await;
    }
}

/// A consumer by assignment that writes the history.
#[derive(Debug)]
pub struct RecordedAssigned<A> {
    inner: A,
    node: NodeRecorder,
    consumer: Call,
}

impl<A: Assigned> Assigned for RecordedAssigned<A> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Vec<Record>, TransportError> {
        let result = self.inner.poll(records_max, wait).await;
        if let Ok(records) = &result
            && !records.is_empty()
        {
            self.node.record(What::Read { consumer: self.consumer, records: delivered(records) });
        }
        result
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.inner.positions()
    }
}

/// The write of a history that stands for `op`: what an index server notes for what it applied.
pub fn index_write(op: &IndexOp) -> IndexWrite {
    let (kind, body_hash) = match &op.action {
        Action::Upsert(body) => (WriteKind::Upsert, body_hash(body)),
        Action::Delete => (WriteKind::Delete, 0),
    };
    IndexWrite {
        index: op.index.clone(),
        id: op.id.clone(),
        version: op.version,
        kind,
        body_hash,
        ticket: op.ticket,
        position: op.position.clone(),
    }
}

/// A search backend that writes the history.
#[derive(Clone, Debug)]
pub struct RecordedBackend<B> {
    inner: B,
    node: NodeRecorder,
}

impl<B> RecordedBackend<B> {
    /// `inner`, as one life of one node uses it.
    pub fn new(inner: B, node: NodeRecorder) -> Self {
        RecordedBackend { inner, node }
    }
}

fn write_outcome(outcome: &ItemOutcome) -> WriteOutcome {
    match outcome {
        ItemOutcome::Applied => WriteOutcome::Applied,
        ItemOutcome::Duplicate => WriteOutcome::Duplicate,
        ItemOutcome::Superseded { current } => WriteOutcome::Superseded(*current),
        ItemOutcome::Throttled => WriteOutcome::Throttled,
        ItemOutcome::Rejected { .. } => WriteOutcome::Rejected,
    }
}

impl<B: Backend> Backend for RecordedBackend<B> {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        Box::pin(async move {
            let call = self.node.call();
            self.node.record(What::BulkInvoked { call, writes: ops.iter().map(index_write).collect() });
            let cancelled = move |end: Ack<()>| What::BulkResolved {
                call,
                outcome: match end {
                    Ack::Fail(code) => Ack::Fail(code),
                    Ack::Unknown(code) => Ack::Unknown(code),
                    Ack::Ok(()) => Ack::Ok(Vec::new()),
                },
            };
            let pending = Pending::new(&self.node, cancelled);
            let result = self.inner.bulk(ops).await;
            let outcome = match &result {
                Ok(outcomes) => Ack::Ok(outcomes.iter().map(write_outcome).collect()),
                Err(BackendError::Unavailable(_)) => Ack::Fail("UNAVAILABLE".into()),
                Err(BackendError::UnknownOutcome(_)) => Ack::Unknown("NO_ANSWER".into()),
            };
            pending.resolve(What::BulkResolved { call, outcome });
            result
        })
    }
}

#[cfg(test)]
#[path = "recorded/tests.rs"]
mod tests;
