//! What the cluster applied, for histories and traces. Checkers may read it; nothing in the cluster does.

use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::protocol::ProducerId;

/// Something that the cluster applied.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Audit {
    /// A batch was appended, or found to be appended already.
    Appended {
        /// Where.
        partition: TopicPartition,
        /// Offset of its first record; of the original for a duplicate.
        base_offset: i64,
        /// Records.
        count: u32,
        /// Who, if idempotent.
        producer: Option<ProducerId>,
        /// Whether it was there already and nothing was appended.
        duplicate: bool,
    },
    /// The log's start moved.
    LogStartMoved {
        /// Where.
        partition: TopicPartition,
        /// New first offset.
        log_start: i64,
    },
    /// An offset was committed.
    OffsetCommitted {
        /// The group.
        group: Arc<str>,
        /// The partition.
        partition: TopicPartition,
        /// The next offset to read.
        offset: i64,
        /// What it replaced; −1 for nothing.
        previous: i64,
        /// Metadata.
        metadata: Arc<str>,
        /// The member; empty for none.
        member: Arc<str>,
        /// Its generation; −1 for none.
        generation: i32,
    },
    /// A committed offset was forgotten.
    OffsetRemoved {
        /// The group.
        group: Arc<str>,
        /// The partition.
        partition: TopicPartition,
        /// Why.
        why: OffsetRemoval,
    },
    /// A group came into another state, or into a new generation.
    GroupState {
        /// The group.
        group: Arc<str>,
        /// The new state.
        state: GroupState,
        /// The generation.
        generation: i32,
        /// Members.
        members: u32,
    },
    /// A member came.
    MemberJoined {
        /// The group.
        group: Arc<str>,
        /// The member.
        member: Arc<str>,
    },
    /// A member went.
    MemberRemoved {
        /// The group.
        group: Arc<str>,
        /// The member.
        member: Arc<str>,
        /// Why.
        why: MemberRemoval,
    },
    /// The leader's assignment took effect.
    Assigned {
        /// The group.
        group: Arc<str>,
        /// The member.
        member: Arc<str>,
        /// The generation.
        generation: i32,
        /// Its partitions.
        partitions: Vec<TopicPartition>,
    },
    /// A topic was created.
    TopicCreated {
        /// The topic.
        topic: Arc<str>,
        /// Partitions.
        partitions: u32,
    },
    /// A topic grew.
    PartitionsAdded {
        /// The topic.
        topic: Arc<str>,
        /// Partitions that it has now.
        partitions: u32,
    },
    /// A topic was deleted.
    TopicDeleted {
        /// The topic.
        topic: Arc<str>,
    },
}

/// State of a classic group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// No members; offsets may be kept.
    Empty,
    /// Waiting for members to join.
    PreparingRebalance,
    /// Waiting for the leader's assignment.
    CompletingRebalance,
    /// Members have their assignments.
    Stable,
    /// Removed from its coordinator. Only ever seen in an audit: a request for such a group makes it anew.
    Dead,
}

/// Why a member went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberRemoval {
    /// It left.
    Left,
    /// No heartbeat for a session time-out.
    SessionExpired,
    /// It did not rejoin within the rebalance time-out.
    JoinTimedOut,
    /// It did not send its SyncGroup within the rebalance time-out.
    SyncTimedOut,
    /// Another took its group instance id.
    Replaced,
}

/// Why a committed offset was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OffsetRemoval {
    /// Its time was over.
    Expired,
    /// Its topic was deleted.
    TopicDeleted,
}
