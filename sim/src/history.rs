//! What happened in a run, as a time-ordered list of events, and the [`Recorder`] that takes them down.
//!
//! Wrappers around the ports write most events (`recorded`); the world writes what brokers and the
//! index applied, and the faults. A call is written when it is invoked and again when it is resolved, both under one
//! number ([`Call`]). Checkers read nothing else.
//!
//! Rules: an event holds ids, keys, sizes and hashes, never a document's body. Recording never awaits and never draws
//! randomness, so that a recorded run and an unrecorded one are the same run. A node that crashed records nothing more:
//! what its destructors do is not part of the history.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use compact_str::CompactString;
use serde::{Deserialize, Serialize};
use seriatim_core::env::Instant;
use seriatim_core::identity::{Envelope, Epoch, Position, RunId, Ticket, TopicPartition, Version};

/// Number of a call, unique in a history: what links an invocation with its end. Also numbers producers and consumers.
pub type Call = u64;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When, by the recorder's clock.
    pub at: Instant,
    /// Where: a process, a broker, the index, or `world`.
    pub node: Arc<str>,
    /// Which life of that node; rises at each restart.
    pub incarnation: u32,
    /// What.
    pub what: What,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ack<T> {
    /// It happened.
    Ok(T),
    /// It did not happen; with the error's name.
    Fail(CompactString),
    /// It may have happened, or may still; with the error's name.
    Unknown(CompactString),
}

impl<T> Ack<T> {
    /// The value of a call that happened.
    pub fn ok(&self) -> Option<&T> {
        match self {
            Ack::Ok(value) => Some(value),
            Ack::Fail(_) | Ack::Unknown(_) => None,
        }
    }
}

/// What a record carries of an [`Envelope`], as far as checkers need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Identity for completion.
    pub ticket: Ticket,
    /// Identity for index writes.
    pub version: Version,
    /// Whether it is the last output of its attempt.
    pub is_parent: bool,
    /// Partition and offset of the source topic that it came from.
    pub origin: Option<(i32, i64)>,
}

impl From<Envelope> for Stamp {
    fn from(envelope: Envelope) -> Self {
        let origin = (envelope.origin_partition >= 0 && envelope.origin_offset >= 0)
            .then_some((envelope.origin_partition, envelope.origin_offset));
        Stamp { ticket: envelope.ticket, version: envelope.version, is_parent: envelope.is_parent, origin }
    }
}

/// What a lifecycle event says of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LifecycleKind {
    /// The attempt gave this output; it is not terminal.
    Created,
    /// The index has it.
    Indexed,
    /// The index has something newer.
    Superseded,
    /// A stage dropped it.
    Dropped,
    /// It was dead-lettered.
    Failed,
}

/// One lifecycle event, as decoded from a record of the event topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Whose.
    pub ticket: Ticket,
    /// What became of it.
    pub kind: LifecycleKind,
    /// Whether it speaks of the last output of its attempt, so that `ticket.ordinal + 1` outputs were given.
    pub is_parent: bool,
}

/// A record handed to a producer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Produced {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition, where the caller chose one.
    pub partition: Option<i32>,
    /// Key.
    pub key: Option<Bytes>,
    /// Its envelope.
    pub stamp: Option<Stamp>,
    /// Bytes of the value; 0 for a tombstone.
    pub size: u32,
    /// The lifecycle events in it, when it goes to an event topic.
    pub lifecycle: Vec<Lifecycle>,
}

/// A record that a consumer was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Delivered {
    /// Where it lies, and the ownership under which it was read.
    pub position: Position,
    /// Key.
    pub key: Option<Bytes>,
    /// Its envelope.
    pub stamp: Option<Stamp>,
}

/// A partition that came to a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AssignedPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// The new ownership.
    pub epoch: Epoch,
    /// The committed offset that the consumer read.
    pub committed: Option<i64>,
    /// Where reading starts.
    pub start: i64,
}

/// An offset that a consumer asked to commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommittedOffset {
    /// The partition.
    pub partition: TopicPartition,
    /// The ownership under which it was reached.
    pub epoch: Epoch,
    /// The next offset to read.
    pub offset: i64,
    /// The metadata beside it.
    pub metadata: CompactString,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WriteKind {
    /// Replaces the document.
    Upsert,
    /// Removes the document.
    Delete,
}

