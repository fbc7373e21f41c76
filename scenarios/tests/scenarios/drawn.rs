//! Plans that proptest draws: any topology, any workload, any list of faults. A failing one is shrunk fault by fault
//! and knob by knob, and printed as TOML; put it into the corpus.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use scenarios::drive::{Correct, Simulated};
use scenarios::fault::{Action, Event, Fault, Hop, Node, Role, Trigger, Trouble};
use scenarios::plan::{
    Assignment, Brokers, Clients, Knobs, Mode, Placement, Plan, PublisherPause, Seeds, Topology, Workload,
};
use scenarios::report;
use scenarios::run::{Outcome, RunOptions, run_fresh};
use scenarios::workload::Generated;

const FAULTS_MAX: usize = 6;

fn topology(mode: Mode) -> BoxedStrategy<Topology> {
    let of = |mode, (workers, indexers, source_partitions, dest_partitions), (pairs, pairs_per_node)| Topology {
        mode,
        workers,
        indexers,
        pairs,
        pairs_per_node,
        source_partitions,
        dest_partitions,
    };
    match mode {
        Mode::Local => (1..5_u32).prop_map(move |workers| of(mode, (workers, 1, 1, 1), (0, 0))).boxed(),
        Mode::Distributed => {
            (1..5_u32, 1..4_u32, 1..9_u32, 1..9_u32).prop_map(move |counts| of(mode, counts, (0, 0))).boxed()
        }
        Mode::Hybrid => (1..3_u32, 1..3_u32, 1..9_u32, (1..4_u32, 1..3_u32))
            .prop_map(move |(workers, indexers, partitions, pairs)| of(mode, (workers, indexers, partitions, 1), pairs))
            .boxed(),
    }
}

fn clients() -> impl Strategy<Value = Clients> {
    use Assignment::{CooperativeSticky, Range, RoundRobin, Sticky};
    let assignors = prop_oneof![
        Just(vec![vec![Range, RoundRobin]]),
        Just(vec![vec![Sticky]]),
        Just(vec![vec![CooperativeSticky]]),
        Just(vec![vec![CooperativeSticky, Range], vec![Range]]),
    ];
    let queue = prop_oneof![Just(100_000_u32), 1..50_u32];
    let partitioner = prop_oneof![Just(Placement::Murmur2Random), Just(Placement::ConsistentRandom)];
    (0..20_000_u64, queue, 500..60_000_u64, 500..60_000_u64, assignors, any::<bool>(), partitioner).prop_map(
        |(linger_micros, queue_records_max, producer, consumer, assignors, static_members, partitioner)| Clients {
            linger_micros,
            queue_records_max,
            partitioner,
            producer_metadata_ms: producer,
            consumer_metadata_ms: consumer,
            // Together they are a hazard of Kafka's own, and drawn by nothing (`draw.rs`).
            static_members: static_members && !assignors.iter().flatten().any(|one| *one == CooperativeSticky),
            assignors,
        },
    )
}

fn workload() -> impl Strategy<Value = Generated> {
    let marks = (0..400_u32, 0..200_u32, 0..6_u32, 0..50_u32, 0..50_u32);
    let stages = (0..30_u32, 0..5_u32, 1..40_000_u32, 0..4_u32);
    (1..400_u32, 1..200_u32, marks, 0..50_u32, 1..400_u32, 0..50_u32, stages).prop_map(
        |(records, ids, (deletes, children, children_max, drops, fails), slow, slow_ms_max, rejects, stages)| {
            Generated {
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
                panic_permille: stages.0,
                stuck_permille: stages.1,
                stuck_ms_max: stages.2,
                indexes: stages.3,
            }
        },
    )
}

