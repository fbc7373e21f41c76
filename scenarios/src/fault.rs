//! Faults as values: when, and what.
//!
//! A plan holds a list of them, so that a failing run can be written down, read and shrunk. Nothing here injects
//! anything; the driver does, and it alone knows whether a fault hit work in flight.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod kind;
mod words;

pub use kind::FaultKind;

/// A part of the system that can fail as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Node {
    /// The only process of local mode.
    Process,
    /// The publisher of the other modes. Its death is no fault: it would end the run.
    Publisher,
    /// A worker of distributed mode, numbered from 0; joiners continue the numbers.
    Worker(u32),
    /// An indexer of distributed mode, numbered from 0; joiners continue the numbers.
    Indexer(u32),
    /// A node of hybrid mode with one worker-indexer pair or several, numbered from 0; joiners continue the numbers.
    Pair(u32),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Process => f.write_str("process"),
            Node::Publisher => f.write_str("publisher"),
            Node::Worker(number) => write!(f, "worker-{number}"),
            Node::Indexer(number) => write!(f, "indexer-{number}"),
            Node::Pair(number) => write!(f, "pair-{number}"),
        }
    }
}

/// A name that is no node's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no node: write `process` (local mode), `publisher`, `worker-N`, `indexer-N` or `pair-N`")]
pub struct UnknownNode(String);

impl FromStr for Node {
    type Err = UnknownNode;

    fn from_str(text: &str) -> Result<Self, UnknownNode> {
        let unknown = || UnknownNode(text.to_owned());
        match text.split_once('-') {
            None if text == "process" => Ok(Node::Process),
            None if text == "publisher" => Ok(Node::Publisher),
            Some(("worker", number)) => number.parse().map(Node::Worker).map_err(|_| unknown()),
            Some(("indexer", number)) => number.parse().map(Node::Indexer).map_err(|_| unknown()),
            Some(("pair", number)) => number.parse().map(Node::Pair).map_err(|_| unknown()),
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
    /// One more node with pairs.
    Pair,
}

impl Role {
    /// The node of that number.
    pub const fn node(self, number: u32) -> Node {
        match self {
            Role::Worker => Node::Worker(number),
            Role::Indexer => Node::Indexer(number),
            Role::Pair => Node::Pair(number),
        }
    }
}

impl Node {
    /// What it is and its number, when there are several of its sort.
    pub const fn role(self) -> Option<(Role, u32)> {
        match self {
            Node::Process | Node::Publisher => None,
            Node::Worker(number) => Some((Role::Worker, number)),
            Node::Indexer(number) => Some((Role::Indexer, number)),
            Node::Pair(number) => Some((Role::Pair, number)),
        }
    }
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

/// A topic between two components.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hop {
    /// What workers read.
    Source,
    /// What indexers read.
    Dest,
}

impl Hop {
    /// Its name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Hop::Source => "source",
            Hop::Dest => "dest",
        }
    }
}

/// What the search index does to a request during a troubled window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Answers that it is too busy for half of the items.
    Throttle,
    /// Refuses the request whole, for now.
    Unavailable,
    /// Does not answer, and has applied nothing.
    TimeoutBefore,
    /// Does not answer, though it has applied everything.
    TimeoutAfter,
    /// Takes half a second to fifteen, so that some senders give up before it has applied anything.
    Slow,
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
    /// Adds partitions to a topic. Runs go on with as many as they pinned.
    Grow {
        /// Which.
        topic: Hop,
        /// How many are added.
        add: u32,
    },
    /// Cuts a node's link to every server for a time, out of it, into it, or both. What is sent into a cut is lost.
    CutLink {
        /// Which.
        node: Node,
        /// Whether its requests are lost.
        #[serde(default, skip_serializing_if = "is_false")]
        out: bool,
        /// Whether the answers to it are lost.
        #[serde(default, skip_serializing_if = "is_false")]
        into: bool,
        /// For how long.
        for_micros: u64,
    },
    /// Slows a node's link for a time.
    SlowLink {
        /// Which.
        node: Node,
        /// Added to each direction.
        extra_micros: u64,
        /// For how long.
        for_micros: u64,
    },
    /// Resets every connection of a node once.
    Reset {
        /// Which.
        node: Node,
    },
    /// Loses answers on their way to a node, each with its connection: the requests were applied.
    LoseAnswers {
        /// Which.
        node: Node,
        /// How many.
        count: u64,
    },
    /// Sets a node's wall clock, which may jump either way.
    Clock {
        /// Which.
        node: Node,
        /// How far it is ahead of true time; behind, when negative.
        ahead_micros: i64,
        /// How much it gains, millionths.
        #[serde(default, skip_serializing_if = "is_zero")]
        drift_ppm: i64,
    },
    /// A foreign program appends records that nobody here can read.
    Poison {
        /// Where.
        topic: Hop,
        /// How many.
        count: u32,
    },
    /// Slows every append to and every read of the topic of events for a time.
    SlowEvents {
        /// How much later a request arrives.
        extra_micros: u64,
        /// For how long.
        for_micros: u64,
    },
    /// Deletes the topic of events under the run.
    DeleteEvents,
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

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl Action {
    /// The node that it strikes, when it strikes one.
    pub const fn node(&self) -> Option<Node> {
        match *self {
            Action::Crash { node, .. }
            | Action::Stop { node, .. }
            | Action::Pause { node, .. }
            | Action::CutLink { node, .. }
            | Action::SlowLink { node, .. }
            | Action::Reset { node }
            | Action::LoseAnswers { node, .. }
            | Action::Clock { node, .. } => Some(node),
            Action::Join { .. }
            | Action::Grow { .. }
            | Action::Poison { .. }
            | Action::SlowEvents { .. }
            | Action::DeleteEvents
            | Action::Index { .. } => None,
        }
    }
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
