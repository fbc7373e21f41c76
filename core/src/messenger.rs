//! The messenger ports: what a worker, an indexer and a publisher need of whatever carries their messages.
//!
//! A component never knows which messenger it has. [`local`] carries messages in memory, [`recording`] keeps what
//! passes through any other, [`kafka`] and [`hybrid`] are written once over [`crate::transport::Transport`].
//!
//! Everything is batch-oriented. Handing over returns when there is room, not when it is acknowledged; a claim that
//! was handed over becomes done when everything about it is acknowledged, and that is the messenger's business.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::BoxFuture;

use crate::document::Document;
use crate::event::Event;
use crate::identity::{Envelope, RunId};
use crate::intake::Claim;
use crate::transport::TransportError;

pub mod hybrid;
pub mod kafka;
mod lane_queue;
pub mod local;
pub mod recording;

/// Why a messenger can go on no more.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MessengerError {
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A topic that the run needs is not as it has to be.
    #[error("topic `{topic}`: {problem}")]
    Topic {
        /// The topic.
        topic: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The other side of an in-memory queue is gone.
    #[error("the {0} is gone")]
    Closed(&'static str),
}

/// What a record holds.
#[derive(Debug)]
pub enum Payload {
    /// A document and what travels with it.
    Document(Document, Envelope),
    /// Something that no document can be made of: a poison record.
    Undecodable {
        /// What travels with it, as far as it can be read.
        envelope: Option<Envelope>,
        /// The record's key.
        key: CompactString,
        /// The record's value.
        value: Option<Bytes>,
        /// What is wrong with it.
        reason: String,
    },
}

/// A record to be worked on or indexed.
#[derive(Debug)]
pub struct Work {
    /// What it holds.
    pub payload: Payload,
    /// The right to have effects for it.
    pub claim: Claim,
}

/// A document with what travels beside it.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The document.
    pub document: Document,
    /// Its identities.
    pub envelope: Envelope,
}

/// A document that could not be processed or indexed, with the cause.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Id of the document that failed.
    pub id: CompactString,
    /// Its identities, where they are known.
    pub envelope: Envelope,
    /// What was to be processed: the document as it came in, or the record's bytes.
    pub body: Option<Bytes>,
    /// Why it failed.
    pub cause: String,
}

/// Keeps dead letters where no topic does: in local mode. Whatever holds them must be bounded in memory.
pub trait DeadLetterSink: fmt::Debug + Send + Sync + 'static {
    /// Keeps these, in order. They are reported as failed only after that; an error, in words, is told with the cause
    /// of each.
    fn keep(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, Result<(), String>>;
}

/// What came of one record, or of a part of it when the claim is a part.
#[derive(Debug)]
pub struct Emission {
    /// Becomes done when all the rest is acknowledged.
    pub claim: Claim,
    /// Documents for the indexers, in order.
    pub outputs: Vec<Outbound>,
    /// What the publisher has to know.
    pub events: Vec<Event>,
    /// What failed.
    pub dead_letters: Vec<DeadLetter>,
}

/// What a worker needs.
pub trait WorkerMessenger: Send + 'static {
    /// Documents to be processed, in order for each id; waits for the first. `None` when there will be no more.
    /// Cancel-safe.
    fn poll(&mut self, records_max: usize) -> impl Future<Output = Result<Option<Vec<Work>>, MessengerError>> + Send;

    /// Hands over what came of some records, in order. The fence was passed by every claim ([`Claim::begin`]).
    fn send(&mut self, emissions: Vec<Emission>) -> impl Future<Output = Result<(), MessengerError>> + Send;

    /// Asks for the end: nothing new may begin. What has to be finished before, because something behind it has begun,
    /// goes on coming from `poll`, then `None`, within a bound. Asking again changes nothing.
    fn drain(&mut self);

    /// Ends cleanly: what was handed over is acknowledged and committed, within a bound.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// What an indexer needs.
pub trait IndexerMessenger: Send + 'static {
    /// Documents to be indexed, in order for each id; waits for the first. None of them when a drain waits for what was
    /// given: it should wait in no batch. `None` when there will be no more. Cancel-safe.
    fn poll(&mut self, records_max: usize) -> impl Future<Output = Result<Option<Vec<Work>>, MessengerError>> + Send;

    /// Hands over what became of some records; their outputs are empty.
    fn complete(&mut self, outcomes: Vec<Emission>) -> impl Future<Output = Result<(), MessengerError>> + Send;

    /// Asks for the end: nothing new may begin. What has to be finished before, because something behind it has begun,
    /// goes on coming from `poll`, then `None`, within a bound. Asking again changes nothing.
    fn drain(&mut self);

    /// Ends cleanly: what was handed over is acknowledged and committed, within a bound.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}

/// What a run has to know of the queues before it publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Highest clock reading that the source already carries, microseconds; new versions are above it.
    pub clock_floor: u64,
    /// Partitions of the source topic, pinned for the run; 0 without a topic.
    pub source_partitions: u32,
    /// Partitions of the destination topic, pinned for the run; 0 without a topic.
    pub dest_partitions: u32,
}

/// What a publisher needs.
pub trait PublisherMessenger: Send + 'static {
    /// The half that sends documents.
    type Sender: PublicationSender;
    /// The half that reads events.
    type Events: EventSource;

    /// Prepares the queues for a run. Events can be received from then on.
    fn open(
        self,
        run: RunId,
    ) -> impl Future<Output = Result<(Opened, Self::Sender, Self::Events), MessengerError>> + Send;
}

/// Sends documents to the workers.
pub trait PublicationSender: Send + 'static {
    /// Sends documents in order; returns when there is room for more.
    fn send(&mut self, batch: Vec<Outbound>) -> impl Future<Output = Result<(), MessengerError>> + Send;

    /// Returns when everything sent is acknowledged.
    fn flush(&mut self) -> impl Future<Output = Result<(), MessengerError>> + Send;
}

/// Receives lifecycle events.
pub trait EventSource: Send + 'static {
    /// Events in any order; empty when none came within `wait`.
    fn poll(&mut self, wait: Duration) -> impl Future<Output = Result<Vec<Event>, MessengerError>> + Send;
}

/// How many workers and indexers a process has to run over its messengers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// Workers.
    pub workers: usize,
    /// Indexers.
    pub indexers: usize,
}

/// Makes messengers: a new one for each worker, indexer and run.
pub trait MessengerFactory: Clone + Send + Sync + 'static {
    /// Of workers.
    type Worker: WorkerMessenger;
    /// Of indexers.
    type Indexer: IndexerMessenger;
    /// Of publishers.
    type Publisher: PublisherMessenger;

    /// How many workers and indexers there have to be in this process: a lane in memory without its consumer would
    /// hold its documents for ever. One of each where any number will do.
    fn sides(&self) -> Sides;

    /// A messenger for one more worker.
    fn worker(&self) -> impl Future<Output = Result<Self::Worker, MessengerError>> + Send;

    /// A messenger for one more indexer.
    fn indexer(&self) -> impl Future<Output = Result<Self::Indexer, MessengerError>> + Send;

    /// A messenger for the next run.
    fn publisher(&self) -> impl Future<Output = Result<Self::Publisher, MessengerError>> + Send;

    /// Events that workers and indexers had for runs that were over: their event topics were gone. Over all messengers
    /// of this factory and its clones. Wrappers pass it on.
    fn late_events(&self) -> u64 {
        0
    }
}
