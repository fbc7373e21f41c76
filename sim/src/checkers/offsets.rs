//! Committed offsets: never ahead of the lowest unfinished record, never backwards, never by another than the owner.
//!
//! A source record is finished when every output of one attempt is: it lies on the destination topic, or its outcome
//! is known and its event acknowledged. A worker's end in the first way, those of a pair of worker and indexer in the
//! second. A record of the destination topic is finished in the second way, a record that nobody of this system wrote
//! when its dead letter is acknowledged. What was committed past and never came to an outcome has vanished.
//!
//! At the end, of a run that had the time to finish, nothing lags. A commit that was never answered, and that the
//! broker took after later ones, is the network's doing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::asked;
use super::facts::{AppliedCommit, At, Known, Role};
use super::index::HistoryIndex;
use super::{History, REPORTED_MAX, Violation};
use crate::history::{Ack, What};

const CHECKER: &str = "offsets";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    for ((group, partition), commits) in &history.index.commits {
        regressions(history, (group, partition), commits, found);
        ahead(history, group, partition, commits, found);
    }
    if history.options.settled {
        lags(history, found);
    }
    if history.index.group_assigned.is_empty() {
        unowned_by_clients(history, found);
    } else {
        unowned_by_coordinator(history, found);
    }
}

fn regressions(
    history: &History<'_>,
    (group, partition): (&Arc<str>, &TopicPartition),
    commits: &[AppliedCommit],
    found: &mut Vec<Violation>,
) {
    for pair in commits.windows(2) {
        if let (Some(before), Some(after)) = (pair[0].offset, pair[1].offset)
            && after < before
            && !asked::overtaken(history, (group, partition), [&pair[0], &pair[1]])
        {
            let words = format!("group {group} went back on {partition} from {before} to {after}");
            let witness = [pair[0].at, pair[1].at];
            found.push(Violation::new(CHECKER, "commit-regression", words, witness).on(partition));
        }
    }
}

