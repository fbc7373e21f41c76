//! The publisher: stamps documents, sends them in order, and knows when the run is complete.
//!
//! [`Publisher`] is the handle that connectors publish through, from any number of tasks. Behind it two tasks run: the
//! *sender* takes whatever has gathered since its last hand-over, so that batches grow with the load and nothing waits
//! on a timer; the *accountant* reads events into the ledger. Whether a run is complete is the ledger's decision alone:
//! it is told what is published, acknowledged and closed, and asked after every change.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::Notify;

use crate::document::{Document, DocumentError};
use crate::env::Env;
use crate::event::{Event, EventKind};
use crate::identity::{Envelope, RunId, Ticket, Version};
use crate::machines::hlc::Hlc;
use crate::machines::ledger::{Ledger, LedgerEvent, LedgerEventKind, LedgerSummary, Outcome};
use crate::messenger::{EventSource, MessengerError, Opened, Outbound, PublicationSender, PublisherMessenger};

mod failures;
pub use failures::Failure;
use failures::FirstFailures;

/// Limits of a publisher.
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Documents published and not complete; more make `publish` wait.
    pub pending_records_max: u64,
    /// Bytes of documents that may wait for the messenger; more make `publish` wait.
    pub gathered_bytes_max: usize,
    /// Documents handed to the messenger at once.
    pub batch_records_max: usize,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        PublisherConfig { pending_records_max: 50_000, batch_records_max: 1_000, gathered_bytes_max: 64 << 20 }
    }
}

/// Why a document was not published.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// The document belongs to a run already.
    #[error("document `{id}`: {error}")]
    Document {
        /// Its id.
        id: String,
        /// What is wrong with it.
        error: DocumentError,
    },
    /// The run ended.
    #[error("the run has ended: {0}")]
    Ended(String),
    /// `pause` while paused, or `resume` while not.
    #[error("the publisher is {0} already")]
    Already(&'static str),
}

/// The handle that connectors publish through. Clones share the run.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
}

struct Shared {
    run: RunId,
    run_text: Arc<str>,
    opened: Opened,
    config: PublisherConfig,
    wall: Box<dyn Fn() -> u64 + Send + Sync>,
    state: Mutex<State>,
    /// For the sender: documents came, or the end.
    gathered: Notify,
    /// For publishing tasks: there is room, the pause is over, or the end.
    room: Notify,
    /// For whoever waits: the run is complete or failed.
    settled: Notify,
}

struct State {
    ledger: Box<dyn Ledger>,
    failures: FirstFailures,
    clock: Hlc,
    next_sequence: u64,
    gathered: Vec<Outbound>,
    gathered_bytes: usize,
    paused: bool,
    /// No more will be published.
    closed: bool,
    failure: Option<MessengerError>,
    complete: bool,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publisher({})", self.shared.run)
    }
}

impl Publisher {
    /// Prepares the queues for `run` and starts the two tasks.
    pub async fn open<E: Env, M: PublisherMessenger>(
        env: E,
        messenger: M,
        run: RunId,
        ledger: Box<dyn Ledger>,
        config: PublisherConfig,
    ) -> Result<Self, MessengerError> {
        let (opened, sender, events) = messenger.open(run).await?;
        let clock = env.clone();
        let state = State {
            ledger,
            failures: FirstFailures::default(),
            clock: Hlc::new(opened.clock_floor),
            next_sequence: 0,
            gathered: Vec::new(),
            gathered_bytes: 0,
            paused: false,
            closed: false,
            failure: None,
            complete: false,
        };
        let shared = Arc::new(Shared {
            run,
            run_text: run.to_string().into(),
            opened,
            config,
            wall: Box::new(move || clock.wall_micros()),
            state: Mutex::new(state),
            gathered: Notify::new(),
            room: Notify::new(),
            settled: Notify::new(),
        });
        env.spawn(send(shared.clone(), sender));
        env.spawn(account(shared.clone(), events));
        Ok(Publisher { shared })
    }

    /// The run that documents are published into.
    pub fn run(&self) -> RunId {
        self.shared.run
    }

    /// Publishes one document; returns its sequence number. Waits while paused or while too many are pending. Ok means
    /// that the document will come to an end that is counted, as long as this process lives.
    pub async fn publish(&self, mut document: Document) -> Result<u64, PublishError> {
        self.shared.stamp(&mut document, &self.shared.run_text)?;
        let mut last = 0;
        self.shared.enter(&mut std::iter::once(document), &mut last).await?;
        Ok(last)
    }

