//! The flawed pipelines are caught, each by the checker that is there for its mistake, and the correct one is not.

use scenarios::drive::{Correct, Simulated};
use scenarios::fault::Trigger;
use scenarios::plan::Plan;
use scenarios::report;
use scenarios::run::{Exit, RunOptions, Runner};
use scenarios::scenario::find;
use scenarios::zoo::hunt::{ANIMALS, Animal, GENERAL, Ranges, barks, hunt};

use super::support::{campaign, cores, seeds};

/// A few ranges; `cargo sim zoo` searches twenty.
const RANGES: Ranges = Ranges { from: 0, count: 4, seeds: 200 };

fn caught(animal: &Animal) {
    let general = find(GENERAL).expect("listed");
    let bag = hunt(general, animal.properties, RANGES, cores(), &*animal.runner());
    assert_eq!(bag.iter().flatten().count() as u64, RANGES.count, "{} got away: {bag:?}", animal.name);
    // The correct pipeline passes each seed that gave an animal away.
    for caught in bag.iter().flatten() {
        let one = Ranges { from: caught.seed, count: 1, seeds: 1 };
        assert_eq!(barks(general, one, cores()), [].into(), "{}", animal.name);
    }
}

macro_rules! animals {
    ($($test:ident: $name:literal)*) => {
        $(#[test]
        fn $test() {
            caught(ANIMALS.iter().find(|animal| animal.name == $name).expect("it is in the zoo"));
        })*

        #[test]
        fn every_animal_is_hunted() {
            let names: Vec<&str> = ANIMALS.iter().map(|animal| animal.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

animals! {
    commit_before_indexing_is_caught: "commit-on-poll"
    no_drain_on_revoke_is_caught: "no-drain"
    a_ledger_that_counts_ids_is_caught: "count-ids"
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
