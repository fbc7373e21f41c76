//! Completion: never early, always at last, and nothing changes for a reader afterwards; the summary adds up.
//!
//! A publish is finished when *one* attempt has every output terminal, the parent among them: attempts are not mixed.

use std::collections::BTreeMap;

use seriatim_core::identity::{RunId, TopicPartition};

use super::facts::{At, Attempt, Output, Publish, Run};
use super::index::HistoryIndex;
use super::{History, Violation};
use crate::history::{LifecycleKind, RunSummary, What, WriteOutcome};

const CHECKER: &str = "completion";

/// Pending publishes that are named one by one.
const NAMED_MAX: usize = 3;

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    for (id, run) in &history.index.runs {
        match run.complete {
            Some((at, summary)) => {
                early(history.index, *id, run, at, found);
                adds_up(history.index, *id, run, at, &summary, found);
            }
            None => never(history, *id, run, found),
        }
    }
    if history.options.repeatable {
        ambiguous(history.index, found);
    }
    counted(history, found);
    writes_after(history, found);
}

/// A record is counted when one attempt at it is closed, and not before: at the end of a run it may be too late to see.
fn counted(history: &History<'_>, found: &mut Vec<Violation>) {
    for (at, event) in history.events.iter().enumerate() {
        let What::RecordCounted { run, sequence } = &event.what else { continue };
        let Some(publish) = history.index.publish(*run, *sequence) else { continue };
        let closed = history.index.may_be_closed(*run, *sequence);
        if closed.is_none_or(|closed| closed > at) {
            let state = state_at(history.index, publish, at);
            let words = format!("{} (#{sequence}) was counted as complete, but {state}", publish.id);
            let witness = [publish.invoked, at].into_iter().chain(closed);
            found.push(Violation::new(CHECKER, "counted-early", words, witness).about(publish.id.clone()));
        }
    }
}

/// Where attempts have to give the same, each tells a digest of what it gave, and none may differ, in that or in what
/// became of it; nor may a summary say that some did.
fn ambiguous(index: &HistoryIndex, found: &mut Vec<Violation>) {
    for ((_, sequence), family) in &index.families {
        let id = || family.publish.map(|number| index.publishes[number].id.clone()).unwrap_or_default();
        if let Some(told) = family.ambiguous() {
            let words = format!("two attempts at {} (#{sequence}) tell different digests of what they gave", id());
            found.push(Violation::new(CHECKER, "ambiguous-family", words, told).about(id()));
        }
        // What no worker was given has the nonce 0, and there is nothing to tell of it.
        for (nonce, attempt) in family.attempts().filter(|(nonce, _)| *nonce != 0) {
            let Some(at) = attempt.undigested else { continue };
            let words = format!("the end of {} (#{sequence}/{:04x}) is told without a digest", id(), nonce & 0xffff);
            found.push(Violation::new(CHECKER, "digest-missing", words, [at]).about(id()));
        }
    }
    for (id, run) in &index.runs {
        let Some((at, RunSummary { ambiguous, conflicts, .. })) = run.complete else { continue };
        let mut tell = |property, words: String| {
            found.push(Violation::new(CHECKER, property, format!("run {id:?}: the summary counts {words}"), [at]));
        };
        if conflicts > 0 {
            tell("outcome-conflict", format!("{conflicts} outcomes told otherwise before"));
        }
        if ambiguous > 0 {
            tell("ambiguous-family", format!("{ambiguous} families whose attempts differ"));
        }
    }
}

fn early(index: &HistoryIndex, id: RunId, run: &Run, complete: At, found: &mut Vec<Violation>) {
    let publishes = run.publishes.iter().map(|number| &index.publishes[*number]);
    for publish in publishes.filter(|publish| publish.acked.is_some() || !publish.refused) {
        let closed = index.closed(id, publish.ticket.sequence);
        if publish.acked.is_none_or(|acked| acked > complete) {
            let words =
                format!("run {id:?} was declared complete before the publish of {} was acknowledged", publish.id);
            let witness = [publish.invoked, complete].into_iter().chain(publish.acked);
            found.push(Violation::new(CHECKER, "completed-early", words, witness).about(publish.id.clone()));
        } else if index.may_be_closed(id, publish.ticket.sequence).is_none_or(|closed| closed > complete) {
            let state = state_at(index, publish, complete);
            let words = format!("run {id:?} was declared complete while {} was pending: {state}", publish.id);
            let witness = [publish.invoked, complete].into_iter().chain(closed);
            found.push(Violation::new(CHECKER, "completed-early", words, witness).about(publish.id.clone()));
        }
    }
}