    /// [`Publisher::publish`] for each of `documents`, in order; at the first that is refused it ends, and those before
    /// it are published.
    pub async fn publish_all(&self, mut documents: Vec<Document>) -> Result<(), PublishError> {
        // A count of references of their own: batches pass through several threads at once.
        let run_text: Arc<str> = Arc::from(&*self.shared.run_text);
        let refused = documents.iter_mut().enumerate().find_map(|(at, document)| {
            let refused = self.shared.stamp(document, &run_text).err()?;
            Some((at, refused))
        });
        documents.truncate(refused.as_ref().map_or(documents.len(), |(at, _)| *at));
        self.shared.enter(&mut documents.into_iter(), &mut 0).await?;
        refused.map_or(Ok(()), |(_, refused)| Err(refused))
    }

    /// Makes `publish` wait until [`Publisher::resume`].
    pub fn pause(&self) -> Result<(), PublishError> {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.paused, true) { Err(PublishError::Already("paused")) } else { Ok(()) }
    }

    /// Ends a pause.
    pub fn resume(&self) -> Result<(), PublishError> {
        let was_paused = std::mem::replace(&mut self.shared.lock().paused, false);
        self.shared.room.notify_waiters();
        if was_paused { Ok(()) } else { Err(PublishError::Already("running")) }
    }

    /// No more will be published.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.ledger.close();
        drop(state);
        self.shared.gathered.notify_one();
        self.shared.room.notify_waiters();
    }

    /// Waits until every document has come to its end.
    pub async fn completion(&self) -> Result<(), MessengerError> {
        loop {
            let mut settled = pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            {
                let state = self.shared.lock();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                if state.complete {
                    return Ok(());
                }
            }
            settled.await;
        }
    }

    /// Ends the run at once; what is pending stays uncounted.
    pub fn abort(&self) {
        self.shared.fail(MessengerError::Closed("run"));
    }

    /// What is counted so far.
    pub fn summary(&self) -> LedgerSummary {
        self.shared.lock().ledger.summary()
    }

    /// The first few documents that failed, with their causes.
    pub fn failures(&self) -> Vec<Failure> {
        self.shared.lock().failures.list()
    }

    /// What the run waits for, in words, at most `lines_max` lines.
    pub fn describe_pending(&self, lines_max: usize) -> Vec<String> {
        self.shared.lock().ledger.describe_pending(lines_max)
    }
}

impl Shared {
    fn stamp(&self, document: &mut Document, run_text: &Arc<str>) -> Result<(), PublishError> {
        let stamped = document.initialize_run_id(run_text.clone());
        stamped.map_err(|error| PublishError::Document { id: document.id().to_string(), error })
    }

    /// Publishes stamped documents, waiting for room. `last` becomes the sequence number of the last.
    async fn enter(
        &self,
        documents: &mut (impl ExactSizeIterator<Item = Document> + Send),
        last: &mut u64,
    ) -> Result<(), PublishError> {
        if self.enter_now(documents, last)? {
            return Ok(());
        }
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.enter_now(documents, last)? {
                return Ok(());
            }
            room.await;
        }
    }

    /// Publishes what there is room for; true when that is everything.
    fn enter_now(
        &self,
        documents: &mut impl ExactSizeIterator<Item = Document>,
        last: &mut u64,
    ) -> Result<bool, PublishError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(PublishError::Ended(failure.to_string()));
        }
        if state.closed || state.complete {
            return Err(PublishError::Ended("no more documents are taken".into()));
        }
        let before = documents.len();
        let wall = (self.wall)();
        while !state.paused && state.has_room(&self.config) {
            let Some(document) = documents.next() else { break };
            *last = state.publish(self, document, wall);
        }
        drop(state);
        if documents.len() < before {
            self.gathered.notify_one();
        }
        Ok(documents.len() == 0)
    }

    /// `task`'s output, or `None` when the run is over first.
    async fn unless_over<F: Future>(&self, task: F) -> Option<F::Output> {
        let over = async {
            loop {
                let mut settled = pin!(self.settled.notified());
                settled.as_mut().enable();
                if self.lock().is_over() {
                    return;
                }
                settled.await;
            }
        };
        match select(pin!(task), pin!(over)).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(((), _)) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a publisher")
    }

    /// Wakes whoever waits for the end, or for room that will never be needed.
    fn finished(&self) {
        self.room.notify_waiters();
        self.settled.notify_waiters();
    }

    fn fail(&self, failure: MessengerError) {
        let mut state = self.lock();
        if !state.complete {
            state.failure.get_or_insert(failure);
        }
        drop(state);
        self.gathered.notify_one();
        self.room.notify_waiters();
        self.settled.notify_waiters();
    }
}

