//! From a seed to a plan, swarm style: first which kinds of faults exist at all, then how many, when and where.
//!
//! Shape, workload and faults come from their own streams, so that a draw added to one moves no other.

use std::path::PathBuf;

use crate::draws::{Draws, Stream};
use crate::fault::FaultKind;
use crate::plan::{
    Assignment, Brokers, Clients, Knobs, Mode, Placement, Plan, PublisherPause, Seeds, Topology, Workload,
};
use crate::ripgrep;
use crate::scenario::{FaultSet, Scenario, Source};
use crate::workload::Generated;

mod faults;

/// What a caller fixes instead of leaving it to the seed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// Number of workers.
    pub workers: Option<u32>,
    /// Number of indexers.
    pub indexers: Option<u32>,
    /// Number of nodes with pairs.
    pub pairs: Option<u32>,
    /// Partitions of either topic.
    pub partitions: Option<u32>,
    /// A file that flows through, and how many operations it has.
    pub file: Option<(PathBuf, u64)>,
}

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
        let mut pipeline = draw_knobs(scenario, &kinds, &mut shape);
        let drawn = draw_workload(scenario, &kinds, &mut shape);
        let workload = overrides.file.as_ref().map_or(drawn, |(path, _)| Workload::File(path.clone()));
        let records = match &workload {
            Workload::Generated(generated) => u64::from(generated.records),
            Workload::Ripgrep => ripgrep::OPERATIONS,
            Workload::File(_) => overrides.file.as_ref().map_or(1, |(_, records)| *records),
        };
        let pauses = draw_pauses(records, &mut shape);
        if shape.chance(500) && scenario.mode != Mode::Local {
            pipeline.clients.partitioner = Placement::ConsistentRandom;
        }
        // More than a quarter of all, or than half of what the publisher allows, may never be in flight.
        let in_flight_max = (u64::from(pipeline.max_pending) / 2).min(records / 4).max(1);
        let room = faults::Room { scenario, topology: &topology, workload: &workload, records, in_flight_max };
        let faults = room.draw(&kinds, &mut faults);
        Plan {
            scenario: scenario.name.to_owned(),
            seed,
            seeds: Seeds { workload: seed, schedule: seed, network: seed, index: seed },
            topology,
            brokers: draw_brokers(scenario, &mut Draws::new(seed, Stream::Brokers)),
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
        // Half of what a consumer group is for is to come through these.
        let moves_partitions = matches!(kind, FaultKind::Crash | FaultKind::Stop | FaultKind::Join | FaultKind::Pause);
        // One group has half as many of them as two.
        let more = if scenario.mode == Mode::Hybrid { 12 } else { 4 };
        let weight = draws.between(1, 100) as u32 * if is_swarm && moves_partitions { more } else { 1 };
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
    let pairs = draws.between(1, 4) as u32;
    let pairs_per_node = draws.pick(&[1, 1, 2, 3]);
    let (of_pair, lanes) = (scenario.mode == Mode::Hybrid, draws.pick(&[(1, 1), (1, 2), (2, 1), (2, 2)]));
    // What the mode has not is written as one, or left out.
    let (workers, indexers) = match scenario.mode {
        Mode::Local | Mode::Distributed => (workers, indexers),
        Mode::Hybrid => lanes,
    };
    let is_local = scenario.mode == Mode::Local;
    let partitions = |drawn, none: bool| if none { 1 } else { overrides.partitions.unwrap_or(drawn) };
    Topology {
        mode: scenario.mode,
        workers: overrides.workers.unwrap_or(workers),
        indexers: overrides.indexers.unwrap_or(indexers),
        pairs: if of_pair { overrides.pairs.unwrap_or(pairs) } else { 0 },
        pairs_per_node: if of_pair { pairs_per_node } else { 0 },
        source_partitions: partitions(source_partitions, is_local),
        dest_partitions: partitions(dest_partitions, is_local || of_pair),
    }
}

fn draw_brokers(scenario: &Scenario, draws: &mut Draws) -> Brokers {
    let drawn = Brokers { count: draws.pick(&[1, 1, 3]), metadata_lag_ms: draws.pick(&[0, 20, 200, 1_000]) };
    if scenario.mode == Mode::Local { Brokers::default() } else { drawn }
}

