//! Requests and responses, typed as Kafka's own.
//!
//! Shapes only, no behaviour: what a real broker's request carries is here, and nothing that a real broker could not
//! know. Subscriptions and assignments are typed instead of bytes, for traces; the broker reads no more of them than
//! Kafka's does (subscribed topics, and whether the metadata changed). Short forms for traces are in
//! [`trace`](super::trace).

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::Header;

pub use super::error::ErrorCode;

/// A broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub i32);

/// A connection of a client. Requests that arrive at one instant are applied in the order of these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Id and epoch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId {
    /// Id, given by `InitProducerId`.
    pub id: i64,
    /// Epoch; a producer may raise it by itself, and then starts at sequence 0.
    pub epoch: i16,
}

/// A record as a log keeps it. Its offset is its batch's base offset plus its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Key.
    pub key: Option<Bytes>,
    /// Value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
    /// Milliseconds since the Unix epoch, as the producer stamped it.
    pub timestamp_millis: i64,
}

/// Bytes that a batch takes beside its records.
pub const BATCH_OVERHEAD_BYTES: usize = 61;

impl Record {
    /// The most bytes that it takes in a batch, by Kafka's own estimate (`DefaultRecord.MAX_RECORD_OVERHEAD`).
    pub fn bytes_max(&self) -> usize {
        let headers: usize = self.headers.iter().map(|header| 10 + header.name.len() + header.value.len()).sum();
        21 + self.key.as_ref().map_or(0, Bytes::len) + self.value.as_ref().map_or(0, Bytes::len) + headers
    }
}

/// A request. Each says which broker takes it; others answer `NOT_LEADER_OR_FOLLOWER` or `NOT_COORDINATOR`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Request {
    /// Any broker. The partitions of these topics, or of all. Never creates a topic.
    Metadata {
        /// Topics; `None` is all of them.
        topics: Option<Vec<Arc<str>>>,
    },
    /// Any broker. A new producer id with epoch 0, as for every producer without a transactional id.
    InitProducerId,
    /// The leaders. acks=all.
    Produce {
        /// One batch a partition.
        partitions: Vec<ProducePartition>,
    },
    /// The leaders. Answered when any partition has a record or an error, else after `max_wait`.
    Fetch {
        /// How long the broker may hold an empty answer. Zero answers at once.
        max_wait: Duration,
        /// Records over all partitions, in the order of the request: a client rotates them, as real ones do.
        records_max: usize,
        /// What to read.
        partitions: Vec<FetchPartition>,
    },
    /// The leaders.
    ListOffsets {
        /// What to look up.
        partitions: Vec<(TopicPartition, OffsetSpec)>,
    },
    /// Any broker.
    FindCoordinator {
        /// The group.
        group: Arc<str>,
    },
    /// The coordinator. Parked until the rebalance completes.
    JoinGroup(JoinGroup),
    /// The coordinator. Parked until the leader's arrives.
    SyncGroup {
        /// The group.
        group: Arc<str>,
        /// Generation that the join gave.
        generation: i32,
        /// The member.
        member_id: Arc<str>,
        /// `group.instance.id`.
        instance_id: Option<Arc<str>>,
        /// From the leader: each member's partitions. Empty from followers.
        assignments: Vec<(Arc<str>, Vec<TopicPartition>)>,
    },
    /// The coordinator.
    Heartbeat {
        /// The group.
        group: Arc<str>,
        /// Generation.
        generation: i32,
        /// The member.
        member_id: Arc<str>,
        /// `group.instance.id`.
        instance_id: Option<Arc<str>>,
    },
    /// The coordinator.
    LeaveGroup {
        /// The group.
        group: Arc<str>,
        /// The member.
        member_id: Arc<str>,
        /// `group.instance.id`.
        instance_id: Option<Arc<str>>,
    },
    /// The coordinator. Neither ownership nor direction is checked.
    OffsetCommit(OffsetCommit),
    /// The coordinator. Nothing committed is offset −1 without an error.
    OffsetFetch {
        /// The group.
        group: Arc<str>,
        /// The partitions.
        partitions: Vec<TopicPartition>,
    },
    /// Any broker (it forwards to the controller).
    CreateTopics {
        /// The topics.
        topics: Vec<CreateTopic>,
    },
    /// Any broker. Grows topics; a count that is not more than the present one is `INVALID_PARTITIONS`.
    CreatePartitions {
        /// Topics with the *total* number of partitions wanted.
        topics: Vec<(Arc<str>, u32)>,
    },
    /// Any broker. Removes topics, their logs and the offsets committed for them.
    DeleteTopics {
        /// The topics.
        topics: Vec<Arc<str>>,
    },
    /// The leaders. Moves log starts.
    DeleteRecords {
        /// New start of each partition; −1 is the high watermark.
        partitions: Vec<(TopicPartition, i64)>,
    },
}

