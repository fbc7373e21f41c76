//! A run as a value: what is built, what flows through it, and what goes wrong.
//!
//! Only plans are run. A seed draws one ([`crate::draw`]), a file holds one (TOML), and the same plan gives the
//! same run. A plan is checked whole before anything starts; a bad one names the place and what to write instead.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fault::{Action, Fault, Hop, Role};
use crate::workload::Generated;

mod check;
mod error;
mod knobs;

pub use error::PlanError;
pub(crate) use error::range;
pub use knobs::{Assignment, Clients, Knobs, Placement};

/// Where the pipeline's parts run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process with queues in memory.
    Local,
    /// Publisher, workers and indexers apart, with Kafka at both hops.
    Distributed,
    /// The publisher apart; workers and indexers paired, with Kafka before them and memory between.
    Hybrid,
}

impl Mode {
    /// All, in the order in which scenarios are listed.
    pub const ALL: [Mode; 3] = [Mode::Local, Mode::Distributed, Mode::Hybrid];

    /// The name in scenarios and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Local => "local",
            Mode::Distributed => "distributed",
            Mode::Hybrid => "hybrid",
        }
    }
}

/// How many of what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Where the parts run.
    pub mode: Mode,
    /// Workers: nodes in distributed mode, tasks of the one process in local mode, tasks of each pair in hybrid mode.
    pub workers: u32,
    /// Indexers, likewise.
    pub indexers: u32,
    /// Nodes with pairs, in hybrid mode.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pairs: u32,
    /// Pairs of each such node. Each is a member of the group.
    #[serde(default, skip_serializing_if = "is_none")]
    pub pairs_per_node: u32,
    /// Partitions of the source topic. Local mode has no topics.
    pub source_partitions: u32,
    /// Partitions of the destination topic, which only distributed mode has.
    pub dest_partitions: u32,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// The Kafka cluster. What a plan leaves out is one broker that hears of everything at once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Brokers {
    /// How many.
    pub count: u32,
    /// How long after a topic or a partition was made the last of them hears of it.
    pub metadata_lag_ms: u32,
}

impl Default for Brokers {
    fn default() -> Self {
        Brokers { count: 1, metadata_lag_ms: 0 }
    }
}

impl Brokers {
    fn is_default(&self) -> bool {
        *self == Brokers::default()
    }

    fn validate(&self) -> Result<(), PlanError> {
        range("brokers.count", self.count, (1, 16), "partitions need leaders, and more of them say nothing new")?;
        range("brokers.metadata_lag_ms", self.metadata_lag_ms, (0, 3_000), "clients give a topic up in the end")
    }
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
    /// The Kafka cluster.
    #[serde(default, skip_serializing_if = "Brokers::is_default")]
    pub brokers: Brokers,
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

    /// Whether documents name the index that they live in. A file's `index` is a field like any other.
    pub fn has_indexes(&self) -> bool {
        matches!(&self.workload, Workload::Generated(generated) if generated.indexes > 0)
    }

    /// How many partitions a topic gets during the run.
    pub fn growth(&self, of: Hop) -> u32 {
        let added = self.faults.iter().map(|fault| match fault.action {
            Action::Grow { topic, add } if topic == of => add,
            _ => 0,
        });
        added.fold(0, u32::saturating_add)
    }

    /// How many nodes of a role join during the run.
    pub fn joins(&self, role: Role) -> u32 {
        self.faults.iter().filter(|fault| fault.action == Action::Join { role }).count() as u32
    }
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
        if self.mode == Mode::Hybrid {
            range("topology.pairs", self.pairs, nodes, "hybrid mode needs nodes with pairs")?;
            range("topology.pairs_per_node", self.pairs_per_node, nodes, "a node without a pair does nothing")?;
        }
        range(
            "topology.source_partitions",
            self.source_partitions,
            partitions,
            "a topic keeps its records in partitions",
        )?;
        range("topology.dest_partitions", self.dest_partitions, partitions, "a topic keeps its records in partitions")
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
