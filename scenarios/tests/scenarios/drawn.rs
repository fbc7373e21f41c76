//! Plans that proptest draws: any topology, any workload, any list of faults. A failing one is shrunk fault by fault
//! and knob by knob, and printed as TOML; put it into the corpus.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use scenarios::drive::{Correct, Simulated};
use scenarios::fault::{Action, Event, Fault, Node, Role, Trigger, Trouble};
use scenarios::plan::{Knobs, Mode, Plan, PublisherPause, Seeds, Topology, Workload};
use scenarios::report;
use scenarios::run::{Outcome, RunOptions, run_fresh};
use scenarios::workload::Generated;

const FAULTS_MAX: usize = 6;

fn topology(mode: Mode) -> BoxedStrategy<Topology> {
    let of = |mode, (workers, indexers, source_partitions, dest_partitions)| Topology {
        mode,
        workers,
        indexers,
        source_partitions,
        dest_partitions,
    };
    match mode {
        Mode::Local => (1..5_u32).prop_map(move |workers| of(mode, (workers, 1, 1, 1))).boxed(),
        Mode::Distributed => (1..5_u32, 1..4_u32, 1..9_u32, 1..9_u32).prop_map(move |counts| of(mode, counts)).boxed(),
    }
}

fn workload() -> impl Strategy<Value = Generated> {
    let marks = (0..400_u32, 0..200_u32, 0..6_u32, 0..50_u32, 0..50_u32);
    (1..400_u32, 1..200_u32, marks, 0..50_u32, 1..400_u32, 0..50_u32).prop_map(
        |(records, ids, (deletes, children, children_max, drops, fails), slow, slow_ms_max, rejects)| Generated {
            records,
            ids,
            delete_permille: deletes,
            children_permille: children,
            children_max,
            drop_permille: drops,
            fail_permille: fails,
            slow_permille: slow,
            slow_ms_max,
            reject_permille: rejects,
        },
    )
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let session = prop_oneof![Just(6_000_u64), Just(10_000), Just(45_000)];
    let limits = (1..1_000_u32, 1..500_u32, 1..500_u32, 1..100_u32, 1_000..200_000_u64);
    (limits, 1..5_u32, session, 30_000..300_000_u64).prop_map(
        |((max_pending, max_in_flight, poll_max, batch_size, batch_age_micros), lanes, session_timeout_ms, poll)| {
            Knobs {
                max_pending,
                max_in_flight,
                poll_max,
                batch_size,
                batch_age_micros,
                lanes,
                session_timeout_ms,
                heartbeat_ms: session_timeout_ms / 3,
                poll_limit_ms: poll,
                versions: true,
                drain: true,
            }
        },
    )
}

fn trigger() -> impl Strategy<Value = Trigger> {
    let event = prop_oneof![
        Just(Event::Published),
        Just(Event::Taken),
        Just(Event::Produced),
        Just(Event::IndexRequest),
        Just(Event::Commit),
        Just(Event::Revoking),
        Just(Event::Assigned),
    ];
    prop_oneof![
        (0..3_000_000_u64).prop_map(Trigger::At),
        (1..65_u64, 0..2_000_000_u64).prop_map(|(at_least, after_micros)| Trigger::InFlight { at_least, after_micros }),
        (event, 1..40_u64).prop_map(|(event, n)| Trigger::Nth { event, n }),
    ]
}

fn action(topology: &Topology) -> BoxedStrategy<Action> {
    let back = proptest::option::of(100_000..15_000_000_u64);
    let trouble = prop_oneof![Just(Trouble::Throttle), Just(Trouble::TimeoutBefore), Just(Trouble::TimeoutAfter)];
    let index = (trouble, 1..1_001_u32, 100_000..3_000_000_u64)
        .prop_map(|(trouble, permille, for_micros)| Action::Index { trouble, permille, for_micros });
    if topology.mode == Mode::Local {
        let crash = back.prop_map(|restart_after_micros| Action::Crash { node: Node::Process, restart_after_micros });
        return prop_oneof![crash, index].boxed();
    }
    let node =
        prop_oneof![(0..topology.workers).prop_map(Node::Worker), (0..topology.indexers).prop_map(Node::Indexer)]
            .boxed();
    prop_oneof![
        (node.clone(), back.clone())
            .prop_map(|(node, restart_after_micros)| Action::Crash { node, restart_after_micros }),
        (node.clone(), back).prop_map(|(node, restart_after_micros)| Action::Stop { node, restart_after_micros }),
        prop_oneof![Just(Role::Worker), Just(Role::Indexer)].prop_map(|role| Action::Join { role }),
        (node, 100_000..30_000_000_u64).prop_map(|(node, for_micros)| Action::Pause { node, for_micros }),
        index,
    ]
    .boxed()
}

fn faults(topology: &Topology) -> impl Strategy<Value = Vec<Fault>> + use<> {
    let fault = (trigger(), action(topology)).prop_map(|(trigger, action)| Fault { trigger, action });
    proptest::collection::vec(fault, 0..=FAULTS_MAX)
}

fn pauses() -> impl Strategy<Value = Vec<PublisherPause>> {
    let pause = (0..400_u64, 1_000..2_000_000_u64)
        .prop_map(|(after_records, for_micros)| PublisherPause { after_records, for_micros });
    proptest::collection::vec(pause, 0..3).prop_map(|mut pauses| {
        pauses.sort_by_key(|pause| pause.after_records);
        pauses
    })
}

fn plan(mode: Mode) -> impl Strategy<Value = Plan> {
    let seeds = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    // A seed near zero is no simpler than another.
    let seeds = seeds.prop_map(|(workload, schedule, network, index)| Seeds { workload, schedule, network, index });
    let parts = topology(mode).prop_flat_map(|topology| (faults(&topology), Just(topology)));
    (parts, workload(), knobs(), pauses(), seeds.no_shrink()).prop_map(
        |((faults, topology), generated, pipeline, pauses, seeds)| Plan {
            scenario: "drawn".to_owned(),
            seed: seeds.schedule,
            seeds,
            topology,
            workload: Workload::Generated(generated),
            pipeline,
            pauses,
            faults,
        },
    )
}

fn pass(plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(plan.validate(), Ok(()));
    let report = run_fresh(&Simulated(Correct), plan, &RunOptions::default());
    if report.outcome == Outcome::Pass {
        return Ok(());
    }
    let block = report::failure_block(
        plan,
        &report,
        "save the plan below as scenarios/corpus/NAME.toml, then cargo test corpus",
    );
    Err(TestCaseError::fail(format!("\n{block}\n{}", plan.to_toml())))
}

fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/drawn.seeds"));
    let max_shrink_iters = 2_000;
    // `PROPTEST_CASES` draws more.
    ProptestConfig { max_shrink_iters, failure_persistence: Some(Box::new(seeds)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_distributed_plan_passes(plan in plan(Mode::Distributed)) {
        pass(&plan)?;
    }

    #[test]
    fn any_local_plan_passes(plan in plan(Mode::Local)) {
        pass(&plan)?;
    }
}
