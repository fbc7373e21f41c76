//! How fast the general scenarios catch the animals: the first seed of a range on which the right checker speaks.
//!
//! Every range is searched from its own first seed, so that twenty of them tell how much luck there is in one. The
//! correct pipeline runs the same seeds, as far as any animal was searched for, and must be clean: a checker that barks
//! at everything catches everything. What else spoke on the seed of a catch tells which checker could be spared: for
//! each there must be an animal that only it catches, and for each property one that breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use seriatim_sim::checkers::{CHECKERS, PROPERTIES};

use super::animals::{ANIMALS, Animal};
use crate::drive::{Correct, Simulated};
use crate::explore::Progress;
use crate::interrupt;
use crate::plan::Plan;
use crate::run::{Outcome, RunOptions, Runner, run_fresh};
use crate::scenario::{Scenario, UnknownScenario, find};

/// Who speaks beside the checkers of the history.
const DRIVER: &str = "driver";

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
    fn first_seed(self, range: u64) -> u64 {
        self.from + range * self.seeds
    }
}

/// A property that broke, and the checker that said so.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Broken {
    /// The checker.
    pub checker: String,
    /// The property.
    pub property: String,
}

/// How the search of one range ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Searched {
    /// One of the animal's properties broke.
    Caught {
        /// On this seed.
        seed: u64,
        /// Seeds searched, that one included.
        after: u64,
        /// All that broke on it.
        broken: BTreeSet<Broken>,
    },
    /// It got away.
    Escaped,
    /// The hunt was interrupted.
    Interrupted,
}

/// What one animal's hunt came to, range by range.
#[derive(Debug)]
pub struct Bag {
    /// The animal.
    pub animal: &'static Animal,
    /// Its ranges.
    pub ranges: Vec<Searched>,
}

impl Bag {
    /// Seeds that were searched until each catch, rising.
    pub fn searched(&self) -> Vec<u64> {
        let after = |range: &Searched| if let Searched::Caught { after, .. } = range { Some(*after) } else { None };
        let mut all: Vec<u64> = self.ranges.iter().filter_map(after).collect();
        all.sort_unstable();
        all
    }

    /// Median and worst of the seeds that were searched until the catch; `None` when nothing was caught.
    pub fn median_and_worst(&self) -> Option<(u64, u64)> {
        let searched = self.searched();
        Some((*searched.get(searched.len().checked_sub(1)? / 2)?, *searched.last()?))
    }

    /// All that broke on each seed of a catch.
    pub fn catches(&self) -> impl Iterator<Item = &BTreeSet<Broken>> {
        self.ranges
            .iter()
            .filter_map(|range| if let Searched::Caught { broken, .. } = range { Some(broken) } else { None })
    }

    /// In how many ranges each of the animal's own properties broke.
    pub fn by_property(&self) -> BTreeMap<&Broken, u64> {
        let mut counts = BTreeMap::new();
        for broken in self.catches().flatten().filter(|broken| self.animal.properties.contains(&&*broken.property)) {
            *counts.entry(broken).or_default() += 1;
        }
        counts
    }

    /// Whether a range was searched to its end without a catch.
    pub fn has_escaped(&self) -> bool {
        self.ranges.contains(&Searched::Escaped)
    }
}

/// What the correct pipeline did on the seeds of one scenario.
#[derive(Clone, Default, Debug)]
pub struct Barks {
    /// Seeds that it ran.
    pub seeds: u64,
    /// Those on which it does not pass, with what broke.
    pub barks: BTreeMap<u64, BTreeSet<Broken>>,
}

/// A whole hunt.
#[derive(Debug)]
pub struct Hunt {
    /// Every animal's.
    pub bags: Vec<Bag>,
    /// The correct pipeline, by scenario.
    pub correct: BTreeMap<&'static str, Barks>,
}

/// What a checker is worth.
#[derive(Debug)]
pub struct Worth<'a> {
    /// The checker.
    pub checker: String,
    /// The animals on whose seeds it spoke, and in how many of their catches.
    pub catches: Vec<(&'a Animal, usize)>,
    /// Those that no other checker spoke of in most of their catches, and in how many: without it they would be found
    /// late or never.
    pub alone: Vec<(&'a Animal, usize)>,
}

impl Hunt {
    /// Whether everything was caught, and nothing else.
    pub fn holds(&self) -> bool {
        self.bags.iter().all(|bag| !bag.has_escaped()) && self.correct.values().all(|one| one.barks.is_empty())
    }

    /// Checkers that catch no animal alone and properties that none breaks, a line each: nothing shows what these are
    /// there for. Nothing is said of a hunt for some of the animals, or of one that was interrupted.
    pub fn toothless(&self) -> Vec<String> {
        let was_searched = |bag: &Bag| !bag.ranges.contains(&Searched::Interrupted);
        let is_whole = ANIMALS.iter().all(|animal| self.bags.iter().any(|bag| bag.animal.name == animal.name));
        if !is_whole || !self.bags.iter().all(was_searched) {
            return Vec::new();
        }
        let worth = self.worth();
        let alone = |checker: &str| worth.iter().any(|one| one.checker == checker && !one.alone.is_empty());
        let checkers = CHECKERS.into_iter().chain([DRIVER]).filter(|checker| !alone(checker));
        let catches = || self.bags.iter().flat_map(Bag::catches).flatten();
        let properties = PROPERTIES.into_iter().filter(|property| !catches().any(|one| one.property == *property));
        let checkers = checkers.map(|checker| format!("the checker {checker} catches no animal that others do not"));
        checkers.chain(properties.map(|property| format!("no animal breaks the property {property}"))).collect()
    }

    /// What each checker is worth, by name.
    pub fn worth(&self) -> Vec<Worth<'_>> {
        let mut worth: BTreeMap<&str, Worth<'_>> = BTreeMap::new();
        for bag in &self.bags {
            let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
            for broken in bag.catches() {
                let checkers: BTreeSet<&str> = broken.iter().map(|one| one.checker.as_str()).collect();
                for checker in &checkers {
                    let (spoke, alone) = counts.entry(checker).or_default();
                    *spoke += 1;
                    *alone += usize::from(checkers.len() == 1);
                }
            }
            for (checker, (spoke, alone)) in counts {
                let new = || Worth { checker: checker.to_owned(), catches: Vec::new(), alone: Vec::new() };
                let worth = worth.entry(checker).or_insert_with(new);
                worth.catches.push((bag.animal, spoke));
                if 2 * alone > bag.catches().count() {
                    worth.alone.push((bag.animal, alone));
                }
            }
        }
        worth.into_values().collect()
    }
}

