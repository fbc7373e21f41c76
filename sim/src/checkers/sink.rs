//! What the index holds: nothing acknowledged is lost, an id's version never goes back, and at the end each id has its
//! highest version with an indexed outcome. An id is one within its index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use compact_str::CompactString;
use seriatim_core::identity::{RunId, TopicPartition, Version};

use super::facts::{At, Attempt};
use super::index::HistoryIndex;
use super::{History, Tolerated, Violation};
use crate::history::{Event, IndexWrite, What, WriteKind, WriteOutcome};

const CHECKER: &str = "sink";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = Replayed::new(history, found);
    documents(history, found);
    acknowledged_writes(history, &index, found);
    final_index(history, &index, found);
}

/// One id as the index has it.
struct Held<'a> {
    write: &'a IndexWrite,
    at: At,
}

impl Held<'_> {
    fn body(&self) -> Option<u64> {
        (self.write.kind == WriteKind::Upsert).then_some(self.write.body_hash)
    }
}

/// The index as its own events build it.
struct Replayed<'a> {
    held: BTreeMap<CompactString, Held<'a>>,
    any: bool,
}

impl<'a> Replayed<'a> {
    fn new(history: &History<'a>, found: &mut Vec<Violation>) -> Self {
        let mut index = Replayed { held: BTreeMap::new(), any: false };
        let mut sequences = BTreeMap::new();
        for (at, event) in history.events.iter().enumerate() {
            let What::IndexApplied { write, changed, .. } = &event.what else { continue };
            index.any = true;
            if history.options.strict_order {
                follows(history, write, at, &mut sequences, found);
            }
            let document = write.document();
            let before = index.held.get(&document);
            let back = before.is_some_and(|before| write.version <= before.write.version);
            let versioned = history.options.versions_on && write.version.is_some();
            if let (true, true, true, Some(before)) = (versioned, back, *changed, before) {
                let (old, new) = (version(before.write.version), version(write.version));
                let words = format!("{document} went from version {old} to {new} in the index");
                let violation = Violation::new(CHECKER, "sink-nonmonotonic", words, [before.at, at]);
                found.push(violation.about(write.id.clone()));
            }
            if !versioned || !back || *changed {
                index.held.insert(document, Held { write, at });
            }
        }
        index
    }
}

fn version(version: Option<Version>) -> String {
    version.map_or("none".to_owned(), |version| version.0.to_string())
}

/// With planned rebalances only, a document's publishes are applied in their order, without versions too.
fn follows(
    history: &History<'_>,
    write: &IndexWrite,
    at: At,
    sequences: &mut BTreeMap<(RunId, CompactString), (u64, At)>,
    found: &mut Vec<Violation>,
) {
    let sequence = write.ticket.sequence;
    let own = history.index.by_sequence.get(&(write.ticket.run, sequence));
    if own.is_none_or(|number| history.index.publishes[*number].id != write.id) {
        return;
    }
    let before = sequences.insert((write.ticket.run, write.document()), (sequence, at));
    if let Some((earlier, before)) = before.filter(|(earlier, _)| *earlier > sequence) {
        let words = format!("{}: publish {sequence} was applied after publish {earlier}", write.id);
        let violation = Violation::new(CHECKER, "sink-nonmonotonic", words, [before, at]);
        found.push(violation.about(write.id.clone()));
    }
}

/// Every acknowledged publish ends, and what both hops have committed past has ended.
fn documents(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = history.index;
    let mut committed: BTreeMap<&TopicPartition, i64> = BTreeMap::new();
    for ((_, partition), commits) in &index.commits {
        if let Some(offset) = commits.last().and_then(|commit| commit.offset) {
            let highest = committed.entry(partition).or_insert(offset);
            *highest = (*highest).max(offset);
        }
    }
    let passed =
        |partition: &TopicPartition, offset: i64| committed.get(partition).is_some_and(|committed| *committed > offset);
    for ((id, sequence), number) in &index.by_sequence {
        let publish = &index.publishes[*number];
        let Some(acked) = publish.acked.filter(|_| index.closed(*id, *sequence).is_none()) else { continue };
        let places = index.sources.get(&(*id, *sequence)).map_or(&[][..], Vec::as_slice);
        let on_its_way = index.attempts_of(*id, *sequence).any(|(_, attempt)| underway(attempt, passed));
        let gone = places.iter().find(|_| places.iter().all(|(partition, offset)| passed(partition, *offset)));
        let property = match gone {
            Some((partition, offset)) if !on_its_way => {
                let words = format!(
                    "{} (#{sequence}) is lost: {partition}@{offset} is committed past, and it never ended",
                    publish.id
                );
                let commit = commit_past(index, partition, *offset);
                Violation::new(CHECKER, "sink-lost-write", words, [acked].into_iter().chain(commit)).on(partition)
            }
            _ if index.runs.get(id).is_some_and(|run| run.complete.is_some()) => {
                let words = format!("{} (#{sequence}) was acknowledged and never ended", publish.id);
                Violation::new(CHECKER, "sink-unseen", words, [publish.invoked, acked])
            }
            _ => continue,
        };
        found.push(property.about(publish.id.clone()));
    }
}

