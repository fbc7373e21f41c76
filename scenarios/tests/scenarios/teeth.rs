//! The flawed pipelines are caught, each by the checker that is there for its mistake, and the correct one is not.

use std::collections::{BTreeMap, BTreeSet};

use scenarios::drive::{Correct, Simulated};
use scenarios::explore::Progress;
use scenarios::fault::Trigger;
use scenarios::plan::Plan;
use scenarios::report;
use scenarios::run::{Exit, RunOptions, Runner};
use scenarios::scenario::find;
use scenarios::zoo::hunt::{Bag, Broken, Hunt, Ranges, Searched, hunt, search};
use scenarios::zoo::{ANIMALS, Animal};
use seriatim_sim::checkers::{CHECKERS, PROPERTIES};

use super::support::{campaign, cores, seeds};

/// One range; `cargo sim zoo` searches more.
const RANGES: Ranges = Ranges { from: 0, count: 1, seeds: 400 };

struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _: u64, _: u64, _: usize) {}
}

#[test]
fn every_animal_is_caught_every_property_is_broken_and_each_checker_catches_one_alone() {
    let animals: Vec<&Animal> = ANIMALS.iter().collect();
    let hunt = hunt(&animals, RANGES, cores(), &mut Quiet).expect("they live in listed scenarios");
    let free: Vec<&str> = hunt.bags.iter().filter(|bag| bag.has_escaped()).map(|bag| bag.animal.name).collect();
    assert_eq!(free, [""; 0], "got away");
    for (scenario, correct) in &hunt.correct {
        assert_eq!(correct.barks, [].into(), "the correct pipeline, {scenario}");
    }
    let worth = hunt.worth();
    let spoke: Vec<&str> = worth.iter().map(|worth| worth.checker.as_str()).collect();
    assert_eq!(spoke, ["completion", "driver", "letters", "offsets", "order", "placement", "polls", "sink"]);
    assert_eq!(hunt.toothless(), [""; 0]);
}

#[test]
fn without_a_drain_everything_is_judged_but_what_a_drain_is_there_for() {
    for (name, scenario) in [("commit-on-poll", "distributed-undrained"), ("misfiled-children", "hybrid-undrained")] {
        let animal = ANIMALS.iter().find(|animal| animal.name == name).expect("it is in the zoo");
        let searched = search(animal, find(scenario).expect("listed"), 0, 60);
        assert!(matches!(searched, Searched::Caught { .. }), "{name} got away in {scenario}");
    }
}

/// A hunt that caught every animal at once, by these.
fn caught_by(broken: impl Fn(&Animal) -> Vec<(&'static str, &'static str)>) -> Hunt {
    let bag = |animal: &'static Animal| {
        let broken = broken(animal).into_iter();
        let broken = broken.map(|(checker, property)| Broken { checker: checker.into(), property: property.into() });
        Bag { animal, ranges: vec![Searched::Caught { seed: 0, after: 1, broken: broken.collect() }] }
    };
    Hunt { bags: ANIMALS.iter().map(bag).collect(), correct: BTreeMap::new() }
}

#[test]
fn a_checker_that_catches_nothing_alone_and_a_property_that_nothing_breaks_are_named() {
    let all = || CHECKERS.into_iter().chain(["driver"]);
    // Each animal is caught by one checker, whichever; every property is broken by each.
    let one_each = |animal: &Animal| {
        let number = ANIMALS.iter().position(|one| one.name == animal.name).expect("it is in the zoo");
        let checker = all().nth(number % all().count()).expect("one of them");
        PROPERTIES.into_iter().map(|property| (checker, property)).collect::<Vec<_>>()
    };
    assert_eq!(caught_by(one_each).toothless(), [""; 0]);
    let without = |animal: &Animal| {
        let broken = one_each(animal).into_iter().filter(|(_, property)| *property != "lag-left");
        broken.map(|(checker, property)| (if checker == "sink" { "polls" } else { checker }, property)).collect()
    };
    let said = ["the checker sink catches no animal that others do not", "no animal breaks the property lag-left"];
    assert_eq!(caught_by(without).toothless(), said);
    // It speaks, but somebody else does too.
    let accompanied = |animal: &Animal| {
        let mut broken = one_each(animal);
        if broken[0].0 == "order" {
            broken.push(("sink", "final-index"));
        }
        broken
    };
    assert_eq!(caught_by(accompanied).toothless(), ["the checker order catches no animal that others do not"]);
    let mut some = caught_by(without);
    some.bags.pop();
    assert_eq!(some.toothless(), [""; 0], "not all animals were hunted");
}

#[test]
fn animals_have_names_of_their_own_and_live_in_the_general_scenario_of_a_mode() {
    let names: BTreeSet<&str> = ANIMALS.iter().map(|animal| animal.name).collect();
    assert_eq!(names.len(), ANIMALS.len());
    for animal in ANIMALS {
        assert!(["distributed-all", "hybrid-all", "local-all"].contains(&animal.scenario), "{}", animal.name);
    }
}

#[test]
fn faults_that_come_too_late_end_the_real_campaign_with_exit_2() {
    let late = |plan: &Plan, options: &RunOptions| {
        let mut plan = plan.clone();
        for fault in &mut plan.faults {
            fault.trigger = Trigger::At(3_600_000_000);
        }
        Simulated(Correct).run(&plan, options)
    };
    let rebalances = find("distributed-rebalances").expect("listed");
    let tally = campaign(rebalances, seeds(0, 20), &late);
    assert_eq!((tally.failures.len(), tally.exit()), (0, Exit::Harness));
    assert_eq!(tally.missed, rebalances.kinds());
    let words = report::missed(&tally).expect("both kinds are missed");
    assert!(words.starts_with("HARNESS FAILED  distributed-rebalances promises stop, join"), "{words}");
}