/// One write, as an indexer sent it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IndexWrite {
    /// Id in the index.
    pub id: CompactString,
    /// External version; `None` when versions are off.
    pub version: Option<Version>,
    /// Upsert or delete.
    pub kind: WriteKind,
    /// [`body_hash`] of the JSON; 0 for a delete.
    pub body_hash: u64,
    /// Whose outcome this is.
    pub ticket: Ticket,
    /// The record that it was read from.
    pub position: Option<Position>,
}

/// What the index answered to one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WriteOutcome {
    /// It is in the index.
    Applied,
    /// The index already has this version.
    Duplicate,
    /// The index has a higher version.
    Superseded(Version),
    /// Try again.
    Throttled,
    /// Never.
    Rejected,
}

impl WriteOutcome {
    /// Whether this write needs no other try.
    pub fn is_terminal(self) -> bool {
        self != WriteOutcome::Throttled
    }

    /// Whether the index holds this version or a higher one.
    pub fn is_indexed(self) -> bool {
        matches!(self, WriteOutcome::Applied | WriteOutcome::Duplicate | WriteOutcome::Superseded(_))
    }
}

/// The summary that a publisher gave at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunSummary {
    /// Documents published and acknowledged.
    pub published: u64,
    /// Outputs beyond one a publish: children.
    pub children: u64,
    /// Outputs in the index, duplicates included.
    pub indexed: u64,
    /// Outputs that lost to something newer.
    pub superseded: u64,
    /// Outputs dropped by a stage.
    pub dropped: u64,
    /// Outputs dead-lettered.
    pub failed: u64,
    /// Drops and failures after an unclean start, whose earlier write may still land. Counted in the above too.
    pub unsettled: u64,
    /// Families whose attempts gave different outputs.
    pub ambiguous: u64,
    /// Outputs whose events never came.
    pub lost: u64,
}

