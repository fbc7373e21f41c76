//! What the index holds: nothing acknowledged is lost, an id's version never goes back, and at the end each id has its
//! highest version with an indexed outcome. An id is one within its index.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use compact_str::CompactString;
use seriatim_core::identity::{RunId, TopicPartition, Version};

use super::facts::{At, Attempt};
use super::index::HistoryIndex;
use super::keyed::Keyed;
use super::{History, Tolerated, Violation};
use crate::history::{Event, IndexWrite, What, WriteKind, WriteOutcome, document_key};

const CHECKER: &str = "sink";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = Replayed::new(history, found);
    documents(history, found);
    acknowledged_writes(history, &index, found);
    final_index(history, &index, found);
}

/// Index and id of a document.
type Target<'a> = (Option<&'a str>, &'a str);

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
    held: Keyed<Target<'a>, Held<'a>>,
    any: bool,
}

impl<'a> Replayed<'a> {
    fn new(history: &History<'a>, found: &mut Vec<Violation>) -> Self {
        let mut index = Replayed { held: Keyed::default(), any: false };
        let mut sequences = Keyed::default();
        for (at, event) in history.events.iter().enumerate() {
            let What::IndexApplied { write, changed, .. } = &event.what else { continue };
            index.any = true;
            if history.options.strict_order {
                follows(history, write, at, &mut sequences, found);
            }
            let before = index.held.get(&write.target());
            let back = before.is_some_and(|before| write.version <= before.write.version);
            let versioned = history.options.versions_on && write.version.is_some();
            if let (true, true, true, Some(before)) = (versioned, back, *changed, before) {
                let (old, new) = (version(before.write.version), version(write.version));
                let words = format!("{} went from version {old} to {new} in the index", write.document());
                let violation = Violation::new(CHECKER, "sink-nonmonotonic", words, [before.at, at]);
                found.push(violation.about(write.id.clone()));
            }
            if !versioned || !back || *changed {
                index.held.insert(write.target(), Held { write, at });
            }
        }
        index
    }
}

fn version(version: Option<Version>) -> String {
    version.map_or("none".to_owned(), |version| version.0.to_string())
}

