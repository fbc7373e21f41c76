//! `sim soak --real`: the pipeline on a real Kafka, struck at random, for as long as it takes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::{Terminal, parse_seed};
use crate::interrupt;
use crate::plan::PlanError;
use crate::real::cases::{Case, Due, commits_before_indexing, goes_on_after_revocation, provoked};
use crate::real::document::Document;
use crate::real::soak::{Tally, line, named, one, site};
use crate::real::{Program, RealPlan, RealReport, Site};
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
    /// Brokers: 1 or 3, of which one is killed [default: first 1, then 3; 1 with SERIATIM_KAFKA].
    #[arg(long)]
    brokers: Option<u32>,
    /// First provokes by signals what the documents' system fell to, and runs two flawed pipelines, which must be
    /// caught.
    #[arg(long)]
    cases: bool,
    /// Runs this plan and nothing else: `plan.toml` of the folder that a failed run leaves.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "runs", "brokers", "minutes", "cases"])]
    plan: Option<PathBuf>,
    /// Writes the runs here, as a document.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// What is known so far.
#[derive(Default)]
struct Done {
    tally: Tally,
    document: Document,
}

impl Soak {
    pub(super) fn execute(self, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        if !self.real {
            bail!("soak runs on a real Kafka: write --real; for simulated runs take explore");
        }
        let (mut done, watch) = (Done::default(), Stopwatch::start());
        let soaked = match &self.plan {
            Some(path) => planned(path, &mut done, terminal),
            None => self.soak(&mut done, terminal),
        };
        // What was run stands, however the rest ended.
        if done.tally.count() > 0 {
            terminal.say(format_args!("{}", done.tally));
        }
        terminal.say(format_args!("took        {}", report::short(watch.elapsed())));
        if let Some(path) = &self.markdown {
            let text = done.document.markdown(&self.again(), &done.tally);
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        let exit = soaked?;
        Ok(if exit == Exit::Pass && interrupt::asked() { Exit::Interrupted } else { exit })
    }

    fn soak(&self, done: &mut Done, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
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
            None if named().is_some() => vec![(1, whole)],
            None => vec![(1, whole.mul_f64(1.0 - SHARE_OF_THREE)), (3, whole.mul_f64(SHARE_OF_THREE))],
        };
        let mut seed = self.seed;
        for (number, (brokers, time)) in parts.into_iter().enumerate() {
            let site = at(brokers, terminal)?;
            if self.cases && number == 0 {
                let exit = cases(&site, done, terminal)?;
                if exit != Exit::Pass {
                    return Ok(exit);
                }
            }
            let part = Stopwatch::start();
            while part.elapsed() < time && !self.is_over(&done.tally) {
                let exit = run_one(&RealPlan::draw(seed, brokers), &site, done, terminal)?;
                if exit != Exit::Pass {
                    return Ok(exit);
                }
                seed = seed.wrapping_add(1);
            }
            if self.is_over(&done.tally) {
                break;
            }
        }
        Ok(Exit::Pass)
    }

    fn is_over(&self, tally: &Tally) -> bool {
        interrupt::asked() || self.runs.is_some_and(|runs| tally.count() >= runs)
    }

    /// The command that makes the same document again.
    fn again(&self) -> String {
        let mut words = format!("cargo sim soak --real --minutes {} --seed {}", self.minutes, self.seed);
        let mut add = |name: &str, value: Option<String>| {
            words.extend(value.into_iter().map(|value| format!(" --{name} {value}")));
        };
        add("runs", self.runs.map(|runs| runs.to_string()));
        add("brokers", self.brokers.map(|brokers| brokers.to_string()));
        add("plan", self.plan.as_ref().map(|path| path.display().to_string()));
        words.push_str(if self.cases { " --cases" } else { "" });
        if let Some(path) = &self.markdown {
            words.extend([" --markdown ".to_owned(), path.display().to_string()]);
        }
        words
    }
}

/// A site with so many brokers.
fn at(brokers: u32, terminal: &mut Terminal<'_>) -> anyhow::Result<Site> {
    match named().filter(|_| brokers == 1) {
        Some(bootstrap) => terminal.complain(format_args!("using the broker at {bootstrap}")),
        None => terminal.complain(format_args!("starting {}", report::counted(brokers, "broker"))),
    }
    site(Program::of_this()?, brokers)
}

/// Runs the plan that `path` holds.
fn planned(path: &PathBuf, done: &mut Done, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let real = RealPlan::from_toml(&text).with_context(|| format!("the plan in {}", path.display()))?;
    run_one(&real, &at(real.brokers, terminal)?, done, terminal)
}

/// Runs what is not drawn.
fn cases(site: &Site, done: &mut Done, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
    let all = provoked().into_iter().chain([commits_before_indexing(), goes_on_after_revocation()]);
    for case in all {
        let Case { says, real, due } = &case;
        let Some(ran) = ended(one(real, site))? else { break };
        done.document.case(&case, &ran);
        terminal.complain(format_args!("{says}: {}", line(real, &ran)));
        if !due.is(&ran.report.outcome) {
            if *due == Due::Clean {
                explain(real, &ran, "cargo sim soak --real --cases", terminal);
            } else {
                terminal.complain(format_args!("  due       {due:?}"));
            }
            return Ok(Exit::Failed);
        }
        // What was due to fail is of no more use.
        if let Some(folder) = &ran.kept {
            std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
        }
    }
    Ok(Exit::Pass)
}

/// The run, if it was not cut short: what it did until then is not judged, it has no end.
fn ended(ran: anyhow::Result<RealReport>) -> anyhow::Result<Option<RealReport>> {
    match ran {
        Err(_) if interrupt::asked() => Ok(None),
        ran => ran.map(Some),
    }
}

fn run_one(real: &RealPlan, site: &Site, done: &mut Done, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
    let Some(ran) = ended(one(real, site))? else { return Ok(Exit::Pass) };
    done.tally.add(real, &ran);
    done.document.run(real, &ran);
    terminal.complain(format_args!("run {}: {}", done.tally.count(), line(real, &ran)));
    if ran.report.outcome == Outcome::Pass {
        return Ok(Exit::Pass);
    }
    let again = format!("cargo sim soak --real --runs 1 --brokers {} --seed {}", real.brokers, real.plan.seed);
    explain(real, &ran, &again, terminal);
    Ok(Exit::Failed)
}

/// Says what did not hold, and where its history is.
fn explain(real: &RealPlan, ran: &RealReport, again: &str, terminal: &mut Terminal<'_>) {
    terminal.complain(format_args!("\n{}", report::failure_block(&real.plan, &ran.report, again)));
    if let Some(folder) = &ran.kept {
        let folder = folder.display();
        terminal
            .complain(format_args!("  kept      {folder}: plan, history, output; --plan {folder}/plan.toml runs it"));
    }
}
