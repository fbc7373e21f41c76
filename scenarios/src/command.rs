//! The `sim` command: its words, its exit status, and nothing of the world that it runs.
//!
//! Exit status: 0 everything held, 1 a property did not, 2 the harness or its input failed (clap's own usage errors
//! too). Results go to `out`, progress and complaints to `err`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};

use crate::draw::Overrides;
use crate::explore::{Seeds, Tally, explore};
use crate::input::{self, OnError};
use crate::interrupt;
use crate::plan::{Mode, Plan, PlanError};
use crate::progress::Reporter;
use crate::report;
use crate::ripgrep;
use crate::run::{Exit, Outcome, RunOptions, RunReport, Runner, run_fresh};
use crate::scenario::{FaultSet, SCENARIOS, Scenario, Source, find, setting};

mod campaign;
mod contract;
mod dump;
mod soak;
mod zoo;

use self::campaign::Campaign;
use self::contract::{Contract, Puppet};
use self::soak::Soak;
use self::zoo::Zoo;

/// Runs the pipeline in a simulated Kafka, from seeds.
#[derive(Parser, Debug)]
#[command(name = "sim", bin_name = "cargo sim", version, about)]
#[command(after_help = "Exit status: 0 everything held, 1 a property did not, 2 the harness or its input failed.")]
pub struct Command {
    #[command(subcommand)]
    action: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Lists the scenarios.
    List,
    /// Runs many seeds of one scenario, or of all. A campaign that is long enough promises that every kind of fault of
    /// its scenario hit work in flight.
    Explore(Explore),
    /// Runs one seed of a scenario again.
    Replay(Replay),
    /// Hunts the flawed pipelines with the general scenario, and tells how many seeds it takes to catch them.
    Zoo(Zoo),
    /// Runs a JSONL file of operations (`id`, `op`, other fields) and compares the final index with them.
    Run(Run),
    /// Checks what `core` relies on, rule by rule, against the simulated cluster and, with --real, against real ones.
    Contract(Contract),
    /// Plays a group member for `contract`, in a process of its own.
    #[command(hide = true)]
    Puppet(Puppet),
    /// Runs the pipeline on a real Kafka as processes, strikes them at random and judges what they wrote down.
    Soak(Soak),
    /// Runs one process of a pipeline on a real Kafka.
    #[command(hide = true)]
    Node(crate::node::Command),
    /// Packs a history of ripgrep's shape into the compact form that comes with the program.
    #[command(hide = true)]
    Pack(Pack),
}

/// Reads a seed; also what `SERIATIM_SEED` holds.
pub fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}, such as 42", u64::MAX))
}

fn parse_scenario(text: &str) -> Result<&'static Scenario, String> {
    find(text).map_err(|error| error.to_string())
}

#[derive(Args, Debug)]
struct Explore {
    /// This scenario [default: all but those that `list` calls only by name].
    #[arg(long, value_parser = parse_scenario)]
    scenario: Option<&'static Scenario>,
    #[command(flatten)]
    campaign: Campaign,
}

#[derive(Args, Debug)]
struct Replay {
    /// The seed.
    #[arg(value_parser = parse_seed, allow_negative_numbers = true)]
    seed: u64,
    /// The scenario that it is of.
    #[arg(long, value_parser = parse_scenario)]
    scenario: &'static Scenario,
    /// Prints every event.
    #[arg(long)]
    trace: bool,
    /// Writes the plan of the seed here, as TOML.
    #[arg(long)]
    plan: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Run {
    /// The file.
    #[arg(long)]
    input: PathBuf,
    /// Where the pipeline's parts run.
    #[arg(long, value_enum, default_value_t = Mode::Distributed)]
    mode: Mode,
    /// What goes wrong.
    #[arg(long, value_enum, default_value_t = FaultSet::None)]
    faults: FaultSet,
    /// Number of workers; in hybrid mode, of each pair [default: drawn from the seed].
    #[arg(long)]
    workers: Option<u32>,
    /// Number of indexers; in hybrid mode, of each pair [default: drawn from the seed].
    #[arg(long)]
    indexers: Option<u32>,
    /// Number of nodes with pairs, in hybrid mode [default: drawn from the seed].
    #[arg(long)]
    pairs: Option<u32>,
    /// Partitions of both topics [default: drawn from the seed].
    #[arg(long)]
    partitions: Option<u32>,
    /// The seed.
    #[arg(long, default_value = "0", value_parser = parse_seed, allow_negative_numbers = true)]
    seed: u64,
    /// Writes the final index here, as JSONL in id order.
    #[arg(long)]
    dump: Option<PathBuf>,
    /// What a bad line does.
    #[arg(long, value_enum, default_value_t = OnError::Stop)]
    on_error: OnError,
}

#[derive(Args, Debug)]
struct Pack {
    /// The history, JSONL.
    #[arg(long)]
    history: PathBuf,
    /// The tree, JSONL; checked against the history and never taken from it.
    #[arg(long)]
    tree: PathBuf,
    /// The packed history.
    #[arg(long)]
    out: PathBuf,
}

/// Where the command writes.
pub struct Terminal<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    is_live: bool,
    /// The first result that could not be written.
    unwritten: Option<std::io::Error>,
}

