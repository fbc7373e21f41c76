//! One test a scenario, over fixed seeds.

use scenarios::scenario::{SCENARIOS, Source, find};

use super::support::{asked_seed, hold};

/// Seeds of a scenario of generated work; enough to promise every kind of fault.
const SEEDS: u64 = 40;
/// Seeds of a scenario of ripgrep's history, whose runs are ten times as long.
const RIPGREP_SEEDS: u64 = 3;

macro_rules! named {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let scenario = find(&stringify!($name).replace('_', "-")).expect("the test is named after a scenario");
            hold(scenario, if scenario.source == Source::Ripgrep { RIPGREP_SEEDS } else { SEEDS });
        })*

        #[test]
        fn every_scenario_is_a_test() {
            let tested: Vec<String> = [$(stringify!($name)),*].map(|name| name.replace('_', "-")).into();
            let listed: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            assert_eq!(tested, listed);
        }
    };
}

named! {
    local_calm
    local_crashes
    local_all
    distributed_calm
    distributed_crashes
    distributed_rebalances
    distributed_all
    distributed_unversioned_crashes
    distributed_unversioned_rebalances
    distributed_undrained
    ripgrep_local_calm
    ripgrep_local_crashes
    ripgrep_local_all
    ripgrep_local_unversioned_calm
    ripgrep_local_unversioned_crashes
    ripgrep_local_unversioned_all
    ripgrep_distributed_calm
    ripgrep_distributed_crashes
    ripgrep_distributed_rebalances
    ripgrep_distributed_all
    ripgrep_distributed_unversioned_calm
    ripgrep_distributed_unversioned_crashes
    ripgrep_distributed_unversioned_rebalances
    ripgrep_distributed_unversioned_all
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
