//! What consumers were given: within one ownership offsets rise, nothing that is known to exist is jumped over, and
//! reading starts at the committed offset or the reset point.
//!
//! Keyed by consumer, partition and epoch, so that it is strict under subscription too (Jepsen excuses rebalances). A
//! partition that is retained through a rebalance keeps its epoch: nothing is told of it.

use std::collections::BTreeMap;

use seriatim_core::identity::TopicPartition;

use super::facts::{At, Span};
use super::index::HistoryIndex;
use super::{History, Violation};
use crate::history::{Call, Delivered, What};

const CHECKER: &str = "polls";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    history.index.spans.iter().for_each(|span| starts(history.index, span, found));
    retained(history.index, found);
    // Per ownership: the last poll that gave something, and the next offset due.
    let mut due: BTreeMap<usize, (At, i64)> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        let What::Polled { consumer, records } = &event.what else { continue };
        for record in records {
            let position = &record.position;
            let key = (*consumer, position.partition.clone(), position.epoch);
            let Some(number) = history.index.span_of.get(&key).copied() else {
                let words = format!("{} was given {} under an ownership that it never had", event.node, place(record));
                found.push(Violation::new(CHECKER, "poll-unowned", words, [at]).on(&position.partition));
                continue;
            };
            let span = &history.index.spans[number];
            if let Some(ended) = [span.revoking, span.lost].into_iter().flatten().min().filter(|ended| *ended < at) {
                let words =
                    format!("{} was given {} after it was told that the partition goes", event.node, place(record));
                found.push(Violation::new(CHECKER, "poll-unowned", words, [ended, at]).on(&position.partition));
            }
            let (before, next) = due.get(&number).copied().unwrap_or((span.assigned, span.start));
            delivered(history.index, record, at, before, next, found);
            due.insert(number, (at, next.max(position.offset + 1)));
        }
    }
}

fn place(record: &Delivered) -> String {
    format!("{}@{}", record.position.partition, record.position.offset)
}

fn delivered(index: &HistoryIndex, record: &Delivered, at: At, before: At, next: i64, found: &mut Vec<Violation>) {
    let (partition, offset) = (&record.position.partition, record.position.offset);
    if offset < next {
        let words = format!("{} came again within one ownership, when {next} was due", place(record));
        found.push(Violation::new(CHECKER, "nonmonotonic-poll", words, [before, at]).on(partition));
    }
    let lowest = next.max(index.log_start(partition, at));
    if lowest >= offset {
        return;
    }
    let skipped = index.records.get(partition).and_then(|known| known.range(lowest..offset).next());
    if let Some((missed, known)) = skipped {
        let words =
            format!("{partition}@{missed} exists, but the ownership went on from {next} to {offset} without it");
        found.push(Violation::new(CHECKER, "poll-skip", words, [known.at, before, at]).on(partition));
    }
}

/// A partition is not given to a consumer that has it: its epoch would end without a word.
fn retained(index: &HistoryIndex, found: &mut Vec<Violation>) {
    let mut before: BTreeMap<(Call, &TopicPartition), &Span> = BTreeMap::new();
    for span in &index.spans {
        let Some(earlier) = before.insert((span.consumer, &span.partition), span) else { continue };
        let ended = [earlier.revoking, earlier.lost].into_iter().flatten().min();
        if ended.is_none_or(|ended| ended > span.assigned) {
            let words = format!(
                "{} was given {} as epoch {} while it had it as epoch {}",
                span.node, span.partition, span.epoch.0, earlier.epoch.0
            );
            let violation = Violation::new(CHECKER, "epoch-start", words, [earlier.assigned, span.assigned]);
            found.push(violation.on(&span.partition));
        }
    }
}

fn starts(index: &HistoryIndex, span: &Span, found: &mut Vec<Violation>) {
    let partition = &span.partition;
    let log_start = index.log_start(partition, span.assigned);
    let mut wrong = |words: String, witness: Vec<At>| {
        found.push(Violation::new(CHECKER, "epoch-start", words, witness).on(partition));
    };
    match span.committed {
        Some(committed) => {
            let moved = span.start == log_start && log_start > committed;
            if span.start != committed && !moved {
                let words = format!("reading of {partition} started at {} with {committed} committed", span.start);
                wrong(words, vec![span.assigned]);
            }
        }
        None => {
            let earliest = index.consumers.get(&span.consumer).is_none_or(|consumer| consumer.earliest);
            let first = index.records.get(partition).and_then(|known| known.range(log_start..).next());
            if let Some((offset, known)) = first.filter(|(offset, _)| earliest && *offset < span.start) {
                let words = format!(
                    "nothing was committed, but reading of {partition} started at {}, behind {offset}",
                    span.start
                );
                wrong(words, vec![known.at, span.assigned]);
            }
        }
    }
    reads_committed(index, span, found);
}

/// The committed offset was read between the coordinator's assignment and its arrival here: any value of that time
/// will do. Only where the history says what the coordinator applied.
fn reads_committed(index: &HistoryIndex, span: &Span, found: &mut Vec<Violation>) {
    let applied = group_of(index, span).and_then(|group| index.commits.get(&(group, span.partition.clone())));
    let Some(applied) = applied.filter(|applied| applied.iter().any(|commit| commit.member.is_some())) else { return };
    let first = applied.partition_point(|commit| commit.at < read_after(index, span));
    let end = applied.partition_point(|commit| commit.at < span.assigned);
    let before = first.checked_sub(1).map(|before| &applied[before]);
    let within = applied[first..end.max(first)].iter();
    let mut possible = within.clone().map(|commit| commit.offset).chain([before.and_then(|commit| commit.offset)]);
    if possible.any(|offset| offset == span.committed) {
        return;
    }
    let last = within.as_slice().last().or(before);
    let text = |offset: Option<i64>| offset.map_or("nothing".to_owned(), |offset| offset.to_string());
    let (read, stood) = (text(span.committed), text(last.and_then(|commit| commit.offset)));
    let words = format!("the owner of {} read {read} as committed where {stood} stood", span.partition);
    let witness = last.map(|commit| commit.at).into_iter().chain([span.assigned]);
    found.push(Violation::new(CHECKER, "epoch-start", words, witness).on(&span.partition));
}

fn group_of(index: &HistoryIndex, span: &Span) -> Option<std::sync::Arc<str>> {
    index.consumers.get(&span.consumer).map(|consumer| consumer.group.clone())
}

/// The latest event that the owner's reading of the committed offset certainly came behind: the coordinator's first
/// assignment of the partition to a member of its name since it joined, or since it last had it. A member that sleeps
/// hears late of it, when others have had the partition since.
fn read_after(index: &HistoryIndex, span: &Span) -> At {
    let Some(consumer) = index.consumers.get(&span.consumer) else { return 0 };
    let earlier = index.spans_on.get(&span.partition).into_iter().flatten().map(|number| &index.spans[*number]);
    let own = earlier.filter(|one| one.consumer == span.consumer && one.assigned < span.assigned);
    let ends = own.filter_map(|one| [one.revoking, one.lost].into_iter().flatten().min());
    let free = ends.fold(consumer.joined, At::max);
    let assignments = index.group_assigned.get(&consumer.group).map_or(&[][..], Vec::as_slice);
    let place = |at: At| assignments.partition_point(|one| one.at < at);
    let mut between = assignments[place(free)..place(span.assigned)].iter();
    let given = between.find(|one| one.partitions.contains(&span.partition) && consumer.may_be(&one.member));
    given.map_or(free, |one| one.at)
}