/// Hunts `animals` over `ranges`, several at a time, and runs the correct pipeline on the seeds that were searched.
pub fn hunt(
    animals: &[&'static Animal],
    ranges: Ranges,
    jobs: NonZeroUsize,
    progress: &mut dyn Progress,
) -> Result<Hunt, UnknownScenario> {
    let scenarios = animals.iter().map(|animal| Ok((animal.scenario, find(animal.scenario)?)));
    let scenarios: BTreeMap<&str, &'static Scenario> = scenarios.collect::<Result<_, _>>()?;
    let places: Vec<(&'static Animal, u64)> =
        animals.iter().flat_map(|animal| (0..ranges.count).map(move |range| (*animal, range))).collect();
    let beside: Vec<(&str, u64)> =
        scenarios.keys().flat_map(|name| (0..ranges.count).map(move |range| (*name, range))).collect();
    let all = (places.len() + beside.len()) as u64;
    let searched = in_parallel(&places, jobs, progress, (0, all), |(animal, range)| {
        search(animal, scenarios[animal.scenario], ranges.first_seed(*range), ranges.seeds)
    });
    // As far as the slowest animal of the scenario was searched for.
    let mut far: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for ((animal, range), searched) in places.iter().zip(&searched) {
        let seeds = match searched {
            Searched::Caught { after, .. } => *after,
            Searched::Escaped => ranges.seeds,
            Searched::Interrupted => 0,
        };
        let far = far.entry((animal.scenario, *range)).or_default();
        *far = seeds.max(*far);
    }
    let ran = in_parallel(&beside, jobs, progress, (places.len() as u64, all), |(name, range)| {
        correct(scenarios[name], ranges.first_seed(*range), far[&(*name, *range)])
    });
    let mut correct: BTreeMap<&'static str, Barks> = BTreeMap::new();
    for ((name, _), mut ran) in beside.iter().zip(ran) {
        let all = correct.entry(scenarios[name].name).or_default();
        all.seeds += ran.seeds;
        all.barks.append(&mut ran.barks);
    }
    let mut searched = searched.into_iter();
    let bag =
        |animal: &&'static Animal| Bag { animal, ranges: searched.by_ref().take(ranges.count as usize).collect() };
    Ok(Hunt { bags: animals.iter().map(bag).collect(), correct })
}

/// The first of `seeds` seeds from `first` that gives the animal away.
pub fn search(animal: &Animal, scenario: &Scenario, first: u64, seeds: u64) -> Searched {
    let runner = animal.runner();
    for (after, seed) in (1..).zip(first..first + seeds) {
        if interrupt::asked() {
            return Searched::Interrupted;
        }
        let broken = broken(&runner, &Plan::draw(scenario, seed));
        if broken.iter().any(|broken| animal.properties.contains(&&*broken.property)) {
            return Searched::Caught { seed, after, broken };
        }
    }
    Searched::Escaped
}

/// The correct pipeline on `seeds` seeds from `first`.
pub fn correct(scenario: &Scenario, first: u64, seeds: u64) -> Barks {
    let mut ran = Barks::default();
    for seed in first..first + seeds {
        if interrupt::asked() {
            break;
        }
        ran.seeds += 1;
        let broken = broken(&Simulated(Correct), &Plan::draw(scenario, seed));
        if !broken.is_empty() {
            ran.barks.insert(seed, broken);
        }
    }
    ran
}

/// What a run breaks. A harness that fails is a property of its own, and nobody's.
fn broken(runner: &dyn Runner, plan: &Plan) -> BTreeSet<Broken> {
    match run_fresh(runner, plan, &RunOptions::default()).outcome {
        Outcome::Pass => BTreeSet::new(),
        Outcome::Harness(words) => BTreeSet::from([Broken { checker: "harness".to_owned(), property: words }]),
        Outcome::Failed(violations) => {
            let broken = violations.into_iter();
            broken.map(|found| Broken { checker: found.checker.to_owned(), property: found.property }).collect()
        }
    }
}

/// `search` at every place, several at a time; the results in the order of the places.
fn in_parallel<P: Sync, T: Send>(
    places: &[P],
    jobs: NonZeroUsize,
    progress: &mut dyn Progress,
    (done, of): (u64, u64),
    search: impl Fn(&P) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let mut found: BTreeMap<usize, T> = BTreeMap::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.get() {
            let (sender, next, search) = (sender.clone(), &next, &search);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(place) = places.get(number) else { break };
                    if sender.send((number, search(place))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (number, one) in receiver {
            found.insert(number, one);
            progress.step(done + found.len() as u64, of, 0);
        }
    });
    found.into_values().collect()
}
