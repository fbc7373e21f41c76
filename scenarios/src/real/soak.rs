//! Runs drawn from seeds, one after the other, for as long as was asked; the first that fails ends it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use seriatim_kafka_dev::{Cluster, Options};

use super::{Program, RealPlan, RealReport, Site, run};
use crate::fault::FaultKind;
use crate::plan::Workload;
use crate::report::{counted, grouped, short};
use crate::run::Outcome;

/// With this variable a broker that is there already is used.
const BROKER_VARIABLE: &str = seriatim_kafka_dev::testing::BROKER_VARIABLE;

/// A site with a cluster of its own, of so many brokers; or the broker that `SERIATIM_KAFKA` names, which is not
/// broken.
pub fn site(program: Program, brokers: u32) -> anyhow::Result<Site> {
    if let (1, Some(bootstrap)) = (brokers, named()) {
        return Ok(Site { program, bootstrap, replication: 1, brokers: None });
    }
    let cluster = Cluster::start(&Options { nodes: brokers, ..Options::default() }).context("starting a Kafka")?;
    let (bootstrap, replication) = (cluster.bootstrap(), if brokers == 3 { 3 } else { 1 });
    Ok(Site { program, bootstrap, replication, brokers: Some(Arc::new(Mutex::new(cluster))) })
}

/// The broker that `SERIATIM_KAFKA` names, if it names one.
pub fn named() -> Option<String> {
    std::env::var(BROKER_VARIABLE).ok()
}

/// What many runs add up to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Runs by mode and number of brokers.
    pub runs: BTreeMap<(&'static str, u32), u64>,
    /// Of these, with ripgrep's history.
    pub ripgrep: u64,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Of these, with work in flight.
    pub in_flight: BTreeMap<FaultKind, u64>,
    /// Pauses in which a member stood still for longer than its session.
    pub outlasted: u64,
    /// Brokers that were killed.
    pub brokers_killed: u64,
    /// Partitions announced to go, or lost, each event counted once.
    pub rebalances: u64,
    /// Records that were published.
    pub records: u64,
    /// Records that were delivered again.
    pub duplicates: u64,
    /// Time in which records flowed.
    pub flowed: Duration,
    /// Runs with a violation.
    pub failed: u64,
}

impl Tally {
    /// Adds one run.
    pub fn add(&mut self, real: &RealPlan, ran: &RealReport) {
        let report = &ran.report;
        *self.runs.entry((real.plan.topology.mode.name(), real.brokers)).or_default() += 1;
        self.ripgrep += u64::from(real.plan.workload == Workload::Ripgrep);
        for (kind, strikes) in &report.faults {
            *self.faults.entry(*kind).or_default() += strikes.injected;
            *self.in_flight.entry(*kind).or_default() += strikes.in_flight;
        }
        self.outlasted += ran.outlasted;
        self.brokers_killed += ran.brokers_killed;
        self.rebalances += report.rebalances;
        self.records += report.records;
        self.duplicates += report.duplicates;
        self.flowed += ran.flowed;
        self.failed += u64::from(report.outcome != Outcome::Pass);
    }

    /// How many runs there were.
    pub fn count(&self) -> u64 {
        self.runs.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.runs.iter();
        let runs: Vec<String> =
            runs.map(|((mode, brokers), count)| format!("{count} {mode} on {}", counted(*brokers, "broker"))).collect();
        writeln!(f, "runs        {}: {}", self.count(), runs.join(", "))?;
        writeln!(f, "            {} of them with ripgrep's history", self.ripgrep)?;
        for (kind, count) in &self.faults {
            let in_flight = self.in_flight.get(kind).copied().unwrap_or(0);
            let long = match kind {
                FaultKind::Pause => format!(", {} longer than the session", self.outlasted),
                _ => String::new(),
            };
            writeln!(f, "fault       {kind}: {count}, {in_flight} with work in flight{long}")?;
        }
        writeln!(f, "fault       broker-crash: {}", self.brokers_killed)?;
        writeln!(f, "rebalances  {} times a member was told that partitions go", grouped(self.rebalances))?;
        writeln!(
            f,
            "records     {} published in {}, {} delivered again",
            grouped(self.records),
            short(self.flowed),
            grouped(self.duplicates)
        )?;
        write!(f, "violations  in {}", counted(self.failed, "run"))
    }
}

/// The faults that struck, by kind.
pub(super) fn faults(ran: &RealReport) -> String {
    let mut faults = Vec::new();
    for (kind, strikes) in &ran.report.faults {
        let long = match (kind, ran.outlasted) {
            (FaultKind::Pause, 1..) => format!(" ({} past the session)", ran.outlasted),
            _ => String::new(),
        };
        faults.push(format!("{kind} {}{long}", strikes.injected));
    }
    if ran.brokers_killed > 0 {
        faults.push(format!("broker-crash {}", ran.brokers_killed));
    }
    if faults.is_empty() { "no fault".to_owned() } else { faults.join(", ") }
}

/// One run in a line.
pub fn line(real: &RealPlan, ran: &RealReport) -> String {
    let report = &ran.report;
    let verdict = match &report.outcome {
        Outcome::Pass => "clean".to_owned(),
        Outcome::Failed(violations) => counted(violations.len() as u64, "violation").to_uppercase(),
        Outcome::Harness(words) => words.clone(),
    };
    format!(
        "seed {}: {}, {}, {} in {}; {}; {} rebalances, {} again: {verdict}",
        real.plan.seed,
        real.plan.topology.mode.name(),
        counted(real.brokers, "broker"),
        counted(report.records, "record"),
        short(ran.flowed),
        faults(ran),
        report.rebalances,
        report.duplicates,
    )
}

/// Runs one plan.
pub fn one(real: &RealPlan, site: &Site) -> anyhow::Result<RealReport> {
    run(real, site).with_context(|| format!("seed {} on {}", real.plan.seed, counted(real.brokers, "broker")))
}
