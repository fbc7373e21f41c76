//! What can be known of a plan before it runs: values in their ranges, nodes that exist, faults that can strike.

use super::{Mode, Plan, PlanError, Topology, Workload, range};
use crate::fault::{Action, Fault, Hop, Node, Role, Trigger};

/// Longest that a window of a fault stays open.
const WINDOW_MAX: u64 = 3_600_000_000;

impl Plan {
    /// Checks everything that can be known before the run.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.topology.validate()?;
        self.brokers.validate()?;
        self.pipeline.validate()?;
        if let Workload::Generated(generated) = &self.workload {
            generated.validate()?;
        }
        for (index, fault) in self.faults.iter().enumerate() {
            fault.validate(index)?;
            self.has_place(index, fault)?;
        }
        for (hop, place, partitions) in [
            (Hop::Source, "topology.source_partitions", self.topology.source_partitions),
            (Hop::Dest, "topology.dest_partitions", self.topology.dest_partitions),
        ] {
            let grown = u64::from(partitions) + u64::from(self.growth(hop));
            range(place, grown, (1, Topology::PARTITIONS_MAX), "with what is added to it the topic is too large")?;
        }
        self.clock_of_a_process()
    }

    /// Whether the mode has what a fault strikes.
    fn has_place(&self, index: usize, fault: &Fault) -> Result<(), PlanError> {
        let action = &fault.action;
        let known = action.node().is_none_or(|node| self.has_node(node));
        if !known {
            let node = action.node().expect("it names one");
            return Err(PlanError::UnknownNode { index, node, known: self.nodes() });
        }
        let no_place = |reason, instead| {
            let (action, mode) = (action.to_string(), self.topology.mode.name());
            Err(PlanError::NoPlace { index, action, mode, reason, instead })
        };
        let (mode, distributed) = (self.topology.mode, "mode = \"distributed\"");
        match action {
            _ if mode == Mode::Local && !action.kind().is_local() => no_place("which is one process", distributed),
            Action::Join { role: Role::Worker | Role::Indexer } if mode == Mode::Hybrid => {
                no_place("whose nodes hold pairs", "role = \"pair\"")
            }
            Action::Join { role: Role::Pair } if mode != Mode::Hybrid => {
                no_place("which has no pairs", "role = \"worker\"")
            }
            Action::Grow { topic: Hop::Dest, .. } | Action::Poison { topic: Hop::Dest, .. } if mode == Mode::Hybrid => {
                no_place("whose pairs have no topic between them", "topic = \"source\"")
            }
            Action::Crash { node: Node::Publisher, .. } | Action::Stop { node: Node::Publisher, .. } => {
                Err(PlanError::NeverStrikes { index, reason: "the publisher is the run; pause it, or cut its link" })
            }
            _ => Ok(()),
        }
    }

    fn has_node(&self, node: Node) -> bool {
        let with_joins = |count: u32, role| count.saturating_add(self.joins(role));
        match (self.topology.mode, node) {
            (Mode::Local, Node::Process) | (Mode::Distributed | Mode::Hybrid, Node::Publisher) => true,
            (Mode::Hybrid, Node::Pair(number)) => number < with_joins(self.topology.pairs, Role::Pair),
            (Mode::Distributed, Node::Worker(number)) => number < with_joins(self.topology.workers, Role::Worker),
            (Mode::Distributed, Node::Indexer(number)) => number < with_joins(self.topology.indexers, Role::Indexer),
            _ => false,
        }
    }

    /// The nodes that there are, in words.
    fn nodes(&self) -> String {
        match self.topology.mode {
            Mode::Local => "process".to_owned(),
            Mode::Distributed => format!(
                "publisher, worker-0 to {}, indexer-0 to {}",
                self.topology.workers + self.joins(Role::Worker) - 1,
                self.topology.indexers + self.joins(Role::Indexer) - 1
            ),
            Mode::Hybrid => format!("publisher, pair-0 to {}", self.topology.pairs + self.joins(Role::Pair) - 1),
        }
    }

    /// A process that comes back with its clock behind cannot outrank what its earlier life wrote: nobody told it.
    fn clock_of_a_process(&self) -> Result<(), PlanError> {
        let crashes = self.faults.iter().any(|fault| matches!(fault.action, Action::Crash { .. }));
        let clocks = self.faults.iter().filter_map(|fault| match fault.action {
            Action::Clock { ahead_micros, drift_ppm, .. } => Some((ahead_micros, drift_ppm)),
            _ => None,
        });
        let clocks: Vec<_> = clocks.collect();
        let goes_back = clocks.len() > 1 || clocks.iter().any(|(ahead, drift)| *ahead < 0 || *drift < 0);
        if self.topology.mode != Mode::Local || !crashes || !goes_back || !self.pipeline.versions {
            return Ok(());
        }
        Err(PlanError::Contradiction {
            place: "faults",
            reason:
                "a process that is killed and comes back with its clock behind cannot outrank what it wrote before; \
                     give one clock that goes forward, or no crash"
                    .to_owned(),
        })
    }
}

impl Fault {
    fn validate(&self, index: usize) -> Result<(), PlanError> {
        let never = |reason| Err(PlanError::NeverStrikes { index, reason });
        if let Trigger::Nth { n: 0, .. } = self.trigger {
            return never("occurrences are counted from 1, so n must be 1 or more");
        }
        let window = |micros: u64| {
            let reason = "a longer window only waits";
            range("faults.action.for_micros", micros, (1, WINDOW_MAX), reason)
        };
        match self.action {
            Action::Index { permille: 0, .. } | Action::Index { for_micros: 0, .. } => {
                never("give permille and for_micros of 1 or more")
            }
            Action::Index { permille, .. } => {
                range("faults.action.permille", permille, (1, 1_000), "it counts out of a thousand")
            }
            Action::CutLink { out: false, into: false, .. } => {
                never("it cuts nothing; give out = true, into = true or both")
            }
            Action::CutLink { for_micros, .. } => window(for_micros),
            Action::SlowLink { extra_micros: 0, .. } | Action::SlowEvents { extra_micros: 0, .. } => {
                never("give extra_micros of 1 or more")
            }
            Action::SlowLink { extra_micros, for_micros, .. } | Action::SlowEvents { extra_micros, for_micros } => {
                window(for_micros)?;
                range("faults.action.extra_micros", extra_micros, (1, 60_000_000), "nothing would arrive in the run")
            }
            Action::LoseAnswers { count: 0, .. } => never("give count of 1 or more"),
            Action::LoseAnswers { count, .. } => {
                range("faults.action.count", count, (1, 10_000), "after so many nothing gets through")
            }
            Action::Poison { count: 0, .. } => never("give count of 1 or more"),
            Action::Poison { count, .. } => range("faults.action.count", count, (1, 10_000), "they are all kept"),
            Action::Grow { add: 0, .. } => never("give add of 1 or more"),
            Action::Clock { ahead_micros, drift_ppm, .. } => {
                let reason = "versions of publishers end in the year 2112";
                range("faults.action.ahead_micros", ahead_micros.unsigned_abs(), (0, CLOCK_MAX), reason)?;
                range("faults.action.drift_ppm", drift_ppm.unsigned_abs(), (0, 1_000_000), "no clock is that bad")
            }
            _ => Ok(()),
        }
    }
}

/// Farthest that a clock jumps: forty years.
const CLOCK_MAX: u64 = 40 * 365 * 86_400 * 1_000_000;
