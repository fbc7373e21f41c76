//! What the tests of the scenarios share.

use std::num::NonZeroUsize;

use scenarios::command::parse_seed;
use scenarios::drive::{Correct, Simulated};
use scenarios::explore::{Progress, Seeds, Tally, explore};
use scenarios::report;
use scenarios::run::{Exit, Runner};
use scenarios::scenario::Scenario;

struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _: u64, _: u64, _: usize) {}
}

pub(super) fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// The seeds from `from`, with one job a core.
pub(super) fn seeds(from: u64, count: u64) -> Seeds {
    Seeds { from, count, jobs: cores() }
}

/// A campaign without a progress bar.
pub(super) fn campaign(scenario: &'static Scenario, seeds: Seeds, runner: &dyn Runner) -> Tally {
    explore(scenario, seeds, runner, &mut Quiet)
}

/// The seed that `SERIATIM_SEED` asks for.
pub(super) fn asked_seed(value: Option<&str>) -> Result<Option<u64>, String> {
    value.map(|text| parse_seed(text).map_err(|words| format!("SERIATIM_SEED is `{text}`: {words}"))).transpose()
}

/// Runs the fixed seeds of a scenario, or the one that was asked for. A failure prints its block.
pub(super) fn hold(scenario: &'static Scenario, count: u64) -> Tally {
    let asked = asked_seed(std::env::var("SERIATIM_SEED").ok().as_deref()).unwrap_or_else(|words| panic!("{words}"));
    let seeds = asked.map_or(seeds(0, count), |seed| seeds(seed, 1));
    let tally = campaign(scenario, seeds, &Simulated(Correct));
    let words = || format!("{}{}", report::failures(&tally), report::missed(&tally).unwrap_or_default());
    assert_eq!(tally.exit(), Exit::Pass, "\n{}", words());
    tally
}
