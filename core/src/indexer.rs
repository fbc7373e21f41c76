//! The indexer: collects documents into batches, writes them to the search backend, reports what became of each.
//!
//! There is a batch in the making for each index that is written to. One is out at a time, so that writes of one id
//! follow each other; the intake goes on reading meanwhile. Which batch goes first has no bearing on what is committed:
//! a record is done when its own write is. A write with an unknown outcome is repeated until its outcome is known: it
//! is never called failed.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use futures_util::future::{Either, select};

use crate::document::Document;
use crate::env::Env;
use crate::event::Event;
use crate::identity::{Envelope, Version};
use crate::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use crate::intake::Claim;
use crate::machines::batcher::BatchLimits;
use crate::machines::retry::{Retry, RetryPolicy};
use crate::machines::sub_batches::SubBatches;
use crate::messenger::{DeadLetter, Emission, IndexerMessenger, MessengerError, Payload, Work};
use crate::stop::Stop;
use crate::worker::undecodable;

/// A field whose value says that the document is to be deleted.
#[derive(Clone, Debug)]
pub struct DeletionMarker {
    /// The field.
    pub field: String,
    /// The value.
    pub value: String,
}

/// How an indexer writes.
#[derive(Clone, Debug)]
pub struct IndexerConfig {
    /// Limits of a batch, which is one of each index.
    pub batch: BatchLimits,
    /// Batches in the making, of as many indexes; one more makes the oldest of them go before its time.
    pub open_batches_max: usize,
    /// Waits between tries of a write that was throttled, unavailable or of unknown outcome.
    pub retry: RetryPolicy,
    /// Whether writes carry their versions. Without, order rests on the queues alone.
    pub versions: bool,
    /// What marks a deletion.
    pub deletion: Option<DeletionMarker>,
    /// A field whose value, where present, is the id in the index.
    pub id_override: Option<String>,
    /// A field whose value, where present, is the name of the index.
    pub index_override: Option<String>,
    /// Documents taken at once.
    pub poll_records_max: usize,
}

impl Default for IndexerConfig {
    fn default() -> Self {
        IndexerConfig {
            batch: BatchLimits { items_max: 500, bytes_max: 5 << 20, age_max: Duration::from_millis(100) },
            open_batches_max: 64,
            retry: RetryPolicy {
                base: Duration::from_millis(100),
                cap: Duration::from_secs(30),
                attempts_max: Some(100),
            },
            versions: true,
            deletion: None,
            id_override: None,
            index_override: None,
            poll_records_max: 500,
        }
    }
}

/// A write that waits for its batch.
#[derive(Debug)]
struct Item {
    op: IndexOp,
    envelope: Envelope,
    document_id: CompactString,
    claim: Claim,
    /// Tries that the backend was too busy for.
    throttled: u32,
    /// A try was never answered: it may be applied yet, so that the write must not be called failed.
    unanswered: bool,
}

/// Writes documents to a backend.
#[derive(Debug)]
pub struct Indexer<E, M> {
    env: E,
    messenger: M,
    backend: Arc<dyn Backend>,
    config: IndexerConfig,
    batches: SubBatches<Option<CompactString>, Item>,
    stop: Stop,
}

impl<E: Env, M: IndexerMessenger> Indexer<E, M> {
    /// An indexer that writes to `backend` until `stop` is requested.
    pub fn new(env: E, messenger: M, backend: Arc<dyn Backend>, config: IndexerConfig, stop: Stop) -> Self {
        let batches = SubBatches::new(config.batch, config.open_batches_max);
        Indexer { env, messenger, backend, config, batches, stop }
    }

    /// Indexes until asked to stop, then ends cleanly; or until the messenger can go on no more.
    pub async fn run(mut self) -> Result<(), MessengerError> {
        let stop = self.stop.clone();
        let mut draining = false;
        loop {
            if !draining && stop.is_requested() {
                draining = true;
                self.messenger.drain();
            }
            let wait = self.batches.deadline().map(|deadline| deadline.since(self.env.now()));
            let poll = poll_until(&self.env, &mut self.messenger, self.config.poll_records_max, wait);
            let polled = if draining {
                poll.await?
            } else {
                match select(pin!(stop.requested()), pin!(poll)).await {
                    Either::Left(_) => continue,
                    Either::Right((polled, _)) => polled?,
                }
            };
            match polled {
                Polled::Records(batch) if batch.is_empty() => self.write_all().await?,
                Polled::Records(batch) => {
                    for work in batch {
                        self.take(work).await?;
                    }
                }
                Polled::Nothing => {}
                Polled::End => break,
            }
            self.write_due().await?;
        }
        // Of what was collected the fence lets pass what has to be finished.
        self.write_all().await?;
        self.messenger.close().await;
        Ok(())
    }

