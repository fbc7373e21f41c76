//! One test for the scenarios of a mode, over fixed seeds.

use scenarios::plan::Mode;
use scenarios::scenario::{SCENARIOS, Scenario, Source, find};

use super::support::{asked_seed, hold};

/// Seeds of a scenario of ripgrep's history, whose runs are ten times as long.
const RIPGREP_SEEDS: u64 = 2;

/// Every scenario of a source and a mode: as many seeds as promise every kind of its faults.
fn hold_all(source: Source, mode: Mode) {
    for scenario in SCENARIOS.iter().filter(|one| one.source == source && one.mode == mode) {
        hold(scenario, if source == Source::Ripgrep { RIPGREP_SEEDS } else { scenario.promise_seeds() });
    }
}

macro_rules! named {
    ($($name:ident: $source:ident $mode:ident,)*) => {
        $(#[test]
        fn $name() {
            hold_all(Source::$source, Mode::$mode);
        })*

        #[test]
        fn every_scenario_is_in_a_test() {
            let tested = |one: &Scenario| [$((Source::$source, Mode::$mode)),*].contains(&(one.source, one.mode));
            assert!(SCENARIOS.iter().all(tested));
        }
    };
}

named! {
    local: Generated Local,
    distributed: Generated Distributed,
    hybrid: Generated Hybrid,
    ripgrep_local: Ripgrep Local,
    ripgrep_distributed: Ripgrep Distributed,
    ripgrep_hybrid: Ripgrep Hybrid,
}

#[test]
fn a_general_campaign_goes_through_two_rebalances_a_seed_on_average() {
    for name in ["distributed-all", "hybrid-all"] {
        let tally = hold(find(name).expect("listed"), 200);
        if tally.seeds == 200 {
            assert!(tally.rebalances >= 400, "{name}: {} rebalances in 200 seeds", tally.rebalances);
        }
    }
}

#[test]
fn a_seed_asked_for_by_the_environment_is_read_or_refused_by_name() {
    assert_eq!(asked_seed(None), Ok(None));
    assert_eq!(asked_seed(Some("18446744073709551615")), Ok(Some(u64::MAX)));
    for bad in ["", "-1", "seven", "18446744073709551616"] {
        let words = asked_seed(Some(bad)).expect_err("no seed");
        assert_eq!(
            words,
            format!("SERIATIM_SEED is `{bad}`: a seed is a whole number from 0 to 18446744073709551615, such as 42")
        );
    }
}