impl<'a> Terminal<'a> {
    /// Results go to `out`, progress and complaints to `err`, which can redraw a line when it `is_live`.
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write, is_live: bool) -> Self {
        Terminal { out, err, is_live, unwritten: None }
    }

    fn say(&mut self, text: impl std::fmt::Display) {
        if let Err(error) = writeln!(self.out, "{text}") {
            self.unwritten.get_or_insert(error);
        }
    }

    /// Why results are missing, if they are. A reader that hung up wants no more and misses nothing.
    fn missing(&mut self) -> Option<std::io::Error> {
        let flushed = self.out.flush().err();
        let error = self.unwritten.take().or(flushed);
        error.filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)
    }

    fn complain(&mut self, text: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{text}");
    }
}

impl Command {
    /// Does what was asked, with plans run by `runner`.
    pub fn execute(self, runner: &dyn Runner, terminal: &mut Terminal<'_>) -> Exit {
        let ended = match self.action {
            What::List => Ok(list(terminal)),
            What::Explore(explore) => explore.execute(runner, terminal),
            What::Replay(replay) => replay.execute(runner, terminal),
            What::Zoo(zoo) => zoo.execute(terminal),
            What::Run(run) => run.execute(runner, terminal),
            What::Contract(contract) => contract.execute(terminal),
            What::Puppet(puppet) => puppet.execute(),
            What::Soak(soak) => soak.execute(terminal),
            What::Node(node) => Ok(node.end()),
            What::Pack(pack) => pack.execute(terminal),
        };
        let ended = ended.and_then(|exit| match terminal.missing() {
            Some(error) => {
                Err(error).context("the results could not be written to the output; is there room for them?")
            }
            None => Ok(exit),
        });
        ended.unwrap_or_else(|error| {
            terminal.complain(format_args!("error: {error:#}"));
            Exit::Harness
        })
    }
}

fn list(terminal: &mut Terminal<'_>) -> Exit {
    terminal.say("`explore` runs those with a *, and any other with --scenario NAME.");
    for group in SCENARIOS.chunk_by(|one, next| (one.source, one.mode) == (next.source, next.mode)) {
        let width = group.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
        terminal.say(format_args!("\n{}", setting(group[0].source, group[0].mode)));
        for scenario in group {
            let star = if scenario.by_default() { '*' } else { ' ' };
            terminal.say(format_args!("{star} {:width$}  {}", scenario.name, scenario.summary));
        }
    }
    Exit::Pass
}

/// Seeds of a scenario in a campaign.
const SEEDS: u64 = 200;