/// One batch of a `Produce`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct ProducePartition {
    /// Where to.
    pub partition: TopicPartition,
    /// An idempotent producer; `None` appends without any check.
    pub producer: Option<ProducerId>,
    /// Sequence of the first record, per (producer id, partition), from 0; past `i32::MAX` it wraps to 0.
    pub base_sequence: i32,
    /// The records. Shared, so that a resend costs nothing.
    pub records: Arc<[Record]>,
}

/// One partition of a `Fetch`.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct FetchPartition {
    /// Where from.
    pub partition: TopicPartition,
    /// The next offset wanted.
    pub offset: i64,
    /// Records of this partition.
    pub records_max: usize,
}

/// Which offset is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OffsetSpec {
    /// The log's start.
    Earliest,
    /// The high watermark: the next offset to be readable.
    Latest,
}

/// A `JoinGroup` request.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct JoinGroup {
    /// The group.
    pub group: Arc<str>,
    /// The client's name, which starts the member id that the coordinator makes.
    pub client_id: Arc<str>,
    /// The member; empty when it has no id yet, which is answered with `MEMBER_ID_REQUIRED` and one.
    pub member_id: Arc<str>,
    /// `group.instance.id`.
    pub instance_id: Option<Arc<str>>,
    /// Silence after which the member is dropped.
    pub session_timeout: Duration,
    /// How long a rebalance may wait for this member (`max.poll.interval.ms`).
    pub rebalance_timeout: Duration,
    /// Assignment protocols with their metadata, the preferred first.
    pub protocols: Vec<GroupProtocol>,
}

/// An assignment protocol that a member supports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupProtocol {
    /// Name, as `range`.
    pub name: Arc<str>,
    /// What the leader needs to know.
    pub subscription: Subscription,
}

/// A member's subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// Topics.
    pub topics: Vec<Arc<str>>,
    /// Partitions that the member owns while it joins (cooperative protocols), or owned last (sticky).
    pub owned: Vec<TopicPartition>,
    /// The generation in which it got them; −1 for none.
    pub generation: i32,
}

impl Default for Subscription {
    fn default() -> Self {
        Subscription { topics: Vec::new(), owned: Vec::new(), generation: -1 }
    }
}

/// An `OffsetCommit` request.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct OffsetCommit {
    /// The group.
    pub group: Arc<str>,
    /// Generation; −1 from a client that is no member.
    pub generation: i32,
    /// The member; empty from a client that is none.
    pub member_id: Arc<str>,
    /// `group.instance.id`.
    pub instance_id: Option<Arc<str>>,
    /// What to commit.
    pub partitions: Vec<CommitPartition>,
}

/// One partition of an `OffsetCommit`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommitPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// The next offset to read.
    pub offset: i64,
    /// Metadata; `None` clears what was there.
    pub metadata: Option<Arc<str>>,
}

/// One topic of a `CreateTopics`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreateTopic {
    /// Name.
    pub name: Arc<str>,
    /// Partitions.
    pub partitions: u32,
    /// Copies of each.
    pub replication: u16,
}

