//! Plans: what seeds draw, what files hold, what is refused.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scenarios::draw::Overrides;
use scenarios::fault::{Action, Fault, FaultKind, Hop, Node, Role, Trigger};
use scenarios::plan::{Mode, Plan, Workload};
use scenarios::scenario::{SCENARIOS, Source, find};

fn general(seed: u64) -> Plan {
    Plan::draw(find("distributed-all").expect("listed"), seed)
}

/// The kinds that documents and knobs carry.
fn of_the_shape(plan: &Plan) -> Vec<FaultKind> {
    let mut kinds = Vec::new();
    if let Workload::Generated(generated) = &plan.workload {
        for (kind, permille) in [
            (FaultKind::IndexReject, generated.reject_permille),
            (FaultKind::StageError, generated.fail_permille),
            (FaultKind::StagePanic, generated.panic_permille),
            (FaultKind::StageStuck, generated.stuck_permille),
        ] {
            kinds.extend((permille > 0).then_some(kind));
        }
    }
    kinds.extend((plan.pipeline.clients.queue_records_max <= 100).then_some(FaultKind::FullQueue));
    kinds
}

#[test]
fn a_plan_reads_as_toml() {
    insta::assert_snapshot!(general(1).to_toml());
}

#[test]
fn every_plan_that_a_seed_draws_is_valid_and_survives_its_file() {
    for scenario in SCENARIOS.iter() {
        for seed in (0..100).chain([u64::MAX]) {
            let plan = Plan::draw(scenario, seed);
            let read = Plan::from_toml(&plan.to_toml());
            assert_eq!(read.as_ref(), Ok(&plan), "{} {seed}", scenario.name);
        }
    }
}

#[test]
fn four_hundred_seeds_of_a_scenario_draw_every_kind_that_it_promises_and_no_other() {
    for scenario in SCENARIOS.iter() {
        let mut drawn: BTreeMap<FaultKind, u32> = BTreeMap::new();
        for seed in 0..400 {
            let plan = Plan::draw(scenario, seed);
            let kinds: BTreeSet<FaultKind> = plan.faults.iter().map(|fault| fault.action.kind()).collect();
            for kind in kinds {
                *drawn.entry(kind).or_default() += 1;
            }
            for kind in of_the_shape(&plan) {
                *drawn.entry(kind).or_default() += 1;
            }
            assert_eq!((plan.pipeline.versions, plan.pipeline.drain), (scenario.versions, scenario.drain));
        }
        let promised: BTreeSet<FaultKind> = scenario.kinds().into_iter().collect();
        assert_eq!(drawn.keys().copied().collect::<BTreeSet<_>>(), promised, "{}", scenario.name);
        assert!(drawn.values().all(|runs| *runs >= 20), "{}: {drawn:?}", scenario.name);
    }
}

#[test]
fn a_swarm_leaves_kinds_out_of_single_runs() {
    let sizes: BTreeSet<usize> = (0..100)
        .map(|seed| general(seed).faults.iter().map(|fault| fault.action.kind()).collect::<BTreeSet<_>>().len())
        .collect();
    assert!(sizes.contains(&2) && sizes.len() >= 5, "{sizes:?}");
    let rejects = |plan: &Plan| matches!(&plan.workload, Workload::Generated(drawn) if drawn.reject_permille > 0);
    let rejecting = (0..100).filter(|seed| rejects(&general(*seed))).count();
    assert!((20..80).contains(&rejecting), "{rejecting}");
}

#[test]
fn faults_strike_ripgreps_history_with_64_records_in_flight() {
    let mut faults = 0;
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.source == Source::Ripgrep) {
        for seed in 0..100 {
            let plan = Plan::draw(scenario, seed);
            assert!(plan.pipeline.max_pending >= 128 && plan.pipeline.max_in_flight >= 128);
            for fault in &plan.faults {
                assert!(matches!(fault.trigger, Trigger::InFlight { at_least: 64, .. }), "{fault}");
                faults += 1;
            }
        }
    }
    assert!(faults > 300, "{faults}");
}