/// What happened. `…Invoked` and `…Resolved` of one call carry the same [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum What {
    /// A publisher was given a document. Written by the publisher's messenger.
    PublishInvoked {
        /// The call.
        call: Call,
        /// Run and sequence.
        ticket: Ticket,
        /// Id of the document.
        id: CompactString,
        /// Its version.
        version: Version,
        /// Upsert or delete.
        kind: WriteKind,
        /// [`body_hash`] of the JSON.
        body_hash: u64,
    },
    /// That publish is acknowledged, or not.
    PublishResolved {
        /// The call.
        call: Call,
        /// How it ended.
        outcome: Ack<()>,
    },
    /// A publisher declared its run complete.
    RunComplete {
        /// The run.
        run: RunId,
        /// What it counted.
        summary: RunSummary,
    },
    /// A component without Kafka handed lifecycle events over; with Kafka they are in [`Produced::lifecycle`].
    LifecycleSent {
        /// The events.
        events: Vec<Lifecycle>,
    },
    /// `send_all` was called.
    ProduceInvoked {
        /// The call.
        call: Call,
        /// Number of the producer.
        producer: Call,
        /// The records, in order.
        records: Vec<Produced>,
    },
    /// Every record of that call is acknowledged or failed.
    ProduceResolved {
        /// The call.
        call: Call,
        /// Partition and offset of each, in order.
        outcomes: Vec<Ack<(i32, i64)>>,
    },
    /// A consumer began to join a group.
    Joined {
        /// Number of the consumer.
        consumer: Call,
        /// The group.
        group: Arc<str>,
        /// Topics.
        topics: Vec<Arc<str>>,
        /// Whether it starts at the oldest record without a committed offset; at the end otherwise.
        earliest: bool,
    },
    /// A poll of a group consumer gave records. Empty polls are not written.
    Polled {
        /// The consumer.
        consumer: Call,
        /// The records, in order.
        records: Vec<Delivered>,
    },
    /// A poll of a consumer by assignment gave records.
    Read {
        /// The consumer.
        consumer: Call,
        /// The records, in order.
        records: Vec<Delivered>,
    },
    /// A poll gave an assignment.
    Assigned {
        /// The consumer.
        consumer: Call,
        /// The new partitions.
        partitions: Vec<AssignedPartition>,
    },
    /// A poll announced a revocation.
    Revoking {
        /// The consumer.
        consumer: Call,
        /// Number of the event.
        event: u64,
        /// Partitions, with the epochs that end.
        partitions: Vec<(TopicPartition, Epoch)>,
        /// Until when to release.
        deadline: Instant,
    },
    /// A poll announced a loss.
    Lost {
        /// The consumer.
        consumer: Call,
        /// Number of the event.
        event: u64,
        /// Partitions, with the epochs that ended.
        partitions: Vec<(TopicPartition, Epoch)>,
    },
    /// The application released a revocation or loss.
    ReleaseInvoked {
        /// The call.
        call: Call,
        /// The consumer.
        consumer: Call,
        /// Number of the event.
        event: u64,
    },
    /// That release is done.
    ReleaseResolved {
        /// The call.
        call: Call,
        /// How it ended.
        outcome: Ack<()>,
    },
    /// The application asked to commit.
    CommitInvoked {
        /// The call.
        call: Call,
        /// The consumer.
        consumer: Call,
        /// One a partition.
        commits: Vec<CommittedOffset>,
    },
    /// Those commits are answered.
    CommitResolved {
        /// The call.
        call: Call,
        /// How each ended, in order.
        outcomes: Vec<Ack<()>>,
    },
    /// The application left the group.
    Left {
        /// The consumer.
        consumer: Call,
    },
    /// An indexer sent a batch.
    BulkInvoked {
        /// The call.
        call: Call,
        /// The writes, in order.
        writes: Vec<IndexWrite>,
    },
    /// That batch is answered.
    BulkResolved {
        /// The call.
        call: Call,
        /// One outcome a write, in order; `Fail` when nothing was applied.
        outcome: Ack<Vec<WriteOutcome>>,
    },
    /// The index took a write, whenever it arrived and whoever still waits for it. Written by the index.
    IndexApplied {
        /// The sender's node, where known.
        sender: Option<Arc<str>>,
        /// The write; its position may be absent.
        write: Box<IndexWrite>,
        /// Whether a reader sees a difference.
        changed: bool,
    },
    /// A coordinator stored an offset.
    OffsetsCommitted {
        /// The group.
        group: Arc<str>,
        /// Member id, as the coordinator knows it.
        member: Arc<str>,
        /// The sender's node, where known.
        sender: Option<Arc<str>>,
        /// The partition.
        partition: TopicPartition,
        /// The next offset to read.
        offset: i64,
    },
    /// A member's assignment took effect at the coordinator.
    GroupAssigned {
        /// The group.
        group: Arc<str>,
        /// Member id.
        member: Arc<str>,
        /// The generation.
        generation: i32,
        /// Everything that it now has.
        partitions: Vec<TopicPartition>,
    },
    /// A coordinator forgot an offset.
    OffsetsExpired {
        /// The group.
        group: Arc<str>,
        /// The partition.
        partition: TopicPartition,
    },
    /// Retention or a deletion of records moved a log's start.
    LogStartMoved {
        /// The partition.
        partition: TopicPartition,
        /// First offset that is kept.
        start: i64,
    },
    /// A log lost its tail.
    LogTruncated {
        /// The partition.
        partition: TopicPartition,
        /// Offset that the next record will get.
        end: i64,
    },
    /// A fault took effect.
    FaultInjected {
        /// Its kind, as the plan names it.
        kind: Arc<str>,
        /// What it hit.
        target: Arc<str>,
        /// Requests or records in flight when it hit.
        in_flight: u64,
    },
    /// This node began this incarnation.
    Started,
    /// This node was killed: nothing more comes from this incarnation.
    Crashed,
    /// This node ended by itself.
    Stopped,
    /// The fault phase is over.
    Healed,
}

/// Hash of a body, stable across processes and machines: FNV-1a, 64 bits.
pub fn body_hash(body: &[u8]) -> u64 {
    body.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The rolling hash of a history. FNV-1a's step over words, so that it costs little; integers of every width are taken
/// as 64 bits, which keeps it the same on every machine of one byte order.
#[derive(Clone, Copy)]
struct RollingHash(u64);

impl RollingHash {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FNV_PRIME);
    }
}

