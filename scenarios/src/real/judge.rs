//! From the end of a real run to its report: the same checkers over the history that its processes wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use compact_str::CompactString;
use seriatim_core::env::Instant;
use seriatim_sim::checkers::{self, CheckOptions, HistoryIndex};
use seriatim_sim::explain;
use seriatim_sim::history::{Event, RunSummary, What, body_hash, document_key};

use super::plan::RealPlan;
use crate::node::index::Stored;
use crate::plan::Workload;
use crate::ripgrep;
use crate::run::{Outcome, RunReport, Violation};
use crate::workload::Expected;

/// How long the tasks of one process may take to hear of a loss, on a machine that is busy with all of them.
const LOST_GRACE: Duration = Duration::from_millis(500);

/// How a run ended, apart from its history.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Why it did not come to its end, when it did not.
    pub(super) stuck: Option<String>,
    /// What the index holds.
    pub(super) documents: Vec<Stored>,
}

/// Judges `events`, which are in the order of time.
pub(super) fn report(real: &RealPlan, mut events: Vec<Event>, ended: &Ended, expected: &Expected) -> RunReport {
    // From the first event on: nobody reads the seconds since 1970.
    let origin = events.first().map_or(Instant::default(), |event| event.at);
    events.iter_mut().for_each(|event| event.at = Instant::default() + event.at.since(origin));
    let mut report = RunReport::of(Outcome::Pass);
    report.virtual_time = events.last().map_or(Duration::ZERO, |event| event.at.since(Instant::default()));
    let index = HistoryIndex::new(&events, false);
    report.records = expected.totals.published;
    report.duplicates = checkers::tolerated(&events, &index).redelivered;
    let moved = |event: &&Event| matches!(event.what, What::Revoking { .. } | What::Lost { .. });
    report.rebalances = events.iter().filter(moved).count() as u64;
    let body = |stored: &Stored| {
        let key = document_key(stored.index.as_deref(), &stored.id);
        (key, body_hash(stored.body.as_bytes()))
    };
    let hash = |(id, body): (&String, &String)| (CompactString::from(id.as_str()), body_hash(body.as_bytes()));
    let is_over = ended.stuck.is_none();
    let options = CheckOptions {
        versions_on: real.plan.pipeline.versions,
        strict_order: false,
        local_mode: false,
        repeatable: true,
        judge_events: true,
        expect_completion: true,
        settled: is_over,
        lost_grace: LOST_GRACE,
        expected: is_over.then(|| expected.index.iter().map(hash).collect()),
        actual: is_over.then(|| ended.documents.iter().map(body).collect()),
    };
    let found = checkers::check_indexed(&events, &index, &options);
    let mut violations: Vec<Violation> = found.iter().map(|found| violation(&events, found)).collect();
    violations.extend(own(real, &events, ended, expected));
    let documents = ended.documents.iter();
    report.index =
        documents.map(|one| (document_key(one.index.as_deref(), &one.id).into(), one.body.clone())).collect();
    if !violations.is_empty() {
        report.outcome = Outcome::Failed(violations);
    }
    report
}

fn violation(events: &[Event], found: &checkers::Violation) -> Violation {
    // The first line repeats property and words.
    let witness = explain::block(events, found).lines().skip(1).map(|line| line.trim_start().to_owned()).collect();
    Violation { checker: found.checker, property: found.property.to_owned(), words: found.words.clone(), witness }
}

/// What only the driver can say: a run that did not end, counted wrong, or left another tree than ripgrep's.
fn own(real: &RealPlan, events: &[Event], ended: &Ended, expected: &Expected) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add = |property: &str, words: String| {
        violations.push(Violation { checker: "driver", property: property.to_owned(), words, witness: Vec::new() });
    };
    if let Some(words) = &ended.stuck {
        add("stuck", words.clone());
        return violations;
    }
    let summaries: Vec<RunSummary> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::RunComplete { summary, .. } => Some(*summary),
            _ => None,
        })
        .collect();
    let totals = expected.totals;
    let due = RunSummary {
        published: totals.published,
        children: totals.children,
        indexed: totals.indexed + totals.children,
        dropped: totals.dropped,
        failed: totals.failed,
        ..RunSummary::default()
    };
    // What was superseded is in the index as something newer.
    let counted = |one: &RunSummary| RunSummary { indexed: one.indexed + one.superseded, superseded: 0, ..*one };
    match &summaries[..] {
        [one] if counted(one) == due => {}
        other => add("run-totals", format!("the summaries say {other:?}, the operations are {due:?}")),
    }
    if real.plan.workload == Workload::Ripgrep {
        let index: BTreeMap<String, String> =
            ended.documents.iter().map(|one| (one.id.clone(), one.body.clone())).collect();
        if let Some(words) = ripgrep::unlike_index(&index, &ripgrep::tree()) {
            add("unlike-tree", words);
        }
    }
    violations
}
