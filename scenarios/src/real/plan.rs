//! A run on a real Kafka as a value, and how a seed draws one.

use serde::{Deserialize, Serialize};

use crate::draws::{Draws, Stream};
use crate::fault::{Action, Event, Fault, FaultKind, Hop, Node, Role, Trigger};
use crate::plan::{Assignment, Brokers, Clients, Knobs, Mode, Plan, PlanError, Seeds, Topology, Workload, range};
use crate::workload::Generated;

/// A broker that is killed and comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerFault {
    /// Microseconds after the first publish.
    pub at_micros: u64,
    /// Which, from 1.
    pub broker: u32,
    /// How long it is down.
    pub down_micros: u64,
}

/// What asks a process to end in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopSignal {
    /// SIGTERM, as of a supervisor.
    #[default]
    Term,
    /// SIGINT, as of a terminal.
    Int,
}

impl StopSignal {
    /// As `kill -s` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            StopSignal::Term => "TERM",
            StopSignal::Int => "INT",
        }
    }
}

/// A run on a real Kafka, whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RealPlan {
    /// Brokers: 1 or 3.
    pub brokers: u32,
    /// Most operations that the publisher sends in a second.
    pub rate: u32,
    /// How long the index takes over a batch, milliseconds.
    pub index_delay_ms: u64,
    /// What a stop sends.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// The flawed pipeline that runs, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Brokers that are killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broker_faults: Vec<BrokerFault>,
    /// The rest, as of a simulated run. What is said of time is real time.
    pub plan: Plan,
}

impl RealPlan {
    /// A calm run of `mode` with so many generated operations, to which faults are added.
    pub fn calm(mode: Mode, records: u32, seed: u64) -> Self {
        let hybrid = mode == Mode::Hybrid;
        let plan = Plan {
            scenario: format!("real-{}", mode.name()),
            seed,
            seeds: Seeds { workload: seed, schedule: 0, network: 0, index: 0 },
            topology: Topology {
                mode,
                workers: if hybrid { 1 } else { 2 },
                indexers: if hybrid { 1 } else { 2 },
                pairs: if hybrid { 2 } else { 0 },
                pairs_per_node: u32::from(hybrid),
                source_partitions: 4,
                dest_partitions: if hybrid { 1 } else { 4 },
            },
            brokers: Brokers::default(),
            workload: Workload::Generated(generated(records)),
            pipeline: knobs(Assignment::Range),
            pauses: Vec::new(),
            faults: Vec::new(),
        };
        RealPlan {
            brokers: 1,
            rate: records / 8,
            index_delay_ms: 5,
            stop_signal: StopSignal::default(),
            variant: None,
            broker_faults: Vec::new(),
            plan,
        }
    }

    /// The run that `seed` draws, with so many brokers.
    pub fn draw(seed: u64, brokers: u32) -> Self {
        let (mut shape, mut faults) = (Draws::new(seed, Stream::Shape), Draws::new(seed, Stream::Faults));
        let mode = shape.pick(&[Mode::Distributed, Mode::Hybrid]);
        let mut real = RealPlan::calm(mode, shape.between(1_500, 4_000) as u32, seed);
        let Topology { workers, indexers, pairs_per_node, source_partitions, dest_partitions, .. } =
            &mut real.plan.topology;
        *source_partitions = shape.between(2, 8) as u32;
        if mode == Mode::Hybrid {
            (*workers, *indexers) = shape.pick(&[(1, 1), (1, 2), (2, 1), (2, 2)]);
            *pairs_per_node = shape.pick(&[1, 1, 2]);
        } else {
            *dest_partitions = shape.between(2, 8) as u32;
        }
        if shape.chance(250) {
            real.plan.workload = Workload::Ripgrep;
        }
        let assignors = [Assignment::Range, Assignment::RoundRobin, Assignment::CooperativeSticky];
        real.plan.pipeline = Knobs {
            max_pending: shape.pick(&[200, 1_000]),
            max_in_flight: shape.pick(&[32, 128, 500]),
            poll_max: shape.pick(&[16, 100, 500]),
            batch_size: shape.pick(&[1, 10, 50, 100]),
            batch_age_micros: shape.pick(&[5_000, 50_000, 100_000]),
            ..knobs(shape.pick(&assignors))
        };
        real.brokers = brokers;
        real.index_delay_ms = shape.pick(&[0, 5, 20]);
        real.rate = (real.records() / shape.between(6, 12)) as u32;
        let count = faults.between(2, 5);
        real.plan.faults = (0..count).map(|_| real.fault(&mut faults)).collect();
        if brokers == 3 {
            let (at_micros, broker) = (faults.between(500_000, 6_000_000), faults.between(1, 3) as u32);
            real.broker_faults = vec![BrokerFault { at_micros, broker, down_micros: faults.between(1, 8) * 1_000_000 }];
        }
        real
    }

