//! One seed, one run: in this process, in another, with any number of jobs.
//!
//! What is compared is the hash over every request, response, commit and index write, and the hash over the history
//! that the checkers read.

use std::num::NonZeroUsize;

use scenarios::drive::{Correct, Simulated, Variant};
use scenarios::explore::{SeedHash, Seeds};
use scenarios::plan::{self, Plan};
use scenarios::run::{RunOptions, run_fresh};
use scenarios::scenario::{FaultSet, SCENARIOS, Scenario, Source, find};
use scenarios::zoo::HashOrder;

use super::support::campaign;

const SEEDS: u64 = 50;
/// Ripgrep's history is ten times as long as the generated work: a fifth of the seeds.
const RIPGREP_SEEDS: u64 = 10;

fn here(scenario: &'static Scenario, count: u64, jobs: usize, variant: impl Variant + Clone) -> Vec<SeedHash> {
    let seeds = Seeds { from: 0, count, jobs: NonZeroUsize::new(jobs).expect("above zero") };
    let tally = campaign(scenario, seeds, &Simulated(variant));
    assert_eq!(tally.hashes.len() as u64, count, "{}: some seeds fail", scenario.name);
    tally.hashes
}

/// The same as lines, from a process of its own.
fn elsewhere(scenario: &Scenario, count: u64, jobs: usize) -> Vec<String> {
    let (count, jobs) = (count.to_string(), jobs.to_string());
    let words = ["explore", "--scenario", scenario.name, "--seeds", &count, "--jobs", &jobs, "--json"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sim")).args(words).output().expect("it starts");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let lines = told["hashes"].as_array().expect("a list");
    lines.iter().map(|line| line.as_str().expect("a line").to_owned()).collect()
}

fn told(hashes: &[SeedHash]) -> Vec<String> {
    hashes.iter().map(ToString::to_string).collect()
}

/// The seeds that did not hash alike.
fn differing(one: &[SeedHash], other: &[SeedHash]) -> Vec<u64> {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).filter(|(one, other)| one != other).map(|(one, _)| one.seed).collect()
}

fn check(source: Source, count: u64) {
    // A general draw holds what the narrower ones do.
    let general = |scenario: &&Scenario| scenario.source == source && scenario.faults == FaultSet::All;
    for scenario in SCENARIOS.iter().filter(general) {
        let first = here(scenario, count, 1, Correct);
        assert!(first.iter().all(|one| one.trace != 0 && one.history != 0), "{}", scenario.name);
        assert_eq!(differing(&first, &here(scenario, count, 1, Correct)), [0; 0], "{}: run twice", scenario.name);
        assert_eq!(told(&first), elsewhere(scenario, count, 1), "{}: in another process", scenario.name);
        assert_eq!(told(&first), elsewhere(scenario, count, 2), "{}: with two jobs", scenario.name);
    }
}

#[test]
fn every_seed_of_a_plan_moves_its_own_part_of_the_run() {
    let scenario = find("distributed-index").expect("listed");
    let hash = |seed, change: fn(&mut plan::Seeds)| {
        let mut plan = Plan::draw(scenario, seed);
        change(&mut plan.seeds);
        run_fresh(&Simulated(Correct), &plan, &RunOptions::default()).trace_hash
    };
    let changes: [(&str, fn(&mut plan::Seeds)); 4] = [
        ("workload", |seeds| seeds.workload += 1),
        ("schedule", |seeds| seeds.schedule += 1),
        ("network", |seeds| seeds.network += 1),
        ("index", |seeds| seeds.index += 1),
    ];
    for (name, change) in changes {
        // A swarm leaves out of single runs what the index's coins are for.
        assert!((0..10).any(|seed| hash(seed, change) != hash(seed, |_| {})), "seeds.{name} is read by nothing");
    }
}

#[test]
fn fifty_seeds_of_every_general_scenario_run_alike_twice_in_another_process_and_with_two_jobs() {
    check(Source::Generated, SEEDS);
}

#[test]
fn ten_seeds_of_ripgreps_history_run_alike_twice_in_another_process_and_with_two_jobs() {
    check(Source::Ripgrep, RIPGREP_SEEDS);
}

#[test]
fn a_planted_leak_of_hash_order_is_caught() {
    let general = find("distributed-all").expect("listed");
    let honest = here(general, 20, 1, Correct);
    assert_eq!(differing(&honest, &here(general, 20, 2, Correct)), [0; 0]);
    // Two hashers, as two processes would have.
    let leaking = || here(general, 20, 1, HashOrder::new());
    let differing = differing(&leaking(), &leaking());
    assert!(differing.len() >= 5, "only {differing:?} of 20 seeds ran otherwise");
}

#[test]
fn the_hash_covers_requests_responses_commits_and_index_writes() {
    use scenarios::plan::Plan;
    use scenarios::run::{RunOptions, run_fresh};
    let plan = Plan::draw(find("distributed-all").expect("listed"), 1);
    let options = RunOptions { trace: true, ..RunOptions::default() };
    let traced = run_fresh(&Simulated(Correct), &plan, &options);
    let has = |words: &[&str]| traced.trace.iter().any(|line| words.iter().all(|word| line.contains(word)));
    for request in ["Produce", "Fetch", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "Metadata"] {
        assert!(has(&["-> ", request]), "no request {request}");
        assert!(has(&["<- ", request]), "no response {request}");
    }
    assert!(has(&[" kafka ", "OffsetCommitted"]), "no commit as the broker applied it");
    assert!(has(&[" index ", "Applied"]), "no index write");
    // The hash is over all of the trace, kept or not.
    let untraced = run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
    assert_eq!((traced.trace_hash, traced.history_hash), (untraced.trace_hash, untraced.history_hash));
}
