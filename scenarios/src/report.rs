//! What people read: failure blocks, the closing table, and the same as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{Table, presets};
use serde_json::json;

use crate::explore::{Failure, Tally};
use crate::plan::{Mode, Plan, Workload};
use crate::run::{Outcome, RunReport};

pub mod zoo;

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration to be read at a glance.
pub fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// `1 record`, `2,000 records`.
pub fn counted(count: impl Into<u64>, one: &str) -> String {
    let count = count.into();
    if count == 1 { format!("1 {one}") } else { format!("{} {one}s", grouped(count)) }
}

/// A plan in a line.
pub fn describe(plan: &Plan) -> String {
    let topology = &plan.topology;
    let workload = match &plan.workload {
        Workload::Generated(generated) => {
            format!("{} on {}", counted(generated.records, "record"), counted(generated.ids, "id"))
        }
        Workload::Ripgrep => "ripgrep's history".to_owned(),
        Workload::File(path) => path.display().to_string(),
    };
    let parts = match topology.mode {
        Mode::Local => format!("local, {}", counted(topology.workers, "worker")),
        Mode::Hybrid => format!(
            "hybrid, {} of {}, each of {} and {}, {}",
            counted(topology.pairs, "node"),
            counted(topology.pairs_per_node, "pair"),
            counted(topology.workers, "worker"),
            counted(topology.indexers, "indexer"),
            counted(topology.source_partitions, "source partition"),
        ),
        Mode::Distributed => format!(
            "distributed, {}, {}, {} and {}",
            counted(topology.workers, "worker"),
            counted(topology.indexers, "indexer"),
            counted(topology.source_partitions, "source partition"),
            counted(topology.dest_partitions, "destination partition"),
        ),
    };
    let off = |is_on, what| if is_on { "" } else { what };
    let versions = off(plan.pipeline.versions, ", versions off");
    let drain = off(plan.pipeline.drain, ", drain off");
    format!("{parts}, {workload}{versions}{drain}")
}

/// The command that replays a plan of a scenario.
pub fn replay_command(plan: &Plan) -> String {
    format!("cargo sim replay {} --scenario {} --trace", plan.seed, plan.scenario)
}

fn section(out: &mut String, title: &str, lines: impl IntoIterator<Item = String>) {
    for (index, line) in lines.into_iter().enumerate() {
        let title = if index == 0 { title } else { "" };
        writeln!(out, "  {title:<9} {line}").expect("a String takes everything");
    }
}

/// The block of a run that did not pass: what was violated in words, the witness, the plan, and `replay`, one command.
pub fn failure_block(plan: &Plan, report: &RunReport, replay: &str) -> String {
    let mut out = String::new();
    let verdict = if matches!(report.outcome, Outcome::Harness(_)) { "HARNESS FAILED" } else { "FAILED" };
    writeln!(out, "{verdict}  {}, seed {}", plan.scenario, plan.seed).expect("a String takes everything");
    match &report.outcome {
        Outcome::Pass => {}
        Outcome::Harness(words) => section(&mut out, "because", words.lines().map(str::to_owned)),
        Outcome::Failed(violations) => {
            // A broken run repeats itself: the first of each property shows it.
            let mut shown: Vec<&str> = Vec::new();
            for violation in violations {
                if shown.contains(&violation.property.as_str()) {
                    continue;
                }
                shown.push(&violation.property);
                let same = violations.iter().filter(|other| other.property == violation.property).count() as u64;
                let more = if same > 1 { format!(" (and {} more of these)", same - 1) } else { String::new() };
                section(&mut out, "violated", [format!("{}: {}{more}", violation.property, violation.words)]);
                section(&mut out, "witness", violation.witness.iter().cloned());
            }
        }
    }
    section(&mut out, "plan", [describe(plan)]);
    section(&mut out, "faults", plan.faults.iter().map(ToString::to_string));
    // A real run has no trace, and does not come again the same.
    let traced = (report.trace_hash != 0).then(|| format!("hash {:016x}", report.trace_hash));
    section(&mut out, "trace", traced);
    section(&mut out, if report.trace_hash != 0 { "replay" } else { "again" }, [replay.to_owned()]);
    out
}