impl Hasher for RollingHash {
    fn finish(&self) -> u64 {
        // Spreads the last words over all bits.
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    fn write_u128(&mut self, n: u128) {
        self.word(n as u64);
        self.word((n >> 64) as u64);
    }
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
    fn write_i32(&mut self, n: i32) {
        self.word(n as u64);
    }
    fn write_i64(&mut self, n: i64) {
        self.word(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

/// How much a [`Recorder`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Every event, and the hash.
    #[default]
    Events,
    /// The hash only.
    Hash,
    /// Nothing.
    Nothing,
}

struct Taken {
    events: Vec<Event>,
    hash: RollingHash,
    count: u64,
    dead: BTreeSet<(Arc<str>, u32)>,
    sink: Option<Box<dyn Write + Send>>,
    sink_error: Option<io::Error>,
}

struct Shared {
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    keep: Keep,
    calls: AtomicU64,
    taken: Mutex<Taken>,
}

/// Takes a history down. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("events", &self.count()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that stamps events by `clock`.
    pub fn new(keep: Keep, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        let taken = Taken {
            events: Vec::new(),
            hash: RollingHash(FNV_OFFSET),
            count: 0,
            dead: BTreeSet::new(),
            sink: None,
            sink_error: None,
        };
        Recorder {
            shared: Arc::new(Shared {
                clock: Box::new(clock),
                keep,
                calls: AtomicU64::new(1),
                taken: Mutex::new(taken),
            }),
        }
    }

    /// Also writes every event to `sink` as a line of JSON before `record` returns: what a real process does, so that
    /// its history survives it.
    pub fn with_sink(self, sink: Box<dyn Write + Send>) -> Self {
        self.taken().sink = Some(sink);
        self
    }

    /// A fresh number, for a call, a producer or a consumer. Never 0.
    pub fn call(&self) -> Call {
        self.shared.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes an event of `node` down. [`What::Crashed`] silences that incarnation from then on.
    pub fn record(&self, node: &Arc<str>, incarnation: u32, what: What) {
        if self.shared.keep == Keep::Nothing {
            return;
        }
        let at = (self.shared.clock)();
        let mut taken = self.taken();
        if !taken.dead.is_empty() && taken.dead.contains(&(node.clone(), incarnation)) {
            return;
        }
        if what == What::Crashed {
            taken.dead.insert((node.clone(), incarnation));
        }
        let event = Event { at, node: node.clone(), incarnation, what };
        event.hash(&mut taken.hash);
        taken.count += 1;
        if let Some(sink) = &mut taken.sink
            && let Err(error) = write_line(&event, sink)
        {
            taken.sink_error.get_or_insert(error);
        }
        if self.shared.keep == Keep::Events {
            taken.events.push(event);
        }
    }

    /// The recorder as one life of one node uses it.
    pub fn node(&self, name: impl Into<Arc<str>>, incarnation: u32) -> NodeRecorder {
        NodeRecorder { recorder: self.clone(), node: name.into(), incarnation }
    }

    /// Events taken so far.
    pub fn count(&self) -> u64 {
        self.taken().count
    }

    /// Hash over every event so far, in order: equal for two runs exactly when their histories are.
    pub fn hash(&self) -> u64 {
        self.taken().hash.finish()
    }

    /// A copy of the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.taken().events.clone()
    }

    /// The events so far, which the recorder then no longer has.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.taken().events)
    }

    /// Runs `read` over the events so far, without a copy. `read` must not record.
    pub fn with_events<R>(&self, read: impl FnOnce(&[Event]) -> R) -> R {
        read(&self.taken().events)
    }

    /// The first error of the sink, if it had one: the written history is then not whole.
    pub fn take_sink_error(&self) -> Option<io::Error> {
        self.taken().sink_error.take()
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // A panic while recording leaves at worst one event out; the history must survive to explain the panic.
        self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Recorder`] in the hands of one life of one node.
#[derive(Clone, Debug)]
pub struct NodeRecorder {
    recorder: Recorder,
    node: Arc<str>,
    incarnation: u32,
}

impl NodeRecorder {
    /// Takes `what` down as an event of this node.
    pub fn record(&self, what: What) {
        self.recorder.record(&self.node, self.incarnation, what);
    }

    /// A fresh number.
    pub fn call(&self) -> Call {
        self.recorder.call()
    }

    /// Name of the node.
    pub fn name(&self) -> &Arc<str> {
        &self.node
    }

    /// Which life of it.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }
}

fn write_line(event: &Event, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Writes a history as lines of JSON.
pub fn write_jsonl(events: &[Event], out: &mut impl Write) -> io::Result<()> {
    events.iter().try_for_each(|event| write_line(event, out))
}

/// Reads a history from lines of JSON, and puts histories of several processes into the order of time.
pub fn read_jsonl(input: impl BufRead) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        let event: Event = serde_json::from_str(&line).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("line {} of the history: {error}", number + 1))
        })?;
        events.push(event);
    }
    events.sort_by_key(|event| event.at);
    Ok(events)
}

#[cfg(test)]
#[path = "history/tests.rs"]
mod tests;
