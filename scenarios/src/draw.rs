//! From a seed to a plan, swarm style: first which kinds of faults exist at all, then how many, when and where.
//!
//! Shape, workload and faults come from their own streams, so that a draw added to one moves no other.

use std::path::PathBuf;

use crate::draws::{Draws, Stream};
use crate::fault::{Action, Event, Fault, FaultKind, Node, Role, Trigger, Trouble};
use crate::plan::{Knobs, Mode, Plan, PublisherPause, Seeds, Topology, Workload};
use crate::ripgrep;
use crate::scenario::{FaultSet, Scenario, Source};
use crate::workload::Generated;

/// What a caller fixes instead of leaving it to the seed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// Number of workers.
    pub workers: Option<u32>,
    /// Number of indexers.
    pub indexers: Option<u32>,
    /// Partitions of either topic.
    pub partitions: Option<u32>,
    /// A file that flows through, and how many operations it has.
    pub file: Option<(PathBuf, u64)>,
}

/// Work that must be in flight when a fault strikes the ripgrep history.
const RIPGREP_IN_FLIGHT: u64 = 64;

impl Plan {
    /// The plan of `seed` in `scenario`.
    pub fn draw(scenario: &Scenario, seed: u64) -> Plan {
        Plan::draw_with(scenario, seed, &Overrides::default())
    }

    /// The plan of `seed` in `scenario`, with some things fixed. It may be invalid when what is fixed is.
    pub fn draw_with(scenario: &Scenario, seed: u64, overrides: &Overrides) -> Plan {
        let mut shape = Draws::new(seed, Stream::Shape);
        let mut faults = Draws::new(seed, Stream::Faults);
        let kinds = draw_kinds(scenario, &mut faults);
        let topology = draw_topology(scenario, overrides, &mut shape);
        let pipeline = draw_knobs(scenario, &mut shape);
        let drawn = draw_workload(scenario, &kinds, &mut shape);
        let workload = overrides.file.as_ref().map_or(drawn, |(path, _)| Workload::File(path.clone()));
        let records = match &workload {
            Workload::Generated(generated) => u64::from(generated.records),
            Workload::Ripgrep => ripgrep::OPERATIONS,
            Workload::File(_) => overrides.file.as_ref().map_or(1, |(_, records)| *records),
        };
        let pauses = draw_pauses(records, &mut shape);
        // More than a quarter of all, or than half of what the publisher allows, may never be in flight.
        let in_flight_max = (u64::from(pipeline.max_pending) / 2).min(records / 4).max(1);
        let faults = draw_faults(&kinds, &topology, &workload, (records, in_flight_max), &mut faults);
        Plan {
            scenario: scenario.name.to_owned(),
            seed,
            seeds: Seeds { workload: seed, schedule: seed, network: seed, index: seed },
            topology,
            workload,
            pipeline,
            pauses,
            faults,
        }
    }
}

/// The kinds that this run has, with weights. Under `All` each is in or out by a coin, at least one is in.
fn draw_kinds(scenario: &Scenario, draws: &mut Draws) -> Vec<(FaultKind, u32)> {
    let all = scenario.kinds();
    let is_swarm = scenario.faults == FaultSet::All;
    let mut kinds = Vec::new();
    for kind in &all {
        let is_in = !is_swarm || draws.chance(500);
        let weight = draws.between(1, 100) as u32;
        if is_in {
            kinds.push((*kind, weight));
        }
    }
    if kinds.is_empty() && !all.is_empty() {
        kinds.push((draws.pick(&all), 1));
    }
    kinds
}

fn draw_topology(scenario: &Scenario, overrides: &Overrides, draws: &mut Draws) -> Topology {
    let workers = draws.between(1, 4) as u32;
    let indexers = draws.between(1, 3) as u32;
    let source_partitions = draws.between(1, 8) as u32;
    let dest_partitions = draws.between(1, 8) as u32;
    let is_local = scenario.mode == Mode::Local;
    let partitions = |drawn| if is_local { 1 } else { drawn };
    Topology {
        mode: scenario.mode,
        workers: overrides.workers.unwrap_or(workers),
        indexers: overrides.indexers.unwrap_or(if is_local { 1 } else { indexers }),
        source_partitions: overrides.partitions.unwrap_or(partitions(source_partitions)),
        dest_partitions: overrides.partitions.unwrap_or(partitions(dest_partitions)),
    }
}

fn draw_knobs(scenario: &Scenario, draws: &mut Draws) -> Knobs {
    let session_timeout_ms = draws.pick(&[6_000, 10_000]);
    // The ripgrep history promises 64 records in flight, so its limits leave room for them.
    let small = if scenario.source == Source::Ripgrep { 128 } else { 32 };
    Knobs {
        max_pending: draws.pick(&[small.max(64), 128, 256, 1_000]),
        max_in_flight: draws.pick(&[small, 128, 500]),
        poll_max: draws.pick(&[1, 16, 100, 500]),
        batch_size: draws.pick(&[1, 10, 50, 100]),
        batch_age_micros: draws.pick(&[5_000, 50_000, 100_000]),
        lanes: draws.pick(&[1, 2, 4]),
        session_timeout_ms,
        heartbeat_ms: session_timeout_ms / 3,
        poll_limit_ms: draws.pick(&[30_000, 60_000, 300_000]),
        versions: scenario.versions,
        drain: scenario.drain,
    }
}

