//! How fast the general scenario catches the animals: the first seed of a range on which the right checker speaks.
//!
//! Every range is searched from its own first seed, so that twenty of them tell how much luck there is in one. The
//! correct pipeline runs the same seeds and must be clean: a checker that barks at everything catches everything.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{CommitOnPoll, CountIds, Undrained};
use crate::drive::{Correct, Simulated};
use crate::plan::Plan;
use crate::run::{Outcome, RunOptions, Runner, run_fresh};
use crate::scenario::Scenario;

/// The scenario in which animals are hunted. No scenario is tuned to one of them.
pub const GENERAL: &str = "distributed-all";

/// A flawed pipeline, and what must catch it.
#[derive(Debug)]
pub struct Animal {
    /// Its name.
    pub name: &'static str,
    /// The mistake, in a few words.
    pub mistake: &'static str,
    /// The properties of which one must break. Another one alone is not a catch: it would be luck.
    pub properties: &'static [&'static str],
    runner: fn() -> Box<dyn Runner>,
}

impl Animal {
    /// Runs plans with the flawed pipeline.
    pub fn runner(&self) -> Box<dyn Runner> {
        (self.runner)()
    }
}

/// All animals.
pub const ANIMALS: &[Animal] = &[
    Animal {
        name: "commit-on-poll",
        mistake: "commits before indexing",
        properties: &["commit-ahead", "sink-lost-write"],
        runner: || Box::new(Simulated(CommitOnPoll)),
    },
    Animal {
        name: "no-drain",
        mistake: "does not drain on revoke",
        properties: &["effect-after-release", "write-order", "write-overlap"],
        runner: || Box::new(Simulated(Undrained)),
    },
    Animal {
        name: "count-ids",
        mistake: "a ledger that counts ids",
        properties: &["completed-early", "completed-never", "write-after-completion"],
        runner: || Box::new(Simulated(CountIds)),
    },
];

/// Which seeds are searched.
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    /// The first seed of the first range.
    pub from: u64,
    /// How many ranges, one after the other.
    pub count: u64,
    /// Seeds of each.
    pub seeds: u64,
}

impl Ranges {
    fn first_seeds(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |range| self.from + range * self.seeds)
    }
}

/// A range in which an animal was caught.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catch {
    /// The seed.
    pub seed: u64,
    /// Seeds searched, that one included.
    pub searched: u64,
    /// Which of the animal's properties broke, in the order in which they can be seen.
    pub properties: Vec<String>,
}

/// What a hunt came to, range by range. `None` is a range in which the animal got away.
pub type Bag = Vec<Option<Catch>>;

/// Searches each range for the first seed of `scenario` that breaks one of `properties`.
pub fn hunt(scenario: &Scenario, properties: &[&str], ranges: Ranges, jobs: NonZeroUsize, runner: &dyn Runner) -> Bag {
    in_parallel(ranges, jobs, |first| {
        (0..ranges.seeds).find_map(|index| {
            let seed = first + index;
            let found = broken(runner, &Plan::draw(scenario, seed));
            let properties: Vec<String> =
                found.into_iter().filter(|property| properties.contains(&property.as_str())).collect();
            (!properties.is_empty()).then_some(Catch { seed, searched: index + 1, properties })
        })
    })
}

/// Seeds of the ranges on which the correct pipeline does not pass, with what broke.
pub fn barks(scenario: &Scenario, ranges: Ranges, jobs: NonZeroUsize) -> BTreeMap<u64, Vec<String>> {
    let runner = Simulated(Correct);
    let found = in_parallel(ranges, jobs, |first| {
        let seeds = first..first + ranges.seeds;
        let found = seeds.map(|seed| (seed, broken(&runner, &Plan::draw(scenario, seed))));
        found.filter(|(_, properties)| !properties.is_empty()).collect::<Vec<_>>()
    });
    found.into_iter().flatten().collect()
}

/// The properties that a run breaks, each once. A harness that fails is a property of its own, and nobody's.
fn broken(runner: &dyn Runner, plan: &Plan) -> Vec<String> {
    match run_fresh(runner, plan, &RunOptions::default()).outcome {
        Outcome::Pass => Vec::new(),
        Outcome::Harness(words) => vec![format!("harness: {words}")],
        Outcome::Failed(violations) => {
            let mut properties: Vec<String> = Vec::new();
            for violation in violations {
                if !properties.contains(&violation.property) {
                    properties.push(violation.property);
                }
            }
            properties
        }
    }
}

/// `search` over the first seeds of the ranges, several at a time; the results in the order of the ranges.
fn in_parallel<T: Send>(ranges: Ranges, jobs: NonZeroUsize, search: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let firsts: Vec<u64> = ranges.first_seeds().collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<usize, T>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs.get() {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(first) = firsts.get(place) else { break };
                    let one = search(*first);
                    found.lock().expect("no code panics while it inserts").insert(place, one);
                }
            });
        }
    });
    found.into_inner().expect("no code panics while it inserts").into_values().collect()
}

/// Median and worst of the seeds that were searched until the catch; `None` when nothing was caught.
pub fn median_and_worst(bag: &Bag) -> Option<(u64, u64)> {
    let mut searched: Vec<u64> = bag.iter().flatten().map(|caught| caught.searched).collect();
    searched.sort_unstable();
    Some((*searched.get(searched.len().checked_sub(1)? / 2)?, *searched.last()?))
}
