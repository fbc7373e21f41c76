//! Faults as values: when, and what.
//!
//! A plan holds a list of them, so that a failing run can be written down, read and shrunk. Nothing here injects
//! anything; the driver does, and it alone knows whether a fault hit work in flight.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of the system that can fail as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Node {
    /// The only process of local mode.
    Process,
    /// A worker of distributed mode, numbered from 0; joiners continue the numbers.
    Worker(u32),
    /// An indexer of distributed mode, numbered from 0; joiners continue the numbers.
    Indexer(u32),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Process => f.write_str("process"),
            Node::Worker(number) => write!(f, "worker-{number}"),
            Node::Indexer(number) => write!(f, "indexer-{number}"),
        }
    }
}

/// A name that is no node's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no node: write `process` (local mode), `worker-N` or `indexer-N`")]
pub struct UnknownNode(String);

impl FromStr for Node {
    type Err = UnknownNode;

    fn from_str(text: &str) -> Result<Self, UnknownNode> {
        let unknown = || UnknownNode(text.to_owned());
        match text.split_once('-') {
            None if text == "process" => Ok(Node::Process),
            Some(("worker", number)) => number.parse().map(Node::Worker).map_err(|_| unknown()),
            Some(("indexer", number)) => number.parse().map(Node::Indexer).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl Serialize for Node {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a joining node is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// One more worker.
    Worker,
    /// One more indexer.
    Indexer,
}

/// Something that happens in a run and can be counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A publish was acknowledged.
    Published,
    /// A worker took a record.
    Taken,
    /// A worker's output was acknowledged.
    Produced,
    /// An index request was sent.
    IndexRequest,
    /// A commit was sent.
    Commit,
    /// A consumer was asked to release partitions.
    Revoking,
    /// A consumer was given partitions.
    Assigned,
}

/// When a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Trigger {
    /// So many microseconds after the run's start.
    At(u64),
    /// As soon as so many published records are unfinished, but not before `after_micros`.
    InFlight {
        /// Unfinished records.
        at_least: u64,
        /// Earliest time, microseconds after the run's start.
        after_micros: u64,
    },
    /// At the `n`-th occurrence of `event`, counted from 1.
    Nth {
        /// What is counted.
        event: Event,
        /// Which occurrence.
        n: u64,
    },
}

/// What the search index does to a request during a troubled window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Answers that it is busy.
    Throttle,
    /// Does not answer, and has applied nothing.
    TimeoutBefore,
    /// Does not answer, though it has applied everything.
    TimeoutAfter,
}

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Kills a node without any goodbye. Without `restart_after_micros` it comes back when the run heals.
    Crash {
        /// Which.
        node: Node,
        /// Microseconds until it starts again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_after_micros: Option<u64>,
    },
    /// Ends a node in order: it drains, commits and leaves. Without `restart_after_micros` it comes back when the run
    /// heals.
    Stop {
        /// Which.
        node: Node,
        /// Microseconds until it starts again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_after_micros: Option<u64>,
    },
    /// Starts one more node.
    Join {
        /// Of which sort.
        role: Role,
    },
    /// Stops a whole node for a time, as SIGSTOP does; long enough, its group evicts it.
    Pause {
        /// Which.
        node: Node,
        /// For how long.
        for_micros: u64,
    },
    /// Opens a window in which the search index misbehaves.
    Index {
        /// How.
        trouble: Trouble,
        /// In how many of a thousand requests.
        permille: u32,
        /// For how long.
        for_micros: u64,
    },
}

/// One fault of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When.
    pub trigger: Trigger,
    /// What.
    pub action: Action,
}

/// The kinds that campaigns count. A kind that a scenario promises must hit work in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A node was killed.
    Crash,
    /// A node was stopped in order.
    Stop,
    /// A node joined.
    Join,
    /// A node was paused.
    Pause,
    /// The index refused an item for good. Comes from the workload, since a refusal must be the same every time.
    IndexReject,
    /// The index was busy.
    IndexThrottle,
    /// The index did not answer and had applied nothing.
    IndexTimeoutBefore,
    /// The index did not answer and had applied everything.
    IndexTimeoutAfter,
}

impl FaultKind {
    /// The name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Crash => "crash",
            FaultKind::Stop => "stop",
            FaultKind::Join => "join",
            FaultKind::Pause => "pause",
            FaultKind::IndexReject => "index-reject",
            FaultKind::IndexThrottle => "index-throttle",
            FaultKind::IndexTimeoutBefore => "index-timeout-before",
            FaultKind::IndexTimeoutAfter => "index-timeout-after",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Action {
    /// The kind that campaigns count it under.
    pub const fn kind(&self) -> FaultKind {
        match self {
            Action::Crash { .. } => FaultKind::Crash,
            Action::Stop { .. } => FaultKind::Stop,
            Action::Join { .. } => FaultKind::Join,
            Action::Pause { .. } => FaultKind::Pause,
            Action::Index { trouble: Trouble::Throttle, .. } => FaultKind::IndexThrottle,
            Action::Index { trouble: Trouble::TimeoutBefore, .. } => FaultKind::IndexTimeoutBefore,
            Action::Index { trouble: Trouble::TimeoutAfter, .. } => FaultKind::IndexTimeoutAfter,
        }
    }
}

fn seconds(micros: u64) -> String {
    format!("{}.{:03}s", micros / 1_000_000, micros % 1_000_000 / 1_000)
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::At(micros) => write!(f, "at {}", seconds(*micros)),
            Trigger::InFlight { at_least, after_micros: 0 } => write!(f, "when {at_least} records are in flight"),
            Trigger::InFlight { at_least, after_micros } => {
                write!(f, "when {at_least} records are in flight after {}", seconds(*after_micros))
            }
            Trigger::Nth { event, n } => {
                let event = match event {
                    Event::Published => "publish",
                    Event::Taken => "record taken by a worker",
                    Event::Produced => "output of a worker",
                    Event::IndexRequest => "index request",
                    Event::Commit => "commit",
                    Event::Revoking => "revocation",
                    Event::Assigned => "assignment",
                };
                write!(f, "at {event} number {n}")
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let back = |f: &mut fmt::Formatter<'_>, after: &Option<u64>| match after {
            Some(micros) => write!(f, ", back after {}", seconds(*micros)),
            None => f.write_str(", back when the run heals"),
        };
        match self {
            Action::Crash { node, restart_after_micros } => {
                write!(f, "crash {node}")?;
                back(f, restart_after_micros)
            }
            Action::Stop { node, restart_after_micros } => {
                write!(f, "stop {node} in order")?;
                back(f, restart_after_micros)
            }
            Action::Join { role: Role::Worker } => f.write_str("a worker joins"),
            Action::Join { role: Role::Indexer } => f.write_str("an indexer joins"),
            Action::Pause { node, for_micros } => write!(f, "pause {node} for {}", seconds(*for_micros)),
            Action::Index { permille, for_micros, .. } => {
                write!(f, "{} for {} per mille of requests during {}", self.kind(), permille, seconds(*for_micros))
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.trigger, self.action)
    }
}
