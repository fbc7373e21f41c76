//! A run as a value: what is built, what flows through it, and what goes wrong.
//!
//! Only plans are run. A seed draws one ([`crate::draw`]), a file holds one (TOML), and the same plan gives the
//! same run. A plan is checked whole before anything starts; a bad one names the place and what to write instead.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fault::{Action, Fault, Node, Role, Trigger};
use crate::workload::Generated;

/// Where the pipeline's parts run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process with queues in memory.
    Local,
    /// Publisher, workers and indexers apart, with Kafka at both hops.
    Distributed,
}

impl Mode {
    /// The name in scenarios and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Local => "local",
            Mode::Distributed => "distributed",
        }
    }
}

/// How many of what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Where the parts run.
    pub mode: Mode,
    /// Workers: nodes in distributed mode, tasks of the one process in local mode.
    pub workers: u32,
    /// Indexers at the start.
    pub indexers: u32,
    /// Partitions of the source topic. Local mode has no topics.
    pub source_partitions: u32,
    /// Partitions of the destination topic. Local mode has no topics.
    pub dest_partitions: u32,
}

/// Seeds of what is drawn while the plan runs, so that shrinking can vary one and keep the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seeds {
    /// Of generated operations.
    #[serde(with = "decimal")]
    pub workload: u64,
    /// Of the order of tasks.
    #[serde(with = "decimal")]
    pub schedule: u64,
    /// Of latencies.
    #[serde(with = "decimal")]
    pub network: u64,
    /// Of the index's coins.
    #[serde(with = "decimal")]
    pub index: u64,
}

/// What flows through.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Workload {
    /// Operations drawn from `seeds.workload`.
    Generated(Generated),
    /// The history of ripgrep's files, 5,397 operations that come with the program.
    Ripgrep,
    /// A JSONL file.
    File(PathBuf),
}

/// A pause of the publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublisherPause {
    /// After so many published records.
    pub after_records: u64,
    /// For how long.
    pub for_micros: u64,
}

/// Limits and switches of the pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knobs {
    /// Most published and unfinished records.
    pub max_pending: u32,
    /// Most records that a worker or an indexer holds at a time.
    pub max_in_flight: u32,
    /// Most records of one poll.
    pub poll_max: u32,
    /// Most operations of one index request.
    pub batch_size: u32,
    /// Longest that an operation waits for its batch.
    pub batch_age_micros: u64,
    /// Lanes of a worker, among which its ids are spread.
    pub lanes: u32,
    /// Kafka's `session.timeout.ms`.
    pub session_timeout_ms: u64,
    /// Kafka's `heartbeat.interval.ms`.
    pub heartbeat_ms: u64,
    /// Kafka's `max.poll.interval.ms`.
    pub poll_limit_ms: u64,
    /// Whether index writes carry versions.
    pub versions: bool,
    /// Whether a revocation waits for what is under way.
    pub drain: bool,
}

/// A run, whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the scenario that it was drawn for.
    pub scenario: String,
    /// The seed that it was drawn from.
    #[serde(with = "decimal")]
    pub seed: u64,
    /// Seeds of the run's own draws.
    pub seeds: Seeds,
    /// How many of what.
    pub topology: Topology,
    /// What flows through.
    pub workload: Workload,
    /// Limits and switches.
    pub pipeline: Knobs,
    /// Pauses of the publisher, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<PublisherPause>,
    /// What goes wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// A plan that cannot be run, or a text that is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A value out of its range.
    #[error("{place} is {value}: {reason}; give {low} to {high}")]
    Range {
        /// Path of the value in the plan.
        place: &'static str,
        /// What was given.
        value: u64,
        /// Why it cannot be.
        reason: &'static str,
        /// Lowest that can.
        low: u64,
        /// Highest that can.
        high: u64,
    },
    /// A fault that names a node which never exists in this plan.
    #[error("faults[{index}] names {node}, which this plan never starts: it has {known}")]
    UnknownNode {
        /// Number of the fault, from 0.
        index: usize,
        /// The node.
        node: Node,
        /// Those that there are.
        known: String,
    },
    /// A fault that the mode has no room for.
    #[error(
        "faults[{index}] ({action}) has no meaning in local mode, which is one process: use mode = \"distributed\""
    )]
    NotLocal {
        /// Number of the fault, from 0.
        index: usize,
        /// What it would do.
        action: String,
    },
    /// A fault that never strikes.
    #[error("faults[{index}] can never strike: {reason}")]
    NeverStrikes {
        /// Number of the fault, from 0.
        index: usize,
        /// Why.
        reason: &'static str,
    },
    /// Two values that contradict each other.
    #[error("{place}: {reason}")]
    Contradiction {
        /// Path of the value in the plan.
        place: &'static str,
        /// What is wrong and what to write.
        reason: String,
    },
    /// Text that is no plan.
    #[error("not a plan: {0}")]
    Toml(String),
}

