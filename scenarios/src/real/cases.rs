//! Runs on a real Kafka that are not drawn: what the documents' system fell to when signals struck it, and flawed
//! pipelines, which must be caught.

use super::{RealPlan, StopSignal};
use crate::fault::{Action, Event, Fault, Node, Role, Trigger};
use crate::plan::{Mode, Workload};
use crate::run::Outcome;

/// How a case must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Every checker passes.
    Clean,
    /// Each of these properties is violated.
    All(&'static [&'static str]),
    /// One of these properties is violated.
    Any(&'static [&'static str]),
}

impl Due {
    /// Whether a run that ended so is what was due.
    pub fn is(&self, outcome: &Outcome) -> bool {
        let violated = violated(outcome);
        let is_violated = |property: &&str| violated.contains(property);
        match self {
            Due::Clean => *outcome == Outcome::Pass,
            Due::All(due) => due.iter().all(is_violated),
            Due::Any(due) => due.iter().any(is_violated),
        }
    }
}

/// The properties that did not hold, each once.
pub fn violated(outcome: &Outcome) -> Vec<&str> {
    let Outcome::Failed(violations) = outcome else { return Vec::new() };
    let mut properties: Vec<&str> = violations.iter().map(|violation| violation.property.as_str()).collect();
    properties.sort_unstable();
    properties.dedup();
    properties
}

/// A run, and how it must end.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is done to it.
    pub says: &'static str,
    /// The run.
    pub real: RealPlan,
    /// How it must end.
    pub due: Due,
}

fn busy(after_micros: u64, action: Action) -> Fault {
    Fault { trigger: Trigger::InFlight { at_least: 16, after_micros }, action }
}

/// Longer than the session of `real`, by so many microseconds.
fn past_the_session(real: &RealPlan, micros: u64) -> u64 {
    real.plan.pipeline.session_timeout_ms * 1_000 + micros
}

/// What the documents' system lost, left stale or hung at when its processes got signals; here each run is clean. Few
/// ids, as there: a stale one is then seen.
pub fn provoked() -> Vec<Case> {
    let run = |mode, seed, says, fault: fn(&RealPlan) -> Action| {
        let mut real = RealPlan::calm(mode, 1_500, seed);
        if let Workload::Generated(generated) = &mut real.plan.workload {
            generated.ids = 10;
        }
        real.plan.faults = vec![busy(1_000_000, fault(&real))];
        Case { says, real, due: Due::Clean }
    };
    let stop = |_: &RealPlan| Action::Stop { node: Node::Indexer(0), restart_after_micros: Some(500_000) };
    let mut interrupted = run(Mode::Distributed, 103, "an indexer gets SIGINT", stop);
    interrupted.real.stop_signal = StopSignal::Int;
    vec![
        run(Mode::Distributed, 101, "an indexer gets SIGKILL", |_| Action::Crash {
            node: Node::Indexer(0),
            restart_after_micros: Some(500_000),
        }),
        run(Mode::Distributed, 102, "an indexer gets SIGTERM", stop),
        interrupted,
        run(Mode::Distributed, 104, "an indexer gets SIGSTOP past its session, then SIGCONT", |real| Action::Pause {
            node: Node::Indexer(0),
            for_micros: past_the_session(real, 2_000_000),
        }),
        run(Mode::Distributed, 105, "a worker gets SIGSTOP past its session, then SIGCONT", |real| Action::Pause {
            node: Node::Worker(0),
            for_micros: past_the_session(real, 2_000_000),
        }),
        run(Mode::Hybrid, 106, "a pair gets SIGSTOP past its session, then SIGCONT", |real| Action::Pause {
            node: Node::Pair(0),
            for_micros: past_the_session(real, 2_000_000),
        }),
    ]
}

/// Indexers that commit what they polled, killed with writes under way.
pub fn commits_before_indexing() -> Case {
    let mut real = RealPlan::calm(Mode::Distributed, 1_500, 4);
    real.variant = Some("commit-on-poll".into());
    real.index_delay_ms = 40;
    real.plan.faults = vec![
        busy(1_000_000, Action::Crash { node: Node::Indexer(0), restart_after_micros: Some(500_000) }),
        busy(2_000_000, Action::Crash { node: Node::Indexer(1), restart_after_micros: Some(500_000) }),
    ];
    let says = "commits before it indexes; two indexers get SIGKILL";
    // What was committed and not indexed is lost.
    Case { says, real, due: Due::All(&["commit-ahead", "sink-lost-write"]) }
}

/// Workers that give partitions back at once and go on, while one is frozen and members join.
pub fn goes_on_after_revocation() -> Case {
    let mut real = RealPlan::calm(Mode::Distributed, 1_500, 5);
    real.variant = Some("no-drain".into());
    real.index_delay_ms = 40;
    if let Workload::Generated(generated) = &mut real.plan.workload {
        (generated.slow_permille, generated.slow_ms_max) = (200, 150);
    }
    let for_micros = past_the_session(&real, 1_500_000);
    real.plan.faults = vec![
        busy(500_000, Action::Pause { node: Node::Worker(0), for_micros }),
        Fault { trigger: Trigger::Nth { event: Event::Revoking, n: 1 }, action: Action::Join { role: Role::Worker } },
        busy(1_500_000, Action::Join { role: Role::Indexer }),
    ];
    let says = "releases without a drain; a worker gets SIGSTOP past its session, a worker and an indexer join";
    Case { says, real, due: Due::Any(&["effect-after-release", "write-order", "write-overlap"]) }
}
