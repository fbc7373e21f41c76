//! From the end of a run to its report: what the checkers say, and the figures.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use seriatim_core::identity::Version;
use seriatim_sim::checkers::{self, CheckOptions, HistoryIndex};
use seriatim_sim::history::{Event, body_hash};
use seriatim_sim::{RunOutcome, explain};

use super::{Driven, Progress, hashes};
use crate::fault::FaultKind;
use crate::plan::{Mode, Plan};
use crate::run::{Outcome, RunOptions, RunReport, Violation};
use crate::workload::{Expected, Totals};

/// What a drain is there for, and does not hold where none is waited for: effects that end with their ownership, and
/// one key's in order while another member has the partition already.
const OF_THE_DRAIN: [&str; 3] = ["effect-after-release", "write-order", "write-overlap"];

type Documents = BTreeMap<CompactString, (Version, Bytes)>;

pub(super) fn report(
    plan: &Plan,
    options: &RunOptions,
    outcome: RunOutcome<(Driven, Documents)>,
    expected: &Expected,
    progress: &Progress,
) -> RunReport {
    let mut report = RunReport::of(Outcome::Pass);
    report.trace_hash = outcome.hash;
    report.virtual_time = outcome.ended_at.since(seriatim_core::env::Instant::default());
    let failure = progress.failure.iter().map(|failure| format!("failed: {failure}"));
    report.summary = progress.summaries.iter().map(ToString::to_string).chain(failure).collect();
    if options.trace {
        report.trace = outcome.trace.iter().map(ToString::to_string).collect();
    }
    report.history_hash = outcome.recorder.as_ref().map_or(0, seriatim_sim::history::Recorder::hash);
    let (driven, documents) = match outcome.result {
        Ok(ended) => ended,
        Err(failure) => {
            report.outcome = Outcome::Harness(failure.to_string());
            return report;
        }
    };
    let events = outcome.recorder.map(|recorder| recorder.take()).unwrap_or_default();
    let index = HistoryIndex::new(&events, plan.topology.mode == Mode::Local);
    let tolerated = checkers::tolerated(&events, &index);
    report.records = expected.totals.published;
    report.rebalances = tolerated.rebalances;
    report.duplicates = tolerated.redelivered;
    report.faults.clone_from(&driven.strikes);
    let cut_short = is_cut_short(&report, progress);
    // Whoever owns next what was given up with effects above its commit has these again; so has who follows a crash.
    let rewound = has_struck(&report, FaultKind::Crash) || progress.uncovered.count() > 0;
    let options = CheckOptions {
        strict_order: plan.pipeline.drain && !rewound,
        ..check_options(plan, expected, &documents, cut_short)
    };
    let mut found = checkers::check_indexed(&events, &index, &options);
    if !plan.pipeline.drain {
        found.retain(|found| !OF_THE_DRAIN.contains(&found.property));
    }
    let mut violations: Vec<Violation> = found.iter().map(|found| violation(&events, found)).collect();
    violations.extend(own(&driven, progress, (!cut_short).then_some(&expected.totals)));
    report.index = documents.into_iter().map(|(id, (_, body))| (id.into(), text(&body))).collect();
    if !violations.is_empty() {
        report.outcome = Outcome::Failed(violations);
    }
    report
}

fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}

fn check_options(plan: &Plan, expected: &Expected, documents: &Documents, cut_short: bool) -> CheckOptions {
    CheckOptions {
        versions_on: plan.pipeline.versions,
        local_mode: plan.topology.mode == Mode::Local,
        repeatable: true,
        judge_events: true,
        expect_completion: !cut_short,
        // The driver waited for the groups to catch up.
        settled: plan.topology.mode != Mode::Local,
        lost_grace: Duration::from_millis(1),
        // What was not published by then is in nobody's index.
        expected: (!cut_short).then(|| hashes(&expected.index)),
        actual: Some(documents.iter().map(|(id, (_, body))| (id.clone(), body_hash(body))).collect()),
        ..CheckOptions::default()
    }
}

fn has_struck(report: &RunReport, kind: FaultKind) -> bool {
    report.faults.get(&kind).is_some_and(|strikes| strikes.injected > 0)
}

/// Whether the run ended because its topic of events was deleted, and says so.
fn is_cut_short(report: &RunReport, progress: &Progress) -> bool {
    let failure = progress.failure.as_ref().filter(|_| has_struck(report, FaultKind::DeletedEvents));
    failure.is_some_and(|failure| failure.contains(&super::nodes::event_topics()))
}

fn violation(events: &[Event], found: &checkers::Violation) -> Violation {
    // The first line repeats property and words.
    let witness = explain::block(events, found).lines().skip(1).map(|line| line.trim_start().to_owned()).collect();
    Violation { checker: found.checker, property: found.property.to_owned(), words: found.words.clone(), witness }
}

/// What only the driver can say: a run that failed, did not end, counted wrong, or left an unreadable record lying.
/// Without totals the run was cut short, and rightly failed.
fn own(driven: &Driven, progress: &Progress, expected: Option<&Totals>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add = |property: &str, words: String| {
        let property = property.to_owned();
        violations.push(Violation { checker: "driver", property, words, witness: Vec::new() });
    };
    if let Some(words) = &driven.stuck {
        add("stuck", words.clone());
    }
    for key in &driven.unburied {
        add("poison-unburied", format!("the record with the key {key} is not among the dead letters"));
    }
    let Some(expected) = expected else { return violations };
    if let Some(failure) = &progress.failure {
        add("run-failed", failure.clone());
    }
    if let Some(summary) = progress.summaries.first() {
        let parents = &summary.counts.parents;
        let found = Totals {
            published: summary.counts.published,
            indexed: parents.indexed + parents.superseded,
            dropped: parents.dropped,
            failed: parents.failed,
            children: summary.counts.children.total(),
        };
        if found != *expected {
            add("run-totals", format!("the summary says {found:?}, the operations are {expected:?}"));
        }
    }
    violations
}
