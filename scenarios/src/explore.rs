//! A campaign: the seeds of one scenario, several at a time, told in seed order.
//!
//! What a campaign says does not depend on the number of jobs: runs may end in any order, but they are counted in the
//! order of their seeds, and what ran ahead of an early stop is forgotten.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::fault::FaultKind;
use crate::interrupt;
use crate::plan::Plan;
use crate::run::{Exit, Outcome, RunOptions, RunReport, Runner, Stopwatch, Strikes, run_fresh};
use crate::scenario::Scenario;

/// Failing seeds after which a campaign stops.
pub const FAILURES_MAX: usize = 3;

/// Which seeds, and how many at a time.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The first.
    pub from: u64,
    /// How many.
    pub count: u64,
    /// Runs at a time.
    pub jobs: NonZeroUsize,
}

/// Hears how a campaign or a hunt goes on.
pub trait Progress {
    /// So many of so many seeds or searches are counted, so many of them failed.
    fn step(&mut self, done: u64, of: u64, failed: usize);
}

/// A seed that did not pass.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was run.
    pub plan: Plan,
    /// What it told.
    pub report: RunReport,
}

/// What one seed hashed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeedHash {
    /// The seed.
    pub seed: u64,
    /// Hash over every request, response, commit and index write.
    pub trace: u64,
    /// Hash over the history that the checkers read.
    pub history: u64,
}

impl std::fmt::Display for SeedHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:016x} {:016x}", self.seed, self.trace, self.history)
    }
}

/// What a campaign adds up to.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// Seeds counted.
    pub seeds: u64,
    /// Virtual time of all runs.
    pub virtual_time: Duration,
    /// Records published.
    pub records: u64,
    /// Faults that struck.
    pub faults: BTreeMap<FaultKind, Strikes>,
    /// Completed rebalances.
    pub rebalances: u64,
    /// Records processed more than once.
    pub duplicates: u64,
    /// The seed that took longest in real time, and how long.
    pub slowest: Option<(u64, Duration)>,
    /// Real time of the campaign.
    pub wall: Duration,
    /// What each seed hashed to, in seed order: equal for equal campaigns of any process and any number of jobs.
    pub hashes: Vec<SeedHash>,
    /// Seeds on which a property or the harness failed, at most [`FAILURES_MAX`].
    pub failures: Vec<Failure>,
    /// Kinds of the scenario that never hit work in flight.
    pub missed: Vec<FaultKind>,
}

impl Tally {
    fn new(scenario: &'static Scenario) -> Self {
        Tally {
            scenario,
            seeds: 0,
            virtual_time: Duration::ZERO,
            records: 0,
            faults: BTreeMap::new(),
            rebalances: 0,
            duplicates: 0,
            slowest: None,
            wall: Duration::ZERO,
            hashes: Vec::new(),
            failures: Vec::new(),
            missed: Vec::new(),
        }
    }

    fn count(&mut self, plan: Plan, report: RunReport) {
        self.seeds += 1;
        self.virtual_time += report.virtual_time;
        self.records += report.records;
        self.rebalances += report.rebalances;
        self.duplicates += report.duplicates;
        for (kind, strikes) in &report.faults {
            *self.faults.entry(*kind).or_default() += *strikes;
        }
        if self.slowest.is_none_or(|(_, wall)| report.wall > wall) {
            self.slowest = Some((plan.seed, report.wall));
        }
        self.hashes.push(SeedHash { seed: plan.seed, trace: report.trace_hash, history: report.history_hash });
        if report.outcome != Outcome::Pass {
            self.failures.push(Failure { plan, report });
        }
    }

    /// Whether the campaign was long enough to promise every kind of its scenario.
    pub fn promises(&self) -> bool {
        self.seeds >= self.scenario.promise_seeds()
    }

    /// How the campaign ends: a broken property outweighs a broken harness.
    pub fn exit(&self) -> Exit {
        let is_property = |failure: &Failure| matches!(failure.report.outcome, Outcome::Failed(_));
        if self.failures.iter().any(is_property) {
            Exit::Failed
        } else if !self.failures.is_empty() || (self.promises() && !self.missed.is_empty()) {
            Exit::Harness
        } else {
            Exit::Pass
        }
    }
}

