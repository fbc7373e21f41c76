//! What it takes to run a plan, and what a run tells.
//!
//! The command and the campaigns know a [`Runner`] and nothing of the world behind it. A runner must give the same
//! report for the same plan, on any thread of any process; only `wall` may differ.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fault::FaultKind;
use crate::plan::Plan;
use crate::workload::Op;

/// How a plan is run, apart from what it says.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Whether the report holds the trace.
    pub trace: bool,
    /// The operations of a [`Workload::File`](crate::plan::Workload::File), which the caller has read.
    pub operations: Option<Arc<Vec<Op>>>,
}

/// Runs plans. Every run has a thread of its own, fresh.
pub trait Runner: Sync {
    /// Runs `plan` to its end.
    fn run(&self, plan: &Plan, options: &RunOptions) -> RunReport;
}

impl<F: Fn(&Plan, &RunOptions) -> RunReport + Sync> Runner for F {
    fn run(&self, plan: &Plan, options: &RunOptions) -> RunReport {
        self(plan, options)
    }
}

/// A property that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Who saw it: a checker of the history, or `driver`, who saw how the run ended.
    pub checker: &'static str,
    /// Its name, as `write-order`.
    pub property: String,
    /// What happened, in words.
    pub words: String,
    /// The least that shows it: the id, the positions, two or three events; one a line.
    pub witness: Vec<String>,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything held.
    Pass,
    /// Something did not hold.
    Failed(Vec<Violation>),
    /// The run says nothing about the pipeline: the harness or its input failed.
    Harness(String),
}

/// How often a kind of fault struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Strikes {
    /// Times that it was really injected.
    pub injected: u64,
    /// Of these, with work in flight.
    pub in_flight: u64,
    /// The least work that was in flight at one of them, records. A window of the index counts what was in flight when
    /// it opened; a refusal, the operations of its request.
    pub least: u64,
}

impl Strikes {
    /// One strike with so many records in flight.
    pub fn one(in_flight: u64) -> Self {
        Strikes { injected: 1, in_flight: u64::from(in_flight > 0), least: in_flight }
    }
}

impl std::ops::AddAssign for Strikes {
    fn add_assign(&mut self, other: Strikes) {
        self.least = match (self.injected, other.injected) {
            (0, _) => other.least,
            (_, 0) => self.least,
            _ => self.least.min(other.least),
        };
        self.injected += other.injected;
        self.in_flight += other.in_flight;
    }
}

/// What a run tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunReport {
    /// How it ended.
    pub outcome: Outcome,
    /// Rolling hash over every request, response, commit and index write.
    pub trace_hash: u64,
    /// Hash over the history that the checkers read.
    pub history_hash: u64,
    /// Time that passed in the simulated world.
    pub virtual_time: Duration,
    /// Records published.
    pub records: u64,
    /// Faults that struck.
    pub faults: BTreeMap<FaultKind, Strikes>,
    /// Completed rebalances.
    pub rebalances: u64,
    /// Records processed more than once.
    pub duplicates: u64,
    /// Real time that it took. Never part of a comparison.
    pub wall: Duration,
    /// The index at the end: id to document, as JSON.
    pub index: BTreeMap<String, String>,
    /// The end-of-run summary of the pipeline, a line each.
    pub summary: Vec<String>,
    /// The trace, a line an event, when it was asked for.
    pub trace: Vec<String>,
}

impl RunReport {
    /// A report of nothing but an outcome.
    pub fn of(outcome: Outcome) -> Self {
        RunReport {
            outcome,
            trace_hash: 0,
            history_hash: 0,
            virtual_time: Duration::ZERO,
            records: 0,
            faults: BTreeMap::new(),
            rebalances: 0,
            duplicates: 0,
            wall: Duration::ZERO,
            index: BTreeMap::new(),
            summary: Vec::new(),
            trace: Vec::new(),
        }
    }
}

/// How the command ends; the numbers are its exit status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exit {
    /// Everything held.
    Pass = 0,
    /// A property did not hold.
    Failed = 1,
    /// The harness or its input failed.
    Harness = 2,
    /// Somebody pressed Ctrl-C, as shells count it.
    Interrupted = 130,
}

/// Runs one plan on a fresh thread: the iteration order of std's maps in a simulated run is fixed per thread. A panic
/// of the run becomes a harness failure.
pub fn run_fresh(runner: &dyn Runner, plan: &Plan, options: &RunOptions) -> RunReport {
    let watch = Stopwatch::start();
    let ended = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(format!("seed-{}", plan.seed));
        match thread.spawn_scoped(scope, || runner.run(plan, options)) {
            Ok(handle) => handle.join().map_err(|panic| format!("the run panicked: {}", panic_words(&*panic))),
            Err(error) => Err(format!("no thread could be started ({error}); try fewer --jobs")),
        }
    });
    let mut report = ended.unwrap_or_else(|words| RunReport::of(Outcome::Harness(words)));
    report.wall = watch.elapsed();
    report
}

fn panic_words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "no message".to_owned())
}

/// Real time, for figures and progress only.
#[derive(Clone, Copy)]
pub struct Stopwatch(RealTime);

#[expect(clippy::disallowed_types, reason = "the one place that asks for real time; no run can reach it")]
type RealTime = std::time::Instant;

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Stopwatch(RealTime::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SCENARIOS;

    #[test]
    fn a_panic_in_a_run_is_a_harness_failure_with_its_words() {
        let runner = |plan: &Plan, _: &RunOptions| -> RunReport { panic!("no room in {}", plan.scenario) };
        let report = run_fresh(&runner, &Plan::draw(&SCENARIOS[0], 1), &RunOptions::default());
        assert_eq!(report.outcome, Outcome::Harness("the run panicked: no room in local-calm".to_owned()));
    }
}
