//! Messages in memory: one process, no Kafka, nothing to commit.
//!
//! A queue has as many lanes as there are consumers behind it, and equal keys stay in one lane, so that order for each
//! id holds with any number of workers and indexers. A full lane makes the sender wait.
//!
//! There is no topic of dead letters: they go to the sink that the configuration names. Without one only their number
//! and the causes in the events remain, of which the summary of the run shows the first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use compact_str::format_compact;
use tokio::sync::mpsc;

use super::{
    DeadLetterSink, Emission, EventSource, IndexerMessenger, MessengerError, MessengerFactory, Opened, Outbound,
    Payload, PublicationSender, PublisherMessenger, Sides, Work, WorkerMessenger, lane_queue::LaneQueue,
};
use crate::env::Env;
use crate::event::{Event, EventKind};
use crate::identity::RunId;
use crate::intake::Claim;

/// Batches of events that may wait for the publisher.
const EVENT_BATCHES_MAX: usize = 1_024;

/// Sizes of the in-memory queues.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Workers, each with a lane of its own.
    pub workers: usize,
    /// Indexers, each with a lane of its own.
    pub indexers: usize,
    /// Documents that may wait in a queue, for each of its lanes.
    pub lane_records_max: usize,
    /// Bytes of documents that may wait in a queue.
    pub queue_bytes_max: usize,
    /// Where documents that failed are kept.
    pub dead_letters: Option<Arc<dyn DeadLetterSink>>,
}

impl Default for LocalConfig {
    fn default() -> Self {
        LocalConfig { workers: 1, indexers: 1, lane_records_max: 4_096, queue_bytes_max: 64 << 20, dead_letters: None }
    }
}

#[derive(Debug)]
struct Shared {
    source: LaneQueue<Outbound>,
    dest: LaneQueue<Outbound>,
    dead_letters: Option<Arc<dyn DeadLetterSink>>,
    events: Mutex<Option<mpsc::Sender<Vec<Event>>>>,
    /// Highest clock reading that was published.
    clock: AtomicU64,
}

impl Shared {
    /// Gives the dead letters of `emissions` to the sink.
    async fn bury(&self, emissions: &mut [Emission]) {
        let letters = emissions.iter_mut().flat_map(|emission| std::mem::take(&mut emission.dead_letters));
        let letters: Vec<_> = letters.collect();
        let Some(sink) = self.dead_letters.as_ref().filter(|_| !letters.is_empty()) else { return };
        let Err(problem) = sink.keep(letters).await else { return };
        let events = emissions.iter_mut().flat_map(|emission| &mut emission.events);
        for event in events.filter(|event| event.kind == EventKind::Fail) {
            let message = event.message.take().unwrap_or_default();
            event.message = Some(format_compact!("{message}; its dead letter was not kept: {problem}"));
        }
    }

    async fn send_events(&self, events: Vec<Event>) -> Result<(), MessengerError> {
        if events.is_empty() {
            return Ok(());
        }
        let sender = self.events.lock().expect("no code panics while it holds the sender").clone();
        match sender {
            Some(sender) => sender.send(events).await.map_err(|_| MessengerError::Closed("publisher")),
            None => Err(MessengerError::Closed("publisher")),
        }
    }
}

/// Makes in-memory messengers that belong together.
#[derive(Clone, Debug)]
pub struct LocalMessengers<E> {
    env: E,
    shared: Arc<Shared>,
}

impl<E: Env> LocalMessengers<E> {
    /// New, empty queues.
    pub fn new(env: E, config: &LocalConfig) -> Self {
        let shared = Shared {
            source: LaneQueue::new(config.workers, config.lane_records_max, config.queue_bytes_max),
            dest: LaneQueue::new(config.indexers, config.lane_records_max, config.queue_bytes_max),
            dead_letters: config.dead_letters.clone(),
            events: Mutex::new(None),
            clock: AtomicU64::new(0),
        };
        LocalMessengers { env, shared: Arc::new(shared) }
    }
}

impl<E: Env> MessengerFactory for LocalMessengers<E> {
    type Worker = LocalWorker;
    type Indexer = LocalIndexer;
    type Publisher = LocalPublisher<E>;

    fn sides(&self) -> Sides {
        Sides { workers: self.shared.source.lanes(), indexers: self.shared.dest.lanes() }
    }

    async fn worker(&self) -> Result<LocalWorker, MessengerError> {
        let lane = self.shared.source.join("lane of another worker")?;
        Ok(LocalWorker { shared: self.shared.clone(), lane, draining: false })
    }