#[test]
fn without_versions_nothing_is_drawn_that_loses_partitions_or_leaves_a_write_unanswered() {
    use FaultKind::{CutBoth, CutInto, CutOut, IndexSlow, IndexTimeoutAfter, IndexTimeoutBefore, LostAnswer, Pause};
    let lost = [CutBoth, CutInto, CutOut, IndexSlow, IndexTimeoutAfter, IndexTimeoutBefore, LostAnswer, Pause];
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.versions) {
        assert!(scenario.kinds().iter().all(|kind| !lost.contains(kind)), "{}", scenario.name);
    }
}

#[test]
fn what_is_fixed_by_hand_moves_nothing_else() {
    let scenario = find("distributed-crashes").expect("listed");
    let overrides = Overrides { workers: Some(4), ..Overrides::default() };
    let (mut fixed, drawn) = (Plan::draw_with(scenario, 5, &overrides), Plan::draw(scenario, 5));
    fixed.topology.workers = drawn.topology.workers;
    fixed.faults.clone_from(&drawn.faults);
    assert_eq!(fixed, drawn);
}

/// What a plan says after one change to its TOML.
fn refused(from: &str, to: &str) -> String {
    let text = CALM.replacen(from, to, 1);
    assert_ne!(text, CALM, "`{from}` is not in the plan");
    Plan::from_toml(&text).expect_err("refused").to_string()
}

const CALM: &str = r#"
scenario = "by-hand"
seed = "7"
seeds = { workload = "7", schedule = "7", network = "7", index = "7" }
topology = { mode = "distributed", workers = 2, indexers = 1, source_partitions = 4, dest_partitions = 3 }
workload = "ripgrep"
faults = []

[pipeline]
max_pending = 128
max_in_flight = 128
poll_max = 100
batch_size = 50
batch_age_micros = 50000
session_timeout_ms = 6000
heartbeat_ms = 2000
poll_limit_ms = 30000
versions = true
drain = true
"#;

