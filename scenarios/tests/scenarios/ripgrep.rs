//! Ripgrep's history: the final index is its tree, and the faults strike when there is something to lose.

use scenarios::drive::{Correct, Simulated};
use scenarios::fault::FaultKind;
use scenarios::plan::Plan;
use scenarios::ripgrep;
use scenarios::run::{Outcome, RunOptions, run_fresh};
use scenarios::scenario::{FaultSet, SCENARIOS, Source};

use super::support::hold;

/// Records that must be in flight when a fault strikes.
const IN_FLIGHT_MIN: u64 = 64;

#[test]
fn the_final_index_is_the_tree_in_every_mode() {
    let tree = ripgrep::tree();
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.source == Source::Ripgrep) {
        let plan = Plan::draw(scenario, 1_000);
        let report = run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
        assert_eq!(report.outcome, Outcome::Pass, "{}", scenario.name);
        assert_eq!(report.records, ripgrep::OPERATIONS);
        assert_eq!(ripgrep::unlike_index(&report.index, &tree), None, "{}", scenario.name);
    }
}

#[test]
fn every_fault_strikes_with_64_records_in_flight() {
    let scenarios = SCENARIOS.iter().filter(|scenario| scenario.source == Source::Ripgrep);
    for scenario in scenarios.filter(|scenario| scenario.faults != FaultSet::None && scenario.versions) {
        let tally = hold(scenario, 4);
        assert!(!tally.faults.is_empty(), "{}: nothing struck", scenario.name);
        for (kind, strikes) in &tally.faults {
            // A producer is full whatever else is under way.
            if *kind != FaultKind::FullQueue {
                assert_eq!(strikes.injected, strikes.in_flight, "{}: {kind}", scenario.name);
                assert!(strikes.least >= IN_FLIGHT_MIN, "{}: {kind} struck {strikes:?}", scenario.name);
            }
        }
    }
}
