//! Commits as clients know them: a real cluster does not say what it applied, nor when.
//!
//! A commit that was acknowledged counts from when it was asked for: whatever it covers had to be finished by then, and
//! owners of a partition ask one after the other, while answers may reach a frozen process long after its successor's.
//! One that was never answered, because its process was killed or its connection broke, counts when a later owner reads
//! its offset as the committed one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::History;
use super::facts::{AppliedCommit, At};
use super::index::HistoryIndex;
use crate::history::{Ack, Call, CommittedOffset, Event, What};

type Place = (Arc<str>, TopicPartition);

/// A commit that may have been applied.
struct Unanswered {
    at: At,
    offset: i64,
}

/// The applied commits of each group and partition, in the order in which they were asked for.
pub(super) fn commits(index: &HistoryIndex, events: &[Event]) -> Vec<(Place, AppliedCommit)> {
    let mut unanswered: BTreeMap<Place, Vec<Unanswered>> = BTreeMap::new();
    let mut applied = Vec::new();
    let group = |consumer| index.consumers.get(consumer).map(|one| one.group.clone());
    for (at, event) in events.iter().enumerate() {
        match &event.what {
            What::CommitInvoked { call, consumer, commits } => {
                let Some(group) = group(consumer) else { continue };
                let outcomes = answer(index, events, *call);
                for (number, commit) in commits.iter().enumerate() {
                    let (place, offset) = ((group.clone(), commit.partition.clone()), commit.offset);
                    match outcomes.and_then(|outcomes| outcomes.get(number)) {
                        Some(Ack::Ok(())) => {
                            applied.push((place, AppliedCommit { at, offset: Some(offset), member: None }))
                        }
                        Some(Ack::Fail(_)) => {}
                        Some(Ack::Unknown(_)) | None => {
                            unanswered.entry(place).or_default().push(Unanswered { at, offset });
                        }
                    }
                }
            }
            What::Assigned { consumer, partitions } => {
                let Some(group) = group(consumer) else { continue };
                for one in partitions {
                    let place = (group.clone(), one.partition.clone());
                    let Some(open) = unanswered.get_mut(&place) else { continue };
                    if let Some(found) = open.iter().position(|open| Some(open.offset) == one.committed) {
                        let Unanswered { at, offset } = open.swap_remove(found);
                        applied.push((place, AppliedCommit { at, offset: Some(offset), member: None }));
                    }
                }
            }
            _ => {}
        }
    }
    applied.sort_by_key(|(_, commit)| commit.at);
    applied
}

/// Whether `after` was applied after `before` although it was asked for earlier: a broker may yet take what a
/// connection had under way when it ended, and no answer tells. No client can help it; its cost is records read twice.
pub(super) fn overtaken(
    history: &History<'_>,
    (group, partition): (&Arc<str>, &TopicPartition),
    [before, after]: [&AppliedCommit; 2],
) -> bool {
    let index = history.index;
    // The last that asked for this before it was applied, and whether it was answered.
    let asked = |applied: &AppliedCommit| {
        let mut last = None;
        for (at, event) in history.events[..applied.at].iter().enumerate() {
            let What::CommitInvoked { call, consumer, commits } = &event.what else { continue };
            let of_this =
                |commit: &CommittedOffset| commit.partition == *partition && Some(commit.offset) == applied.offset;
            if index.consumers.get(consumer).is_some_and(|one| one.group == *group)
                && let Some(number) = commits.iter().position(of_this)
            {
                let outcome = answer(index, history.events, *call).and_then(|outcomes| outcomes.get(number));
                last = Some((at, outcome.is_some_and(|outcome| !matches!(outcome, Ack::Unknown(_)))));
            }
        }
        last
    };
    let (first, late) = (asked(before), asked(after));
    first.zip(late).is_some_and(|((first, _), (late, answered))| late < first && !answered)
}

/// Ownerships under which a commit was taken, as indices into the spans.
pub(super) fn proven(index: &HistoryIndex, events: &[Event]) -> BTreeSet<usize> {
    let mut proven = BTreeSet::new();
    for event in events {
        let What::CommitInvoked { call, consumer, commits } = &event.what else { continue };
        for (commit, outcome) in commits.iter().zip(answer(index, events, *call).unwrap_or_default()) {
            let key = (*consumer, commit.partition.clone(), commit.epoch);
            proven.extend(index.span_of.get(&key).filter(|_| outcome.ok().is_some()));
        }
    }
    proven
}

/// How a commit was answered.
fn answer<'e>(index: &HistoryIndex, events: &'e [Event], call: Call) -> Option<&'e [Ack<()>]> {
    match &events[*index.commit_ends.get(&call)?].what {
        What::CommitResolved { outcomes, .. } => Some(outcomes),
        _ => None,
    }
}
