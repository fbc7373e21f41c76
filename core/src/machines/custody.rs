//! Custody of partitions: which records are out, what may be committed, when a revoked partition may be given back.
//!
//! The rules of a rebalance live here and nowhere else. On `Revoking` a partition drains: what lies at or below the
//! highest record that has begun is finished, what lies above is abandoned, the low-water mark is committed, and the
//! event is released whole. On `Lost` the partition is gone at once and late answers change nothing. [`crate::intake`]
//! carries the decisions out.
//!
//! With several lanes or batches, what has begun may lie above what has not. Were that abandoned, the mark would stay
//! below effects that were had, and the next owner would have them again: an older write behind a newer one. So it may
//! begin while its partition drains, and is awaited like the rest. The commit of a drain that ends in time then covers
//! all that had an effect, and nothing of it is replayed; order per key holds without versions.
//!
//! A drain that is not finished when it ends counts as lost. It is finished when a commit covers all that has begun; it
//! is not when its deadline passes first, when somebody gave up a record that had to be finished (asked to stop with a
//! request out, say), or when the commit was refused. Nothing more is done about it, as about a loss: late answers
//! change nothing, and the next owner has the effects above the last commit again. But it is counted,
//! [`Custody::take_uncovered`], for then order per key rests on the versions alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::offsets::OffsetTracker;
use crate::env::Instant;
use crate::identity::{Epoch, Position, TopicPartition};
use crate::transport::{Assignment, Commit, ErrorKind, RebalanceId, TransportError};

/// Limits and rhythms of a custody.
#[derive(Clone, Debug)]
pub struct CustodyConfig {
    /// Records that may be taken and not settled.
    pub records_max: usize,
    /// Time between two commits of a partition that keeps its owner.
    pub commit_interval: Duration,
    /// Time before a failed commit is repeated.
    pub retry_interval: Duration,
}

impl Default for CustodyConfig {
    fn default() -> Self {
        CustodyConfig {
            records_max: 4_096,
            commit_interval: Duration::from_secs(1),
            retry_interval: Duration::from_millis(100),
        }
    }
}

/// What the owner of the consumer has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Commit these, then say how it went through [`Custody::committed`].
    Commit(Vec<Commit>),
    /// Give a rebalance event back.
    Release(RebalanceId),
    /// Everything is drained and committed after [`Custody::close`], or its time is over: give back what
    /// [`Custody::abandon`] says, and leave the group.
    Leave,
    /// Nothing to do until then, or until something changes.
    Wait(Option<Instant>),
}

/// Records that may be done and not yet committed because an earlier one is not, for each that may be taken.
const MARKS_PER_RECORD_MAX: usize = 16;

/// The metadata of every commit. Room for the count of unclean starts.
const COMMIT_METADATA: &str = "seriatim/1";

#[derive(Debug)]
struct Part {
    epoch: Epoch,
    /// One past the highest offset that has begun: all below it is finished in a drain.
    begun: i64,
    /// Once it drains: records below `begun` that are not settled.
    draining: Option<usize>,
    /// A commit was refused for good: wait for what the coordinator says next.
    barred: bool,
    /// A record was dropped that could have been finished.
    given_up: bool,
}

impl Part {
    /// Whether the record at `offset` may have effects.
    fn admits(&self, offset: i64) -> bool {
        self.draining.is_none() || offset < self.begun
    }
}

#[derive(Debug)]
struct Departure {
    /// `None` when it is this consumer that leaves.
    event: Option<RebalanceId>,
    partitions: Vec<(TopicPartition, Epoch)>,
    /// `None` for `Lost`.
    deadline: Option<Instant>,
}

/// Custody of the partitions of one consumer.
#[derive(Debug)]
pub struct Custody {
    config: CustodyConfig,
    tracker: OffsetTracker,
    parts: BTreeMap<TopicPartition, Part>,
    departures: VecDeque<Departure>,
    held: usize,
    commit_at: Option<Instant>,
    /// A commit failed and may be repeated from then on.
    retry_at: Option<Instant>,
    closing: bool,
    /// See [`Custody::take_uncovered`].
    uncovered: u64,
}

