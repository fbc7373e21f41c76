//! The offsets that one group has committed.
//!
//! Neither ownership nor direction nor the log's end is ever checked: a late commit moves an offset back. Whether the
//! committer may commit at all is the group's question. Rules: AK `OffsetMetadataManager`; kafka-observed "Commits".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use super::audit::{Audit, OffsetRemoval};
use super::context::Context;
use super::protocol::{CommitPartition, CommittedOffset, ErrorCode, OffsetCommit};

#[derive(Debug)]
struct Committed {
    offset: i64,
    metadata: Arc<str>,
    at: Instant,
}

/// Which offsets of a group may expire, and from when their time counts.
#[derive(Debug)]
pub(super) enum Expiry {
    /// None.
    Never,
    /// All, since the group became empty.
    Since(Instant),
    /// All, each since its commit: a group that never had a member.
    SinceCommit,
    /// Those of topics that no member reads, each since its commit.
    Unsubscribed(Vec<Arc<str>>),
}

#[derive(Debug, Default)]
pub(super) struct GroupOffsets {
    committed: BTreeMap<TopicPartition, Committed>,
}

impl GroupOffsets {
    pub(super) fn is_empty(&self) -> bool {
        self.committed.is_empty()
    }

    /// Commits one partition of `commit`, whose committer was checked.
    pub(super) fn commit(&mut self, cx: &mut Context, commit: &OffsetCommit, part: &CommitPartition) -> ErrorCode {
        let metadata = part.metadata.clone().unwrap_or_default();
        if metadata.len() > cx.config.offset_metadata_max {
            return ErrorCode::OffsetMetadataTooLarge;
        }
        let fresh = Committed { offset: part.offset, metadata: Arc::clone(&metadata), at: cx.now };
        let previous = match self.committed.get_mut(&part.partition) {
            Some(committed) => std::mem::replace(committed, fresh).offset,
            None => {
                self.committed.insert(part.partition.clone(), fresh);
                -1
            }
        };
        cx.tell(Audit::OffsetCommitted {
            group: Arc::clone(&commit.group),
            partition: part.partition.clone(),
            offset: part.offset,
            previous,
            metadata,
            member: Arc::clone(&commit.member_id),
            generation: commit.generation,
        });
        ErrorCode::None
    }

    pub(super) fn fetch(&self, partition: TopicPartition) -> CommittedOffset {
        match self.committed.get(&partition) {
            Some(found) => CommittedOffset { partition, offset: found.offset, metadata: Arc::clone(&found.metadata) },
            None => CommittedOffset { partition, offset: -1, metadata: Arc::default() },
        }
    }

    pub(super) fn expire(&mut self, cx: &mut Context, group: &Arc<str>, expiry: &Expiry) {
        let (now, retention): (Instant, Duration) = (cx.now, cx.config.offsets_retention);
        let is_over = |since: Instant| now.since(since) >= retention;
        self.remove(cx, group, OffsetRemoval::Expired, |partition, committed| match expiry {
            Expiry::Never => false,
            Expiry::Since(since) => is_over(*since),
            Expiry::SinceCommit => is_over(committed.at),
            Expiry::Unsubscribed(read) => is_over(committed.at) && !read.contains(&partition.topic),
        });
    }

    pub(super) fn remove_topic(&mut self, cx: &mut Context, group: &Arc<str>, topic: &Arc<str>) {
        self.remove(cx, group, OffsetRemoval::TopicDeleted, |partition, _| partition.topic == *topic);
    }

    fn remove(
        &mut self,
        cx: &mut Context,
        group: &Arc<str>,
        why: OffsetRemoval,
        goes: impl Fn(&TopicPartition, &Committed) -> bool,
    ) {
        self.committed.retain(|partition, committed| {
            let goes = goes(partition, committed);
            if goes {
                cx.tell(Audit::OffsetRemoved { group: Arc::clone(group), partition: partition.clone(), why });
            }
            !goes
        });
    }
}