/// When a record was finished; `None` when it never was.
fn finished(history: &History<'_>, partition: &TopicPartition, offset: i64, known: &Known) -> Option<At> {
    let Some(ticket) = known.ticket else { return history.index.letters.get(&(partition.clone(), offset)).copied() };
    let events = history.options.judge_events;
    match Role::of(&partition.topic) {
        Role::Source => {
            let attempts = history.index.attempts_of(ticket.run, ticket.sequence);
            let here = (partition.partition, offset);
            let of_this = attempts.filter(|(_, attempt)| attempt.origin.is_none_or(|origin| origin == here));
            of_this.filter_map(|(_, attempt)| attempt.handed_on(events)).min()
        }
        Role::Dest => {
            let attempt = history.index.attempt_of(&ticket)?;
            attempt.outputs.get(ticket.ordinal)?.settled(events)
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
    let Some(records) = index.records.get(partition).filter(|_| is_judged(partition)) else { return };
    // What the group never had to read: before its first start, or gone from the log.
    let first = first_read(index, group, partition).max(index.log_start(partition, usize::MAX));
    let mut vanished: Vec<(i64, &Known)> = Vec::new();
    // The offset at which `latest` rose, with the event until which everything below was finished.
    let mut judged: Vec<(i64, At)> = Vec::new();
    let mut latest = 0;
    for (offset, known) in records.range(first..) {
        let at = finished(history, partition, offset, known).unwrap_or(usize::MAX);
        if known.ticket.is_none() && at == usize::MAX {
            vanished.push((offset, known));
            continue;
        }
        if judged.is_empty() || at > latest {
            latest = at;
            judged.push((offset, at));
        }
    }
    for (offset, known) in vanished.into_iter().take(REPORTED_MAX) {
        let past = commits.iter().find(|commit| commit.offset.is_some_and(|committed| committed > offset));
        let Some(past) = past else { continue };
        let words =
            format!("group {group} committed past {partition}@{offset}, of which no dead letter is acknowledged");
        let violation = Violation::new(CHECKER, "record-vanished", words, [known.at, past.at]);
        found.push(violation.on(partition).about(id_of(index, known)));
    }
    for commit in commits {
        let Some(offset) = commit.offset else { continue };
        let below = judged.partition_point(|(unfinished, _)| *unfinished < offset);
        // The first record below the commit that was not finished when it was applied.
        let open = judged[..below].partition_point(|(_, at)| *at <= commit.at);
        let Some((unfinished, at)) = judged[..below].get(open) else { continue };
        let Some(record) = records.get(*unfinished) else { continue };
        let done = if *at == usize::MAX { "never was".to_owned() } else { "was only later".to_owned() };
        let words =
            format!("group {group} committed {offset} on {partition}, but {unfinished} was not finished, and {done}");
        let witness = [record.at, commit.at].into_iter().chain((*at != usize::MAX).then_some(*at));
        found.push(Violation::new(CHECKER, "commit-ahead", words, witness).on(partition).about(id_of(index, record)));
    }
}

/// Whether the records of a topic have an end that this system owes them.
fn is_judged(partition: &TopicPartition) -> bool {
    matches!(Role::of(&partition.topic), Role::Source | Role::Dest)
}

/// The lowest offset from which a member of `group` read `partition`.
fn first_read(index: &HistoryIndex, group: &Arc<str>, partition: &TopicPartition) -> i64 {
    let spans = index.spans_on.get(partition).map_or(&[][..], Vec::as_slice);
    let of_group = spans.iter().map(|span| &index.spans[*span]);
    let of_group = of_group.filter(|span| index.consumers.get(&span.consumer).is_some_and(|one| one.group == *group));
    of_group.map(|span| span.start).min().unwrap_or(0)
}

/// With every run complete and nothing left to wait for, each group has committed to the end of what it reads.
fn lags(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = history.index;
    let published = || index.runs.values().filter(|run| !run.publishes.is_empty());
    if published().next().is_none() || published().any(|run| run.complete.is_none()) {
        return;
    }
    let groups: BTreeSet<(&Arc<str>, &Arc<str>)> =
        index.consumers.values().flat_map(|one| one.topics.iter().map(move |topic| (&one.group, topic))).collect();
    for (group, topic) in groups {
        for (partition, records) in index.records.iter().filter(|(partition, _)| partition.topic == *topic) {
            let commits = index.commits.get(&(group.clone(), partition.clone())).map_or(&[][..], Vec::as_slice);
            let overtaken = |pair: &&[AppliedCommit]| {
                pair[1].offset < pair[0].offset && asked::overtaken(history, (group, partition), [&pair[0], &pair[1]])
            };
            let late = commits.windows(2).rev().take_while(overtaken).count();
            let commits = &commits[..commits.len() - late];
            let committed = commits.last().and_then(|commit| commit.offset);
            let from = committed.unwrap_or_else(|| first_read(index, group, partition));
            let from = from.max(index.log_start(partition, usize::MAX));
            let mut left = records.range(from..);
            let Some((offset, known)) = left.next() else { continue };
            let more = left.count();
            let stood = committed.map_or("nothing".to_owned(), |offset| offset.to_string());
            let words = format!(
                "the run is complete, but group {group} has {stood} committed on {partition}, where {offset} lies\
                 {}",
                if more > 0 { format!(" with {more} behind it") } else { String::new() }
            );
            let witness = [known.at].into_iter().chain(commits.last().map(|commit| commit.at));
            let violation = Violation::new(CHECKER, "lag-left", words, witness).on(partition);
            found.push(violation.about(id_of(index, known)));
        }
    }
}

fn id_of(index: &HistoryIndex, known: &Known) -> compact_str::CompactString {
    let Some(ticket) = known.ticket else {
        return String::from_utf8_lossy(known.key.as_deref().unwrap_or_default()).into();
    };
    let published = index.publish(ticket.run, ticket.sequence).map(|publish| publish.id.clone());
    published.unwrap_or_else(|| compact_str::format_compact!("#{}", ticket.sequence))
}

/// With the coordinator's assignments in the history, the owner is who it last gave the partition to: a member that is
/// to give a partition up commits it before anybody else is given it, in whichever generation.
///
/// A static member that comes back in a stable group goes on as another member, and nothing is given out.
fn unowned_by_coordinator(history: &History<'_>, found: &mut Vec<Violation>) {
    let mut owners: BTreeMap<(Arc<str>, TopicPartition), (Arc<str>, At)> = BTreeMap::new();
    let mut assigned: BTreeSet<(Arc<str>, Arc<str>)> = BTreeSet::new();
    for (at, event) in history.events.iter().enumerate() {
        match &event.what {
            What::GroupAssigned { group, member, partitions, .. } => {
                assigned.insert((group.clone(), member.clone()));
                for partition in partitions {
                    owners.insert((group.clone(), partition.clone()), (member.clone(), at));
                }
            }
            What::OffsetsCommitted { group, member, partition, offset } => {
                let is_new = || !assigned.contains(&(group.clone(), member.clone()));
                let succeeds = |owner: &str| {
                    is_new() && history.index.consumers.values().any(|one| one.may_be(owner) && one.may_be(member))
                };
                let owner = owners.get(&(group.clone(), partition.clone()));
                if let Some((owner, assigned)) = owner.filter(|(owner, _)| owner != member && !succeeds(owner)) {
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
///
/// A process that was frozen while its group made up its mind hears of an assignment when that is long over: only an
/// ownership under which some commit was taken is known to have been one.
fn unowned_by_clients(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = history.index;
    let proven = asked::proven(index, history.events);
    // Latest assignment of each partition in each group, as an index into the spans.
    let mut owners: BTreeMap<(Arc<str>, TopicPartition), usize> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        match &event.what {
            What::Assigned { consumer, partitions } => {
                let Some(group) = index.consumers.get(consumer).map(|one| one.group.clone()) else { continue };
                for one in partitions {
                    let key = (*consumer, one.partition.clone(), one.epoch);
                    if let Some(span) = index.span_of.get(&key).filter(|span| proven.contains(span)) {
                        owners.insert((group.clone(), one.partition.clone()), *span);
                    }
                }
            }
            What::CommitInvoked { call, consumer, commits } => {
                let resolved = index.commit_ends.get(call).map(|end| &history.events[*end].what);
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