impl Custody {
    /// Custody of nothing yet.
    pub fn new(config: CustodyConfig) -> Self {
        Custody {
            config,
            tracker: OffsetTracker::new(),
            parts: BTreeMap::new(),
            departures: VecDeque::new(),
            held: 0,
            commit_at: None,
            retry_at: None,
            closing: false,
            uncovered: 0,
        }
    }

    /// New partitions came.
    pub fn assigned(&mut self, assignments: &[Assignment]) {
        for new in assignments {
            self.tracker.assign(new.partition.clone(), new.epoch, new.start);
            let draining = self.closing.then_some(0);
            let part = Part { epoch: new.epoch, begun: new.start, draining, barred: false, given_up: false };
            self.parts.insert(new.partition.clone(), part);
            if let Some(close) = self.departures.iter_mut().find(|departure| departure.event.is_none()) {
                close.partitions.push((new.partition.clone(), new.epoch));
            }
        }
    }

    /// These partitions will go: nothing of them begins any more above what has begun.
    pub fn revoking(&mut self, event: RebalanceId, partitions: Vec<(TopicPartition, Epoch)>, deadline: Instant) {
        for (partition, epoch) in &partitions {
            self.drain(partition, *epoch);
        }
        self.departures.push_back(Departure { event: Some(event), partitions, deadline: Some(deadline) });
    }

    /// These partitions are gone.
    pub fn lost(&mut self, event: RebalanceId, partitions: Vec<(TopicPartition, Epoch)>) {
        for (partition, epoch) in &partitions {
            self.remove(partition, *epoch, true);
        }
        self.departures.push_back(Departure { event: Some(event), partitions, deadline: None });
    }

    /// This consumer wants to leave: everything drains until the deadline.
    pub fn close(&mut self, deadline: Instant) {
        if self.closing {
            return;
        }
        self.closing = true;
        let owned = self.parts.iter().map(|(partition, part)| (partition.clone(), part.epoch));
        let partitions: Vec<_> = owned.collect();
        for (partition, epoch) in &partitions {
            self.drain(partition, *epoch);
        }
        self.departures.push_back(Departure { event: None, partitions, deadline: Some(deadline) });
    }

    /// Everything ends at once: nothing is in custody any more. The events that are still to be given back, in order.
    pub fn abandon(&mut self) -> Vec<RebalanceId> {
        let owned: Vec<_> = self.parts.iter().map(|(partition, part)| (partition.clone(), part.epoch)).collect();
        for (partition, epoch) in owned {
            self.remove(&partition, epoch, true);
        }
        self.departures.drain(..).filter_map(|departure| departure.event).collect()
    }

    /// A record was delivered. False, and nothing is noted, when its partition is not in active custody.
    pub fn taken(&mut self, position: &Position) -> bool {
        let Position { partition, offset, epoch } = position;
        let Some(part) = self.parts.get_mut(partition).filter(|part| part.epoch == *epoch && part.draining.is_none())
        else {
            return false;
        };
        if !self.tracker.taken(partition, *epoch, *offset) {
            // Delivery went back under one epoch: the log was cut. Nothing of this epoch is committed any more.
            part.barred = true;
            return false;
        }
        self.held += 1;
        true
    }

    /// Whether work on the record may go on: [`Custody::begin`] would allow it.
    pub fn is_active(&self, position: &Position) -> bool {
        let part = self.parts.get(&position.partition).filter(|part| part.epoch == position.epoch);
        part.is_some_and(|part| part.admits(position.offset))
    }

    /// A side effect of the record, the first or another, is about to start. False: it must not.
    pub fn begin(&mut self, position: &Position) -> bool {
        let Position { partition, offset, epoch } = position;
        let Some(part) = self.current(partition, *epoch).filter(|part| part.admits(*offset)) else { return false };
        part.begun = part.begun.max(offset + 1);
        true
    }