impl Explore {
    fn execute(self, runner: &dyn Runner, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        let Campaign { from, json, .. } = self.campaign;
        let seeds = Seeds { from, count: self.campaign.seeds(SEEDS, 1)?, jobs: self.campaign.jobs() };
        let scenarios: Vec<&'static Scenario> =
            self.scenario.map_or_else(|| SCENARIOS.iter().filter(|one| one.by_default()).collect(), |one| vec![one]);
        let mut tallies: Vec<Tally> = Vec::new();
        for scenario in scenarios {
            let mut progress = Reporter::new(scenario.name, "seed", terminal.err, terminal.is_live);
            let tally = explore(scenario, seeds, runner, &mut progress);
            progress.finish();
            if json {
                terminal.say(report::as_json(&tally));
            }
            let is_over = !tally.failures.is_empty() || interrupt::asked();
            tallies.push(tally);
            if is_over {
                break;
            }
        }
        if !json {
            terminal.say(report::table(&tallies));
        }
        let interrupted = interrupt::asked();
        for tally in &tallies {
            if let Some(words) = report::missed(tally).filter(|_| !interrupted) {
                terminal.complain(words);
            }
            if !tally.failures.is_empty() {
                terminal.complain(format_args!("\n{}", report::failures(tally)));
            }
        }
        let counted = report::counted(tallies.iter().map(|tally| tally.seeds).sum::<u64>(), "seed");
        let failed = tallies.iter().any(|tally| tally.exit() == Exit::Failed);
        let worst = tallies.iter().map(Tally::exit).max().unwrap_or(Exit::Pass);
        if interrupted {
            terminal.complain(format_args!("interrupted: only {counted} were run"));
        } else if !json && tallies.iter().all(|tally| tally.failures.is_empty()) {
            terminal.say(format_args!("Everything held on {counted}."));
        }
        Ok(match (failed, interrupted) {
            (true, _) => Exit::Failed,
            (false, true) => Exit::Interrupted,
            (false, false) => worst,
        })
    }
}

impl Replay {
    fn execute(self, runner: &dyn Runner, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        let plan = Plan::draw(self.scenario, self.seed);
        plan.validate()?;
        if let Some(path) = &self.plan {
            std::fs::write(path, plan.to_toml()).with_context(|| format!("writing the plan to {}", path.display()))?;
        }
        let options = RunOptions { trace: self.trace, ..RunOptions::default() };
        let ran = run_fresh(runner, &plan, &options);
        for line in &ran.trace {
            terminal.say(line);
        }
        Ok(conclude(&plan, &ran, &report::replay_command(&plan), terminal))
    }
}

/// Tells how one run ended.
fn conclude(plan: &Plan, ran: &RunReport, replay: &str, terminal: &mut Terminal<'_>) -> Exit {
    let exit = match &ran.outcome {
        Outcome::Pass => Exit::Pass,
        Outcome::Failed(_) => Exit::Failed,
        Outcome::Harness(_) => Exit::Harness,
    };
    if exit != Exit::Pass {
        terminal.complain(report::failure_block(plan, ran, replay));
        return exit;
    }
    terminal.say(format_args!("passed    {}, seed {}", plan.scenario, plan.seed));
    terminal.say(format_args!("plan      {}", report::describe(plan)));
    for (kind, strikes) in &ran.faults {
        terminal.say(format_args!(
            "fault     {kind}: {} injected, {} with work in flight",
            strikes.injected, strikes.in_flight
        ));
    }
    for line in &ran.summary {
        terminal.say(format_args!("summary   {line}"));
    }
    terminal.say(format_args!(
        "ran       {}, {}, {}, {} of virtual time in {}",
        report::counted(ran.records, "record"),
        report::counted(ran.rebalances, "rebalance"),
        report::counted(ran.duplicates, "duplicate"),
        report::short(ran.virtual_time),
        report::short(ran.wall)
    ));
    terminal.say(format_args!("trace     hash {:016x}", ran.trace_hash));
    exit
}

impl Run {
    /// The plan of this run over `records` operations, checked.
    fn plan(&self, records: u64) -> anyhow::Result<Plan> {
        if self.mode == Mode::Local && !self.faults.is_local() {
            let faults = self.faults.name();
            bail!(
                "local mode is one process without Kafka and has no {faults}; \
                 take --faults none, crashes, index or all, or --mode distributed"
            );
        }
        if self.mode == Mode::Local && self.partitions.is_some() {
            bail!("local mode has no partitions; leave --partitions out or take --mode distributed");
        }
        if self.mode != Mode::Hybrid && self.pairs.is_some() {
            bail!("{} mode has no pairs; leave --pairs out or take --mode hybrid", self.mode.name());
        }
        let scenario = Scenario {
            name: "run",
            summary: "a file",
            mode: self.mode,
            // As with ripgrep's history: a file says itself what the index must hold, so nothing is refused.
            source: Source::Ripgrep,
            faults: self.faults,
            versions: true,
            drain: true,
        };
        let overrides = Overrides {
            workers: self.workers,
            indexers: self.indexers,
            pairs: self.pairs,
            partitions: self.partitions,
            file: Some((self.input.clone(), records)),
        };
        let plan = Plan::draw_with(&scenario, self.seed, &overrides);
        plan.validate().map_err(at_the_flag)?;
        Ok(plan)
    }