/// A campaign's failures: the first whole, a line for each other.
pub fn failures(tally: &Tally) -> String {
    let mut out = String::new();
    for (index, Failure { plan, report }) in tally.failures.iter().enumerate() {
        if index == 0 {
            out += &failure_block(plan, report, &replay_command(plan));
            continue;
        }
        let words = match &report.outcome {
            Outcome::Failed(violations) => {
                violations.first().map(|first| format!("{}: {}", first.property, first.words))
            }
            Outcome::Harness(words) => Some(format!("harness: {words}")),
            Outcome::Pass => None,
        };
        let words = words.unwrap_or_default();
        writeln!(out, "also seed {}: {words}", plan.seed).expect("a String takes everything");
    }
    out
}

/// What is to be said of kinds that never hit work in flight; nothing when all did.
pub fn missed(tally: &Tally) -> Option<String> {
    if tally.missed.is_empty() {
        return None;
    }
    let kinds: Vec<&str> = tally.missed.iter().map(|kind| kind.name()).collect();
    let (kinds, name, seeds) = (kinds.join(", "), tally.scenario.name, tally.seeds);
    Some(if !tally.failures.is_empty() {
        format!("note: {name} stopped early; no work in flight was hit by {kinds}")
    } else if tally.promises() {
        format!(
            "HARNESS FAILED  {name} promises {kinds}, which hit no work in flight in {seeds} seeds: \
             its plans or the driver no longer inject them"
        )
    } else {
        format!(
            "note: {seeds} seeds of {name} are too few to promise every fault; no work in flight was hit by {kinds}"
        )
    })
}

fn seeds_per_second(tally: &Tally) -> f64 {
    tally.seeds as f64 / tally.wall.as_secs_f64().max(1e-9)
}

/// The closing table. Faults are told as injected, of these with work in flight, and the least in flight at one.
pub fn table(tallies: &[Tally]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_NO_BORDERS);
    table.set_header([
        "scenario",
        "seeds",
        "virtual",
        "records",
        "faults (in flight; least)",
        "rebalances",
        "duplicates",
        "slowest seed",
        "wall",
        "seeds/s",
    ]);
    for tally in tallies {
        let strikes = |(kind, strikes): (&crate::fault::FaultKind, &crate::run::Strikes)| {
            let (injected, in_flight) = (grouped(strikes.injected), grouped(strikes.in_flight));
            format!("{kind} {injected} ({in_flight}; {})", grouped(strikes.least))
        };
        let faults: Vec<String> = tally.faults.iter().map(strikes).collect();
        let slowest = tally.slowest.map(|(seed, wall)| format!("{seed} ({})", short(wall)));
        table.add_row([
            tally.scenario.name.to_owned(),
            grouped(tally.seeds),
            short(tally.virtual_time),
            grouped(tally.records),
            if faults.is_empty() { "none".to_owned() } else { faults.join("\n") },
            grouped(tally.rebalances),
            grouped(tally.duplicates),
            slowest.unwrap_or_default(),
            short(tally.wall),
            format!("{:.1}", seeds_per_second(tally)),
        ]);
    }
    table.trim_fmt()
}

/// A campaign as one JSON object.
pub fn as_json(tally: &Tally) -> serde_json::Value {
    let failure = |Failure { plan, report }: &Failure| {
        let violations: Vec<_> = match &report.outcome {
            Outcome::Failed(violations) => violations
                .iter()
                .map(|found| json!({ "property": found.property, "words": found.words, "witness": found.witness }))
                .collect(),
            Outcome::Harness(words) => vec![json!({ "property": "harness", "words": words })],
            Outcome::Pass => Vec::new(),
        };
        json!({ "seed": plan.seed, "violations": violations, "plan": plan.to_toml(), "replay": replay_command(plan) })
    };
    json!({
        "scenario": tally.scenario.name,
        "exit": tally.exit() as u8,
        "seeds": tally.seeds,
        "virtual_ms": tally.virtual_time.as_millis() as u64,
        "records": tally.records,
        "faults": tally.faults,
        "rebalances": tally.rebalances,
        "duplicates": tally.duplicates,
        "slowest_seed": tally.slowest.map(|(seed, _)| seed),
        "wall_ms": tally.wall.as_millis() as u64,
        "seeds_per_second": seeds_per_second(tally),
        "hashes": tally.hashes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "missed": tally.missed,
        "failures": tally.failures.iter().map(failure).collect::<Vec<_>>(),
    })
}