/// How far the furthest attempt at a publish was.
fn state_at(index: &HistoryIndex, publish: &Publish, at: At) -> String {
    let attempts = index.attempts_of(publish.ticket.run, publish.ticket.sequence);
    let terminal = |attempt: &Attempt| {
        attempt.outputs.values().filter(|output| output.terminal().is_some_and(|terminal| terminal <= at)).count()
    };
    match attempts.max_by_key(|(_, attempt)| terminal(attempt)) {
        None => "no worker gave any output of it".to_owned(),
        Some((nonce, attempt)) => {
            let of = attempt.outputs_known.map_or("an unknown number of".to_owned(), |count| count.to_string());
            format!("{} of {of} outputs of attempt {:04x} were terminal", terminal(attempt), nonce & 0xffff)
        }
    }
}

fn writes_after(history: &History<'_>, found: &mut Vec<Violation>) {
    // Without versions a replay after a crash may rewind the index for a while; only its end is promised.
    if !history.options.versions_on && !history.options.strict_order {
        return;
    }
    for (at, event) in history.events.iter().enumerate() {
        let What::IndexApplied { write, changed: true, .. } = &event.what else { continue };
        let run = history.index.runs.get(&write.ticket.run).and_then(|run| run.complete);
        let Some((complete, summary)) = run.filter(|(complete, _)| *complete < at) else { continue };
        let family = history.index.families.get(&(write.ticket.run, write.ticket.sequence));
        // It was reported to whoever started the run.
        let is_told = summary.ambiguous > 0 && family.is_some_and(|family| family.ambiguous().is_some());
        if !is_told {
            let words = format!("{} changed in the index after run {:?} was complete", write.id, write.ticket.run);
            let violation = Violation::new(CHECKER, "write-after-completion", words, [complete, at]);
            found.push(violation.about(write.id.clone()));
        }
    }
}

fn never(history: &History<'_>, id: RunId, run: &Run, found: &mut Vec<Violation>) {
    let index = history.index;
    let Some(first) = run.publishes.first().map(|number| &index.publishes[*number]) else { return };
    let publisher = &history.events[first.invoked];
    let crashed = index.crashes.contains_key(&(publisher.node.clone(), publisher.incarnation));
    if !history.options.expect_completion || crashed {
        return;
    }
    let publishes = run.publishes.iter().map(|number| &index.publishes[*number]);
    let pending: Vec<&Publish> =
        publishes.filter(|publish| index.closed(id, publish.ticket.sequence).is_none()).collect();
    let count = run.publishes.len();
    let mut witness = vec![first.invoked];
    let mut words = format!("run {id:?} was never declared complete");
    if pending.is_empty() {
        words += &format!(", although all of its {count} publishes are finished");
        let last = run.publishes.iter().filter_map(|number| index.closed(id, index.publishes[*number].ticket.sequence));
        witness.extend(last.max());
    } else {
        words += &format!(": {} of {count} publishes are pending", pending.len());
        let holders = Holders::new(history);
        for publish in pending.iter().take(NAMED_MAX) {
            let (state, at) = holders.describe(index, publish);
            words += &format!("; {} (#{}): {state}", publish.id, publish.ticket.sequence);
            witness.push(publish.invoked);
            witness.extend(at);
        }
    }
    let mut violation = Violation::new(CHECKER, "completed-never", words, witness);
    violation.ids = pending.iter().take(NAMED_MAX).map(|publish| publish.id.clone()).collect();
    found.push(violation);
}

/// Who was last given each record.
struct Holders<'a> {
    history: &'a History<'a>,
    last: BTreeMap<(&'a TopicPartition, i64), At>,
}

impl<'a> Holders<'a> {
    fn new(history: &'a History<'a>) -> Self {
        let mut last = BTreeMap::new();
        for (at, event) in history.events.iter().enumerate() {
            if let What::Polled { records, .. } = &event.what {
                for record in records {
                    last.insert((&record.position.partition, record.position.offset), at);
                }
            }
        }
        Holders { history, last }
    }

    fn holder(&self, partition: &TopicPartition, offset: i64) -> (String, Option<At>) {
        match self.last.get(&(partition, offset)) {
            None => (format!("{partition}@{offset} was never read"), None),
            Some(at) => (format!("{} holds {partition}@{offset}", self.history.events[*at].node), Some(*at)),
        }
    }

    fn describe(&self, index: &HistoryIndex, publish: &Publish) -> (String, Option<At>) {
        let key = (publish.ticket.run, publish.ticket.sequence);
        let furthest = index.attempts_of(key.0, key.1).max_by_key(|(_, attempt)| attempt.handed_on(false).is_some());
        let waiting = furthest.and_then(|(_, attempt)| {
            let open = attempt.outputs.iter().find(|(_, output)| output.terminal().is_none() && output.dest.is_some());
            open.map(|(ordinal, output)| (attempt.outputs_known, ordinal, output))
        });
        if let Some((count, ordinal, Output { dest: Some((_, partition, offset)), .. })) = waiting {
            let (holder, at) = self.holder(partition, *offset);
            let count = count.map_or("?".to_owned(), |count| count.to_string());
            return (format!("output {ordinal} of {count} is not terminal, {holder}"), at);
        }
        match index.sources_of(key.0, key.1).first() {
            Some((partition, offset)) => self.holder(partition, *offset),
            None if publish.acked.is_some() => (state_at(index, publish, At::MAX), publish.acked),
            None => ("its publish was never acknowledged".to_owned(), None),
        }
    }
}

