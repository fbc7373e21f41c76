//! Dead letters of a run's own documents: of what failed there is one when the run is over, and not more than one for
//! each time that it was taken.
//!
//! Delivery is at least once, so letters are too: a worker's attempt is another at every delivery, with a ticket of its
//! own, while an indexer that is given a record again writes of the same ticket again. Whichever attempt's letter lies
//! there stands for the document. Letters of foreign records are judged with the offsets that were committed past them.

use std::collections::BTreeMap;

use seriatim_core::identity::Ticket;

use super::facts::{At, Family, Output, Role, is_foreign};
use super::{History, Violation};
use crate::history::{Ack, LifecycleKind, Produced, What, WriteOutcome};

const CHECKER: &str = "letters";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    // Without topics there is nowhere to look for them.
    if history.options.local_mode {
        return;
    }
    if history.options.settled {
        missing(history, found);
    }
    twice(history, found);
}

/// What a run told as failed lies among the dead letters, unless another attempt at it ended in another way.
fn missing(history: &History<'_>, found: &mut Vec<Violation>) {
    let index = history.index;
    for ((run, sequence), family) in &index.families {
        let complete = index.runs.get(run).and_then(|run| run.complete);
        let Some(publish) = family.publish.map(|number| &index.publishes[number]) else { continue };
        if complete.is_none() {
            continue;
        }
        for (ordinal, failed) in failures(family) {
            let of_attempts = || family.attempts().filter_map(move |(_, attempt)| attempt.outputs.get(ordinal));
            let is_settled = |output: &Output| {
                let indexed = output.answered.is_some_and(|(_, outcome)| outcome.is_indexed());
                let dropped = output.gave_up.is_some_and(|(_, kind)| kind == LifecycleKind::Dropped);
                output.buried.is_some() || indexed || dropped
            };
            if !of_attempts().any(is_settled) {
                let words = format!("{} (#{sequence}, output {ordinal}) failed, and has no dead letter", publish.id);
                let witness = [publish.invoked, failed];
                found.push(Violation::new(CHECKER, "dead-letter-missing", words, witness).about(publish.id.clone()));
            }
        }
    }
}

/// Ordinals of which an attempt told, or the index said, that they failed, with when.
fn failures(family: &Family) -> BTreeMap<u32, At> {
    let mut failures = BTreeMap::new();
    for (ordinal, output) in family.attempts().flat_map(|(_, attempt)| attempt.outputs.iter()) {
        let told = output.event.filter(|(_, kind)| *kind == LifecycleKind::Failed).map(|(at, _)| at);
        let refused = output.answered.filter(|(_, outcome)| *outcome == WriteOutcome::Rejected).map(|(at, _)| at);
        if let Some(at) = told.into_iter().chain(refused).min() {
            failures.entry(ordinal).or_insert(at);
        }
    }
    failures
}

/// The letters of one ticket, and how often what they speak of was given to a consumer.
#[derive(Default)]
struct Letters {
    handed_over: Vec<At>,
    refused: usize,
    taken: usize,
}

fn twice(history: &History<'_>, found: &mut Vec<Violation>) {
    let mut letters: BTreeMap<Ticket, Letters> = BTreeMap::new();
    let mut calls = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        match &event.what {
            What::ProduceInvoked { call, records, .. } => {
                let of_call = own_letters(records);
                for (_, ticket) in &of_call {
                    letters.entry(*ticket).or_default().handed_over.push(at);
                }
                if !of_call.is_empty() {
                    calls.insert(*call, of_call);
                }
            }
            What::ProduceResolved { call, outcomes } => {
                for (number, ticket) in calls.remove(call).unwrap_or_default() {
                    let is_refused = matches!(outcomes.get(number), Some(Ack::Fail(_)));
                    letters.entry(ticket).or_default().refused += usize::from(is_refused);
                }
            }
            _ => {}
        }
    }
    if letters.values().all(|one| one.handed_over.len() < 2) {
        return;
    }
    for event in history.events {
        let What::Polled { records, .. } = &event.what else { continue };
        for record in records {
            if let Some(of) = record.stamp.and_then(|stamp| letters.get_mut(&stamp.ticket)) {
                of.taken += 1;
            }
        }
    }
    for (ticket, Letters { handed_over, refused, taken }) in letters {
        let lie = handed_over.len() - refused;
        // What a worker failed was taken under the ticket of its publish.
        if lie > taken.max(1) {
            let publish = history.index.publish(ticket.run, ticket.sequence);
            let id = publish.map(|publish| publish.id.clone()).unwrap_or_default();
            let (sequence, ordinal) = (ticket.sequence, ticket.ordinal);
            let words = format!(
                "{id} (#{sequence}, output {ordinal}) was taken {} times and has {lie} dead letters",
                taken.max(1)
            );
            found.push(Violation::new(CHECKER, "dead-letter-twice", words, handed_over).about(id));
        }
    }
}

/// The dead letters of this system's documents among `records`, with their places.
fn own_letters(records: &[Produced]) -> Vec<(usize, Ticket)> {
    let letters = records.iter().enumerate().filter(|(_, record)| Role::of(&record.topic) == Role::Fail);
    let own = letters.filter_map(|(number, record)| Some((number, record.stamp?.ticket)));
    own.filter(|(_, ticket)| !is_foreign(Some(*ticket))).collect()
}
