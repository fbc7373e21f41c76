//! What a Kafka error means to a caller: its kind, and Kafka's own name of it.
//!
//! librdkafka's names differ from Kafka's in places, and it has errors of its own (negative numbers). Both are put into
//! the words of Kafka's protocol here, since `core` and the simulation know these: a record over its limit is
//! `MESSAGE_TOO_LARGE` whether the client or the broker said so.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use seriatim_core::transport::{ErrorKind, TransportError};

use RDKafkaErrorCode as Code;

/// Kafka's own name of `code`; of an error that only librdkafka knows, its name there with an underscore before it.
pub(crate) fn name(code: Code) -> &'static str {
    match code {
        // Local ones that mean the same as one of the protocol.
        Code::BrokerTransportFailure => "NETWORK_EXCEPTION",
        Code::AllBrokersDown | Code::Resolve => "BROKER_NOT_AVAILABLE",
        Code::MessageTimedOut | Code::OperationTimedOut | Code::TimedOutQueue => "REQUEST_TIMED_OUT",
        Code::UnknownTopic | Code::UnknownPartition => "UNKNOWN_TOPIC_OR_PARTITION",
        Code::WaitingForCoordinator => "COORDINATOR_NOT_AVAILABLE",
        Code::Authentication => "SASL_AUTHENTICATION_FAILED",
        Code::SSL => "_SSL",
        Code::InvalidArgument => "INVALID_REQUEST",
        Code::Fenced => "PRODUCER_FENCED",
        Code::PurgeQueue | Code::PurgeInflight | Code::BrokerDestroy => "PRODUCER_CLOSED",
        Code::LogTruncation => "LOG_TRUNCATION",
        Code::QueueFull => "_QUEUE_FULL",
        Code::State => "_STATE",
        Code::Fatal => "_FATAL",
        Code::PollExceeded => "_MAX_POLL_EXCEEDED",
        Code::AssignmentLost => "_ASSIGNMENT_LOST",
        Code::AutoOffsetReset => "OFFSET_OUT_OF_RANGE",
        Code::UnsupportedFeature => "UNSUPPORTED_VERSION",
        code => of_the_protocol(code as i32),
    }
}