/// A response. Per-partition and per-topic results come in the order of the request.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Response {
    /// To `Metadata`.
    Metadata {
        /// The brokers.
        brokers: Vec<BrokerId>,
        /// The topics.
        topics: Vec<TopicMetadata>,
    },
    /// To `InitProducerId`.
    InitProducerId {
        /// The new producer.
        producer: ProducerId,
    },
    /// To `Produce`.
    Produce {
        /// One result a batch.
        partitions: Vec<Produced>,
    },
    /// To `Fetch`.
    Fetch {
        /// One result a partition.
        partitions: Vec<Fetched>,
    },
    /// To `ListOffsets`.
    ListOffsets {
        /// One result a partition: the offset, or −1 with an error.
        partitions: Vec<OffsetResult>,
    },
    /// To `FindCoordinator`.
    FindCoordinator {
        /// Error.
        error: ErrorCode,
        /// The coordinator.
        coordinator: BrokerId,
    },
    /// To `JoinGroup`.
    JoinGroup(Joined),
    /// To `SyncGroup`.
    SyncGroup {
        /// Error.
        error: ErrorCode,
        /// The member's partitions.
        assignment: Vec<TopicPartition>,
    },
    /// To `Heartbeat`.
    Heartbeat {
        /// Error.
        error: ErrorCode,
    },
    /// To `LeaveGroup`.
    LeaveGroup {
        /// Error.
        error: ErrorCode,
    },
    /// To `OffsetCommit`.
    OffsetCommit {
        /// One result a partition.
        partitions: Vec<(TopicPartition, ErrorCode)>,
    },
    /// To `OffsetFetch`.
    OffsetFetch {
        /// Error of the whole.
        error: ErrorCode,
        /// One result a partition; empty with an error of the whole.
        partitions: Vec<CommittedOffset>,
    },
    /// To `CreateTopics`.
    CreateTopics {
        /// One result a topic.
        topics: Vec<(Arc<str>, ErrorCode)>,
    },
    /// To `CreatePartitions`.
    CreatePartitions {
        /// One result a topic.
        topics: Vec<(Arc<str>, ErrorCode)>,
    },
    /// To `DeleteTopics`.
    DeleteTopics {
        /// One result a topic.
        topics: Vec<(Arc<str>, ErrorCode)>,
    },
    /// To `DeleteRecords`.
    DeleteRecords {
        /// One result a partition: the new log start, or −1 with an error.
        partitions: Vec<OffsetResult>,
    },
}

/// One topic of a `Metadata` response.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct TopicMetadata {
    /// The topic.
    pub topic: Arc<str>,
    /// `UNKNOWN_TOPIC_OR_PARTITION` where there is none.
    pub error: ErrorCode,
    /// The leader of each partition, from partition 0.
    pub leaders: Vec<BrokerId>,
}

/// One batch of a `Produce` response.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Produced {
    /// The partition.
    pub partition: TopicPartition,
    /// Error.
    pub error: ErrorCode,
    /// Offset of the batch's first record, the original one for a duplicate; −1 with an error.
    pub base_offset: i64,
}

/// One partition of a `Fetch` response.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Fetched {
    /// The partition.
    pub partition: TopicPartition,
    /// Error.
    pub error: ErrorCode,
    /// Records below it can be read; −1 with an error.
    pub high_watermark: i64,
    /// First offset that is kept; −1 with an error.
    pub log_start: i64,
    /// The records, in offset order. Offsets may have holes between slices.
    pub batches: Vec<BatchSlice>,
}

/// Neighbouring records of one batch of a log, shared with it. Its hash is that of where they lie.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSlice {
    /// Offset of the batch's first record, which may lie before `range`.
    pub base_offset: i64,
    /// All records of the batch.
    pub records: Arc<[Record]>,
    /// Which of them are meant.
    pub range: Range<usize>,
}

impl Hash for BatchSlice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.base_offset, &self.range).hash(state);
    }
}

impl BatchSlice {
    /// The records with their offsets.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Record)> {
        let first = self.base_offset + self.range.start as i64;
        self.records[self.range.clone()].iter().zip(first..).map(|(record, offset)| (offset, record))
    }

    /// Offset after the last record.
    pub fn next_offset(&self) -> i64 {
        self.base_offset + self.range.end as i64
    }
}

/// An offset of a partition.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct OffsetResult {
    /// The partition.
    pub partition: TopicPartition,
    /// Error.
    pub error: ErrorCode,
    /// The offset; −1 with an error.
    pub offset: i64,
}

/// A `JoinGroup` response.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Joined {
    /// Error. `MEMBER_ID_REQUIRED` comes with the id to join again with.
    pub error: ErrorCode,
    /// The new generation; −1 with an error.
    pub generation: i32,
    /// The protocol chosen; empty with an error.
    pub protocol: Arc<str>,
    /// Member id of the leader; empty with an error.
    pub leader: Arc<str>,
    /// The member's own id.
    pub member_id: Arc<str>,
    /// To the leader: all members, with their subscriptions under the protocol chosen. Empty for followers.
    pub members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct JoinedMember {
    /// Its id.
    pub member_id: Arc<str>,
    /// `group.instance.id`.
    pub instance_id: Option<Arc<str>>,
    /// Its subscription.
    pub subscription: Subscription,
}

/// One partition of an `OffsetFetch` response.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct CommittedOffset {
    /// The partition.
    pub partition: TopicPartition,
    /// The committed offset; −1 when there is none.
    pub offset: i64,
    /// Its metadata; empty when there is none.
    pub metadata: Arc<str>,
}
