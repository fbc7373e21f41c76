//! Limits and switches of the pipeline and of its Kafka clients.

use serde::{Deserialize, Serialize};
use seriatim_core::partitioner::Partitioner;
use seriatim_core::transport::Assignor;

use super::{PlanError, range};

/// A strategy by which partitions are given to members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Assignment {
    /// Contiguous partitions.
    #[serde(rename = "range")]
    Range,
    /// All partitions in turn.
    #[serde(rename = "roundrobin")]
    RoundRobin,
    /// Balanced, and as before where it can be.
    #[serde(rename = "sticky")]
    Sticky,
    /// The same, and nothing is given up that stays.
    #[serde(rename = "cooperative-sticky")]
    CooperativeSticky,
}

impl From<Assignment> for Assignor {
    fn from(assignment: Assignment) -> Self {
        match assignment {
            Assignment::Range => Assignor::Range,
            Assignment::RoundRobin => Assignor::RoundRobin,
            Assignment::Sticky => Assignor::Sticky,
            Assignment::CooperativeSticky => Assignor::CooperativeSticky,
        }
    }
}

/// Where producers put records that name no partition: the dead letters. The hops' records name theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// By murmur2 of the key, as Java producers do.
    #[default]
    Murmur2Random,
    /// By CRC-32 of the key, librdkafka's default.
    ConsistentRandom,
}

impl From<Placement> for Partitioner {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Murmur2Random => Partitioner::Murmur2Random,
            Placement::ConsistentRandom => Partitioner::ConsistentRandom,
        }
    }
}

fn is_usual(placement: &Placement) -> bool {
    *placement == Placement::default()
}

/// How Kafka clients are set up. What a plan leaves out is as the pipeline has it by default.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clients {
    /// How long a record may wait for company.
    pub linger_micros: u64,
    /// Records that a producer may hold; then its callers wait.
    pub queue_records_max: u32,
    /// Where the producers put what names no partition, the same for all of them.
    #[serde(skip_serializing_if = "is_usual")]
    pub partitioner: Placement,
    /// Age at which producers look for new partitions.
    pub producer_metadata_ms: u64,
    /// Age at which consumers look for new partitions.
    pub consumer_metadata_ms: u64,
    /// What the members of a group support, the preferred first. The members take the lists in turn, by their number;
    /// some strategy is in all of them.
    pub assignors: Vec<Vec<Assignment>>,
    /// Whether members are static: those that come back within their session keep their partitions.
    pub static_members: bool,
}

impl Default for Clients {
    fn default() -> Self {
        Clients {
            linger_micros: 1_000,
            queue_records_max: 100_000,
            partitioner: Placement::default(),
            producer_metadata_ms: 300_000,
            consumer_metadata_ms: 300_000,
            assignors: vec![vec![Assignment::Range, Assignment::RoundRobin]],
            static_members: false,
        }
    }
}

impl Clients {
    /// What the member of that number supports.
    pub fn assignors_of(&self, number: u32) -> Vec<Assignor> {
        let list = self.assignors.get(number as usize % self.assignors.len().max(1));
        list.into_iter().flatten().map(|one| Assignor::from(*one)).collect()
    }

    fn validate(&self) -> Result<(), PlanError> {
        let ages = (1, 3_600_000);
        let aged = "a client asks the cluster again at that age";
        range("pipeline.clients.linger_micros", self.linger_micros, (0, 10_000_000), "records wait for company")?;
        range(
            "pipeline.clients.queue_records_max",
            self.queue_records_max,
            (1, 1_000_000),
            "with no room nothing moves",
        )?;
        range("pipeline.clients.producer_metadata_ms", self.producer_metadata_ms, ages, aged)?;
        range("pipeline.clients.consumer_metadata_ms", self.consumer_metadata_ms, ages, aged)?;
        let mut lists = self.assignors.iter();
        let common =
            |first: &Vec<Assignment>| first.iter().any(|one| self.assignors.iter().all(|list| list.contains(one)));
        if lists.next().is_some_and(common) {
            return Ok(());
        }
        Err(PlanError::Contradiction {
            place: "pipeline.clients.assignors",
            reason: "no strategy is in every list, so the members could not form a group; give each list \"range\""
                .to_owned(),
        })
    }
}

const PROCESSING_LIMIT_MS: u64 = 600_000;

fn processing_limit() -> u64 {
    PROCESSING_LIMIT_MS
}

fn is_processing_limit(limit: &u64) -> bool {
    *limit == PROCESSING_LIMIT_MS
}

fn is_default(clients: &Clients) -> bool {
    *clients == Clients::default()
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
    /// Kafka's `session.timeout.ms`.
    pub session_timeout_ms: u64,
    /// Kafka's `heartbeat.interval.ms`.
    pub heartbeat_ms: u64,
    /// Kafka's `max.poll.interval.ms`.
    pub poll_limit_ms: u64,
    /// Time without progress after which a consumer stops polling, so that its group takes the partitions away.
    #[serde(default = "processing_limit", skip_serializing_if = "is_processing_limit")]
    pub processing_limit_ms: u64,
    /// How the Kafka clients are set up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clients: Clients,
    /// Whether index writes carry versions.
    pub versions: bool,
    /// Whether a revocation waits for what is under way.
    pub drain: bool,
}

impl Knobs {
    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        let any = (1, 1_000_000);
        let full = "with no room nothing would move";
        range("pipeline.max_pending", self.max_pending, any, full)?;
        range("pipeline.max_in_flight", self.max_in_flight, any, full)?;
        range("pipeline.poll_max", self.poll_max, any, full)?;
        range("pipeline.batch_size", self.batch_size, any, full)?;
        let times = (1, 3_600_000);
        range("pipeline.heartbeat_ms", self.heartbeat_ms, times, "a member must beat before it is evicted")?;
        range("pipeline.session_timeout_ms", self.session_timeout_ms, times, "a member needs time to beat")?;
        range("pipeline.poll_limit_ms", self.poll_limit_ms, times, "a consumer needs time between polls")?;
        range("pipeline.processing_limit_ms", self.processing_limit_ms, times, "a stage needs time")?;
        if self.heartbeat_ms >= self.session_timeout_ms {
            return Err(PlanError::Contradiction {
                place: "pipeline.heartbeat_ms",
                reason: format!(
                    "{} is not below session_timeout_ms ({}), so every member would be evicted; give a third of it",
                    self.heartbeat_ms, self.session_timeout_ms
                ),
            });
        }
        self.clients.validate()
    }
}
