//! Committed offsets: never ahead of the lowest unfinished record, never backwards, never by another than the owner.
//!
//! A source record is finished when one attempt's outputs and events are all acknowledged by the broker; a record of
//! the destination topic when its outcome is known and its event acknowledged. Records without an envelope are not
//! judged.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::facts::{AppliedCommit, At, Known, Role};
use super::index::HistoryIndex;
use super::{History, Violation};
use crate::history::{Ack, What};

const CHECKER: &str = "offsets";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    for ((group, partition), commits) in &history.index.commits {
        regressions(group, partition, commits, found);
        ahead(history, group, partition, commits, found);
    }
    if history.index.group_assigned.is_empty() {
        unowned_by_clients(history, found);
    } else {
        unowned_by_coordinator(history, found);
    }
}

fn regressions(group: &str, partition: &TopicPartition, commits: &[AppliedCommit], found: &mut Vec<Violation>) {
    for pair in commits.windows(2) {
        if let (Some(before), Some(after)) = (pair[0].offset, pair[1].offset)
            && after < before
        {
            let words = format!("group {group} went back on {partition} from {before} to {after}");
            let witness = [pair[0].at, pair[1].at];
            found.push(Violation::new(CHECKER, "commit-regression", words, witness).on(partition));
        }
    }
}

/// When a record was finished; `None` when it never was.
fn finished(history: &History<'_>, partition: &TopicPartition, offset: i64, known: &Known) -> Option<At> {
    let ticket = known.ticket?;
    let events = history.options.judge_events;
    match Role::of(&partition.topic) {
        Role::Source => {
            let attempts = history.index.attempts_of(ticket.run, ticket.sequence);
            let here = (partition.partition, offset);
            let of_this = attempts.filter(|(_, attempt)| attempt.origin.is_none_or(|origin| origin == here));
            of_this.filter_map(|(_, attempt)| attempt.handed_on(events)).min()
        }
        Role::Dest => {
            let attempt = history.index.attempts.get(&(ticket.run, ticket.sequence, ticket.attempt))?;
            attempt.outputs.get(&ticket.ordinal)?.settled(events)
        }
        Role::Fail | Role::Events | Role::Other => Some(0),
    }
}

fn ahead(
    history: &History<'_>,
    group: &Arc<str>,
    partition: &TopicPartition,
    commits: &[AppliedCommit],
    found: &mut Vec<Violation>,
) {
    let index = history.index;
    let Some(records) = index.records.get(partition) else { return };
    // What the group never had to read: before its first start, or gone from the log.
    let of_group = index.spans.iter().filter(|span| span.partition == *partition);
    let of_group = of_group.filter(|span| index.consumers.get(&span.consumer).is_some_and(|one| one.group == *group));
    let first = of_group.map(|span| span.start).min().unwrap_or(0).max(index.log_start(partition, usize::MAX));
    let last = index.truncated.get(partition).copied().unwrap_or(i64::MAX);
    // The offset at which `latest` rose, with the event until which everything below was finished.
    let mut judged: Vec<(i64, At)> = Vec::new();
    let mut latest = 0;
    for (offset, known) in records.range(first..last.max(first)).filter(|(_, known)| known.ticket.is_some()) {
        let at = finished(history, partition, *offset, known).unwrap_or(usize::MAX);
        if judged.is_empty() || at > latest {
            latest = at;
            judged.push((*offset, at));
        }
    }
    for commit in commits {
        let Some(offset) = commit.offset else { continue };
        let below = judged.partition_point(|(unfinished, _)| *unfinished < offset);
        // The first record below the commit that was not finished when it was applied.
        let open = judged[..below].partition_point(|(_, at)| *at <= commit.at);
        let Some((unfinished, at)) = judged[..below].get(open) else { continue };
        let record = &records[unfinished];
        let done = if *at == usize::MAX { "never was".to_owned() } else { "was only later".to_owned() };
        let words =
            format!("group {group} committed {offset} on {partition}, but {unfinished} was not finished, and {done}");
        let witness = [record.at, commit.at].into_iter().chain((*at != usize::MAX).then_some(*at));
        found.push(Violation::new(CHECKER, "commit-ahead", words, witness).on(partition).about(id_of(index, record)));
    }
}

fn id_of(index: &HistoryIndex, known: &Known) -> compact_str::CompactString {
    let ticket = known.ticket.unwrap_or_default();
    let published =
        index.by_sequence.get(&(ticket.run, ticket.sequence)).map(|number| index.publishes[*number].id.clone());
    published.unwrap_or_else(|| compact_str::format_compact!("#{}", ticket.sequence))
}

/// With the coordinator's assignments in the history, the owner is who it last gave the partition to.
fn unowned_by_coordinator(history: &History<'_>, found: &mut Vec<Violation>) {
    let mut owners: BTreeMap<(Arc<str>, TopicPartition), (Arc<str>, At)> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        match &event.what {
            What::GroupAssigned { group, member, partitions, .. } => {
                for partition in partitions {
                    owners.insert((group.clone(), partition.clone()), (member.clone(), at));
                }
            }
            What::OffsetsCommitted { group, member, partition, offset, .. } => {
                let owner = owners.get(&(group.clone(), partition.clone()));
                if let Some((owner, assigned)) = owner.filter(|(owner, _)| owner != member) {
                    let words = format!("{member} committed {offset} on {partition}, which was {owner}'s");
                    let violation = Violation::new(CHECKER, "commit-unowned", words, [*assigned, at]);
                    found.push(violation.on(partition));
                }
            }
            _ => {}
        }
    }
}

/// Without them, a commit is another's when a second consumer of the group was given the partition after the epoch
/// under which it was sent, and it was acknowledged none the less.
fn unowned_by_clients(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = history.index;
    // Latest assignment of each partition in each group, as an index into the spans.
    let mut owners: BTreeMap<(Arc<str>, TopicPartition), usize> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        match &event.what {
            What::Assigned { consumer, partitions } => {
                let Some(group) = index.consumers.get(consumer).map(|one| one.group.clone()) else { continue };
                for one in partitions {
                    let key = (*consumer, one.partition.clone(), one.epoch);
                    if let Some(span) = index.span_of.get(&key) {
                        owners.insert((group.clone(), one.partition.clone()), *span);
                    }
                }
            }
            What::CommitInvoked { call, consumer, commits } => {
                let resolved = index.resolved.get(call).map(|end| &history.events[*end].what);
                let Some(What::CommitResolved { outcomes, .. }) = resolved else { continue };
                let Some(group) = index.consumers.get(consumer).map(|one| one.group.clone()) else { continue };
                for (commit, outcome) in commits.iter().zip(outcomes) {
                    let owner = owners.get(&(group.clone(), commit.partition.clone())).map(|span| &index.spans[*span]);
                    if let (Some(owner), Ack::Ok(())) = (owner.filter(|owner| owner.consumer != *consumer), outcome) {
                        let words = format!(
                            "{} committed {} on {}, which was {}'s",
                            event.node, commit.offset, commit.partition, owner.node
                        );
                        let violation = Violation::new(CHECKER, "commit-unowned", words, [owner.assigned, at]);
                        found.push(violation.on(&commit.partition));
                    }
                }
            }
            _ => {}
        }
    }
}
