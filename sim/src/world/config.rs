//! What a run is given, and what it gives.

use std::time::Duration;

use seriatim_core::env::Instant;

use crate::cluster::ClusterConfig;
use crate::history::{Keep, Recorder};
use crate::trace::{TraceLine, TraceMode};

/// How a world is set up.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The seed of the latencies, where it is not that of the run.
    pub network_seed: Option<u64>,
    /// Least time of one way between a process and a server, microseconds.
    pub latency_min_micros: u64,
    /// Most time of one way.
    pub latency_max_micros: u64,
    /// The cluster.
    pub cluster: ClusterConfig,
    /// How long a client waits for an answer before it gives the request up (`request.timeout.ms`).
    pub request_timeout: Duration,
    /// Pause before a client tries a request again (`retry.backoff.ms`).
    pub retry_backoff: Duration,
    /// Age at which clients refresh their metadata and notice new partitions (`topic.metadata.refresh.interval.ms`).
    pub metadata_max_age: Duration,
    /// How long the broker may hold an empty fetch (`fetch.wait.max.ms`).
    pub fetch_wait: Duration,
    /// How long the index remembers deletes.
    pub tombstone_retention: Duration,
    /// How much of the trace is kept.
    pub trace: TraceMode,
    /// How much of the history is kept.
    pub history: Keep,
    /// Virtual time after which a run that has not ended fails.
    pub time_limit: Duration,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
            network_seed: None,
            latency_min_micros: 200,
            latency_max_micros: 2_000,
            cluster: ClusterConfig::default(),
            request_timeout: Duration::from_secs(10),
            retry_backoff: Duration::from_millis(100),
            metadata_max_age: Duration::from_secs(300),
            fetch_wait: Duration::from_millis(500),
            tombstone_retention: Duration::from_secs(24 * 3600),
            trace: TraceMode::Ring(200),
            history: Keep::Events,
            time_limit: Duration::from_secs(24 * 3600),
        }
    }
}

/// A run that did not come to its end: a panic anywhere in it, or the time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: the run failed: {message}")]
pub struct RunFailure {
    /// The seed.
    pub seed: u64,
    /// The panic's place and message, or what was waited for.
    pub message: String,
}

/// What a run gave.
#[derive(Debug)]
pub struct RunOutcome<T> {
    /// The seed.
    pub seed: u64,
    /// What the closure returned.
    pub result: Result<T, RunFailure>,
    /// Hash over the whole trace: equal for equal runs.
    pub hash: u64,
    /// Events traced, kept or not.
    pub events: u64,
    /// The trace, as far as it was kept.
    pub trace: Vec<TraceLine>,
    /// The history.
    pub recorder: Option<Recorder>,
    /// Virtual time at the end.
    pub ended_at: Instant,
}

impl<T> RunOutcome<T> {
    /// What the closure returned.
    ///
    /// # Panics
    /// When the run failed, with its seed and the end of its trace.
    pub fn unwrap(self) -> T {
        match self.result {
            Ok(value) => value,
            Err(failure) => {
                let tail = self.trace.iter().rev().take(40).rev();
                let tail: String = tail.map(|line| format!("  {line}\n")).collect();
                panic!("{failure}\nthe trace ends with:\n{tail}");
            }
        }
    }
}
