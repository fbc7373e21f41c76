//! Short forms of requests, responses and audits for traces: one line, stable, without times, slots or payloads.

use std::fmt::{self, Display, Formatter};

use super::audit::Audit;
use super::protocol::{BatchSlice, ErrorCode, Request, Response};

/// Writes `items` with `form`, comma-separated, in brackets.
fn list<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    mut form: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            f.write_str(", ")?;
        }
        form(f, item)?;
    }
    f.write_str("]")
}

/// An error as a suffix; nothing for none.
struct Suffix(ErrorCode);

impl Display for Suffix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_none() { Ok(()) } else { write!(f, " {}", self.0) }
    }
}

impl Display for Audit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Request::Metadata { topics: None } => f.write_str("Metadata all"),
            Request::Metadata { topics: Some(topics) } => {
                f.write_str("Metadata ")?;
                list(f, topics, |f, topic| f.write_str(topic))
            }
            Request::InitProducerId => f.write_str("InitProducerId"),
            Request::Produce { partitions } => {
                f.write_str("Produce ")?;
                list(f, partitions, |f, batch| {
                    write!(f, "{} {} records", batch.partition, batch.records.len())?;
                    match batch.producer {
                        Some(producer) => write!(f, " p{}e{} seq {}", producer.id, producer.epoch, batch.base_sequence),
                        None => Ok(()),
                    }
                })
            }
            Request::Fetch { max_wait, partitions, .. } => {
                write!(f, "Fetch {}ms ", max_wait.as_millis())?;
                list(f, partitions, |f, part| write!(f, "{}@{}", part.partition, part.offset))
            }
            Request::ListOffsets { partitions } => {
                f.write_str("ListOffsets ")?;
                list(f, partitions, |f, (partition, spec)| write!(f, "{partition} {spec:?}"))
            }
            Request::FindCoordinator { group } => write!(f, "FindCoordinator {group}"),
            Request::JoinGroup(join) => {
                write!(f, "JoinGroup {} member={:?} ", join.group, join.member_id)?;
                list(f, &join.protocols, |f, protocol| write!(f, "{} {:?}", protocol.name, protocol.subscription.owned))
            }
            Request::SyncGroup { group, generation, member_id, assignments, .. } => {
                write!(f, "SyncGroup {group} g{generation} member={member_id:?} ")?;
                list(f, assignments, |f, (member, partitions)| write!(f, "{member} {partitions:?}"))
            }
            Request::Heartbeat { group, generation, member_id, .. } => {
                write!(f, "Heartbeat {group} g{generation} member={member_id:?}")
            }
            Request::LeaveGroup { group, member_id, .. } => write!(f, "LeaveGroup {group} member={member_id:?}"),
            Request::OffsetCommit(commit) => {
                write!(f, "OffsetCommit {} g{} member={:?} ", commit.group, commit.generation, commit.member_id)?;
                list(f, &commit.partitions, |f, part| {
                    write!(f, "{}={}", part.partition, part.offset)?;
                    match &part.metadata {
                        Some(metadata) if !metadata.is_empty() => write!(f, " {metadata:?}"),
                        _ => Ok(()),
                    }
                })
            }
            Request::OffsetFetch { group, partitions } => write!(f, "OffsetFetch {group} {partitions:?}"),
            Request::CreateTopics { topics } => {
                f.write_str("CreateTopics ")?;
                list(f, topics, |f, topic| write!(f, "{}×{}", topic.name, topic.partitions))
            }
            Request::CreatePartitions { topics } => {
                f.write_str("CreatePartitions ")?;
                list(f, topics, |f, (topic, count)| write!(f, "{topic}×{count}"))
            }
            Request::DeleteTopics { topics } => {
                f.write_str("DeleteTopics ")?;
                list(f, topics, |f, topic| f.write_str(topic))
            }
            Request::DeleteRecords { partitions } => {
                f.write_str("DeleteRecords ")?;
                list(f, partitions, |f, (partition, offset)| write!(f, "{partition}<{offset}"))
            }
        }
    }
}

impl Display for Response {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Response::Metadata { brokers, topics } => {
                write!(f, "Metadata {} brokers ", brokers.len())?;
                list(f, topics, |f, topic| write!(f, "{}×{}{}", topic.topic, topic.leaders.len(), Suffix(topic.error)))
            }
            Response::InitProducerId { producer } => write!(f, "InitProducerId p{}e{}", producer.id, producer.epoch),
            Response::Produce { partitions } => {
                f.write_str("Produce ")?;
                list(f, partitions, |f, part| {
                    write!(f, "{}@{}{}", part.partition, part.base_offset, Suffix(part.error))
                })
            }
            Response::Fetch { partitions } => {
                f.write_str("Fetch ")?;
                list(f, partitions, |f, part| {
                    write!(f, "{} ", part.partition)?;
                    match (part.batches.first(), part.batches.last()) {
                        (Some(first), Some(last)) => {
                            write!(
                                f,
                                "{}..{}",
                                first.base_offset + first.range.start as i64,
                                BatchSlice::next_offset(last)
                            )?;
                        }
                        _ => f.write_str("nothing")?,
                    }
                    write!(f, "{}", Suffix(part.error))
                })
            }
            Response::ListOffsets { partitions } | Response::DeleteRecords { partitions } => {
                f.write_str(if matches!(self, Response::ListOffsets { .. }) {
                    "ListOffsets "
                } else {
                    "DeleteRecords "
                })?;
                list(f, partitions, |f, part| write!(f, "{}={}{}", part.partition, part.offset, Suffix(part.error)))
            }
            Response::FindCoordinator { error, coordinator } => {
                write!(f, "FindCoordinator broker {}{}", coordinator.0, Suffix(*error))
            }
            Response::JoinGroup(joined) => {
                write!(f, "JoinGroup {} g{} leader={:?} ", joined.member_id, joined.generation, joined.leader)?;
                list(f, &joined.members, |f, member| f.write_str(&member.member_id))?;
                write!(f, "{}", Suffix(joined.error))
            }
            Response::SyncGroup { error, assignment } => write!(f, "SyncGroup {assignment:?}{}", Suffix(*error)),
            Response::Heartbeat { error } => write!(f, "Heartbeat {error}"),
            Response::LeaveGroup { error } => write!(f, "LeaveGroup {error}"),
            Response::OffsetCommit { partitions } => {
                f.write_str("OffsetCommit ")?;
                list(f, partitions, |f, (partition, error)| write!(f, "{partition} {error}"))
            }
            Response::OffsetFetch { error, partitions } => {
                f.write_str("OffsetFetch ")?;
                list(f, partitions, |f, part| write!(f, "{}={}", part.partition, part.offset))?;
                write!(f, "{}", Suffix(*error))
            }
            Response::CreateTopics { topics } => topic_results(f, "CreateTopics ", topics),
            Response::CreatePartitions { topics } => topic_results(f, "CreatePartitions ", topics),
            Response::DeleteTopics { topics } => topic_results(f, "DeleteTopics ", topics),
        }
    }
}

fn topic_results(f: &mut Formatter<'_>, name: &str, topics: &[(std::sync::Arc<str>, ErrorCode)]) -> fmt::Result {
    f.write_str(name)?;
    list(f, topics, |f, (topic, error)| write!(f, "{topic} {error}"))
}
