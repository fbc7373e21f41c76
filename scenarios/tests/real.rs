//! The pipeline on a real Kafka, as processes of their own, judged by the same checkers: right ones are clean, flawed
//! ones are caught. Without Java this is skipped, and standard error says so.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scenarios::fault::{Action, Fault, Hop, Node, Role, Trigger};
use scenarios::plan::{Assignment, Mode, Workload};
use scenarios::real::cases::{Case, commits_before_indexing, goes_on_after_revocation, provoked, violated};
use scenarios::real::{BrokerFault, Program, RealPlan, RealReport, Site, run};
use scenarios::run::Outcome;
use seriatim_kafka_dev::{Options, testing};

const NODE: &str = env!("CARGO_BIN_EXE_node");

/// One run at a time: each is several busy processes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The broker that the tests share; `None` skips the test.
fn site() -> Option<Site> {
    let bootstrap = testing::broker()?.to_owned();
    Some(Site { program: Program(vec![NODE.into()]), bootstrap, replication: 1, brokers: None })
}

fn at(seconds: f64, action: Action) -> Fault {
    Fault { trigger: Trigger::At((seconds * 1e6) as u64), action }
}

fn busy(after_micros: u64, action: Action) -> Fault {
    Fault { trigger: Trigger::InFlight { at_least: 16, after_micros }, action }
}

/// Everything held, and every fault of the plan struck.
fn clean(real: &RealPlan, ran: &RealReport) {
    assert_eq!(ran.report.outcome, Outcome::Pass, "kept in {:?}", ran.kept);
    let struck: u64 = ran.report.faults.values().map(|strikes| strikes.injected).sum();
    assert_eq!(struck, real.plan.faults.len() as u64, "{:?}", ran.report.faults);
    assert!(ran.kept.is_none());
}

#[test]
fn a_distributed_run_survives_kills_pauses_growth_stops_and_joins() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    let mut real = RealPlan::calm(Mode::Distributed, 2_000, 1);
    let session = real.plan.pipeline.session_timeout_ms * 1_000;
    real.plan.faults = vec![
        busy(500_000, Action::Crash { node: Node::Worker(0), restart_after_micros: Some(500_000) }),
        at(1.5, Action::Grow { topic: Hop::Source, add: 2 }),
        busy(2_000_000, Action::Pause { node: Node::Indexer(0), for_micros: session + 2_000_000 }),
        at(3.0, Action::Join { role: Role::Worker }),
        at(4.0, Action::Grow { topic: Hop::Dest, add: 1 }),
        busy(4_500_000, Action::Crash { node: Node::Indexer(1), restart_after_micros: Some(1_000_000) }),
        busy(5_000_000, Action::Stop { node: Node::Worker(1), restart_after_micros: Some(500_000) }),
    ];
    let ran = run(&real, &site).expect("it runs");
    clean(&real, &ran);
    assert!(ran.report.rebalances >= 2, "{}", ran.report.rebalances);
}

#[test]
fn a_hybrid_run_of_ripgreps_history_ends_in_its_tree() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    let mut real = RealPlan::calm(Mode::Hybrid, 1, 2);
    real.plan.workload = Workload::Ripgrep;
    real.rate = 700;
    real.plan.pipeline.clients.assignors = vec![vec![Assignment::CooperativeSticky]];
    let session = real.plan.pipeline.session_timeout_ms * 1_000;
    real.plan.faults = vec![
        busy(500_000, Action::Crash { node: Node::Pair(0), restart_after_micros: Some(500_000) }),
        busy(2_000_000, Action::Pause { node: Node::Pair(1), for_micros: session + 2_000_000 }),
        at(2.5, Action::Grow { topic: Hop::Source, add: 2 }),
        at(3.0, Action::Join { role: Role::Pair }),
        busy(5_500_000, Action::Stop { node: Node::Pair(0), restart_after_micros: Some(500_000) }),
    ];
    let ran = run(&real, &site).expect("it runs");
    clean(&real, &ran);
    assert_eq!(ran.report.records, 5_397);
}