#[test]
fn a_plan_that_cannot_be_run_names_the_place_and_what_to_write() {
    assert!(Plan::from_toml(CALM).is_ok());
    let fault = |fault: &str| refused("faults = []", &format!("faults = [{{ {fault} }}]"));
    let messages = [
        refused("workers = 2", "workers = 0"),
        refused("indexers = 1", "indexers = 0"),
        refused("source_partitions = 4", "source_partitions = 0"),
        refused("dest_partitions = 3", "dest_partitions = 5000"),
        refused("batch_size = 50", "batch_size = 0"),
        refused("heartbeat_ms = 2000", "heartbeat_ms = 6000"),
        fault(r#"trigger = { at = 5 }, action = { kind = "crash", node = "worker-2" }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "crash", node = "process" }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "crash", node = "broker-0" }"#),
        fault(r#"trigger = { nth = { event = "commit", n = 0 } }, action = { kind = "join", role = "worker" }"#),
        fault(
            r#"trigger = { at = 5 }, action = { kind = "index", trouble = "throttle", permille = 0, for_micros = 1 }"#,
        ),
        fault(
            r#"trigger = { at = 5 }, action = { kind = "index", trouble = "throttle", permille = 2000, for_micros = 1 }"#,
        ),
        fault(r#"trigger = { at = 5 }, action = { kind = "grow", topic = "source", add = 0 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "grow", topic = "source", add = 2000 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "cut_link", node = "worker-0", for_micros = 5 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "cut_link", node = "worker-0", out = true, for_micros = 0 }"#),
        fault(
            r#"trigger = { at = 5 }, action = { kind = "slow_link", node = "worker-0", extra_micros = 0, for_micros = 5 }"#,
        ),
        fault(r#"trigger = { at = 5 }, action = { kind = "reset", node = "pair-0" }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "lose_answers", node = "publisher", count = 0 }"#),
        fault(
            r#"trigger = { at = 5 }, action = { kind = "clock", node = "publisher", ahead_micros = 9000000000000000 }"#,
        ),
        fault(r#"trigger = { at = 5 }, action = { kind = "poison", topic = "fail", count = 1 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "poison", topic = "dest", count = 0 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "slow_events", extra_micros = 5, for_micros = 0 }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "crash", node = "publisher" }"#),
        fault(r#"trigger = { at = 5 }, action = { kind = "join", role = "pair" }"#),
        refused("drain = true", "drain = true\nclients = { queue_records_max = 0 }"),
        refused("drain = true", "drain = true\nclients = { assignors = [[\"range\"], [\"sticky\"]] }"),
        refused("drain = true", "drain = true\nclients = { assignors = [[\"random\"]] }"),
        refused("mode = \"distributed\"", "mode = \"hybrid\""),
        refused("seed = \"7\"", "seed = \"seven\""),
        refused("poll_max = 100", "poll_mxa = 100"),
    ];
    insta::assert_snapshot!(messages.join("\n---\n"));
}

#[test]
fn a_node_that_joins_may_be_named_by_a_fault() {
    let joins = r#"faults = [
        { trigger = { at = 5 }, action = { kind = "join", role = "worker" } },
        { trigger = { at = 9 }, action = { kind = "crash", node = "worker-2", restart_after_micros = 5 } },
    ]"#;
    let plan = Plan::from_toml(&CALM.replace("faults = []", joins)).expect("worker-2 joins");
    assert_eq!(plan.faults[1].action, Action::Crash { node: Node::Worker(2), restart_after_micros: Some(5) });
}

#[test]
fn a_mode_refuses_what_it_has_no_place_for() {
    let refused = |mode, action| {
        let mut plan = general(0);
        plan.topology.mode = mode;
        (plan.topology.pairs, plan.topology.pairs_per_node) = (1, 1);
        plan.faults = vec![Fault { trigger: Trigger::At(1), action }];
        plan.validate().expect_err("refused").to_string()
    };
    let node = Node::Process;
    let messages = [
        refused(Mode::Local, Action::Join { role: Role::Worker }),
        refused(Mode::Local, Action::Grow { topic: Hop::Source, add: 1 }),
        refused(Mode::Local, Action::LoseAnswers { node, count: 1 }),
        refused(Mode::Local, Action::DeleteEvents),
        refused(Mode::Hybrid, Action::Join { role: Role::Worker }),
        refused(Mode::Hybrid, Action::Grow { topic: Hop::Dest, add: 1 }),
        refused(Mode::Hybrid, Action::Poison { topic: Hop::Dest, count: 1 }),
        refused(Mode::Hybrid, Action::Reset { node: Node::Worker(0) }),
    ];
    insta::assert_snapshot!(messages.join("\n---\n"));
}

#[test]
fn a_process_whose_clock_goes_back_may_not_be_killed() {
    let fault = |action| Fault { trigger: Trigger::At(1), action };
    let clock = |ahead_micros| fault(Action::Clock { node: Node::Process, ahead_micros, drift_ppm: 0 });
    let crash = || fault(Action::Crash { node: Node::Process, restart_after_micros: None });
    let mut plan = Plan::draw(find("local-calm").expect("listed"), 0);
    for (faults, is_valid) in [
        (vec![clock(5), crash()], true),
        (vec![clock(-5), clock(9)], true),
        (vec![clock(-5), crash()], false),
        (vec![clock(9), crash(), clock(5)], false),
    ] {
        plan.faults = faults;
        assert_eq!(plan.validate().is_ok(), is_valid, "{:?}", plan.faults);
    }
}

#[test]
fn a_plan_that_says_nothing_of_clients_has_the_pipelines_own() {
    let plan = Plan::from_toml(CALM).expect("whole");
    let own = seriatim_core::transport::ProducerConfig::default();
    let group = seriatim_core::transport::GroupConfig::new("g", vec![]);
    let clients = &plan.pipeline.clients;
    assert_eq!(u128::from(clients.linger_micros), own.linger.as_micros());
    assert_eq!(clients.queue_records_max as usize, own.queue_records_max);
    assert_eq!(clients.assignors_of(3), group.assignors);
    assert!(!plan.to_toml().contains("clients"));
}

proptest! {
    #[test]
    fn any_seed_draws_the_same_plan_again(seed: u64, scenario in 0..SCENARIOS.len()) {
        let plan = Plan::draw(&SCENARIOS[scenario], seed);
        prop_assert_eq!(&plan, &Plan::draw(&SCENARIOS[scenario], seed));
        prop_assert_eq!(plan.validate(), Ok(()));
    }
}