/// Runs the seeds `seeds` of `scenario`.
pub fn explore(scenario: &'static Scenario, seeds: Seeds, runner: &dyn Runner, progress: &mut dyn Progress) -> Tally {
    let watch = Stopwatch::start();
    let mut tally = Tally::new(scenario);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Bounded: a job that is far ahead of the counting waits here.
        let (sender, receiver) = mpsc::sync_channel(seeds.jobs.get());
        for _ in 0..seeds.jobs.get() {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && !interrupt::asked() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= seeds.count {
                        break;
                    }
                    let plan = Plan::draw(scenario, seeds.from.wrapping_add(index));
                    let mut report = run_fresh(runner, &plan, &RunOptions::default());
                    report.index = BTreeMap::new();
                    if sender.send((index, plan, report)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        for (index, plan, report) in receiver {
            waiting.insert(index, (plan, report));
            while let Some((plan, report)) = waiting.remove(&tally.seeds) {
                if tally.failures.len() < FAILURES_MAX {
                    tally.count(plan, report);
                    progress.step(tally.seeds, seeds.count, tally.failures.len());
                }
                if tally.failures.len() >= FAILURES_MAX {
                    stop.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
    });
    let hit = |kind: &FaultKind| tally.faults.get(kind).is_some_and(|strikes| strikes.in_flight > 0);
    tally.missed = scenario.kinds().into_iter().filter(|kind| !hit(kind)).collect();
    tally.wall = watch.elapsed();
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Violation;
    use crate::scenario::find;

    struct Quiet;
    impl Progress for Quiet {
        fn step(&mut self, _: u64, _: u64, _: usize) {}
    }

    /// Odd seeds take longer, so that jobs end out of order; the seeds 30, 31, 40 and 41 fail.
    fn fake(plan: &Plan, _: &RunOptions) -> RunReport {
        let rounds = if plan.seed % 2 == 1 { 200_000 } else { 10 };
        let busy = (0..rounds).fold(plan.seed, |hash: u64, round| hash.wrapping_mul(31).wrapping_add(round));
        let mut report = RunReport::of(Outcome::Pass);
        report.trace_hash = plan.seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ u64::from(busy == 1);
        report.records = 10;
        for kind in find(&plan.scenario).expect("drawn from it").kinds() {
            let strikes = Strikes { injected: 2, in_flight: u64::from(kind != FaultKind::Join), least: 0 };
            report.faults.insert(kind, strikes);
        }
        if [30, 31, 40, 41].contains(&plan.seed) {
            let words = format!("seed {}", plan.seed);
            let found = Violation { checker: "order", property: "write-order".into(), words, witness: vec![] };
            report.outcome = Outcome::Failed(vec![found]);
        }
        report
    }

    fn seeds(from: u64, count: u64, jobs: usize) -> Seeds {
        Seeds { from, count, jobs: NonZeroUsize::new(jobs).expect("above zero") }
    }

    fn telling(tally: &Tally) -> (u64, u64, Vec<SeedHash>, Vec<u64>) {
        let failing = tally.failures.iter().map(|failure| failure.plan.seed).collect();
        (tally.seeds, tally.records, tally.hashes.clone(), failing)
    }

    #[test]
    fn a_campaign_says_the_same_with_any_number_of_jobs() {
        let crashes = find("distributed-crashes").expect("listed");
        for (from, count, failing) in [(0, 30, vec![]), (20, 100, vec![30, 31, 40])] {
            let one = explore(crashes, seeds(from, count, 1), &fake, &mut Quiet);
            assert_eq!(telling(&one).3, failing);
            for jobs in [2, 5] {
                let many = explore(crashes, seeds(from, count, jobs), &fake, &mut Quiet);
                assert_eq!(telling(&many), telling(&one));
                assert_eq!(many.faults, one.faults);
            }
        }
    }

    #[test]
    fn it_stops_at_the_third_failing_seed_and_exits_1() {
        let tally = explore(find("local-calm").expect("listed"), seeds(20, 100, 2), &fake, &mut Quiet);
        assert_eq!((tally.seeds, tally.exit()), (21, Exit::Failed));
    }

    #[test]
    fn a_kind_that_never_hit_work_in_flight_is_exit_2_once_the_campaign_is_long_enough() {
        let rebalances = find("distributed-rebalances").expect("listed");
        let long = explore(rebalances, seeds(100, rebalances.promise_seeds(), 2), &fake, &mut Quiet);
        assert_eq!((long.missed.as_slice(), long.exit()), (&[FaultKind::Join][..], Exit::Harness));
        let short = explore(rebalances, seeds(100, rebalances.promise_seeds() - 1, 2), &fake, &mut Quiet);
        assert_eq!((short.missed.as_slice(), short.exit()), (&[FaultKind::Join][..], Exit::Pass));
    }

    #[test]
    fn a_harness_failure_is_exit_2_and_a_broken_property_outweighs_it() {
        let runner = |plan: &Plan, options: &RunOptions| match plan.seed {
            28 => RunReport::of(Outcome::Harness("no clock".into())),
            _ => fake(plan, options),
        };
        let calm = find("local-calm").expect("listed");
        assert_eq!(explore(calm, seeds(20, 10, 2), &runner, &mut Quiet).exit(), Exit::Harness);
        assert_eq!(explore(calm, seeds(20, 11, 2), &runner, &mut Quiet).exit(), Exit::Failed);
    }

    #[test]
    fn the_last_seed_there_is_can_be_explored() {
        let tally = explore(find("local-calm").expect("listed"), seeds(u64::MAX, 1, 2), &fake, &mut Quiet);
        assert_eq!((tally.seeds, tally.slowest.map(|(seed, _)| seed)), (1, Some(u64::MAX)));
    }
}