    fn fault(&self, draws: &mut Draws) -> Fault {
        let topology = &self.plan.topology;
        let hybrid = topology.mode == Mode::Hybrid;
        let hop = if hybrid || draws.chance(500) { Hop::Source } else { Hop::Dest };
        let node = if hybrid {
            Node::Pair(draws.below(u64::from(topology.pairs)) as u32)
        } else if draws.chance(500) {
            Node::Worker(draws.below(u64::from(topology.workers)) as u32)
        } else {
            Node::Indexer(draws.below(u64::from(topology.indexers)) as u32)
        };
        let role = match (hybrid, draws.chance(500)) {
            (true, _) => Role::Pair,
            (false, true) => Role::Worker,
            (false, false) => Role::Indexer,
        };
        let restart_after_micros = Some(draws.between(200_000, 5_000_000));
        let kinds = [
            (FaultKind::Crash, 4),
            (FaultKind::Pause, 4),
            (FaultKind::Stop, 2),
            (FaultKind::Join, 2),
            (FaultKind::Grow, 3),
        ];
        let action = match draws.weighted(&kinds) {
            FaultKind::Crash => Action::Crash { node, restart_after_micros },
            FaultKind::Stop => Action::Stop { node, restart_after_micros },
            FaultKind::Join => Action::Join { role },
            FaultKind::Grow => Action::Grow { topic: hop, add: draws.between(1, 4) as u32 },
            // Mostly longer than the session.
            _ => {
                let node = if draws.chance(150) { Node::Publisher } else { node };
                Action::Pause { node, for_micros: draws.between(1_000_000, 7_000_000) }
            }
        };
        let trigger = match draws.below(10) {
            0..=4 => Trigger::At(draws.between(500_000, 9_000_000)),
            5 | 6 => Trigger::Nth { event: Event::Taken, n: draws.between(1, self.records()) },
            7 => Trigger::InFlight { at_least: draws.pick(&[16, 64, 150]), after_micros: draws.between(0, 4_000_000) },
            8 => Trigger::Nth { event: Event::Revoking, n: draws.between(1, 4) },
            _ => Trigger::Nth { event: Event::Commit, n: draws.between(1, 20) },
        };
        Fault { trigger, action }
    }

    /// Operations that are published.
    pub fn records(&self) -> u64 {
        match &self.plan.workload {
            Workload::Generated(generated) => u64::from(generated.records),
            Workload::Ripgrep | Workload::File(_) => crate::ripgrep::OPERATIONS,
        }
    }

