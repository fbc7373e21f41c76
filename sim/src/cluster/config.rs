//! How a cluster is set up: Kafka's broker settings, with Kafka's defaults.

use std::time::Duration;

/// Settings of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Number of brokers, from 0. At least one.
    pub brokers: u32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members.
    pub initial_rebalance_delay: Duration,
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max: Duration,
    /// How long a new member may wait for its first join before it expires.
    pub new_member_timeout: Duration,
    /// `offsets.retention.minutes`: how long an empty group keeps its offsets.
    pub offsets_retention: Duration,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_check_interval: Duration,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max: usize,
    /// `message.max.bytes`: the largest batch.
    pub message_max_bytes: usize,
    /// How long after a topic or a partition was made the last broker hears of it. Each hears at a time of its own
    /// within that, and answers until then as if it did not exist.
    pub metadata_lag: Duration,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            brokers: 1,
            initial_rebalance_delay: Duration::from_secs(3),
            session_timeout_min: Duration::from_secs(6),
            session_timeout_max: Duration::from_secs(30 * 60),
            new_member_timeout: Duration::from_secs(5 * 60),
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            offsets_check_interval: Duration::from_secs(600),
            offset_metadata_max: 4096,
            message_max_bytes: 1_048_588,
            metadata_lag: Duration::ZERO,
        }
    }
}
