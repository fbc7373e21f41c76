//! `cargo sim zoo`.

use anyhow::bail;
use clap::Args;

use super::campaign::{Campaign, parse_count};
use super::{Terminal, report};
use crate::interrupt;
use crate::plan::Plan;
use crate::progress::Reporter;
use crate::run::{Exit, RunOptions, run_fresh};
use crate::scenario::find;
use crate::zoo::hunt::{Ranges, Searched, hunt, search};
use crate::zoo::{ANIMALS, Animal};

/// Seeds of a range: within so many every animal must be found.
const SEEDS: u64 = 1_000;

#[derive(Args, Debug)]
pub(super) struct Zoo {
    /// Ranges of seeds, each searched from its first seed until the catch.
    #[arg(long, default_value = "4", value_parser = parse_count)]
    ranges: u64,
    /// Only this animal; may be given several times.
    #[arg(long, value_name = "ANIMAL", value_parser = parse_animal)]
    only: Vec<&'static Animal>,
    /// Prints the first failure of this animal as `explore` would, and hunts no other.
    #[arg(long, value_name = "ANIMAL", value_parser = parse_animal, conflicts_with = "only")]
    show: Option<&'static Animal>,
    #[command(flatten)]
    campaign: Campaign,
}

fn parse_animal(text: &str) -> Result<&'static Animal, String> {
    let known = || ANIMALS.iter().map(|animal| animal.name).collect::<Vec<_>>().join(", ");
    let found = ANIMALS.iter().find(|animal| animal.name == text);
    found.ok_or_else(|| format!("there is no animal `{text}`; there are {}", known()))
}

impl Zoo {
    pub(super) fn execute(self, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        if let Some(animal) = self.show {
            return self.show(animal, terminal);
        }
        let campaign = self.campaign;
        let ranges = Ranges { from: campaign.from, count: self.ranges, seeds: campaign.seeds(SEEDS, self.ranges)? };
        let animals: Vec<&'static Animal> = if self.only.is_empty() { ANIMALS.iter().collect() } else { self.only };
        let mut progress = Reporter::new("zoo", "range", terminal.err, terminal.is_live);
        let hunt = hunt(&animals, ranges, campaign.jobs(), &mut progress)?;
        progress.finish();
        let interrupted = interrupt::asked();
        if campaign.json {
            terminal.say(report::zoo::as_json(&hunt, ranges, interrupted));
        } else {
            terminal.say(report::zoo::tables(&hunt, ranges));
        }
        for bag in hunt.bags.iter().filter(|bag| bag.has_escaped()) {
            let name = bag.animal.name;
            terminal
                .complain(format_args!("{name} got away in a range; cargo sim zoo --only {name} looks at it alone"));
        }
        if interrupted {
            terminal.complain("interrupted: the ranges that were not searched to their end count as not caught");
        }
        let toothless = hunt.toothless();
        for words in &toothless {
            terminal.complain(format_args!("HARNESS FAILED  {words}: add one to the zoo, or take it out"));
        }
        Ok(match (interrupted, hunt.holds(), toothless.is_empty()) {
            (true, ..) => Exit::Interrupted,
            (false, false, _) => Exit::Failed,
            (false, true, false) => Exit::Harness,
            (false, true, true) => Exit::Pass,
        })
    }

    fn show(&self, animal: &Animal, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        let (from, seeds) = (self.campaign.from, self.campaign.seeds(SEEDS, 1)?);
        let scenario = find(animal.scenario)?;
        let seed = match search(animal, scenario, from, seeds) {
            Searched::Caught { seed, .. } => seed,
            Searched::Escaped => bail!("{} got away on {seeds} seeds from {from}; try another --from", animal.name),
            Searched::Interrupted => return Ok(Exit::Interrupted),
        };
        let plan = Plan::draw(scenario, seed);
        let ran = run_fresh(&animal.runner(), &plan, &RunOptions::default());
        let again = format!("cargo sim zoo --show {} --from {seed}", animal.name);
        terminal.say(report::failure_block(&plan, &ran, &again));
        Ok(Exit::Failed)
    }
}