    async fn indexer(&self) -> Result<LocalIndexer, MessengerError> {
        let lane = self.shared.dest.join("lane of another indexer")?;
        Ok(LocalIndexer { shared: self.shared.clone(), lane, draining: false })
    }

    async fn publisher(&self) -> Result<LocalPublisher<E>, MessengerError> {
        Ok(LocalPublisher { env: self.env.clone(), shared: self.shared.clone() })
    }
}

fn work(items: Vec<Outbound>) -> Vec<Work> {
    items
        .into_iter()
        .map(|item| Work { payload: Payload::Document(item.document, item.envelope), claim: Claim::unfenced() })
        .collect()
}

/// A worker's messenger.
#[derive(Debug)]
pub struct LocalWorker {
    shared: Arc<Shared>,
    lane: usize,
    draining: bool,
}

impl WorkerMessenger for LocalWorker {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        if self.draining {
            return Ok(None);
        }
        Ok(Some(work(self.shared.source.take(self.lane, records_max).await)))
    }

    async fn send(&mut self, mut emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.shared.bury(&mut emissions).await;
        let mut events = Vec::new();
        let mut outputs = Vec::with_capacity(emissions.len());
        for mut emission in emissions {
            events.append(&mut emission.events);
            outputs.append(&mut emission.outputs);
            emission.claim.done();
        }
        self.shared.send_events(events).await?;
        if self.shared.dest.push(outputs).await { Ok(()) } else { Err(MessengerError::Closed("indexer")) }
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    async fn close(&mut self) {}
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        self.shared.source.close(self.lane);
    }
}

/// An indexer's messenger.
#[derive(Debug)]
pub struct LocalIndexer {
    shared: Arc<Shared>,
    lane: usize,
    draining: bool,
}

impl IndexerMessenger for LocalIndexer {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        if self.draining {
            return Ok(None);
        }
        Ok(Some(work(self.shared.dest.take(self.lane, records_max).await)))
    }

    async fn complete(&mut self, mut outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.shared.bury(&mut outcomes).await;
        let mut events = Vec::with_capacity(outcomes.len());
        for mut outcome in outcomes {
            events.append(&mut outcome.events);
            outcome.claim.done();
        }
        self.shared.send_events(events).await
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    async fn close(&mut self) {}
}

impl Drop for LocalIndexer {
    fn drop(&mut self) {
        self.shared.dest.close(self.lane);
    }
}

/// A publisher's messenger.
#[derive(Debug)]
pub struct LocalPublisher<E> {
    env: E,
    shared: Arc<Shared>,
}

impl<E: Env> PublisherMessenger for LocalPublisher<E> {
    type Sender = LocalSender;
    type Events = LocalEvents<E>;

    async fn open(self, _run: RunId) -> Result<(Opened, LocalSender, LocalEvents<E>), MessengerError> {
        let (sender, receiver) = mpsc::channel(EVENT_BATCHES_MAX);
        *self.shared.events.lock().expect("no code panics while it holds the sender") = Some(sender);
        let opened = Opened { clock_floor: self.shared.clock.load(Ordering::Relaxed), ..Opened::default() };
        Ok((opened, LocalSender { shared: self.shared }, LocalEvents { env: self.env, receiver }))
    }
}

/// Sends documents to the workers' lanes.
#[derive(Debug)]
pub struct LocalSender {
    shared: Arc<Shared>,
}

impl PublicationSender for LocalSender {
    async fn send(&mut self, batch: Vec<Outbound>) -> Result<(), MessengerError> {
        let last = batch.iter().map(|item| item.envelope.version.hlc()).max().unwrap_or_default();
        self.shared.clock.fetch_max(last, Ordering::Relaxed);
        if self.shared.source.push(batch).await { Ok(()) } else { Err(MessengerError::Closed("worker")) }
    }

    async fn flush(&mut self) -> Result<(), MessengerError> {
        Ok(())
    }
}

/// Receives events from memory.
#[derive(Debug)]
pub struct LocalEvents<E> {
    env: E,
    receiver: mpsc::Receiver<Vec<Event>>,
}

impl<E: Env> EventSource for LocalEvents<E> {
    async fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, MessengerError> {
        match self.env.timeout(wait, self.receiver.recv()).await {
            Some(Some(mut events)) => {
                while let Ok(mut more) = self.receiver.try_recv() {
                    events.append(&mut more);
                }
                Ok(events)
            }
            Some(None) => Err(MessengerError::Closed("run's event queue")),
            None => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests;
