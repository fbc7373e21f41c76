//! The vocabulary of a history: everything that can be written down about a run.

use std::sync::Arc;

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
    /// Of a parent: digest of the ordinals, ids and kinds that its attempt gave; 0 when it is not told.
    #[serde(default)]
    pub digest: u64,
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
    /// The index, where the backend has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<CompactString>,
    /// Id in the index.
    pub id: CompactString,
    /// External version; `None` when versions are off.
    pub version: Option<Version>,
    /// Upsert or delete.
    pub kind: WriteKind,
    /// [`super::body_hash`] of the JSON; 0 for a delete.
    pub body_hash: u64,
    /// Whose outcome this is.
    pub ticket: Ticket,
    /// The record that it was read from.
    pub position: Option<Position>,
}

impl IndexWrite {
    /// The index and the id of the document that it is about: ids are unique within an index only.
    pub fn target(&self) -> (Option<&str>, &str) {
        (self.index.as_deref(), &self.id)
    }

    /// The name of the document that it is about.
    pub fn document(&self) -> CompactString {
        document_key(self.index.as_deref(), &self.id)
    }
}

/// The name of a document among those of all indexes: its id, behind the name of its index where there is one.
pub fn document_key(index: Option<&str>, id: &str) -> CompactString {
    match index {
        None => id.into(),
        Some(index) => compact_str::format_compact!("{index}/{id}"),
    }
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
    /// Families whose attempts gave different outputs.
    pub ambiguous: u64,
    /// Events and attempts that told otherwise of a document than those before them.
    #[serde(default)]
    pub conflicts: u64,
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
        /// [`super::body_hash`] of the JSON.
        body_hash: u64,
    },
    /// That publish is acknowledged, or not.
    PublishResolved {
        /// The call.
        call: Call,
        /// How it ended.
        outcome: Ack<()>,
    },
    /// A ledger counted a published record as complete.
    RecordCounted {
        /// The run.
        run: RunId,
        /// The record's publish.
        sequence: u64,
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
        /// What its member ids begin with: its instance id, or its client id.
        name: Arc<str>,
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
