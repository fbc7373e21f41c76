//! Kafka's error codes, as far as this cluster answers them.

use std::fmt;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// A Kafka error code.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),*];

            /// Kafka's own name, as `UNKNOWN_MEMBER_ID`.
            pub const fn name(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)* }
            }

            /// Kafka's own number, as 25.
            pub const fn number(self) -> i16 {
                match self { $(ErrorCode::$variant => $number,)* }
            }
        }
    };
}

error_codes! {
    /// No error.
    #[default]
    None = 0 "NONE",
    /// The offset is before the log's start or past its end.
    OffsetOutOfRange = 1 "OFFSET_OUT_OF_RANGE",
    /// There is no such topic or partition.
    UnknownTopicOrPartition = 3 "UNKNOWN_TOPIC_OR_PARTITION",
    /// Another broker leads the partition: refresh the metadata.
    NotLeaderOrFollower = 6 "NOT_LEADER_OR_FOLLOWER",
    /// The request took too long at the broker.
    RequestTimedOut = 7 "REQUEST_TIMED_OUT",
    /// The record batch is larger than the broker takes.
    MessageTooLarge = 10 "MESSAGE_TOO_LARGE",
    /// The metadata of a committed offset is too long.
    OffsetMetadataTooLarge = 12 "OFFSET_METADATA_TOO_LARGE",
    /// The group is gone from its coordinator: find it again.
    CoordinatorNotAvailable = 15 "COORDINATOR_NOT_AVAILABLE",
    /// Another broker coordinates the group.
    NotCoordinator = 16 "NOT_COORDINATOR",
    /// A topic name that is not allowed.
    InvalidTopicException = 17 "INVALID_TOPIC_EXCEPTION",
    /// Too few copies are in sync: nothing was appended.
    NotEnoughReplicas = 19 "NOT_ENOUGH_REPLICAS",
    /// The generation is not the group's current one.
    IllegalGeneration = 22 "ILLEGAL_GENERATION",
    /// No protocol in common with the other members.
    InconsistentGroupProtocol = 23 "INCONSISTENT_GROUP_PROTOCOL",
    /// An empty group id.
    InvalidGroupId = 24 "INVALID_GROUP_ID",
    /// The group does not know the member.
    UnknownMemberId = 25 "UNKNOWN_MEMBER_ID",
    /// The session time-out is out of the broker's bounds.
    InvalidSessionTimeout = 26 "INVALID_SESSION_TIMEOUT",
    /// The group rebalances: rejoin.
    RebalanceInProgress = 27 "REBALANCE_IN_PROGRESS",
    /// The topic exists.
    TopicAlreadyExists = 36 "TOPIC_ALREADY_EXISTS",
    /// Not a number of partitions that the topic can have.
    InvalidPartitions = 37 "INVALID_PARTITIONS",
    /// More copies than brokers, or none.
    InvalidReplicationFactor = 38 "INVALID_REPLICATION_FACTOR",
    /// A malformed request.
    InvalidRequest = 42 "INVALID_REQUEST",
    /// A producer's batch does not follow its last one.
    OutOfOrderSequenceNumber = 45 "OUT_OF_ORDER_SEQUENCE_NUMBER",
    /// The producer's epoch is older than one already seen.
    InvalidProducerEpoch = 47 "INVALID_PRODUCER_EPOCH",
    /// The partition has forgotten the producer.
    UnknownProducerId = 59 "UNKNOWN_PRODUCER_ID",
    /// There is no such group (OffsetCommit v9 and later).
    GroupIdNotFound = 69 "GROUP_ID_NOT_FOUND",
    /// Join again with the member id of this answer.
    MemberIdRequired = 79 "MEMBER_ID_REQUIRED",
    /// Another member took this group instance id.
    FencedInstanceId = 82 "FENCED_INSTANCE_ID",
}

impl ErrorCode {
    /// Whether this is no error.
    pub const fn is_none(self) -> bool {
        matches!(self, ErrorCode::None)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