#[test]
fn a_broker_that_is_killed_loses_nothing() {
    let _alone = alone();
    let Some(cluster) = testing::cluster(&Options { nodes: 3, ..Options::default() }) else { return };
    let site = Site {
        program: Program(vec![NODE.into()]),
        bootstrap: cluster.bootstrap(),
        replication: 3,
        brokers: Some(Arc::new(Mutex::new(cluster))),
    };
    let mut real = RealPlan::calm(Mode::Distributed, 1_500, 3);
    real.brokers = 3;
    real.broker_faults = vec![BrokerFault { at_micros: 2_000_000, broker: 2, down_micros: 3_000_000 }];
    real.plan.faults =
        vec![busy(1_000_000, Action::Crash { node: Node::Worker(0), restart_after_micros: Some(500_000) })];
    let ran = run(&real, &site).expect("it runs");
    clean(&real, &ran);
    assert_eq!(ran.brokers_killed, 1);
}

/// The flawed pipeline of `case` is caught. What was kept of its run can be read, and goes.
fn caught(case: &Case, site: &Site) {
    let ran = run(&case.real, site).expect("it runs");
    assert!(case.due.is(&ran.report.outcome), "{:?} is due: {:?}", case.due, violated(&ran.report.outcome));
    let folder = ran.kept.expect("a run that failed is kept");
    let history = std::fs::read_to_string(folder.join("history.jsonl")).expect("its history");
    assert!(history.lines().count() > 1_500, "{} lines", history.lines().count());
    let plan = std::fs::read_to_string(folder.join("plan.toml")).expect("its plan");
    assert_eq!(RealPlan::from_toml(&plan).expect("it can be run again"), case.real);
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
}

#[test]
fn commits_before_indexing_are_caught_when_the_indexer_is_killed() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    caught(&commits_before_indexing(), &site);
}

#[test]
fn going_on_after_a_revocation_is_caught_when_a_worker_is_paused() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    caught(&goes_on_after_revocation(), &site);
}

#[test]
fn what_the_documented_system_falls_to_by_signals_is_survived() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    for Case { says, real, .. } in provoked() {
        let ran = run(&real, &site).expect("it runs");
        clean(&real, &ran);
        let is_pause = matches!(real.plan.faults[0].action, Action::Pause { .. });
        assert_eq!(ran.outlasted, u64::from(is_pause), "{says}");
    }
}

fn node(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(NODE).args(words).output().expect("it can be started");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn bad_input_is_refused_with_its_place_and_the_next_step() {
    let at = ["--kafka", "127.0.0.1:1", "--pipeline", "p"];
    let with = |role: &'static str, more: &[&'static str]| node(&[&[role], &at[..], more].concat());
    let (status, words) = with("worker", &["--variant", "skips"]);
    assert_eq!(
        (status, words.contains("--variant skips: a real process can be one of commit-on-poll")),
        (Some(2), true)
    );
    let (status, words) = with("worker", &["--assignor", "sticky"]);
    assert_eq!((status, words.contains("write range, roundrobin or cooperative-sticky")), (Some(2), true), "{words}");
    let (status, words) = with("worker", &["--session-ms", "100", "--heartbeat-ms", "100"]);
    assert_eq!((status, words.contains("--heartbeat-ms: 100 is not below")), (Some(2), true), "{words}");
    let (status, words) = with("publisher", &["--input", "no-such-file.jsonl"]);
    assert_eq!((status, words.contains("no-such-file.jsonl")), (Some(2), true), "{words}");
    let (status, words) = with("worker", &["--history", "no/such/folder/history.jsonl"]);
    assert_eq!((status, words.contains("does its folder exist?")), (Some(2), true), "{words}");
}

#[test]
fn a_broker_that_is_not_there_is_named_in_seconds() {
    let (status, words) = node(&["worker", "--kafka", "127.0.0.1:1", "--pipeline", "p"]);
    assert_eq!((status, words.contains("127.0.0.1:1")), (Some(2), true), "{words}");
}

#[test]
fn a_topic_that_is_not_there_is_named() {
    let (_alone, Some(site)) = (alone(), site()) else { return };
    let (status, words) = node(&["worker", "--kafka", &site.bootstrap, "--pipeline", "nobodys"]);
    assert_eq!(
        (status, words.contains("topic `nobodys_source`"), words.contains("create it first")),
        (Some(2), true, true)
    );
}
