//! The facts about a run that an index gathers.
//!
//! Everywhere a number of type [`At`] is the index of an event in the history: the order of events is the order of the
//! run, also where several carry the same time.

use std::sync::Arc;

use bytes::Bytes;
use compact_str::CompactString;
use seriatim_core::identity::{Epoch, Ticket, TopicPartition};
use smallvec::SmallVec;

use crate::history::{Call, LifecycleKind, RunSummary, WriteOutcome};

/// Index of an event in the history.
pub type At = usize;

/// What a topic is for, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Documents for workers.
    Source,
    /// Documents for indexers.
    Dest,
    /// Dead letters.
    Fail,
    /// Lifecycle events of a run.
    Events,
    /// Not of a pipeline.
    Other,
}

impl Role {
    /// The role of `topic`.
    pub fn of(topic: &str) -> Self {
        if topic.ends_with("_source") {
            Role::Source
        } else if topic.ends_with("_dest") {
            Role::Dest
        } else if topic.ends_with("_fail") {
            Role::Fail
        } else if topic.contains("_event_") {
            Role::Events
        } else {
            Role::Other
        }
    }
}

/// One publish.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Run and sequence.
    pub ticket: Ticket,
    /// Id of the document.
    pub id: CompactString,
    /// When it was invoked.
    pub invoked: At,
    /// When it was acknowledged.
    pub acked: Option<At>,
    /// Whether it was refused: its caller knows that it is none.
    pub refused: bool,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Its publishes, as indices into [`super::HistoryIndex::publishes`], in order of invocation.
    pub publishes: Vec<usize>,
    /// When it was declared complete, and the summary.
    pub complete: Option<(At, RunSummary)>,
}

/// One output of one attempt.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Where that record lies, and when that was acknowledged.
    pub dest: Option<(At, TopicPartition, i64)>,
    /// When a write of it that is answered, or ended without, was first sent.
    pub written: Option<At>,
    /// First terminal answer of the index to a write of it.
    pub answered: Option<(At, WriteOutcome)>,
    /// When an answer first said that the index has this version, and when first that it has a higher one.
    pub taken: Option<At>,
    /// See `taken`.
    pub superseded: Option<At>,
    /// When a CREATE event of it was handed over, and when it was acknowledged.
    pub created: Option<(At, Option<At>)>,
    /// First acknowledged terminal event: when it was acknowledged, and what it says.
    pub event: Option<(At, LifecycleKind)>,
    /// Whether some acknowledged event, or an acknowledged dead letter, says dropped or failed.
    pub gave_up: Option<(At, LifecycleKind)>,
    /// When a dropped or failed event was first handed over: from then on it may lie there, whatever its sender learns.
    pub told: Option<(At, LifecycleKind)>,
    /// When a dead letter of it was first acknowledged.
    pub buried: Option<At>,
}

impl Output {
    /// When it became terminal: the index answered, or its end is acknowledged by the broker.
    pub fn terminal(&self) -> Option<At> {
        let answered = self.answered.map(|(at, _)| at);
        let gave_up = self.gave_up.map(|(at, _)| at);
        answered.into_iter().chain(gave_up).min()
    }

    /// From when it may have been terminal, for all that is known.
    fn may_be_terminal(&self) -> Option<At> {
        self.terminal().into_iter().chain(self.told.map(|(at, _)| at)).min()
    }

    /// When whoever read its source record had nothing more to do for it: it lies on the destination topic, or it is
    /// settled. A pair of worker and indexer knows the second way only.
    fn handed_on(&self, judge_events: bool) -> Option<At> {
        let done = self.dest.as_ref().map(|(at, ..)| *at).into_iter().chain(self.settled(judge_events)).min()?;
        match self.created {
            Some((_, acked)) if judge_events => Some(done.max(acked?)),
            _ => Some(done),
        }
    }

    /// When there was nothing more to do for it: its outcome is known and its event is acknowledged.
    pub fn settled(&self, judge_events: bool) -> Option<At> {
        if !judge_events {
            return self.terminal();
        }
        let (event, kind) = self.event?;
        match kind {
            LifecycleKind::Indexed | LifecycleKind::Superseded => Some(event.max(self.answered?.0)),
            LifecycleKind::Created | LifecycleKind::Dropped | LifecycleKind::Failed => Some(event),
        }
    }
}

/// What is known of an attempt's outputs, by ordinal. Nearly all have one or two, and there is one of these for each
/// publish: a list takes a tenth of the memory of a tree.
#[derive(Clone, Debug, Default)]
pub struct Outputs(Vec<(u32, Output)>);

impl Outputs {
    /// The output at `ordinal`, if anything is known of it.
    pub fn get(&self, ordinal: u32) -> Option<&Output> {
        self.0.binary_search_by_key(&ordinal, |(at, _)| *at).ok().map(|place| &self.0[place].1)
    }

    /// The output at `ordinal`, of which something is now known.
    pub fn note(&mut self, ordinal: u32) -> &mut Output {
        let place = match self.0.binary_search_by_key(&ordinal, |(at, _)| *at) {
            Ok(place) => place,
            Err(place) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, (ordinal, Output::default()));
                place
            }
        };
        &mut self.0[place].1
    }

    /// Ordinals and outputs, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Output)> {
        self.0.iter().map(|(ordinal, output)| (*ordinal, output))
    }

    /// The outputs, in order.
    pub fn values(&self) -> impl Iterator<Item = &Output> {
        self.0.iter().map(|(_, output)| output)
    }
}