fn knobs() -> impl Strategy<Value = Knobs> {
    let session = prop_oneof![Just(6_000_u64), Just(10_000), Just(45_000)];
    let limits = (1..1_000_u32, 1..500_u32, 1..500_u32, 1..100_u32, 1_000..200_000_u64);
    let processing = prop_oneof![Just(600_000_u64), Just(5_000)];
    (limits, session, 12_000..300_000_u64, processing, clients()).prop_map(
        |(limits, session_timeout_ms, poll, processing_limit_ms, clients)| {
            let (max_pending, max_in_flight, poll_max, batch_size, batch_age_micros) = limits;
            Knobs {
                max_pending,
                max_in_flight,
                poll_max,
                batch_size,
                batch_age_micros,
                session_timeout_ms,
                heartbeat_ms: session_timeout_ms / 3,
                poll_limit_ms: poll,
                processing_limit_ms,
                clients,
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

fn on_the_index() -> impl Strategy<Value = Action> {
    use Trouble::{Slow, Throttle, TimeoutAfter, TimeoutBefore, Unavailable};
    let trouble = proptest::sample::select(vec![Throttle, Unavailable, TimeoutBefore, TimeoutAfter, Slow]);
    (trouble, 1..1_001_u32, 100_000..3_000_000_u64).prop_map(|(trouble, permille, for_micros)| Action::Index {
        trouble,
        permille,
        for_micros,
    })
}

/// What strikes links and clocks of `node`.
fn on_a_node(node: BoxedStrategy<Node>) -> impl Strategy<Value = Action> {
    let cut = (node.clone(), 0..3_u8, 100_000..25_000_000_u64);
    let slow = (node.clone(), 1_000..3_000_000_u64, 100_000..10_000_000_u64);
    let clock = (node.clone(), -4_000_000_000_i64..4_000_000_000, -500..500_i64);
    prop_oneof![
        (node.clone(), 100_000..45_000_000_u64).prop_map(|(node, for_micros)| Action::Pause { node, for_micros }),
        cut.prop_map(|(node, way, for_micros)| Action::CutLink { node, out: way != 0, into: way != 1, for_micros }),
        slow.prop_map(|(node, extra_micros, for_micros)| Action::SlowLink { node, extra_micros, for_micros }),
        node.clone().prop_map(|node| Action::Reset { node }),
        (node, 1..30_u64).prop_map(|(node, count)| Action::LoseAnswers { node, count }),
        clock.prop_map(|(node, ahead_micros, drift_ppm)| Action::Clock { node, ahead_micros, drift_ppm }),
    ]
}

fn action(topology: &Topology) -> BoxedStrategy<Action> {
    let back = proptest::option::of(100_000..15_000_000_u64);
    if topology.mode == Mode::Local {
        let crash = back.prop_map(|restart_after_micros| Action::Crash { node: Node::Process, restart_after_micros });
        return prop_oneof![crash, on_the_index()].boxed();
    }
    let (workers, indexers, pairs) = (topology.workers, topology.indexers, topology.pairs);
    let (component, role, hop) = match topology.mode {
        Mode::Hybrid => ((0..pairs).prop_map(Node::Pair).boxed(), Just(Role::Pair).boxed(), Just(Hop::Source).boxed()),
        _ => (
            prop_oneof![(0..workers).prop_map(Node::Worker), (0..indexers).prop_map(Node::Indexer)].boxed(),
            prop_oneof![Just(Role::Worker), Just(Role::Indexer)].boxed(),
            prop_oneof![Just(Hop::Source), Just(Hop::Dest)].boxed(),
        ),
    };
    let node = prop_oneof![3 => component.clone(), 1 => Just(Node::Publisher)].boxed();
    let slow = (1_000..3_000_000_u64, 100_000..10_000_000_u64);
    prop_oneof![
        1 => (component.clone(), back.clone())
            .prop_map(|(node, restart_after_micros)| Action::Crash { node, restart_after_micros }),
        1 => (component, back).prop_map(|(node, restart_after_micros)| Action::Stop { node, restart_after_micros }),
        1 => role.prop_map(|role| Action::Join { role }),
        1 => (hop.clone(), 1..5_u32).prop_map(|(topic, add)| Action::Grow { topic, add }),
        1 => (hop, 1..5_u32).prop_map(|(topic, count)| Action::Poison { topic, count }),
        1 => slow.prop_map(|(extra_micros, for_micros)| Action::SlowEvents { extra_micros, for_micros }),
        4 => on_a_node(node),
        2 => on_the_index(),
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
    let brokers = (1..4_u32, prop_oneof![Just(0_u32), 1..2_000_u32])
        .prop_map(|(count, metadata_lag_ms)| Brokers { count, metadata_lag_ms });
    (parts, brokers, workload(), knobs(), pauses(), seeds.no_shrink()).prop_map(
        |((faults, topology), brokers, generated, mut pipeline, pauses, seeds)| {
            // Static leaders that come back assign nothing of what a topic grew by meanwhile (`draw.rs`).
            pipeline.clients.static_members &= !faults.iter().any(|fault| matches!(fault.action, Action::Grow { .. }));
            Plan {
                scenario: "drawn".to_owned(),
                seed: seeds.schedule,
                seeds,
                topology,
                brokers,
                workload: Workload::Generated(generated),
                pipeline,
                pauses,
                faults,
            }
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
    fn any_hybrid_plan_passes(plan in plan(Mode::Hybrid)) {
        pass(&plan)?;
    }

    #[test]
    fn any_local_plan_passes(plan in plan(Mode::Local)) {
        pass(&plan)?;
    }
}
