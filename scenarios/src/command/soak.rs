//! `sim soak --real`: the pipeline on a real Kafka, struck at random, for as long as it takes.

use std::time::Duration;

use anyhow::bail;
use clap::Args;

use super::{Terminal, parse_seed};
use crate::interrupt;
use crate::plan::PlanError;
use crate::real::soak::{Tally, line, one, site};
use crate::real::{Program, RealPlan, Site};
use crate::report;
use crate::run::{Exit, Outcome, Stopwatch};

/// Three brokers get this part of the time, unless it is said how many there are.
const SHARE_OF_THREE: f64 = 0.4;

#[derive(Args, Debug)]
pub(super) struct Soak {
    /// On a real Kafka, which is started here; `SERIATIM_KAFKA=host:port` uses one that is there.
    #[arg(long)]
    real: bool,
    /// How long, about: a run that has begun is ended.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The first seed; each run takes the next.
    #[arg(long, default_value = "1", value_parser = parse_seed, allow_negative_numbers = true)]
    seed: u64,
    /// At most so many runs.
    #[arg(long)]
    runs: Option<u64>,
    /// Brokers: 1 or 3, of which one is killed [default: first 1, then 3].
    #[arg(long)]
    brokers: Option<u32>,
}

impl Soak {
    pub(super) fn execute(self, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        if !self.real {
            bail!("soak runs on a real Kafka: write --real; for simulated runs take explore");
        }
        let whole = Duration::from_secs(self.minutes.saturating_mul(60));
        let parts = match self.brokers {
            Some(brokers @ (1 | 3)) => vec![(brokers, whole)],
            Some(other) => {
                return Err(PlanError::Contradiction {
                    place: "--brokers",
                    reason: format!("{other} cannot be started here; give 1 or 3"),
                }
                .into());
            }
            None => vec![(1, whole.mul_f64(1.0 - SHARE_OF_THREE)), (3, whole.mul_f64(SHARE_OF_THREE))],
        };
        let (mut tally, mut seed, mut exit) = (Tally::default(), self.seed, Exit::Pass);
        let watch = Stopwatch::start();
        for (brokers, time) in parts {
            if exit != Exit::Pass || self.is_over(&tally) {
                break;
            }
            terminal.complain(format_args!("starting {}", report::counted(brokers, "broker")));
            let site = site(Program::of_this()?, brokers)?;
            let part = Stopwatch::start();
            while exit == Exit::Pass && part.elapsed() < time && !self.is_over(&tally) {
                exit = run_one(&RealPlan::draw(seed, brokers), &site, &mut tally, terminal)?;
                seed = seed.wrapping_add(1);
            }
        }
        terminal.say(format_args!("{tally}"));
        terminal.say(format_args!(
            "took        {}, seeds {} to {}",
            report::short(watch.elapsed()),
            self.seed,
            seed - 1
        ));
        Ok(if exit == Exit::Pass && interrupt::asked() { Exit::Interrupted } else { exit })
    }

    fn is_over(&self, tally: &Tally) -> bool {
        interrupt::asked() || self.runs.is_some_and(|runs| tally.count() >= runs)
    }
}

fn run_one(real: &RealPlan, site: &Site, tally: &mut Tally, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
    let ran = match one(real, site) {
        Ok(ran) => ran,
        // What it did until then is not judged: it has no end.
        Err(_) if interrupt::asked() => return Ok(Exit::Pass),
        Err(error) => return Err(error),
    };
    tally.add(real, &ran);
    terminal.complain(format_args!("run {}: {}", tally.count(), line(real, &ran)));
    if ran.report.outcome == Outcome::Pass {
        return Ok(Exit::Pass);
    }
    let again = format!("cargo sim soak --real --runs 1 --brokers {} --seed {}", real.brokers, real.plan.seed);
    terminal.complain(format_args!("\n{}", report::failure_block(&real.plan, &ran.report, &again)));
    if let Some(folder) = &ran.kept {
        terminal.complain(format_args!("  kept      {}: plan, history, output", folder.display()));
    }
    Ok(Exit::Failed)
}