/// Names of the errors of Kafka's protocol.
fn of_the_protocol(number: i32) -> &'static str {
    const NAMES: &[(i32, &str)] = &[
        (1, "OFFSET_OUT_OF_RANGE"),
        (2, "CORRUPT_MESSAGE"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (4, "INVALID_FETCH_SIZE"),
        (5, "LEADER_NOT_AVAILABLE"),
        (6, "NOT_LEADER_OR_FOLLOWER"),
        (7, "REQUEST_TIMED_OUT"),
        (8, "BROKER_NOT_AVAILABLE"),
        (9, "REPLICA_NOT_AVAILABLE"),
        (10, "MESSAGE_TOO_LARGE"),
        (11, "STALE_CONTROLLER_EPOCH"),
        (12, "OFFSET_METADATA_TOO_LARGE"),
        (13, "NETWORK_EXCEPTION"),
        (14, "COORDINATOR_LOAD_IN_PROGRESS"),
        (15, "COORDINATOR_NOT_AVAILABLE"),
        (16, "NOT_COORDINATOR"),
        (17, "INVALID_TOPIC_EXCEPTION"),
        (18, "RECORD_LIST_TOO_LARGE"),
        (19, "NOT_ENOUGH_REPLICAS"),
        (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        (21, "INVALID_REQUIRED_ACKS"),
        (22, "ILLEGAL_GENERATION"),
        (23, "INCONSISTENT_GROUP_PROTOCOL"),
        (24, "INVALID_GROUP_ID"),
        (25, "UNKNOWN_MEMBER_ID"),
        (26, "INVALID_SESSION_TIMEOUT"),
        (27, "REBALANCE_IN_PROGRESS"),
        (28, "INVALID_COMMIT_OFFSET_SIZE"),
        (29, "TOPIC_AUTHORIZATION_FAILED"),
        (30, "GROUP_AUTHORIZATION_FAILED"),
        (31, "CLUSTER_AUTHORIZATION_FAILED"),
        (32, "INVALID_TIMESTAMP"),
        (33, "UNSUPPORTED_SASL_MECHANISM"),
        (34, "ILLEGAL_SASL_STATE"),
        (35, "UNSUPPORTED_VERSION"),
        (36, "TOPIC_ALREADY_EXISTS"),
        (37, "INVALID_PARTITIONS"),
        (38, "INVALID_REPLICATION_FACTOR"),
        (39, "INVALID_REPLICA_ASSIGNMENT"),
        (40, "INVALID_CONFIG"),
        (41, "NOT_CONTROLLER"),
        (42, "INVALID_REQUEST"),
        (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT"),
        (44, "POLICY_VIOLATION"),
        (45, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (46, "DUPLICATE_SEQUENCE_NUMBER"),
        (47, "INVALID_PRODUCER_EPOCH"),
        (48, "INVALID_TXN_STATE"),
        (49, "INVALID_PRODUCER_ID_MAPPING"),
        (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (54, "SECURITY_DISABLED"),
        (55, "OPERATION_NOT_ATTEMPTED"),
        (56, "KAFKA_STORAGE_ERROR"),
        (57, "LOG_DIR_NOT_FOUND"),
        (58, "SASL_AUTHENTICATION_FAILED"),
        (59, "UNKNOWN_PRODUCER_ID"),
        (60, "REASSIGNMENT_IN_PROGRESS"),
        (68, "NON_EMPTY_GROUP"),
        (69, "GROUP_ID_NOT_FOUND"),
        (73, "TOPIC_DELETION_DISABLED"),
        (74, "FENCED_LEADER_EPOCH"),
        (75, "UNKNOWN_LEADER_EPOCH"),
        (76, "UNSUPPORTED_COMPRESSION_TYPE"),
        (77, "STALE_BROKER_EPOCH"),
        (78, "OFFSET_NOT_AVAILABLE"),
        (79, "MEMBER_ID_REQUIRED"),
        (81, "GROUP_MAX_SIZE_REACHED"),
        (82, "FENCED_INSTANCE_ID"),
        (86, "GROUP_SUBSCRIBED_TO_TOPIC"),
        (87, "INVALID_RECORD"),
        (88, "UNSTABLE_OFFSET_COMMIT"),
        (89, "THROTTLING_QUOTA_EXCEEDED"),
        (90, "PRODUCER_FENCED"),
        (91, "RESOURCE_NOT_FOUND"),
        (92, "DUPLICATE_RESOURCE"),
        (100, "UNKNOWN_TOPIC_ID"),
        (110, "FENCED_MEMBER_EPOCH"),
        (111, "UNRELEASED_INSTANCE_ID"),
        (113, "STALE_MEMBER_EPOCH"),
    ];
    match NAMES.binary_search_by_key(&number, |(number, _)| *number) {
        Ok(place) => NAMES[place].1,
        Err(_) if number < 0 => "_LOCAL",
        Err(_) => "UNKNOWN_SERVER_ERROR",
    }
}

/// What a caller may do about `code`.
pub(crate) fn kind(code: Code) -> ErrorKind {
    match code {
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::Resolve
        | Code::SSL
        | Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::WaitingForCoordinator
        | Code::WaitCache
        | Code::InProgress
        | Code::PreviousInProgress
        | Code::Retry
        | Code::QueueFull
        | Code::ISRInsufficient
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::RequestTimedOut
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::NetworkException
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::RebalanceInProgress
        | Code::IllegalGeneration
        | Code::NotController
        | Code::KafkaStorageError
        | Code::ReassignmentInProgress
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::StaleBrokerEpoch
        | Code::OffsetNotAvailable
        | Code::UnstableOffsetCommit
        | Code::ThrottlingQuotaExceeded
        | Code::ConcurrentTransactions
        | Code::UnknownTopicId => ErrorKind::Retriable,
        Code::UnknownMemberId | Code::AssignmentLost | Code::FencedMemberEpoch | Code::StaleMemberEpoch => {
            ErrorKind::Fenced
        }
        Code::Fatal
        | Code::Fenced
        | Code::FencedInstanceId
        | Code::UnreleasedInstanceId
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::ProducerFenced
        | Code::GaplessGuarantee
        | Code::Inconsistent
        | Code::CriticalSystemResource => ErrorKind::Fatal,
        Code::PurgeQueue | Code::PurgeInflight | Code::BrokerDestroy => ErrorKind::UnknownOutcome,
        _ => ErrorKind::Refused,
    }
}

/// The error that `code` stands for, met while `doing` something.
pub(crate) fn of_code(code: Code, doing: impl Into<String>) -> TransportError {
    let mut context = doing.into();
    if let Some(hint) = hint(code) {
        context = format!("{context} ({hint})");
    }
    TransportError::new(kind(code), name(code), context)
}

/// What to do next, where that is not plain.
fn hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => "create the topic first",
        Code::TopicAuthorizationFailed => "grant this principal access to the topic",
        Code::GroupAuthorizationFailed => "grant this principal READ on the group",
        Code::ClusterAuthorizationFailed => "grant this principal CREATE or IDEMPOTENT_WRITE on the cluster",
        Code::SSL => "check `ssl.ca.location`, the host's name in its certificate, and that the listener is one of TLS",
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "check `sasl.username`, `sasl.password` and `sasl.mechanism`"
        }
        Code::MessageSizeTooLarge => "see `message.max.bytes` of the producer and `max.message.bytes` of the topic",
        Code::FencedInstanceId => "another member has the same `group.instance.id`",
        Code::InconsistentGroupProtocol => "the members of the group have no assignor in common",
        _ => return None,
    })
}