    /// A record that was taken is done with: `done` when everything about it is acknowledged. Under an epoch that is
    /// not current nothing changes but the room. True when the next step may have changed.
    pub fn settled(&mut self, position: &Position, done: bool) -> bool {
        let Position { partition, offset, epoch } = position;
        self.held = self.held.saturating_sub(1);
        let Some(part) = self.current(partition, *epoch) else { return false };
        if let Part { begun, draining: Some(unsettled), .. } = part
            && *offset < *begun
        {
            *unsettled = unsettled.saturating_sub(1);
        }
        part.given_up |= !done && part.admits(*offset);
        if done {
            self.tracker.done(partition, *epoch, *offset);
        } else {
            self.tracker.abandoned(partition, *epoch, *offset);
        }
        !self.departures.is_empty() || self.commit_at.is_none()
    }

    /// How many more records may be taken. Records that are done behind one that is not count against a wider limit:
    /// they are only marks, but they are kept.
    pub fn room(&self) -> usize {
        let marks: usize = self.parts.keys().map(|partition| self.tracker.held(partition)).sum();
        if marks >= self.config.records_max.saturating_mul(MARKS_PER_RECORD_MAX) {
            return 0;
        }
        self.config.records_max.saturating_sub(self.held)
    }

    /// Records taken and not settled.
    pub fn held(&self) -> usize {
        self.held
    }

    /// The partitions in custody.
    pub fn partitions(&self) -> Vec<TopicPartition> {
        self.parts.keys().cloned().collect()
    }

    /// What is owned, when nothing is out, under way or to be committed: then the group must have what was committed.
    pub fn at_rest(&self) -> Vec<(TopicPartition, Epoch)> {
        let rests = self.held == 0 && self.departures.is_empty() && self.commit_at.is_none();
        let owned = self.parts.iter().filter(|(_, part)| !part.barred);
        if rests { owned.map(|(partition, part)| (partition.clone(), part.epoch)).collect() } else { Vec::new() }
    }

    /// What the group was read to have committed. Where that is below what this owner committed, somebody's late commit
    /// came between, and the low-water mark is committed again.
    pub fn read_back(&mut self, partition: &TopicPartition, epoch: Epoch, committed: i64) {
        self.tracker.read_committed(partition, epoch, committed);
    }

    /// Whether this consumer wants to leave.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether [`Step::Leave`] was given.
    pub fn has_left(&self) -> bool {
        self.closing && self.departures.iter().all(|departure| departure.event.is_some())
    }

    /// Whether a drain waits for records to be finished.
    pub fn is_awaiting(&self) -> bool {
        self.parts.values().any(|part| part.draining.is_some_and(|unsettled| unsettled > 0))
    }

    /// The earliest deadline of a drain.
    pub fn drain_deadline(&self) -> Option<Instant> {
        self.departures.iter().filter_map(|departure| departure.deadline).min()
    }

    /// Whether an event waits to be given back, or this consumer wants to leave.
    pub fn is_departing(&self) -> bool {
        !self.departures.is_empty()
    }

    /// Ownerships that ended, since it was last asked, with effects that no commit covers: lost, cut short by a
    /// deadline or a failure, with a record given up, or with a commit refused. Their next owners have these effects
    /// again.
    pub fn take_uncovered(&mut self) -> u64 {
        std::mem::take(&mut self.uncovered)
    }

    /// Whether an event waits that nothing can be committed for.
    pub fn has_lost(&self) -> bool {
        self.departures.iter().any(|departure| departure.deadline.is_none())
    }

    /// What to do now. Call it again after each step, and whenever something changed.
    pub fn step(&mut self, now: Instant) -> Step {
        let mut wake = None;
        for index in 0..self.departures.len() {
            match self.departure_step(index, now) {
                Some(step) => return step,
                None => {
                    let retry = self.retry_at.filter(|at| *at > now);
                    wake = earlier(earlier(wake, self.departures[index].deadline), retry);
                }
            }
        }
        match self.commit_at {
            Some(at) if at <= now => {
                self.commit_at = None;
                let commits = self.commits(|_| true);
                if !commits.is_empty() {
                    return Step::Commit(commits);
                }
            }
            Some(at) => wake = earlier(wake, Some(at)),
            None => {}
        }
        if self.commit_at.is_none()
            && self.parts.iter().any(|(partition, part)| self.commit_of(partition, part).is_some())
        {
            let at = now + self.config.commit_interval;
            self.commit_at = Some(at);
            wake = earlier(wake, Some(at));
        }
        Step::Wait(wake)
    }