/// Whether a whole attempt lies on the destination topic, with an output there that its group has not committed past.
fn underway(attempt: &Attempt, passed: impl Fn(&TopicPartition, i64) -> bool) -> bool {
    let waits = attempt.outputs.values().any(|output| {
        let place = output.dest.as_ref().filter(|_| output.terminal().is_none());
        place.is_some_and(|(_, partition, offset)| !passed(partition, *offset))
    });
    waits && attempt.handed_on(false).is_some()
}

fn commit_past(index: &HistoryIndex, partition: &TopicPartition, offset: i64) -> Option<At> {
    let commits = index.commits.iter().filter(|((_, committed), _)| committed == partition);
    let past = commits.flat_map(|(_, commits)| commits).find(|commit| commit.offset.is_some_and(|next| next > offset));
    past.map(|commit| commit.at)
}

/// What the index acknowledged, it has, or something newer.
fn acknowledged_writes(history: &History<'_>, index: &Replayed<'_>, found: &mut Vec<Violation>) {
    if !index.any || !history.options.versions_on {
        return;
    }
    let mut reported = BTreeSet::new();
    each_answer(history.events, |at, write, outcome| {
        let document = write.document();
        let held = index.held.get(&document).and_then(|held| held.write.version);
        if outcome.is_indexed() && held < write.version && reported.insert((document.clone(), write.version)) {
            let (asked, has) = (version(write.version), version(held));
            let words = format!("the index acknowledged version {asked} of {document} and has {has}");
            let violation = Violation::new(CHECKER, "sink-lost-write", words, [at]);
            found.push(violation.about(write.id.clone()));
        }
    });
}

fn each_answer<'e>(events: &'e [Event], mut each: impl FnMut(At, &'e IndexWrite, WriteOutcome)) {
    let mut calls: BTreeMap<u64, &[IndexWrite]> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        match &event.what {
            What::BulkInvoked { call, writes } => {
                calls.insert(*call, writes);
            }
            What::BulkResolved { call, outcome } => {
                let outcomes = outcome.ok().map_or(&[][..], Vec::as_slice);
                for (write, outcome) in calls.remove(call).unwrap_or_default().iter().zip(outcomes) {
                    each(at, write, *outcome);
                }
            }
            _ => {}
        }
    }
}

/// Per id the highest version with an indexed outcome: its first applied body where the index says which, or any that
/// was acknowledged.
fn model(history: &History<'_>) -> BTreeMap<CompactString, (Version, At, BTreeSet<Option<u64>>)> {
    let mut model: BTreeMap<CompactString, (Version, At, BTreeSet<Option<u64>>)> = BTreeMap::new();
    let mut exact: BTreeSet<(CompactString, Version)> = BTreeSet::new();
    let body = |write: &IndexWrite| (write.kind == WriteKind::Upsert).then_some(write.body_hash);
    for (at, event) in history.events.iter().enumerate() {
        if let What::IndexApplied { write, .. } = &event.what
            && let Some(version) = write.version
            && exact.insert((write.document(), version))
            && model.get(&write.document()).is_none_or(|(highest, ..)| *highest < version)
        {
            model.insert(write.document(), (version, at, BTreeSet::from([body(write)])));
        }
    }
    each_answer(history.events, |at, write, outcome| {
        let Some(version) = write.version.filter(|_| outcome.is_indexed()) else { return };
        // What superseded it may be another's write, whose body this history does not know.
        let foreign = match outcome {
            WriteOutcome::Superseded(current) => Some(current),
            _ => None,
        };
        let document = write.document();
        let known = model.get(&document).map(|(highest, ..)| *highest);
        if let Some(current) = foreign.filter(|current| known.is_none_or(|known| known < *current)) {
            model.insert(document, (current, at, BTreeSet::new()));
        } else if foreign.is_none() && known.is_none_or(|known| known < version) {
            model.insert(document, (version, at, BTreeSet::from([body(write)])));
        } else if foreign.is_none() && known == Some(version) && !exact.contains(&(document.clone(), version)) {
            model.entry(document).and_modify(|(_, _, bodies)| {
                bodies.insert(body(write));
            });
        }
    });
    model
}