fn draw_workload(scenario: &Scenario, kinds: &[(FaultKind, u32)], draws: &mut Draws) -> Workload {
    if scenario.source == Source::Ripgrep {
        return Workload::Ripgrep;
    }
    let rejects = kinds.iter().any(|(kind, _)| *kind == FaultKind::IndexReject);
    let sometimes = |draws: &mut Draws, permille| if draws.chance(500) { permille } else { 0 };
    Workload::Generated(Generated {
        records: draws.between(100, 600) as u32,
        ids: draws.pick(&[1, 3, 10, 50, 400]),
        delete_permille: draws.pick(&[20, 150, 400]),
        children_permille: sometimes(draws, 150),
        children_max: draws.between(1, 5) as u32,
        drop_permille: sometimes(draws, 30),
        fail_permille: sometimes(draws, 30),
        slow_permille: sometimes(draws, 40),
        slow_ms_max: draws.pick(&[5, 50, 400]),
        reject_permille: if rejects { 30 } else { 0 },
    })
}

fn draw_pauses(records: u64, draws: &mut Draws) -> Vec<PublisherPause> {
    let mut pauses: Vec<PublisherPause> = (0..draws.below(3))
        .map(|_| PublisherPause { after_records: draws.below(records), for_micros: draws.between(1_000, 2_000_000) })
        .collect();
    pauses.sort_by_key(|pause| pause.after_records);
    pauses
}

fn draw_faults(
    kinds: &[(FaultKind, u32)],
    topology: &Topology,
    workload: &Workload,
    (records, in_flight_max): (u64, u64),
    draws: &mut Draws,
) -> Vec<Fault> {
    let injected: Vec<(FaultKind, u32)> =
        kinds.iter().copied().filter(|(kind, _)| *kind != FaultKind::IndexReject).collect();
    if injected.is_empty() {
        return Vec::new();
    }
    let count = draws.between(1, 6);
    (0..count)
        .map(|_| {
            let action = draw_action(draws.weighted(&injected), topology, draws);
            Fault { trigger: draw_trigger(&action, workload, records, in_flight_max, draws), action }
        })
        .collect()
}

fn draw_action(kind: FaultKind, topology: &Topology, draws: &mut Draws) -> Action {
    let node = match topology.mode {
        Mode::Local => Node::Process,
        Mode::Distributed if draws.chance(500) => Node::Worker(draws.below(u64::from(topology.workers)) as u32),
        Mode::Distributed => Node::Indexer(draws.below(u64::from(topology.indexers)) as u32),
    };
    // Sooner and later than a session time-out, or not before the run heals.
    let restart = if draws.chance(800) { Some(draws.between(50_000, 15_000_000)) } else { None };
    let index = |trouble, draws: &mut Draws| Action::Index {
        trouble,
        permille: draws.pick(&[50, 300, 1_000]),
        for_micros: draws.between(100_000, 3_000_000),
    };
    match kind {
        FaultKind::Crash => Action::Crash { node, restart_after_micros: restart },
        FaultKind::Stop => Action::Stop { node, restart_after_micros: restart },
        FaultKind::Join => Action::Join { role: draws.pick(&[Role::Worker, Role::Indexer]) },
        FaultKind::Pause => Action::Pause { node, for_micros: draws.between(1_000_000, 30_000_000) },
        FaultKind::IndexThrottle => index(Trouble::Throttle, draws),
        FaultKind::IndexTimeoutBefore => index(Trouble::TimeoutBefore, draws),
        FaultKind::IndexTimeoutAfter | FaultKind::IndexReject => index(Trouble::TimeoutAfter, draws),
    }
}

fn draw_trigger(action: &Action, workload: &Workload, records: u64, in_flight_max: u64, draws: &mut Draws) -> Trigger {
    // A group of Kafka's makes up its mind in three to six seconds; only then do records flow.
    let local = matches!(action, Action::Crash { node: Node::Process, .. });
    let flows_at = if local { 0 } else { 3_000_000 };
    let after_micros = if draws.chance(400) { 0 } else { flows_at + draws.below(4_000_000) };
    if *workload == Workload::Ripgrep {
        let after_micros = after_micros.min(flows_at + 1_000_000);
        return Trigger::InFlight { at_least: RIPGREP_IN_FLIGHT, after_micros };
    }
    let rebalances: &[Event] = match action {
        Action::Index { .. } | Action::Crash { node: Node::Process, .. } => &[],
        _ => &[Event::Revoking, Event::Assigned],
    };
    match draws.below(10) {
        0..=5 => Trigger::InFlight { at_least: draws.pick(&[1, 16, 64]).min(in_flight_max), after_micros },
        6 => Trigger::At(draws.below(flows_at + 5_000_000)),
        // Anywhere in the flow, its last records too: either hop takes every record once, or more often.
        7 => Trigger::Nth { event: Event::Taken, n: draws.between(1, 2 * records) },
        8 => Trigger::Nth {
            event: draws.pick(&[Event::Published, Event::Produced, Event::IndexRequest, Event::Commit]),
            n: draws.between(1, 60),
        },
        // Some strike inside a rebalance, where it hurts.
        _ if rebalances.is_empty() => Trigger::Nth { event: Event::IndexRequest, n: draws.between(1, 10) },
        _ => Trigger::Nth { event: draws.pick(rebalances), n: draws.between(1, 6) },
    }
}
