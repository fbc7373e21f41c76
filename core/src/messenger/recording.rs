//! The test mode: any messenger, keeping what passed.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{
    Emission, IndexerMessenger, MessengerError, MessengerFactory, Opened, Outbound, PublicationSender,
    PublisherMessenger, Sides, Work, WorkerMessenger,
};
use crate::document::Document;
use crate::event::Event;
use crate::identity::RunId;

/// What passed, in the order in which it was handed over.
#[derive(Debug, Default)]
pub struct Passed {
    /// Documents that a connector published.
    pub for_processing: Vec<Document>,
    /// Documents that went through the pipeline.
    pub for_indexing: Vec<Document>,
    /// Lifecycle events of workers and indexers.
    pub events: Vec<Event>,
    /// Ids and causes of what failed.
    pub failed: Vec<(String, String)>,
}

/// A factory whose messengers keep what passes through them.
#[derive(Clone, Debug)]
pub struct RecordingMessengers<F> {
    inner: F,
    passed: Arc<Mutex<Passed>>,
}

impl<F> RecordingMessengers<F> {
    /// Records what the messengers of `inner` carry.
    pub fn new(inner: F) -> Self {
        RecordingMessengers { inner, passed: Arc::default() }
    }

    /// What has passed so far.
    pub fn passed(&self) -> MutexGuard<'_, Passed> {
        lock(&self.passed)
    }
}

fn lock(passed: &Mutex<Passed>) -> MutexGuard<'_, Passed> {
    passed.lock().expect("no code panics while it holds the record")
}

/// A messenger that keeps what passes through it.
#[derive(Debug)]
pub struct Recording<M> {
    inner: M,
    passed: Arc<Mutex<Passed>>,
}

impl<M> Recording<M> {
    fn keep(&self, emissions: &[Emission]) {
        let mut passed = lock(&self.passed);
        for emission in emissions {
            passed.for_indexing.extend(emission.outputs.iter().map(|output| output.document.clone()));
            passed.events.extend(emission.events.iter().cloned());
            passed.failed.extend(emission.dead_letters.iter().map(|dead| (dead.id.to_string(), dead.cause.clone())));
        }
    }
}

impl<F: MessengerFactory> MessengerFactory for RecordingMessengers<F> {
    type Worker = Recording<F::Worker>;
    type Indexer = Recording<F::Indexer>;
    type Publisher = Recording<F::Publisher>;

    fn late_events(&self) -> u64 {
        self.inner.late_events()
    }

    fn sides(&self) -> Sides {
        self.inner.sides()
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        Ok(Recording { inner: self.inner.worker().await?, passed: self.passed.clone() })
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        Ok(Recording { inner: self.inner.indexer().await?, passed: self.passed.clone() })
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        Ok(Recording { inner: self.inner.publisher().await?, passed: self.passed.clone() })
    }
}

impl<M: WorkerMessenger> WorkerMessenger for Recording<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.keep(&emissions);
        self.inner.send(emissions).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Recording<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.keep(&outcomes);
        self.inner.complete(outcomes).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: PublisherMessenger> PublisherMessenger for Recording<M> {
    type Sender = Recording<M::Sender>;
    type Events = M::Events;

    async fn open(self, run: RunId) -> Result<(Opened, Self::Sender, Self::Events), MessengerError> {
        let (opened, sender, events) = self.inner.open(run).await?;
        Ok((opened, Recording { inner: sender, passed: self.passed }, events))
    }
}

impl<S: PublicationSender> PublicationSender for Recording<S> {
    async fn send(&mut self, batch: Vec<Outbound>) -> Result<(), MessengerError> {
        lock(&self.passed).for_processing.extend(batch.iter().map(|one| one.document.clone()));
        self.inner.send(batch).await
    }

    async fn flush(&mut self) -> Result<(), MessengerError> {
        self.inner.flush().await
    }
}