fn final_index(history: &History<'_>, index: &Replayed<'_>, found: &mut Vec<Violation>) {
    let replayed = || index.held.iter().filter_map(|(id, held)| Some((id.clone(), held.body()?)));
    let actual = match &history.options.actual {
        Some(actual) => actual.clone(),
        None if index.any => replayed().collect(),
        None => return,
    };
    let text = |body: Option<u64>| body.map_or("absent".to_owned(), |hash| format!("body {hash:016x}"));
    let last = |id: &CompactString| index.held.get(id).map(|held| held.at);
    let mut reported = BTreeSet::new();
    if history.options.versions_on {
        for (id, (version, at, bodies)) in model(history) {
            let has = actual.get(&id).copied();
            if !bodies.is_empty() && !bodies.contains(&has) {
                let due = bodies.iter().map(|body| text(*body)).collect::<Vec<_>>().join(" or ");
                let words = format!("{id} is {} in the index, where version {} is {due}", text(has), version.0);
                let witness = [at].into_iter().chain(last(&id));
                found.push(Violation::new(CHECKER, "final-index", words, witness).about(id.clone()));
                reported.insert(id);
            }
        }
    }
    let Some(expected) = &history.options.expected else { return };
    let excused = unsettled(history);
    let ids: BTreeSet<&CompactString> = expected.keys().chain(actual.keys()).collect();
    // A publish does not know its index, whose name holds no slash.
    let is_excused = |id: &str| excused.contains(id) || id.split_once('/').is_some_and(|(_, id)| excused.contains(id));
    for id in ids.into_iter().filter(|id| !reported.contains(*id) && !is_excused(id)) {
        let (due, has) = (expected.get(id).copied(), actual.get(id).copied());
        if due != has {
            let words = format!("{id} is {} in the index, expected {}", text(has), text(due));
            found.push(Violation::new(CHECKER, "final-index", words, last(id)).about(id.clone()));
        }
    }
}

/// Ids whose drop or failure was reported as unsettled: an earlier write of theirs may have landed, or not.
fn unsettled(history: &History<'_>) -> BTreeSet<CompactString> {
    let mut ids = BTreeSet::new();
    let summaries = history.index.runs.iter().filter_map(|(id, run)| Some((*id, run.complete?.1)));
    for (id, _) in summaries.filter(|(_, summary)| summary.unsettled > 0) {
        for ((_, sequence, _), attempt) in history.index.attempts.range((id, 0, 0)..=(id, u64::MAX, u64::MAX)) {
            if attempt.outputs.values().any(|output| output.gave_up.is_some())
                && let Some(number) = history.index.by_sequence.get(&(id, *sequence))
            {
                ids.insert(history.index.publishes[*number].id.clone());
            }
        }
    }
    ids
}

pub(super) fn tolerated(events: &[Event], index: &HistoryIndex) -> Tolerated {
    let mut counts = Tolerated::default();
    let mut seen: BTreeMap<(Arc<str>, TopicPartition), i64> = BTreeMap::new();
    for event in events {
        match &event.what {
            What::Polled { consumer, records } => {
                let Some(group) = index.consumers.get(consumer).map(|one| one.group.clone()) else { continue };
                for record in records {
                    let position = &record.position;
                    let next = seen.entry((group.clone(), position.partition.clone())).or_insert(i64::MIN);
                    counts.redelivered += u64::from(position.offset < *next);
                    *next = (*next).max(position.offset + 1);
                }
            }
            What::BulkResolved { outcome: crate::history::Ack::Unknown(_), .. } => counts.unknown_writes += 1,
            _ => {}
        }
    }
    each_answer(events, |_, _, outcome| {
        counts.duplicate_writes += u64::from(outcome == WriteOutcome::Duplicate);
        counts.superseded_writes += u64::from(matches!(outcome, WriteOutcome::Superseded(_)));
    });
    let retried =
        index.by_sequence.keys().filter(|(run, sequence)| index.attempts_of(*run, *sequence).nth(1).is_some());
    counts.retried_publishes = retried.count() as u64;
    counts
}
