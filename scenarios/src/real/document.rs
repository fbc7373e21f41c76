//! Real runs as a document: a row each, and what they add up to.

use std::fmt::Write as _;

use super::cases::{Case, violated};
use super::soak::{Tally, faults};
use super::{RealPlan, RealReport};
use crate::plan::Workload;
use crate::report::{counted, grouped};
use crate::run::Outcome;

const OPENING: &str = "# Runs on a real Kafka

Processes of their own (publisher, workers, indexers or pairs) on Apache Kafka on loopback, struck by signals while
documents flow. The checkers of the simulation judge the recorded history; the index must be the one that the operations
give, and the tree of ripgrep's files where its history was published. A fault is counted when it struck: one whose
trigger never came is not, nor one whose process was down already.
";

/// Rows, as they come.
#[derive(Debug, Default)]
pub struct Document {
    cases: Vec<String>,
    runs: Vec<String>,
}

impl Document {
    /// Adds a case that was run.
    pub fn case(&mut self, case: &Case, ran: &RealReport) {
        let RealPlan { plan, variant, .. } = &case.real;
        let pipeline = variant.as_ref().map_or_else(|| "as it is".to_owned(), |variant| format!("`{variant}`"));
        let due = if case.due.is(&ran.report.outcome) { "" } else { ", **which is not what was due**" };
        self.cases.push(format!(
            "| {pipeline} | {} | {} | {} | {} | {} | {}{due} |",
            case.says,
            plan.topology.mode.name(),
            faults(ran),
            grouped(ran.report.records),
            seconds(ran),
            verdict(&ran.report.outcome)
        ));
    }

    /// Adds a run that was drawn.
    pub fn run(&mut self, real: &RealPlan, ran: &RealReport) {
        let documents = match real.plan.workload {
            Workload::Ripgrep => format!("{} (ripgrep)", grouped(ran.report.records)),
            _ => grouped(ran.report.records),
        };
        self.runs.push(format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {documents} | {} | {} |",
            self.runs.len() + 1,
            real.plan.seed,
            real.plan.topology.mode.name(),
            real.brokers,
            assignor(real),
            faults(ran),
            ran.report.rebalances,
            grouped(ran.report.duplicates),
            seconds(ran),
            verdict(&ran.report.outcome)
        ));
    }

    /// The whole, made by `command`.
    pub fn markdown(&self, command: &str, tally: &Tally) -> String {
        let mut text = format!("{OPENING}\nMade by `{command}`.\n");
        if !self.runs.is_empty() {
            text.push_str(
                "\n## Drawn runs\n\nRebalances: times that a member was told that partitions go. Again: records that \
                 were delivered more than once.\nSeconds: from the first publish until the run was complete.\n\n\
                 | run | seed | mode | brokers | assignor | faults that struck | rebalances | again | documents | \
                 seconds | checkers |\n|--:|--:|---|--:|---|---|--:|--:|--:|--:|---|\n",
            );
            self.runs.iter().for_each(|row| text.extend([row, "\n"]));
            let _ = writeln!(text, "\n```text\n{tally}\n```");
        }
        if !self.cases.is_empty() {
            text.push_str(
                "\n## Provoked runs\n\nWhat the documented system lost documents at, left stale or hung at when its \
                 processes got signals; and flawed pipelines, which must be caught here too.\n\n\
                 | pipeline | what is done to it | mode | faults that struck | documents | seconds | checkers |\n\
                 |---|---|---|---|--:|--:|---|\n",
            );
            self.cases.iter().for_each(|row| text.extend([row, "\n"]));
        }
        text
    }
}

fn assignor(real: &RealPlan) -> &'static str {
    let assignors = &real.plan.pipeline.clients.assignors;
    let first = assignors.first().and_then(|list| list.first()).copied();
    first.map_or("", |assignor| seriatim_core::transport::Assignor::from(assignor).name())
}

fn seconds(ran: &RealReport) -> String {
    format!("{:.1}", ran.flowed.as_secs_f64())
}

fn verdict(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Pass => "clean".to_owned(),
        Outcome::Failed(violations) => {
            format!("{}: {}", counted(violations.len() as u64, "violation"), violated(outcome).join(", "))
        }
        Outcome::Harness(words) => words.clone(),
    }
}
