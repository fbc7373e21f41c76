//! From the knobs of a plan to the settings of core's components, the same for a simulated process and a real one.

use std::time::Duration;

use seriatim_core::indexer::{DeletionMarker, IndexerConfig};
use seriatim_core::machines::batcher::BatchLimits;
use seriatim_core::machines::custody::CustodyConfig;
use seriatim_core::machines::ledger::Tally;
use seriatim_core::messenger::hybrid::HybridConfig;
use seriatim_core::messenger::kafka::KafkaConfig;
use seriatim_core::publisher::PublisherConfig;
use seriatim_core::runner::ConnectorSummary;
use seriatim_core::worker::WorkerConfig;
use seriatim_sim::history::RunSummary;

use crate::plan::Knobs;
use crate::workload::{OpKind, marks};

/// A member of a consumer group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its name, and its static identity where members have one.
    pub(crate) id: String,
    /// Its number among the members.
    pub(crate) number: u32,
}

/// The clients of a process of `pipeline`; of a member of a group, when it is one.
pub(crate) fn kafka_config(pipeline: &str, knobs: &Knobs, member: Option<&Member>) -> KafkaConfig {
    let clients = &knobs.clients;
    let mut config = KafkaConfig::new(pipeline);
    config.producer.linger = Duration::from_micros(clients.linger_micros);
    config.producer.partitioner = clients.partitioner.into();
    config.producer.queue_records_max = clients.queue_records_max as usize;
    config.producer.metadata_max_age = Some(Duration::from_millis(clients.producer_metadata_ms));
    for intake in [&mut config.worker, &mut config.indexer] {
        intake.group.session_timeout = Duration::from_millis(knobs.session_timeout_ms);
        intake.group.heartbeat_interval = Duration::from_millis(knobs.heartbeat_ms);
        intake.group.poll_limit = Duration::from_millis(knobs.poll_limit_ms);
        intake.group.assignors = clients.assignors_of(member.map_or(0, |member| member.number));
        intake.group.client_id = member.map_or_else(|| pipeline.to_owned(), |member| member.id.clone());
        intake.group.instance_id = member.filter(|_| clients.static_members).map(|member| member.id.clone());
        intake.group.metadata_max_age = Some(Duration::from_millis(clients.consumer_metadata_ms));
        intake.processing_limit = Duration::from_millis(knobs.processing_limit_ms);
        intake.custody = CustodyConfig { records_max: knobs.max_in_flight as usize, ..CustodyConfig::default() };
        intake.poll_records_max = knobs.poll_max as usize;
    }
    config
}

/// A pair with so many workers and indexers.
pub(crate) fn hybrid_config(
    pipeline: &str,
    knobs: &Knobs,
    kafka: KafkaConfig,
    (workers, indexers): (usize, usize),
) -> HybridConfig {
    let lane_records_max = knobs.max_in_flight as usize;
    HybridConfig { kafka, workers, indexers, lane_records_max, ..HybridConfig::new(pipeline) }
}

pub(crate) fn worker_config(knobs: &Knobs) -> WorkerConfig {
    WorkerConfig { poll_records_max: knobs.poll_max as usize, ..WorkerConfig::default() }
}

/// An indexer; of documents that name their index, when they do.
pub(crate) fn indexer_config(knobs: &Knobs, has_indexes: bool) -> IndexerConfig {
    IndexerConfig {
        batch: BatchLimits {
            items_max: knobs.batch_size as usize,
            age_max: Duration::from_micros(knobs.batch_age_micros),
            ..IndexerConfig::default().batch
        },
        index_override: has_indexes.then(|| marks::INDEX.into()),
        versions: knobs.versions,
        deletion: Some(DeletionMarker { field: marks::OP.into(), value: OpKind::Delete.name().into() }),
        poll_records_max: knobs.poll_max as usize,
        ..IndexerConfig::default()
    }
}

pub(crate) fn publisher_config(knobs: &Knobs) -> PublisherConfig {
    PublisherConfig { pending_records_max: u64::from(knobs.max_pending), ..PublisherConfig::default() }
}

/// What a publisher counted, as a history has it.
pub(crate) fn run_summary(summary: &ConnectorSummary) -> RunSummary {
    let counts = &summary.counts;
    let sum = |of: fn(&Tally) -> u64| of(&counts.parents) + of(&counts.children);
    RunSummary {
        published: counts.published,
        children: counts.children.total(),
        indexed: sum(|tally| tally.indexed),
        superseded: sum(|tally| tally.superseded),
        dropped: sum(|tally| tally.dropped),
        failed: sum(|tally| tally.failed),
        ambiguous: counts.ambiguous_families,
        conflicts: counts.conflicts,
    }
}