/// How many outputs of a class an honest summary may count: attempts may differ in what became of an output.
#[derive(Clone, Copy, Default)]
struct Bounds {
    low: u64,
    high: u64,
}

#[derive(Clone, Copy, Default)]
struct Classes {
    children: Bounds,
    indexed: Bounds,
    superseded: Bounds,
    dropped: Bounds,
    failed: Bounds,
}

fn classes(attempt: &Attempt, until: At) -> Classes {
    let mut classes = Classes::default();
    let count = |bounds: &mut Bounds, may: bool, alone: bool| {
        bounds.high += u64::from(may);
        bounds.low += u64::from(may && alone);
    };
    for output in attempt.outputs.values() {
        let gave_up = output.gave_up.filter(|(at, _)| *at <= until);
        let gave_up = gave_up.or(output.told.filter(|(at, _)| *at <= until)).map(|(_, kind)| kind);
        let answered = output.answered.filter(|(at, _)| *at <= until).map(|(_, outcome)| outcome);
        // A write that was taken is refused when it comes again, if there is a later one by then: either may be told.
        let indexed = output.taken.is_some_and(|at| at <= until);
        let superseded = output.superseded.is_some_and(|at| at <= until);
        let dropped = gave_up == Some(LifecycleKind::Dropped);
        let failed = gave_up == Some(LifecycleKind::Failed) || answered == Some(WriteOutcome::Rejected);
        let known = output.terminal().is_some_and(|at| at <= until);
        let alone = known && [indexed, superseded, dropped, failed].into_iter().filter(|is_so| *is_so).count() == 1;
        count(&mut classes.indexed, indexed, alone);
        count(&mut classes.superseded, superseded, alone);
        count(&mut classes.dropped, dropped, alone);
        count(&mut classes.failed, failed, alone);
    }
    let children = u64::from(attempt.outputs_known.unwrap_or(1).saturating_sub(1));
    classes.children = Bounds { low: children, high: children };
    classes
}

fn adds_up(index: &HistoryIndex, id: RunId, run: &Run, complete: At, summary: &RunSummary, found: &mut Vec<Violation>) {
    let mut wrong = |words: String| {
        found.push(Violation::new(CHECKER, "summary-mismatch", format!("run {id:?}: {words}"), [complete]));
    };
    let publishes = run.publishes.iter().map(|number| &index.publishes[*number]);
    let acked: Vec<&Publish> = publishes.filter(|publish| publish.acked.is_some_and(|at| at <= complete)).collect();
    if summary.published != acked.len() as u64 {
        wrong(format!("the summary counts {} published where {} were acknowledged", summary.published, acked.len()));
    }
    let ended = summary.indexed + summary.superseded + summary.dropped + summary.failed;
    if ended != summary.published + summary.children {
        let due = summary.published + summary.children;
        wrong(format!("the summary counts {ended} outputs that ended where {due} were published or created"));
    }
    let mut total = Classes::default();
    for publish in acked {
        let attempts = index.attempts_of(id, publish.ticket.sequence);
        let closed = attempts.filter(|(_, attempt)| attempt.may_be_closed().is_some_and(|closed| closed <= complete));
        let closed: Vec<Classes> = closed.map(|(_, attempt)| classes(attempt, complete)).collect();
        if closed.is_empty() {
            // An early completion is reported as such; there is nothing to compare with.
            return;
        }
        let add = |sum: &mut Bounds, of: fn(&Classes) -> Bounds| {
            sum.low += closed.iter().map(|one| of(one).low).min().unwrap_or(0);
            sum.high += closed.iter().map(|one| of(one).high).max().unwrap_or(0);
        };
        add(&mut total.children, |one| one.children);
        add(&mut total.indexed, |one| one.indexed);
        add(&mut total.superseded, |one| one.superseded);
        add(&mut total.dropped, |one| one.dropped);
        add(&mut total.failed, |one| one.failed);
    }
    let rows = [
        ("children", summary.children, total.children),
        ("indexed", summary.indexed, total.indexed),
        ("superseded", summary.superseded, total.superseded),
        ("dropped", summary.dropped, total.dropped),
        ("failed", summary.failed, total.failed),
    ];
    for (name, counted, bounds) in rows {
        if counted < bounds.low || counted > bounds.high {
            let (low, high) = (bounds.low, bounds.high);
            let range = if low == high { low.to_string() } else { format!("between {low} and {high}") };
            wrong(format!("the summary counts {counted} {name} where the history has {range}"));
        }
    }
}