fn draw_knobs(scenario: &Scenario, kinds: &[(FaultKind, u32)], draws: &mut Draws) -> Knobs {
    let has = |kind: FaultKind| kinds.iter().any(|(one, _)| *one == kind);
    // A few sessions outlast the polls that a member may leave out, so that it is thrown out for these.
    let (session_timeout_ms, poll_limits): (u64, &[u64]) = match draws.below(8) {
        0 => (45_000, &[12_000, 30_000]),
        1..=4 => (6_000, &[12_000, 30_000, 60_000, 300_000]),
        _ => (10_000, &[30_000, 60_000, 300_000]),
    };
    // The ripgrep history promises 64 records in flight, so its limits leave room for them.
    let small = if scenario.source == Source::Ripgrep { 128 } else { 32 };
    Knobs {
        max_pending: draws.pick(&[small.max(64), 128, 256, 1_000]),
        max_in_flight: draws.pick(&[small, 128, 500]),
        poll_max: draws.pick(&[1, 16, 100, 500]),
        batch_size: draws.pick(&[1, 10, 50, 100]),
        batch_age_micros: draws.pick(&[5_000, 50_000, 100_000]),
        session_timeout_ms,
        // Kafka's own; a member that beats more seldom hears of a rebalance when it is over.
        heartbeat_ms: (session_timeout_ms / 3).min(3_000),
        poll_limit_ms: draws.pick(poll_limits),
        processing_limit_ms: if has(FaultKind::StageStuck) { draws.pick(&[5_000, 600_000]) } else { 600_000 },
        clients: draw_clients(scenario, &has, draws),
        versions: scenario.versions,
        drain: scenario.drain,
    }
}

fn draw_clients(scenario: &Scenario, has: &impl Fn(FaultKind) -> bool, draws: &mut Draws) -> Clients {
    use Assignment::{CooperativeSticky, Range, RoundRobin, Sticky};
    let assignors = match draws.below(6) {
        0 | 1 => vec![vec![Range, RoundRobin]],
        2 => vec![vec![RoundRobin]],
        3 => vec![vec![Sticky]],
        4 => vec![vec![CooperativeSticky]],
        // A group that is changed over from one protocol to the other.
        _ => vec![vec![CooperativeSticky, Range], vec![Range]],
    };
    // Ripgrep's history is ten times as long, and a queue of one record takes a round trip for each.
    let tiny: &[u32] = if scenario.source == Source::Ripgrep { &[32, 100] } else { &[1, 4, 20] };
    let queue_records_max = draws.pick(tiny);
    let ages = [1_000, 5_000, 30_000, 300_000];
    // A static member that dies between the two generations of a cooperative rebalance comes back without a rebalance,
    // and what it was to give up stays without an owner until the next one: the coordinator asks for none.
    let cooperative = assignors.iter().flatten().any(|one| *one == CooperativeSticky);
    // A static leader that comes back is not told that it leads (until KIP-814), so that nobody assigns what its topic
    // grew by meanwhile: it knows the new partitions already, and a follower that hears of them causes no rebalance.
    let leaderless = has(FaultKind::Grow) && (has(FaultKind::Crash) || has(FaultKind::Stop));
    let clients = Clients {
        linger_micros: draws.pick(&[0, 1_000, 5_000, 50_000]),
        queue_records_max: if has(FaultKind::FullQueue) { queue_records_max } else { 100_000 },
        partitioner: Placement::default(),
        producer_metadata_ms: draws.pick(&ages),
        consumer_metadata_ms: draws.pick(&ages),
        assignors,
        static_members: draws.chance(250) && !cooperative && !leaderless,
    };
    if scenario.mode == Mode::Local { Clients::default() } else { clients }
}

fn draw_workload(scenario: &Scenario, kinds: &[(FaultKind, u32)], draws: &mut Draws) -> Workload {
    if scenario.source == Source::Ripgrep {
        return Workload::Ripgrep;
    }
    let of = |kind: FaultKind, permille| if kinds.iter().any(|(one, _)| *one == kind) { permille } else { 0 };
    let sometimes = |draws: &mut Draws, permille| if draws.chance(500) { permille } else { 0 };
    Workload::Generated(Generated {
        records: draws.between(100, 600) as u32,
        ids: draws.pick(&[1, 3, 10, 50, 400]),
        delete_permille: draws.pick(&[20, 150, 400]),
        children_permille: sometimes(draws, 150),
        children_max: draws.between(1, 5) as u32,
        drop_permille: sometimes(draws, 30),
        fail_permille: of(FaultKind::StageError, 30),
        slow_permille: sometimes(draws, 40),
        slow_ms_max: draws.pick(&[5, 50, 400]),
        reject_permille: of(FaultKind::IndexReject, 30),
        indexes: draws.pick(&[0, 0, 2, 5]),
        panic_permille: of(FaultKind::StagePanic, 20),
        // Now and then longer than a consumer may do without progress and without a poll after that.
        stuck_permille: of(FaultKind::StageStuck, 5),
        stuck_ms_max: of(FaultKind::StageStuck, draws.pick(&[4_000, 20_000, 60_000])),
    })
}

fn draw_pauses(records: u64, draws: &mut Draws) -> Vec<PublisherPause> {
    let mut pauses: Vec<PublisherPause> = (0..draws.below(3))
        .map(|_| PublisherPause { after_records: draws.below(records), for_micros: draws.between(1_000, 2_000_000) })
        .collect();
    pauses.sort_by_key(|pause| pause.after_records);
    pauses
}