/// With planned rebalances only, a document's publishes are applied in their order, without versions too.
fn follows<'a>(
    history: &History<'_>,
    write: &'a IndexWrite,
    at: At,
    sequences: &mut Keyed<(RunId, Target<'a>), (u64, At)>,
    found: &mut Vec<Violation>,
) {
    let sequence = write.ticket.sequence;
    let own = history.index.publish(write.ticket.run, sequence);
    if own.is_none_or(|publish| publish.id != write.id) {
        return;
    }
    let before = sequences.insert((write.ticket.run, write.target()), (sequence, at));
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
    for ((id, sequence), family) in &index.families {
        let Some(publish) = family.publish.map(|number| &index.publishes[number]) else { continue };
        let Some(acked) = publish.acked.filter(|_| family.closed().is_none()) else { continue };
        let places = &family.sources;
        let on_its_way = family.attempts().any(|(_, attempt)| underway(attempt, passed));
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
        let held = index.held.get(&write.target()).and_then(|held| held.write.version);
        if outcome.is_indexed() && held < write.version && reported.insert((write.target(), write.version)) {
            let (document, asked, has) = (write.document(), version(write.version), version(held));
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

/// What the index must have of a document: version, the event that says so, and the bodies that it may be.
type Due = (Version, At, Vec<Option<u64>>);

/// Per id the highest version with an indexed outcome: its first applied body where the index says which, or any that
/// was acknowledged.
fn model<'a>(history: &History<'a>) -> Keyed<Target<'a>, Due> {
    let mut model: Keyed<Target<'a>, Due> = Keyed::default();
    let mut exact: Keyed<(Target<'a>, Version), ()> = Keyed::default();
    let body = |write: &IndexWrite| (write.kind == WriteKind::Upsert).then_some(write.body_hash);
    for (at, event) in history.events.iter().enumerate() {
        if let What::IndexApplied { write, .. } = &event.what
            && let Some(version) = write.version
            && exact.insert((write.target(), version), ()).is_none()
            && model.get(&write.target()).is_none_or(|(highest, ..)| *highest < version)
        {
            model.insert(write.target(), (version, at, vec![body(write)]));
        }
    }
    each_answer(history.events, |at, write, outcome| {
        let Some(version) = write.version.filter(|_| outcome.is_indexed()) else { return };
        // What superseded it may be another's write, whose body this history does not know.
        let foreign = match outcome {
            WriteOutcome::Superseded(current) => Some(current),
            _ => None,
        };
        let target = write.target();
        let known = model.get(&target).map(|(highest, ..)| *highest);
        if let Some(current) = foreign.filter(|current| known.is_none_or(|known| known < *current)) {
            model.insert(target, (current, at, Vec::new()));
        } else if foreign.is_none() && known.is_none_or(|known| known < version) {
            model.insert(target, (version, at, vec![body(write)]));
        } else if foreign.is_none() && known == Some(version) && !exact.contains_key(&(target, version)) {
            model.entry(target).and_modify(|(_, _, bodies)| bodies.push(body(write)));
        }
    });
    model
}

fn final_index(history: &History<'_>, index: &Replayed<'_>, found: &mut Vec<Violation>) {
    let name = |(index, id): Target<'_>| document_key(index, id);
    let replayed = || index.held.iter().filter_map(|(target, held)| Some((name(*target), held.body()?)));
    let actual = match &history.options.actual {
        Some(actual) => Cow::Borrowed(actual),
        None if index.any => Cow::Owned(replayed().collect()),
        None => return,
    };
    let text = |body: Option<u64>| body.map_or("absent".to_owned(), |hash| format!("body {hash:016x}"));
    // Only a violation asks for it.
    let held = LazyCell::new(|| -> BTreeMap<CompactString, At> {
        index.held.iter().map(|(target, held)| (name(*target), held.at)).collect()
    });
    let last = |id: &CompactString| held.get(id).copied();
    let mut reported = BTreeSet::new();
    if history.options.versions_on {
        for (target, (version, at, mut bodies)) in model(history) {
            let id = name(target);
            let has = actual.get(&id).copied();
            if !bodies.is_empty() && !bodies.contains(&has) {
                bodies.sort();
                bodies.dedup();
                let due = bodies.iter().map(|body| text(*body)).collect::<Vec<_>>().join(" or ");
                let words = format!("{id} is {} in the index, where version {} is {due}", text(has), version.0);
                let witness = [at].into_iter().chain(last(&id));
                found.push(Violation::new(CHECKER, "final-index", words, witness).about(id.clone()));
                reported.insert(id);
            }
        }
    }
    let Some(expected) = &history.options.expected else { return };
    let ids: BTreeSet<&CompactString> = expected.keys().chain(actual.keys()).collect();
    for id in ids.into_iter().filter(|id| !reported.contains(*id)) {
        let (due, has) = (expected.get(id).copied(), actual.get(id).copied());
        if due != has {
            let words = format!("{id} is {} in the index, expected {}", text(has), text(due));
            found.push(Violation::new(CHECKER, "final-index", words, last(id)).about(id.clone()));
        }
    }
}

pub(super) fn tolerated(events: &[Event], index: &HistoryIndex) -> Tolerated {
    let mut counts = Tolerated::default();
    let mut seen: Keyed<(&str, &TopicPartition), i64> = Keyed::default();
    for event in events {
        match &event.what {
            What::Polled { consumer, records } => {
                let Some(group) = index.consumers.get(consumer).map(|one| &*one.group) else { continue };
                for record in records {
                    let position = &record.position;
                    let next = seen.entry((group, &position.partition)).or_insert(i64::MIN);
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
    let published = index.families.values().filter(|family| family.publish.is_some());
    let retried = published.filter(|family| family.attempts().nth(1).is_some());
    counts.retried_publishes = retried.count() as u64;
    counts
}
