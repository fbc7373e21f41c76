//! What must hold of every run, judged from its [history](crate::history) alone.
//!
//! [`check`] is a pure function of events and options. Each checker is linear or n log n in the events, shares one
//! [`HistoryIndex`], and names what it finds in Jepsen's vocabulary where that has a word (`poll-skip`, `lost-write`),
//! and in ours where it has not (`commit-ahead`, `write-overlap`). A violation carries its witness: the two or three
//! events that suffice to see it.
//!
//! Checkers judge attempts, not results, so that versions and redelivery do not hide a fault of the protocol.
//! They err on the side of silence where a history says too little; [`explain`](crate::explain) shows what they found.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use compact_str::CompactString;
use serde::Serialize;
use seriatim_core::identity::TopicPartition;

use crate::history::Event;

mod asked;
mod completion;
mod facts;
mod index;
mod keyed;
mod letters;
mod offsets;
mod order;
mod placement;
mod polls;
mod rebalances;
mod sink;

pub use facts::{
    AppliedCommit, At, Attempt, Consumer, Family, GroupAssignment, Known, Output, Publish, Role, Run, Span,
};
pub use index::HistoryIndex;
pub use keyed::{ByOffset, Keyed};

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The checker that found it.
    pub checker: &'static str,
    /// What was violated: the name by which runs are compared and shrunk.
    pub property: &'static str,
    /// One sentence for a person.
    pub words: String,
    /// The events that show it, as indices into the history, rising.
    pub witness: Vec<At>,
    /// Where, when it is about one partition.
    pub partition: Option<TopicPartition>,
    /// Which documents, when it is about some.
    pub ids: Vec<CompactString>,
}

impl Violation {
    fn new(
        checker: &'static str,
        property: &'static str,
        words: String,
        witness: impl IntoIterator<Item = At>,
    ) -> Self {
        let witness: BTreeSet<At> = witness.into_iter().collect();
        let witness = witness.into_iter().collect();
        Violation { checker, property, words, witness, partition: None, ids: Vec::new() }
    }

    fn on(mut self, partition: &TopicPartition) -> Self {
        self.partition = Some(partition.clone());
        self
    }

    fn about(mut self, id: impl Into<CompactString>) -> Self {
        self.ids.push(id.into());
        self
    }
}

/// What holds depends on how a run was set up.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Index writes carry versions.
    pub versions_on: bool,
    /// No owner ended with effects that its commits do not cover: order holds over the whole run, not only in an epoch.
    pub strict_order: bool,
    /// No Kafka: order is by publish sequence, in each run.
    pub local_mode: bool,
    /// Every attempt at a record gives the same outputs, and they end in the same way.
    pub repeatable: bool,
    /// Records of event topics were decoded into the history.
    pub judge_events: bool,
    /// The publishers live to the end, so every run that published must be declared complete.
    pub expect_completion: bool,
    /// The history ends when nothing moves any more, or when everything had the time to: nothing may lag then.
    pub settled: bool,
    /// How long after a loss was delivered effects may still start: the time in which tasks of one process hear of it.
    pub lost_grace: Duration,
    /// The right index: hash of each document's body, by its [key](crate::history::document_key). `None` leaves that to
    /// the history's own versions.
    pub expected: Option<BTreeMap<CompactString, u64>>,
    /// The index as a reader saw it at the end. `None` takes what the index said that it applied.
    pub actual: Option<BTreeMap<CompactString, u64>>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            versions_on: true,
            strict_order: false,
            local_mode: false,
            repeatable: false,
            judge_events: true,
            expect_completion: true,
            settled: false,
            lost_grace: Duration::from_millis(1),
            expected: None,
            actual: None,
        }
    }
}

/// Every checker, by the name that its violations carry.
pub const CHECKERS: [&str; 7] = ["completion", "letters", "offsets", "order", "placement", "polls", "sink"];

/// Every property that [`check`] can report.
pub const PROPERTIES: [&str; 27] = [
    "ambiguous-family",
    "commit-ahead",
    "commit-regression",
    "commit-unowned",
    "completed-early",
    "completed-never",
    "counted-early",
    "dead-letter-missing",
    "dead-letter-twice",
    "digest-missing",
    "effect-after-release",
    "epoch-start",
    "final-index",
    "key-moved",
    "lag-left",
    "nonmonotonic-poll",
    "outcome-conflict",
    "poll-skip",
    "poll-unowned",
    "record-vanished",
    "sink-lost-write",
    "sink-nonmonotonic",
    "sink-unseen",
    "summary-mismatch",
    "write-after-completion",
    "write-order",
    "write-overlap",
];

/// Violations of one property that are reported; a broken run repeats itself.
pub const REPORTED_MAX: usize = 10;

/// Judges a history. The violations come in the order in which they can be seen, at most [`REPORTED_MAX`] a property.
pub fn check(events: &[Event], options: &CheckOptions) -> Vec<Violation> {
    let index = HistoryIndex::new(events, options.local_mode);
    check_indexed(events, &index, options)
}

/// [`check`] with an index that the caller has already.
pub fn check_indexed(events: &[Event], index: &HistoryIndex, options: &CheckOptions) -> Vec<Violation> {
    let history = History { events, index, options };
    let mut found = Vec::new();
    polls::check(&history, &mut found);
    placement::check(&history, &mut found);
    order::check(&history, &mut found);
    offsets::check(&history, &mut found);
    completion::check(&history, &mut found);
    sink::check(&history, &mut found);
    letters::check(&history, &mut found);
    found.sort_by_key(|violation| violation.witness.last().copied().unwrap_or(events.len()));
    let mut reported: BTreeMap<&str, usize> = BTreeMap::new();
    found.retain(|violation| {
        let count = reported.entry(violation.property).or_default();
        *count += 1;
        *count <= REPORTED_MAX
    });
    found
}

/// What may happen, but is worth counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tolerated {
    /// Records delivered again to the same group: an offset of a partition seen before.
    pub redelivered: u64,
    /// Writes that the index refused because it had that version.
    pub duplicate_writes: u64,
    /// Writes that the index refused because it had a higher version.
    pub superseded_writes: u64,
    /// Requests to the index without a known outcome.
    pub unknown_writes: u64,
    /// Publishes that took more than one attempt.
    pub retried_publishes: u64,
    /// Completed rebalances of all groups, as their coordinators saw them.
    pub rebalances: u64,
}

/// Counts what redelivery and versions took care of.
pub fn tolerated(events: &[Event], index: &HistoryIndex) -> Tolerated {
    Tolerated { rebalances: rebalances::count(events), ..sink::tolerated(events, index) }
}

/// What every checker is given.
struct History<'a> {
    events: &'a [Event],
    index: &'a HistoryIndex,
    options: &'a CheckOptions,
}

#[cfg(test)]
pub(crate) mod tests;