impl State {
    /// Stamps a document and queues it: sequence, version and queue in one order.
    fn publish(&mut self, shared: &Shared, document: Document, wall_micros: u64) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let version = Version::from_hlc(self.clock.next(wall_micros));
        self.ledger.published(sequence, document.id());
        let envelope = Envelope {
            ticket: Ticket { run: shared.run, sequence, attempt: 0, ordinal: 0 },
            version,
            source_partitions: shared.opened.source_partitions,
            dest_partitions: shared.opened.dest_partitions,
            origin_partition: -1,
            origin_offset: -1,
            ..Envelope::default()
        };
        self.gathered_bytes += document.weight();
        self.gathered.push(Outbound { document, envelope });
        sequence
    }

    fn has_room(&self, config: &PublisherConfig) -> bool {
        self.ledger.pending() < config.pending_records_max && self.gathered_bytes < config.gathered_bytes_max
    }

    fn is_over(&self) -> bool {
        self.complete || self.failure.is_some()
    }
}

/// Hands what has gathered to the messenger, until the run is over.
async fn send<S: PublicationSender>(shared: Arc<Shared>, mut sender: S) {
    loop {
        let (batch, bytes, taken) = {
            let mut state = shared.lock();
            if state.is_over() {
                return;
            }
            (std::mem::take(&mut state.gathered), std::mem::take(&mut state.gathered_bytes), state.next_sequence)
        };
        if bytes >= shared.config.gathered_bytes_max {
            shared.room.notify_waiters();
        }
        let empty = batch.is_empty();
        let mut rest = batch.into_iter();
        while rest.len() > 0 {
            let part = rest.by_ref().take(shared.config.batch_records_max.max(1)).collect();
            match shared.unless_over(sender.send(part)).await {
                Some(Ok(())) => {}
                Some(Err(error)) => return shared.fail(error),
                None => return,
            }
        }
        if !empty {
            continue;
        }
        match shared.unless_over(sender.flush()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => return shared.fail(error),
            None => return,
        }
        let (complete, closed, more) = {
            let mut state = shared.lock();
            state.ledger.acknowledged(taken);
            state.complete = state.ledger.is_complete();
            (state.complete, state.closed, !state.gathered.is_empty())
        };
        if complete {
            return shared.finished();
        }
        match (more, closed) {
            (true, _) => {}
            (false, true) => return,
            (false, false) => shared.gathered.notified().await,
        }
    }
}

/// Reads events into the ledger, until the run is over.
async fn account<S: EventSource>(shared: Arc<Shared>, mut events: S) {
    loop {
        let received = match events.poll(Duration::from_millis(500)).await {
            Ok(received) => received,
            Err(error) => return shared.fail(error),
        };
        let mut state = shared.lock();
        if state.is_over() {
            return;
        }
        let was_full = state.ledger.pending() >= shared.config.pending_records_max;
        for event in &received {
            state.ledger.observe(&ledger_event(event));
            state.failures.observe(event);
        }
        let has_room = state.ledger.pending() < shared.config.pending_records_max;
        state.complete = state.ledger.is_complete();
        let complete = state.complete;
        drop(state);
        if was_full && has_room {
            shared.room.notify_waiters();
        }
        if complete {
            return shared.finished();
        }
    }
}

fn ledger_event(event: &Event) -> LedgerEvent {
    let kind = match event.kind {
        EventKind::Create => LedgerEventKind::Created,
        EventKind::Finish if event.superseded => LedgerEventKind::Terminal(Outcome::Superseded),
        EventKind::Finish => LedgerEventKind::Terminal(Outcome::Indexed),
        EventKind::Drop => LedgerEventKind::Terminal(Outcome::Dropped),
        EventKind::Fail => LedgerEventKind::Terminal(Outcome::Failed),
    };
    LedgerEvent { ticket: event.ticket, is_parent: event.is_parent, kind, digest: event.digest }
}

#[cfg(test)]
mod tests;
