//! Wrappers that write into the history what no transport sees: publishes, the events of local mode, and what a ledger
//! counts.

use seriatim_core::identity::RunId;
use seriatim_core::machines::ledger::{Ledger, LedgerEvent, LedgerSummary};
use seriatim_core::messenger::{
    Emission, IndexerMessenger, MessengerError, MessengerFactory, Opened, Outbound, PublicationSender,
    PublisherMessenger, Sides, Work, WorkerMessenger,
};
use seriatim_sim::history::{Ack, Call, NodeRecorder, What, WriteKind, body_hash};
use seriatim_sim::recorded::lifecycle;

use crate::workload::{OpKind, marks};

/// A factory whose messengers write the history of one node.
#[derive(Clone)]
pub(crate) struct RecordedMessengers<F> {
    inner: F,
    node: NodeRecorder,
    /// Events go through memory: a transport would have recorded them.
    events: bool,
}

impl<F> RecordedMessengers<F> {
    pub(crate) fn new(inner: F, node: NodeRecorder, events: bool) -> Self {
        RecordedMessengers { inner, node, events }
    }

    fn wrap<M>(&self, inner: M) -> Recorded<M> {
        Recorded { inner, node: self.node.clone(), events: self.events }
    }
}

pub(crate) struct Recorded<M> {
    inner: M,
    node: NodeRecorder,
    events: bool,
}

impl<M> Recorded<M> {
    fn note(&self, emissions: &[Emission]) {
        let events: Vec<_> = emissions.iter().flat_map(|emission| &emission.events).map(lifecycle).collect();
        if self.events && !events.is_empty() {
            self.node.record(What::LifecycleSent { events });
        }
    }
}

impl<F: MessengerFactory> MessengerFactory for RecordedMessengers<F> {
    type Worker = Recorded<F::Worker>;
    type Indexer = Recorded<F::Indexer>;
    type Publisher = Recorded<F::Publisher>;

    fn late_events(&self) -> u64 {
        self.inner.late_events()
    }

    fn sides(&self) -> Sides {
        self.inner.sides()
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        Ok(self.wrap(self.inner.worker().await?))
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        Ok(self.wrap(self.inner.indexer().await?))
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        Ok(self.wrap(self.inner.publisher().await?))
    }
}

impl<M: WorkerMessenger> WorkerMessenger for Recorded<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.note(&emissions);
        self.inner.send(emissions).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Recorded<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.note(&outcomes);
        self.inner.complete(outcomes).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: PublisherMessenger> PublisherMessenger for Recorded<M> {
    type Sender = RecordedSender<M::Sender>;
    type Events = M::Events;

    async fn open(self, run: RunId) -> Result<(Opened, Self::Sender, Self::Events), MessengerError> {
        let (opened, sender, events) = self.inner.open(run).await?;
        Ok((opened, RecordedSender { inner: sender, node: self.node, sent: Vec::new() }, events))
    }
}

/// A sender that writes down what is published. A publish is acknowledged when a flush behind it returns.
pub(crate) struct RecordedSender<S> {
    inner: S,
    node: NodeRecorder,
    /// Those that no flush has settled.
    sent: Vec<Call>,
}

impl<S> RecordedSender<S> {
    fn invoked(&self, one: &Outbound) -> Call {
        let call = self.node.call();
        let deletes = one.document.get_str(marks::OP).is_some_and(|op| op == OpKind::Delete.name());
        let (kind, body_hash) = match deletes {
            true => (WriteKind::Delete, 0),
            false => (WriteKind::Upsert, body_hash(&one.document.to_index_json())),
        };
        self.node.record(What::PublishInvoked {
            call,
            ticket: one.envelope.ticket,
            id: one.document.id().clone(),
            version: one.envelope.version,
            kind,
            body_hash,
        });
        call
    }
}

impl<S: PublicationSender> PublicationSender for RecordedSender<S> {
    async fn send(&mut self, batch: Vec<Outbound>) -> Result<(), MessengerError> {
        for one in &batch {
            let call = self.invoked(one);
            self.sent.push(call);
        }
        self.inner.send(batch).await
    }

    async fn flush(&mut self) -> Result<(), MessengerError> {
        let flushed = self.inner.flush().await;
        for call in self.sent.drain(..) {
            let outcome = match &flushed {
                Ok(()) => Ack::Ok(()),
                Err(error) => Ack::Unknown(error.to_string().into()),
            };
            self.node.record(What::PublishResolved { call, outcome });
        }
        flushed
    }
}

/// A ledger that writes down which record it counts as complete, and when.
pub(crate) struct RecordedLedger {
    run: RunId,
    inner: Box<dyn Ledger>,
    node: NodeRecorder,
}

impl RecordedLedger {
    pub(crate) fn new(run: RunId, inner: Box<dyn Ledger>, node: NodeRecorder) -> Self {
        RecordedLedger { run, inner, node }
    }
}

impl Ledger for RecordedLedger {
    fn published(&mut self, sequence: u64, id: &str) {
        self.inner.published(sequence, id);
    }

    fn observe(&mut self, event: &LedgerEvent) {
        let pending = self.inner.pending();
        self.inner.observe(event);
        if self.inner.pending() < pending {
            self.node.record(What::RecordCounted { run: self.run, sequence: event.ticket.sequence });
        }
    }

    fn acknowledged(&mut self, sequence: u64) {
        self.inner.acknowledged(sequence);
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn pending(&self) -> u64 {
        self.inner.pending()
    }

    fn describe_pending(&self, max: usize) -> Vec<String> {
        self.inner.describe_pending(max)
    }

    fn summary(&self) -> LedgerSummary {
        self.inner.summary()
    }
}
