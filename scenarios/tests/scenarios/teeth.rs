//! The flawed pipelines are caught, each by the checker that is there for its mistake, and the correct one is not.

use std::collections::BTreeSet;

use scenarios::drive::{Correct, Simulated};
use scenarios::explore::Progress;
use scenarios::fault::Trigger;
use scenarios::plan::Plan;
use scenarios::report;
use scenarios::run::{Exit, RunOptions, Runner};
use scenarios::scenario::find;
use scenarios::zoo::hunt::{Ranges, hunt};
use scenarios::zoo::{ANIMALS, Animal};
use seriatim_sim::checkers::PROPERTIES;

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
    let spared = worth.iter().filter(|worth| worth.alone.is_empty()).map(|worth| worth.checker.as_str());
    assert_eq!(spared.collect::<Vec<_>>(), [""; 0], "catch nothing that others do not");
    let broken: BTreeSet<&str> =
        hunt.bags.iter().flat_map(|bag| bag.catches()).flatten().map(|broken| broken.property.as_str()).collect();
    let whole: Vec<&str> = PROPERTIES.into_iter().filter(|property| !broken.contains(property)).collect();
    assert_eq!(whole, [""; 0], "broken by no animal");
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