    /// This run, as a command.
    fn again(&self) -> String {
        let mut words = format!(
            "cargo sim run --input {} --mode {} --faults {} --seed {}",
            quoted(&self.input),
            self.mode.name(),
            self.faults.name(),
            self.seed
        );
        let numbers = [
            ("workers", self.workers),
            ("indexers", self.indexers),
            ("pairs", self.pairs),
            ("partitions", self.partitions),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                words += &format!(" --{name} {number}");
            }
        }
        if self.on_error == OnError::Skip {
            words += " --on-error skip";
        }
        words
    }

    fn execute(self, runner: &dyn Runner, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        // What was asked for is checked before a long file is read.
        self.plan(1)?;
        if let Some(path) = &self.dump {
            dump::check(path, &self.input)?;
        }
        let input = input::read(&self.input, self.on_error)?;
        for bad in &input.shown {
            terminal.complain(format_args!("skipped: {bad}"));
        }
        let unshown = input.skipped - input.shown.len() as u64;
        if unshown > 0 {
            terminal.complain(format_args!("skipped: {} more", report::grouped(unshown)));
        }
        let count = input.operations.len() as u64;
        let plan = self.plan(count)?;
        let options = RunOptions { trace: false, operations: Some(Arc::new(input.operations)) };
        let ran = run_fresh(runner, &plan, &options);
        let (read, skipped) = (report::counted(count, "operation"), report::counted(input.skipped, "bad line"));
        terminal.say(format_args!("input     {read}, {skipped} skipped"));
        let exit = conclude(&plan, &ran, &self.again(), terminal);
        if exit == Exit::Harness {
            return Ok(exit);
        }
        terminal.say(format_args!("index     {}", report::counted(ran.index.len() as u64, "document")));
        if self.faults != FaultSet::None && ran.faults.values().all(|strikes| strikes.injected == 0) {
            terminal.complain("note: no fault struck in this run; take another --seed or a longer file");
        }
        if let Some(path) = &self.dump {
            dump::write(path, &ran)
                .with_context(|| format!("cannot write {}; check the path given to --dump", path.display()))?;
        }
        Ok(exit)
    }
}

/// The error in the words of the command line.
fn at_the_flag(error: PlanError) -> PlanError {
    match error {
        PlanError::Range { place, value, reason, low, high } => {
            let place = match place {
                "topology.workers" => "--workers",
                "topology.indexers" => "--indexers",
                "topology.pairs" => "--pairs",
                "topology.source_partitions" | "topology.dest_partitions" => "--partitions",
                other => other,
            };
            PlanError::Range { place, value, reason, low, high }
        }
        other => other,
    }
}

fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+:@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

impl Pack {
    fn execute(self, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        let history = input::read(&self.history, OnError::Stop)?.operations;
        let packed = ripgrep::pack(&history)?;
        if ripgrep::unpack(&packed)? != history {
            bail!("what was packed does not unpack to the same; nothing was written");
        }
        let tree =
            std::fs::read_to_string(&self.tree).with_context(|| format!("cannot read {}", self.tree.display()))?;
        if let Some(words) = ripgrep::unlike(&history, &ripgrep::parse_tree(&tree)?) {
            bail!("the history does not end in the tree: {words}; nothing was written");
        }
        std::fs::write(&self.out, &packed).with_context(|| format!("cannot write {}", self.out.display()))?;
        let (count, bytes) = (report::grouped(history.len() as u64), report::grouped(packed.len() as u64));
        terminal.say(format_args!("packed {count} operations into {bytes} bytes"));
        Ok(Exit::Pass)
    }
}