/// One attempt at one publish.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// How many outputs it gave, once that is known.
    pub outputs_known: Option<u32>,
    /// The offset on the source topic that it started from, where a record or a write of it says so.
    pub origin: Option<(i32, i64)>,
    /// When its first effect was handed over: a record for the destination topic, a dead letter, an event, or a write
    /// that was read from the source topic.
    pub begun: Option<At>,
    /// When an event first told a digest of what it gave, and that digest.
    pub digest: Option<(At, u64)>,
    /// When the end of its parent was first told without one.
    pub undigested: Option<At>,
    /// What is known of its outputs, by ordinal.
    pub outputs: Outputs,
}

impl Attempt {
    fn all(&self, each: impl Fn(&Output) -> Option<At>) -> Option<At> {
        let count = self.outputs_known?;
        (0..count)
            .map(|ordinal| self.outputs.get(ordinal).and_then(&each))
            .try_fold(0, |latest, at| Some(latest.max(at?)))
    }

    /// When all of its outputs, the parent among them, were terminal.
    pub fn closed(&self) -> Option<At> {
        self.all(Output::terminal)
    }

    /// From when all of them may have been, for all that is known.
    pub fn may_be_closed(&self) -> Option<At> {
        self.all(Output::may_be_terminal)
    }

    /// When whoever read its source record had nothing more to do for it.
    pub fn handed_on(&self, judge_events: bool) -> Option<At> {
        self.all(|output| output.handed_on(judge_events))
    }
}

/// Everything that came of one publish.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// The publish, as an index into [`super::HistoryIndex::publishes`]. One that was sent again keeps its sequence;
    /// the first stands for it.
    pub publish: Option<usize>,
    /// Where it lies on the source topic: partitions, offsets.
    pub sources: SmallVec<[(TopicPartition, i64); 1]>,
    /// The attempts at it, by nonce.
    attempts: SmallVec<[(u64, Attempt); 1]>,
}

impl Family {
    /// The attempts at it, in the order of their nonces.
    pub fn attempts(&self) -> impl Iterator<Item = (u64, &Attempt)> {
        self.attempts.iter().map(|(nonce, attempt)| (*nonce, attempt))
    }

    /// The attempt with this nonce.
    pub fn attempt(&self, nonce: u64) -> Option<&Attempt> {
        self.find(nonce).ok().map(|place| &self.attempts[place].1)
    }

    /// When it was first finished by one whole attempt.
    pub fn closed(&self) -> Option<At> {
        self.attempts.iter().filter_map(|(_, attempt)| attempt.closed()).min()
    }

    /// When two attempts first told that they gave different outputs.
    pub fn ambiguous(&self) -> Option<[At; 2]> {
        let mut told = self.attempts.iter().filter_map(|(_, attempt)| attempt.digest);
        let (first, digest) = told.next()?;
        told.find(|(_, other)| *other != digest).map(|(second, _)| [first, second])
    }

    pub(super) fn note(&mut self, nonce: u64) -> &mut Attempt {
        let place = self.find(nonce).unwrap_or_else(|place| {
            self.attempts.insert(place, (nonce, Attempt::default()));
            place
        });
        &mut self.attempts[place].1
    }

    pub(super) fn attempts_mut(&mut self) -> impl Iterator<Item = &mut Attempt> {
        self.attempts.iter_mut().map(|(_, attempt)| attempt)
    }

    fn find(&self, nonce: u64) -> Result<usize, usize> {
        self.attempts.binary_search_by_key(&nonce, |(at, _)| *at)
    }
}

/// A record that is known to lie on a topic.
#[derive(Clone, Debug)]
pub struct Known {
    /// The event that says so.
    pub at: At,
    /// Whose it is; nobody's when it is foreign.
    pub ticket: Option<Ticket>,
    /// Its key.
    pub key: Option<Bytes>,
}

/// One ownership of one partition.
#[derive(Clone, Debug)]
pub struct Span {
    /// The consumer.
    pub consumer: Call,
    /// Its node.
    pub node: Arc<str>,
    /// Life of that node.
    pub incarnation: u32,
    /// The partition.
    pub partition: TopicPartition,
    /// The ownership.
    pub epoch: Epoch,
    /// When the assignment was delivered.
    pub assigned: At,
    /// The committed offset that the consumer read.
    pub committed: Option<i64>,
    /// Where reading starts.
    pub start: i64,
    /// When its revocation was delivered.
    pub revoking: Option<At>,
    /// When its loss was delivered.
    pub lost: Option<At>,
    /// When its release was invoked.
    pub released: Option<At>,
}

/// A group member, as its process sees it.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// The group.
    pub group: Arc<str>,
    /// What its member ids begin with.
    pub name: Arc<str>,
    /// What it reads.
    pub topics: Vec<Arc<str>>,
    /// When it began to join.
    pub joined: At,
    /// Whether it starts at the oldest record without a committed offset.
    pub earliest: bool,
}

impl Consumer {
    /// Whether a coordinator's `member` may be this one: a member id is a name, a hyphen and something unique.
    pub fn may_be(&self, member: &str) -> bool {
        member.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// A committed offset as it was applied; `None` when it was forgotten.
#[derive(Clone, Debug)]
pub struct AppliedCommit {
    /// When.
    pub at: At,
    /// The next offset to read.
    pub offset: Option<i64>,
    /// Member id; absent when only the client's side is known.
    pub member: Option<Arc<str>>,
}

/// An assignment as the coordinator made it.
#[derive(Clone, Debug)]
pub struct GroupAssignment {
    /// When.
    pub at: At,
    /// Member id.
    pub member: Arc<str>,
    /// Everything that it then had.
    pub partitions: Vec<TopicPartition>,
}

/// Whether a dead letter with this ticket speaks of a record that nobody of this system wrote.
pub(super) fn is_foreign(ticket: Option<Ticket>) -> bool {
    ticket.is_none_or(|ticket| ticket == Ticket::default())
}