    /// Checks everything that can be known before the run.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.plan.validate()?;
        let refuse = |place, reason: &str| Err(PlanError::Contradiction { place, reason: reason.to_owned() });
        if self.plan.topology.mode == Mode::Local {
            return refuse("plan.topology.mode", "local mode has no Kafka; take distributed or hybrid");
        }
        if self.brokers != 1 && self.brokers != 3 {
            return refuse("brokers", "a development cluster has 1 or 3");
        }
        if self.brokers == 1 && !self.broker_faults.is_empty() {
            return refuse("broker_faults", "with one broker nothing is left; take brokers = 3");
        }
        if matches!(self.plan.workload, Workload::File(_)) {
            return refuse("plan.workload", "take generated operations, or ripgrep's");
        }
        for fault in &self.broker_faults {
            range("broker_faults.broker", fault.broker, (1, 3), "brokers are numbered from 1")?;
        }
        let is_real = |action: &Action| {
            use FaultKind::{Crash, Grow, Join, Pause, Stop};
            matches!(action.kind(), Crash | Stop | Join | Pause | Grow)
        };
        if self.plan.faults.iter().any(|fault| !is_real(&fault.action)) {
            return refuse("plan.faults", "a real run can crash, stop, join, pause and grow, and no more");
        }
        Ok(())
    }

    /// The run that `text` holds, checked.
    pub fn from_toml(text: &str) -> anyhow::Result<Self> {
        let real: RealPlan = toml::from_str(text)?;
        real.validate()?;
        Ok(real)
    }

    /// The run as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan holds nothing that TOML cannot")
    }
}

/// Sessions are short, so that a run is; the clients look for new partitions every second.
fn knobs(assignor: Assignment) -> Knobs {
    Knobs {
        max_pending: 1_000,
        max_in_flight: 200,
        poll_max: 100,
        batch_size: 50,
        batch_age_micros: 50_000,
        session_timeout_ms: 3_000,
        heartbeat_ms: 500,
        poll_limit_ms: 15_000,
        processing_limit_ms: 600_000,
        clients: Clients {
            producer_metadata_ms: 1_000,
            consumer_metadata_ms: 1_000,
            assignors: vec![vec![assignor]],
            ..Clients::default()
        },
        versions: true,
        drain: true,
    }
}

fn generated(records: u32) -> Generated {
    Generated {
        records,
        ids: 150,
        delete_permille: 120,
        children_permille: 60,
        children_max: 3,
        drop_permille: 15,
        fail_permille: 15,
        slow_permille: 20,
        slow_ms_max: 60,
        reject_permille: 10,
        panic_permille: 5,
        stuck_permille: 0,
        stuck_ms_max: 0,
        indexes: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_seed_draws_a_run_that_is_valid_and_the_same_again() {
        let mut kinds: BTreeMap<FaultKind, u64> = BTreeMap::new();
        for (seed, brokers) in (0..300).flat_map(|seed| [(seed, 1), (seed, 3)]) {
            let real = RealPlan::draw(seed, brokers);
            real.validate().expect("what is drawn can be run");
            assert_eq!(real, RealPlan::draw(seed, brokers));
            assert_eq!(toml::from_str(&real.to_toml()), Ok(real.clone()));
            real.plan.faults.iter().for_each(|fault| *kinds.entry(fault.action.kind()).or_default() += 1);
        }
        assert!(kinds.len() == 5 && kinds.values().all(|count| *count > 50), "{kinds:?}");
    }

    #[test]
    fn what_a_real_run_cannot_do_is_refused_with_what_it_can() {
        let calm = || RealPlan::calm(Mode::Distributed, 100, 1);
        let words = |real: RealPlan| real.validate().expect_err("it cannot be run").to_string();
        let mut real = calm();
        real.plan.faults = vec![Fault { trigger: Trigger::At(0), action: Action::DeleteEvents }];
        assert_eq!(words(real), "plan.faults: a real run can crash, stop, join, pause and grow, and no more");
        let mut real = calm();
        real.broker_faults = vec![BrokerFault { at_micros: 0, broker: 1, down_micros: 1 }];
        assert_eq!(words(real), "broker_faults: with one broker nothing is left; take brokers = 3");
        let mut real = calm();
        real.plan.topology.mode = Mode::Local;
        assert_eq!(words(real), "plan.topology.mode: local mode has no Kafka; take distributed or hybrid");
    }
}