/// The error of a call to rdkafka.
pub(crate) fn of(error: &KafkaError, doing: impl Into<String>) -> TransportError {
    let doing = doing.into();
    match error {
        KafkaError::ClientConfig(_, problem, key, _) if key.is_empty() => refused(format!("{doing}: {problem}")),
        KafkaError::ClientConfig(_, problem, key, _) => refused(format!("{doing}: property `{key}`: {problem}")),
        KafkaError::ClientCreation(problem) => refused(format!("{doing}: {problem}")),
        KafkaError::AdminOp(code) => of_code(*code, doing),
        KafkaError::Canceled => TransportError::new(ErrorKind::Fatal, "CONSUMER_CLOSED", doing),
        KafkaError::Transaction(error) => of_code(error.code(), doing),
        other => match other.rdkafka_error_code() {
            Some(code) => of_code(code, doing),
            None => TransportError::new(ErrorKind::Refused, "_LOCAL", format!("{doing}: {other}")),
        },
    }
}

fn refused(context: String) -> TransportError {
    TransportError::new(ErrorKind::Refused, "INVALID_CONFIG", context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kafkas_names_and_the_kinds_that_core_acts_on() {
        let table = [
            (Code::MessageSizeTooLarge, "MESSAGE_TOO_LARGE", ErrorKind::Refused),
            (Code::UnknownTopic, "UNKNOWN_TOPIC_OR_PARTITION", ErrorKind::Refused),
            (Code::UnknownPartition, "UNKNOWN_TOPIC_OR_PARTITION", ErrorKind::Refused),
            (Code::UnknownTopicOrPartition, "UNKNOWN_TOPIC_OR_PARTITION", ErrorKind::Refused),
            (Code::TopicAuthorizationFailed, "TOPIC_AUTHORIZATION_FAILED", ErrorKind::Refused),
            (Code::GroupAuthorizationFailed, "GROUP_AUTHORIZATION_FAILED", ErrorKind::Refused),
            (Code::ClusterAuthorizationFailed, "CLUSTER_AUTHORIZATION_FAILED", ErrorKind::Refused),
            (Code::Authentication, "SASL_AUTHENTICATION_FAILED", ErrorKind::Refused),
            (Code::TopicAlreadyExists, "TOPIC_ALREADY_EXISTS", ErrorKind::Refused),
            (Code::OffsetMetadataTooLarge, "OFFSET_METADATA_TOO_LARGE", ErrorKind::Refused),
            (Code::InconsistentGroupProtocol, "INCONSISTENT_GROUP_PROTOCOL", ErrorKind::Refused),
            (Code::NotLeaderForPartition, "NOT_LEADER_OR_FOLLOWER", ErrorKind::Retriable),
            (Code::BrokerTransportFailure, "NETWORK_EXCEPTION", ErrorKind::Retriable),
            (Code::RebalanceInProgress, "REBALANCE_IN_PROGRESS", ErrorKind::Retriable),
            (Code::UnknownMemberId, "UNKNOWN_MEMBER_ID", ErrorKind::Fenced),
            (Code::FencedInstanceId, "FENCED_INSTANCE_ID", ErrorKind::Fatal),
            (Code::OutOfOrderSequenceNumber, "OUT_OF_ORDER_SEQUENCE_NUMBER", ErrorKind::Fatal),
            (Code::PurgeInflight, "PRODUCER_CLOSED", ErrorKind::UnknownOutcome),
        ];
        for (code, name, kind) in table {
            let error = of_code(code, "doing something");
            assert_eq!((error.code, error.kind), (name, kind), "{code:?}");
            assert!(error.context.starts_with("doing something"), "{error}");
        }
    }

    #[test]
    fn a_name_is_known_for_every_error_that_a_broker_may_answer_a_pipeline() {
        for number in (1..=49).chain([58, 59, 69, 74, 75, 77, 78, 81, 82, 87, 89, 90, 100]) {
            assert_ne!(of_the_protocol(number), "UNKNOWN_SERVER_ERROR", "{number}");
        }
    }
}