    /// Writes what was collected, due or not.
    async fn write_all(&mut self) -> Result<(), MessengerError> {
        while let Some(batch) = self.batches.take() {
            self.write(batch).await?;
        }
        Ok(())
    }

    async fn take(&mut self, work: Work) -> Result<(), MessengerError> {
        let (document, envelope) = match work.payload {
            Payload::Document(document, envelope) => (document, envelope),
            Payload::Undecodable { envelope, key, value, reason } => {
                if !work.claim.begin() {
                    return Ok(());
                }
                let now = self.env.wall_micros();
                let emission = undecodable(work.claim, envelope, key, value, &reason, now);
                return self.messenger.complete(vec![emission]).await;
            }
        };
        let item = self.item(document, envelope, work.claim);
        let bytes = match &item.op.action {
            Action::Upsert(body) => body.weight() + item.op.id.len(),
            Action::Delete => item.op.id.len(),
        };
        let full = self.batches.push(item.op.index.clone(), item, bytes, self.env.now());
        if full.is_empty() {
            return Ok(());
        }
        for batch in full {
            self.write(batch).await?;
        }
        // That took time: others may be due, however many of this index are still to come.
        self.write_due().await
    }

    /// Writes what is due, the oldest first.
    async fn write_due(&mut self) -> Result<(), MessengerError> {
        while let Some(batch) = self.batches.due(self.env.now()) {
            self.write(batch).await?;
        }
        Ok(())
    }

    fn item(&self, document: Document, envelope: Envelope, claim: Claim) -> Item {
        let document_id = document.id().clone();
        let overridden = self.config.id_override.as_deref().and_then(|field| document.get_str(field));
        let id = overridden.map_or_else(|| document_id.clone(), |id| CompactString::from(&*id));
        let index = self.config.index_override.as_deref().and_then(|field| document.get_str(field));
        let index = index.map(|index| CompactString::from(&*index));
        let deletes = self
            .config
            .deletion
            .as_ref()
            .is_some_and(|marker| document.get_str(&marker.field).is_some_and(|value| *value == *marker.value));
        let action = if deletes { Action::Delete } else { Action::Upsert(document.into()) };
        let version = self.config.versions.then_some(envelope.version);
        let position = claim.position().cloned();
        let op = IndexOp { index, id, version, action, ticket: envelope.ticket, position };
        Item { op, envelope, document_id, claim, throttled: 0, unanswered: false }
    }

    /// Writes one batch and reports it.
    async fn write(&mut self, batch: Vec<Item>) -> Result<(), MessengerError> {
        let mut outcomes = Vec::new();
        let mut open = batch;
        let mut tries = 0;
        // Asked to stop, it tries no more: what is open then is abandoned with an unknown outcome.
        while tries == 0 || !self.stop.is_requested() {
            // The fence: what may not begin, or is no longer ours, is abandoned.
            open.retain(|item| item.claim.begin());
            if open.is_empty() {
                break;
            }
            tries += 1;
            let ops: Vec<IndexOp> = open.iter().map(|item| item.op.clone()).collect();
            match self.backend.bulk(&ops).await {
                Ok(answers) => {
                    let (settled, again) = sort_out(open, answers);
                    if outcomes.is_empty() {
                        outcomes = settled;
                    } else {
                        outcomes.extend(settled);
                    }
                    open = again;
                }
                Err(BackendError::UnknownOutcome(_)) => open.iter_mut().for_each(|item| item.unanswered = true),
                // The whole backend is away: no document's fault.
                Err(BackendError::Unavailable(_)) => {}
            }
            outcomes.extend(open.extract_if(.., |item| item.is_given_up(&self.config.retry)).map(|item| {
                let reason = format!("throttled in {} tries", item.throttled);
                (item, ItemOutcome::Rejected { reason })
            }));
            if open.is_empty() {
                break;
            }
            let wait = match self.config.retry.next(tries, self.env.random()) {
                Retry::After(wait) => wait,
                Retry::GiveUp => self.config.retry.cap,
            };
            select(pin!(self.stop.requested()), pin!(self.env.sleep(wait))).await;
        }
        if outcomes.is_empty() {
            return Ok(());
        }
        let now = self.env.wall_micros();
        self.messenger.complete(outcomes.into_iter().map(|(item, outcome)| report(item, outcome, now)).collect()).await
    }
}