impl Plan {
    /// The plan as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a plan holds nothing that TOML cannot")
    }

    /// Reads and checks a plan.
    pub fn from_toml(text: &str) -> Result<Plan, PlanError> {
        let plan: Plan = toml::from_str(text).map_err(|error| PlanError::Toml(error.to_string()))?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks everything that can be known before the run.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.topology.validate()?;
        self.pipeline.validate()?;
        if let Workload::Generated(generated) = &self.workload {
            generated.validate()?;
        }
        let workers = self.topology.workers + self.joins(Role::Worker);
        let indexers = self.topology.indexers + self.joins(Role::Indexer);
        for (index, fault) in self.faults.iter().enumerate() {
            fault.validate(index)?;
            let node = match fault.action {
                Action::Crash { node, .. } | Action::Stop { node, .. } | Action::Pause { node, .. } => node,
                Action::Index { .. } => continue,
                Action::Join { .. } if self.topology.mode == Mode::Local => {
                    return Err(PlanError::NotLocal { index, action: fault.action.to_string() });
                }
                Action::Join { .. } => continue,
            };
            let known = match (self.topology.mode, node) {
                (Mode::Local, Node::Process) => true,
                (Mode::Distributed, Node::Worker(number)) => number < workers,
                (Mode::Distributed, Node::Indexer(number)) => number < indexers,
                _ => false,
            };
            if !known {
                let known = match self.topology.mode {
                    Mode::Local => "process".to_owned(),
                    Mode::Distributed => format!("worker-0 to {}, indexer-0 to {}", workers - 1, indexers - 1),
                };
                return Err(PlanError::UnknownNode { index, node, known });
            }
        }
        Ok(())
    }

    /// How many nodes of a role join during the run.
    pub fn joins(&self, role: Role) -> u32 {
        self.faults.iter().filter(|fault| fault.action == Action::Join { role }).count() as u32
    }
}

impl Fault {
    fn validate(&self, index: usize) -> Result<(), PlanError> {
        match (self.trigger, self.action) {
            (Trigger::Nth { n: 0, .. }, _) => {
                Err(PlanError::NeverStrikes { index, reason: "occurrences are counted from 1, so n must be 1 or more" })
            }
            (_, Action::Index { permille, for_micros, .. }) if permille == 0 || for_micros == 0 => {
                Err(PlanError::NeverStrikes { index, reason: "give permille and for_micros of 1 or more" })
            }
            (_, Action::Index { permille, .. }) if permille > 1_000 => Err(PlanError::Range {
                place: "faults.action.permille",
                value: u64::from(permille),
                reason: "it counts out of a thousand",
                low: 1,
                high: 1_000,
            }),
            _ => Ok(()),
        }
    }
}

/// Refuses a value outside `low..=high`.
pub(crate) fn range(
    place: &'static str,
    value: impl Into<u64>,
    (low, high): (u64, u64),
    reason: &'static str,
) -> Result<(), PlanError> {
    let value = value.into();
    if (low..=high).contains(&value) { Ok(()) } else { Err(PlanError::Range { place, value, reason, low, high }) }
}

impl Topology {
    /// Most workers, and most indexers: a simulated run with more says nothing new and takes for ever.
    const NODES_MAX: u64 = 64;
    /// Most partitions of a topic.
    const PARTITIONS_MAX: u64 = 1_024;

    fn validate(&self) -> Result<(), PlanError> {
        let nodes = (1, Self::NODES_MAX);
        let partitions = (1, Self::PARTITIONS_MAX);
        range("topology.workers", self.workers, nodes, "documents are processed by workers")?;
        range("topology.indexers", self.indexers, nodes, "documents reach the index through indexers")?;
        range(
            "topology.source_partitions",
            self.source_partitions,
            partitions,
            "a topic keeps its records in partitions",
        )?;
        range("topology.dest_partitions", self.dest_partitions, partitions, "a topic keeps its records in partitions")
    }
}

impl Knobs {
    fn validate(&self) -> Result<(), PlanError> {
        let any = (1, 1_000_000);
        let full = "with no room nothing would move";
        range("pipeline.max_pending", self.max_pending, any, full)?;
        range("pipeline.max_in_flight", self.max_in_flight, any, full)?;
        range("pipeline.poll_max", self.poll_max, any, full)?;
        range("pipeline.batch_size", self.batch_size, any, full)?;
        range("pipeline.lanes", self.lanes, (1, 64), "documents are processed in lanes")?;
        let times = (1, 3_600_000);
        range("pipeline.heartbeat_ms", self.heartbeat_ms, times, "a member must beat before it is evicted")?;
        range("pipeline.session_timeout_ms", self.session_timeout_ms, times, "a member needs time to beat")?;
        range("pipeline.poll_limit_ms", self.poll_limit_ms, times, "a consumer needs time between polls")?;
        if self.heartbeat_ms >= self.session_timeout_ms {
            return Err(PlanError::Contradiction {
                place: "pipeline.heartbeat_ms",
                reason: format!(
                    "{} is not below session_timeout_ms ({}), so every member would be evicted; give a third of it",
                    self.heartbeat_ms, self.session_timeout_ms
                ),
            });
        }
        Ok(())
    }
}

/// TOML's integers end at 2^63, seeds do not: they are written as decimal strings.
mod decimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|_| serde::de::Error::custom(format!("`{text}` is not a seed: write a whole number in quotes")))
    }
}