    /// How a [`Step::Commit`] went.
    pub fn committed(&mut self, commits: &[Commit], results: &[Result<(), TransportError>], now: Instant) {
        self.retry_at = None;
        for (commit, result) in commits.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.tracker.committed(&commit.partition, commit.epoch, commit.offset);
                }
                Err(error) if matches!(error.kind, ErrorKind::Retriable | ErrorKind::UnknownOutcome) => {
                    self.retry_at = Some(now + self.config.retry_interval);
                    self.commit_at = self.retry_at;
                }
                Err(_) => {
                    if let Some(part) = self.current(&commit.partition, commit.epoch) {
                        part.barred = true;
                    }
                }
            }
        }
    }

    /// The step that departure `index` is ready for.
    fn departure_step(&mut self, index: usize, now: Instant) -> Option<Step> {
        let Departure { partitions, deadline, .. } = &self.departures[index];
        let in_time = deadline.is_some_and(|deadline| now < deadline);
        if in_time {
            if self.unresolved(partitions) > 0 {
                return None;
            }
            let commits = self.commits(|partition| partitions.iter().any(|(revoked, _)| revoked == partition));
            if !commits.is_empty() {
                return if self.retry_at.is_some_and(|at| now < at) { None } else { Some(Step::Commit(commits)) };
            }
        }
        let departure = self.departures.remove(index)?;
        for (partition, epoch) in &departure.partitions {
            self.remove(partition, *epoch, !in_time);
        }
        Some(departure.event.map_or(Step::Leave, Step::Release))
    }

    /// Records of these partitions that have to be finished first.
    fn unresolved(&self, partitions: &[(TopicPartition, Epoch)]) -> usize {
        let held = |(partition, epoch): &(TopicPartition, Epoch)| {
            self.parts.get(partition).filter(|part| part.epoch == *epoch).and_then(|part| part.draining)
        };
        partitions.iter().filter_map(held).sum()
    }

    /// From now on nothing of the partition begins above what has begun.
    fn drain(&mut self, partition: &TopicPartition, epoch: Epoch) {
        let Some(part) = self.parts.get_mut(partition).filter(|part| part.epoch == epoch) else { return };
        part.draining.get_or_insert_with(|| self.tracker.in_flight_below(partition, part.begun));
    }

    fn commits(&self, wanted: impl Fn(&TopicPartition) -> bool) -> Vec<Commit> {
        self.parts
            .iter()
            .filter(|(partition, _)| wanted(partition))
            .filter_map(|(partition, part)| self.commit_of(partition, part))
            .collect()
    }

    fn commit_of(&self, partition: &TopicPartition, part: &Part) -> Option<Commit> {
        if part.barred {
            return None;
        }
        let (epoch, offset) = self.tracker.low_water(partition)?;
        debug_assert_eq!(epoch, part.epoch, "tracker and custody disagree on {partition}");
        Some(Commit { partition: partition.clone(), epoch, offset, metadata: COMMIT_METADATA.into() })
    }

    fn current(&mut self, partition: &TopicPartition, epoch: Epoch) -> Option<&mut Part> {
        self.parts.get_mut(partition).filter(|part| part.epoch == epoch)
    }

    /// Ends an ownership, `forced` when nothing more could be waited for.
    fn remove(&mut self, partition: &TopicPartition, epoch: Epoch, forced: bool) {
        let Some(part) = self.current(partition, epoch) else { return };
        let (begun, cut_short) = (part.begun, forced || part.given_up || part.barred);
        // Were it counted without a reason, a drain that does not wait would pass for one that could not end.
        if cut_short && self.tracker.covered(partition).is_some_and(|covered| covered < begun) {
            self.uncovered += 1;
        }
        self.parts.remove(partition);
        self.tracker.remove(partition, epoch);
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