impl Item {
    /// Whether it was throttled too often, and every try of it was answered.
    fn is_given_up(&self, policy: &RetryPolicy) -> bool {
        self.throttled > 0 && !self.unanswered && policy.next(self.throttled, 0) == Retry::GiveUp
    }
}

enum Polled {
    Records(Vec<Work>),
    Nothing,
    End,
}

async fn poll_until<E: Env, M: IndexerMessenger>(
    env: &E,
    messenger: &mut M,
    records_max: usize,
    wait: Option<Duration>,
) -> Result<Polled, MessengerError> {
    let poll = messenger.poll(records_max);
    let polled = match wait {
        None => Some(poll.await),
        Some(wait) => env.timeout(wait, poll).await,
    };
    Ok(match polled.transpose()? {
        None => Polled::Nothing,
        Some(None) => Polled::End,
        Some(Some(batch)) => Polled::Records(batch),
    })
}

/// The items whose outcome is final, and those to be tried again.
///
/// A throttled item is not tried again when a later one of its id was taken by the index: it would come behind it.
fn sort_out(items: Vec<Item>, outcomes: Vec<ItemOutcome>) -> (Vec<(Item, ItemOutcome)>, Vec<Item>) {
    let mut taken: BTreeMap<CompactString, Version> = BTreeMap::new();
    if outcomes.contains(&ItemOutcome::Throttled) {
        for (item, outcome) in items.iter().zip(&outcomes) {
            let has = match outcome {
                ItemOutcome::Applied | ItemOutcome::Duplicate => item.envelope.version,
                ItemOutcome::Superseded { current } => *current,
                ItemOutcome::Throttled | ItemOutcome::Rejected { .. } => continue,
            };
            // Redelivered records bring lower versions behind higher ones.
            let highest = taken.entry(item.op.id.clone()).or_insert(has);
            *highest = has.max(*highest);
        }
    }
    let mut settled = Vec::with_capacity(items.len());
    let mut again = Vec::new();
    let mut outcomes = outcomes.into_iter();
    for mut item in items {
        match outcomes.next() {
            Some(ItemOutcome::Throttled) => match taken.get(&item.op.id) {
                Some(&current) if current > item.envelope.version => {
                    settled.push((item, ItemOutcome::Superseded { current }));
                }
                _ => {
                    item.throttled += 1;
                    again.push(item);
                }
            },
            None => {
                item.unanswered = true;
                again.push(item);
            }
            Some(outcome) => settled.push((item, outcome)),
        }
    }
    (settled, again)
}

fn report(item: Item, outcome: ItemOutcome, wall_micros: u64) -> Emission {
    let Item { envelope, document_id, claim, op, .. } = item;
    let mut dead_letters = Vec::new();
    let event = match outcome {
        ItemOutcome::Superseded { .. } => Event::superseded(&envelope, &document_id, wall_micros),
        ItemOutcome::Rejected { reason } => {
            let body = match op.action {
                Action::Upsert(body) => Some(body.json().clone()),
                Action::Delete => None,
            };
            let event = Event::failed(&envelope, &document_id, &reason, wall_micros);
            dead_letters.push(DeadLetter { id: document_id, envelope, body, cause: reason });
            event
        }
        ItemOutcome::Applied | ItemOutcome::Duplicate | ItemOutcome::Throttled => {
            Event::finished(&envelope, &document_id, wall_micros)
        }
    };
    Emission { claim, outputs: Vec::new(), events: vec![event], dead_letters }
}

#[cfg(test)]
mod tests;
