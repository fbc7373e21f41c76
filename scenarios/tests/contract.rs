//! The contract of the transport port, rule by rule: against the simulated cluster, and against flawed transports.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::fmt::Write as _;

use scenarios::contract::flaws::Flaw;
use scenarios::contract::table::Verdict;
use scenarios::contract::{RULES, real, simulated};
use seriatim_kafka_dev::{Options, testing};

const SEEDS: u64 = 3;

#[test]
fn every_rule_holds_in_the_simulated_cluster() {
    let mut broken = String::new();
    for rule in RULES {
        for seed in 0..SEEDS {
            if let Err(error) = simulated::check(seed, rule.name, None) {
                let _ = writeln!(broken, "{}, seed {seed}: {error:#}", rule.name);
            }
        }
    }
    assert!(broken.is_empty(), "\n{broken}");
}

/// What each rule says of the transport that breaks it: a rule that fails for another reason is not seen failing.
#[test]
fn every_rule_is_broken_by_a_flawed_transport() {
    let mut words = String::new();
    for rule in RULES {
        let flaw = Flaw::of(rule.name);
        assert!(flaw.is_some(), "{} has no flaw", rule.name);
        let said = match simulated::check(0, rule.name, flaw) {
            Ok(()) => panic!("{} holds with {flaw:?}", rule.name),
            Err(error) => format!("{error:#}"),
        };
        let said = said.char_indices().nth(220).map_or(&*said, |(end, _)| &said[..end]);
        let _ = writeln!(words, "{} ({:?})\n    {said}", rule.name, flaw.unwrap());
    }
    insta::assert_snapshot!(words);
}

/// All rules against a real cluster of so many nodes.
fn holds_on(nodes: u32) {
    let program = env!("CARGO_BIN_EXE_sim");
    let mut started = None;
    let place = match testing::named_broker().filter(|_| nodes == 1) {
        Some(bootstrap) => real::Place::named(bootstrap, program),
        None => {
            let Some(cluster) = testing::cluster(&Options { nodes, lossy: true, ..Options::default() }) else { return };
            real::Place::of(started.insert(cluster), program)
        }
    };
    let mut broken = String::new();
    for (rule, result) in RULES.iter().zip(real::check(place, RULES, |_, _| {}).unwrap()) {
        if let Verdict::Fails(words) = Verdict::of(&result) {
            let _ = writeln!(broken, "{}: {words}", rule.name);
        }
    }
    assert!(broken.is_empty(), "\n{broken}");
}

#[test]
fn every_rule_holds_on_a_real_broker_and_on_three() {
    // One after the other: they need the machine.
    holds_on(1);
    holds_on(3);
}
