//! The completion ledger: which published records are terminal, and when a run is complete.
//!
//! Accounting is by sets of tickets, so it is idempotent: the same event any number of times, in any order, before or
//! after its CREATE or the publish itself, never completes a run early and never hangs it. A record is complete when
//! *one* attempt has its parent terminal, with the number of outputs which that attempt gave, and all those ordinals
//! terminal; attempts are never mixed. The first attempt to close decides the summary.
//!
//! Memory is bounded by what is in flight: completed sequences become an interval set. The last few thousand completed
//! records are remembered whole, so that an attempt that speaks late can still be compared with the one that decided;
//! later than that an event is only counted as late.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use compact_str::CompactString;
use smallvec::SmallVec;

use super::runs::Runs;
use crate::identity::{RunId, Ticket};

#[cfg(test)]
mod tests;

/// What became of one output, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its version is in the index, by this write or an earlier one.
    Indexed,
    /// A higher version of its id was there first.
    Superseded,
    /// A stage dropped it.
    Dropped,
    /// It was dead-lettered.
    Failed,
}

impl Outcome {
    /// Whether both can be told truly of one ticket. A write that was indexed is superseded when it is repeated after
    /// a later version came, so those two do not contradict each other.
    pub fn agrees_with(self, other: Outcome) -> bool {
        use Outcome::{Indexed, Superseded};
        self == other || matches!((self, other), (Indexed, Superseded) | (Superseded, Indexed))
    }
}

/// What an event says about its ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerEventKind {
    /// An attempt gave this output.
    Created,
    /// This output is terminal.
    Terminal(Outcome),
}

/// One lifecycle event of one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerEvent {
    /// Which output of which attempt at which publish of which run.
    pub ticket: Ticket,
    /// Whether it is the last output of its attempt, so that the attempt gave `ticket.ordinal + 1`.
    pub is_parent: bool,
    /// What happened.
    pub kind: LedgerEventKind,
    /// Of a parent: digest of the ordinals, ids and kinds that its attempt gave; 0 when it is not told.
    pub digest: u64,
}

/// Terminal documents by outcome, as the deciding attempts told them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// In the index.
    pub indexed: u64,
    /// A higher version was there first.
    pub superseded: u64,
    /// Dropped by a stage.
    pub dropped: u64,
    /// Dead-lettered.
    pub failed: u64,
}

impl Tally {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.indexed + self.superseded + self.dropped + self.failed
    }

    fn add(&mut self, outcome: Outcome, count: u64) {
        *match outcome {
            Outcome::Indexed => &mut self.indexed,
            Outcome::Superseded => &mut self.superseded,
            Outcome::Dropped => &mut self.dropped,
            Outcome::Failed => &mut self.failed,
        } += count;
    }
}

/// What a run came to so far. `published = completed + pending`, and `parents.total() = completed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerSummary {
    /// Records published.
    pub published: u64,
    /// Published records that are complete.
    pub completed: u64,
    /// Published records that are not.
    pub pending: u64,
    /// Outcomes of the completed records themselves.
    pub parents: Tally,
    /// Outcomes of their children.
    pub children: Tally,
    /// Events that contradict an earlier one of the same ticket or attempt, and attempts that closed otherwise than the
    /// one that decided.
    pub conflicts: u64,
    /// Terminal events that repeat what was known.
    pub duplicates: u64,
    /// Events of records decided before, that were not repetitions as far as is remembered.
    pub late: u64,
    /// Events of other runs.
    pub foreign: u64,
    /// Events of sequences that nobody had published when publishing was closed.
    pub strays: u64,
    /// Records whose attempts gave different outputs.
    pub ambiguous_families: u64,
    /// Attempts forgotten because their record had too many.
    pub evicted_attempts: u64,
}

/// The accounting of one run, as a publisher needs it.
pub trait Ledger: Send {
    /// Notes a publish, before or after its first events. `sequence` is dense from 0 over a run; noting one again
    /// changes nothing.
    fn published(&mut self, sequence: u64, id: &str);

    /// Notes an event.
    fn observe(&mut self, event: &LedgerEvent);

    /// Notes that the queue has acknowledged every publish with a sequence below `sequence`.
    fn acknowledged(&mut self, sequence: u64);

    /// Says that no more is published.
    fn close(&mut self);

    /// Whether the run is complete: publishing is closed, everything published is acknowledged, and nothing is pending.
    /// Nobody else decides it. It never turns back.
    fn is_complete(&self) -> bool;

    /// Published records that are not complete.
    fn pending(&self) -> u64;

    /// At most `max` pending records, oldest first, as lines for people.
    fn describe_pending(&self, max: usize) -> Vec<String>;

    /// What the run came to so far.
    fn summary(&self) -> LedgerSummary;
}

impl fmt::Debug for dyn Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ledger").field(&self.summary()).finish()
    }
}

/// The ledger that counts sets of tickets.
#[derive(Debug)]
pub struct TicketLedger {
    run: RunId,
    /// Records in flight, records with early events, and the recently completed.
    records: BTreeMap<u64, Record>,
    /// Completed records that are still remembered, oldest first.
    recent: VecDeque<u64>,
    completed: Runs<()>,
    /// Publishes below are acknowledged.
    acknowledged: u64,
    closed: bool,
    /// Number of the last event.
    news: u64,
    counted: LedgerSummary,
}

#[derive(Debug, Default)]
struct Record {
    id: CompactString,
    published: bool,
    attempts: SmallVec<[Attempt; 1]>,
    /// Nonce of the first attempt to close.
    winner: Option<u64>,
    /// The first digest told.
    digest: u64,
    ambiguous: bool,
}

#[derive(Debug)]
struct Attempt {
    nonce: u64,
    /// Ordinal of the parent, which is the last.
    parent: Option<u32>,
    terminal: Runs<Outcome>,
    /// Number of the last event about it.
    news: u64,
}

impl Attempt {
    fn is_closed(&self) -> bool {
        // Ordinals above the parent's are never kept.
        self.parent.is_some_and(|parent| self.terminal.len() == u64::from(parent) + 1)
    }

    /// Notes the parent's ordinal; says how many events contradict it.
    fn set_parent(&mut self, ordinal: u32) -> u64 {
        match self.parent {
            Some(parent) => u64::from(parent != ordinal),
            None => {
                self.parent = Some(ordinal);
                self.terminal.truncate(u64::from(ordinal) + 1)
            }
        }
    }

    fn agrees_with(&self, other: &Attempt) -> bool {
        let same = |ordinal| match (self.terminal.get(ordinal), other.terminal.get(ordinal)) {
            (Some(mine), Some(theirs)) => mine.agrees_with(theirs),
            (mine, theirs) => mine == theirs,
        };
        self.parent == other.parent && (0..=u64::from(self.parent.unwrap_or(0))).all(same)
    }
}

impl Record {
    /// Index of the attempt, made when it is new; and whether another had to go for it.
    fn attempt(&mut self, nonce: u64, news: u64) -> (usize, bool) {
        if let Some(index) = self.attempts.iter().position(|attempt| attempt.nonce == nonce) {
            self.attempts[index].news = news;
            return (index, false);
        }
        let evict = self.attempts.len() >= TicketLedger::ATTEMPTS_MAX;
        if evict {
            let others = self.attempts.iter().enumerate().filter(|(_, attempt)| self.winner != Some(attempt.nonce));
            if let Some((index, _)) = others.min_by_key(|(_, attempt)| attempt.news) {
                self.attempts.remove(index);
            }
        }
        self.attempts.push(Attempt { nonce, parent: None, terminal: Runs::default(), news });
        (self.attempts.len() - 1, evict)
    }

    fn winner(&self) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| Some(attempt.nonce) == self.winner)
    }

    /// Notes a parent's digest; true the first time that one differs from the first.
    fn note_digest(&mut self, digest: u64) -> bool {
        if digest == 0 || self.ambiguous {
            return false;
        }
        if self.digest == 0 {
            self.digest = digest;
        }
        self.ambiguous = self.digest != digest;
        self.ambiguous
    }

    fn describe(&self, sequence: u64) -> String {
        let id = &self.id;
        let Some(latest) = self.attempts.iter().max_by_key(|attempt| attempt.news) else {
            return format!("#{sequence} {id}: no event yet");
        };
        let (done, nonce) = (latest.terminal.len(), latest.nonce & 0xffff);
        let outputs = match latest.parent {
            Some(parent) => format!("{done} of {} outputs terminal in attempt {nonce:04x}", u64::from(parent) + 1),
            None => format!("{done} terminal in attempt {nonce:04x}, its parent not yet"),
        };
        match self.attempts.len() - 1 {
            0 => format!("#{sequence} {id}: {outputs}"),
            others => format!("#{sequence} {id}: {outputs} ({others} earlier attempts)"),
        }
    }
}

impl TicketLedger {
    /// Attempts that are kept of one record.
    pub const ATTEMPTS_MAX: usize = 64;
    /// Completed records that are remembered whole.
    pub const RECENT_MAX: usize = 4_096;

    /// The ledger of `run`, with nothing published.
    pub fn new(run: RunId) -> Self {
        TicketLedger {
            run,
            records: BTreeMap::new(),
            recent: VecDeque::new(),
            completed: Runs::default(),
            acknowledged: 0,
            closed: false,
            news: 0,
            counted: LedgerSummary::default(),
        }
    }

    /// Records that are held in memory: in flight, early, and recently completed.
    pub fn held(&self) -> usize {
        self.records.len()
    }

    /// Counts a published record that some attempt closed.
    fn complete(&mut self, sequence: u64) {
        let winner = self.records.get(&sequence).and_then(Record::winner);
        let Some((winner, parent)) = winner.and_then(|winner| Some((winner, u64::from(winner.parent?)))) else {
            unreachable!("a record is completed by an attempt that closed");
        };
        for (first, last, outcome) in winner.terminal.iter() {
            let parents = u64::from(last == parent);
            self.counted.parents.add(outcome, parents);
            self.counted.children.add(outcome, last - first + 1 - parents);
        }
        self.counted.completed += 1;
        self.completed.insert(sequence, ());
        self.recent.push_back(sequence);
        if self.recent.len() > Self::RECENT_MAX
            && let Some(oldest) = self.recent.pop_front()
        {
            self.records.remove(&oldest);
        }
    }
}

impl Ledger for TicketLedger {
    fn published(&mut self, sequence: u64, id: &str) {
        if self.completed.get(sequence).is_some() {
            return;
        }
        let record = self.records.entry(sequence).or_default();
        if record.published {
            return;
        }
        record.published = true;
        record.id = id.into();
        self.counted.published += 1;
        if record.winner.is_some() {
            self.complete(sequence);
        }
    }

    fn observe(&mut self, event: &LedgerEvent) {
        let Ticket { run, sequence, attempt: nonce, ordinal } = event.ticket;
        let counted = &mut self.counted;
        if run != self.run {
            counted.foreign += 1;
            return;
        }
        let record = match self.records.entry(sequence) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if self.completed.get(sequence).is_some() => {
                counted.late += 1;
                return;
            }
            Entry::Vacant(_) if self.closed => {
                counted.strays += 1;
                return;
            }
            Entry::Vacant(early) => early.insert(Record::default()),
        };
        self.news += 1;
        let (index, evicted) = record.attempt(nonce, self.news);
        counted.evicted_attempts += u64::from(evicted);
        if event.is_parent {
            counted.ambiguous_families += u64::from(record.note_digest(event.digest));
        }
        let attempt = &mut record.attempts[index];
        let was_closed = attempt.is_closed();
        if event.is_parent {
            counted.conflicts += attempt.set_parent(ordinal);
        }
        match event.kind {
            LedgerEventKind::Created => {}
            LedgerEventKind::Terminal(_) if attempt.parent.is_some_and(|parent| ordinal > parent) => {
                counted.conflicts += 1;
            }
            LedgerEventKind::Terminal(outcome) => match attempt.terminal.insert(u64::from(ordinal), outcome) {
                Some(known) if known.agrees_with(outcome) => counted.duplicates += 1,
                Some(_) => counted.conflicts += 1,
                None => counted.late += u64::from(record.winner.is_some()),
            },
        }
        if was_closed || !attempt.is_closed() {
            return;
        }
        match record.winner() {
            Some(winner) => counted.conflicts += u64::from(!winner.agrees_with(&record.attempts[index])),
            None => {
                record.winner = Some(nonce);
                if record.published {
                    self.complete(sequence);
                }
            }
        }
    }

    fn acknowledged(&mut self, sequence: u64) {
        self.acknowledged = self.acknowledged.max(sequence);
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn is_complete(&self) -> bool {
        self.closed && self.acknowledged >= self.counted.published && self.pending() == 0
    }

    fn pending(&self) -> u64 {
        self.counted.published - self.counted.completed
    }

    fn describe_pending(&self, max: usize) -> Vec<String> {
        let pending = self.records.iter().filter(|(_, record)| record.published && record.winner.is_none());
        pending.take(max).map(|(sequence, record)| record.describe(*sequence)).collect()
    }

    fn summary(&self) -> LedgerSummary {
        LedgerSummary { pending: self.pending(), ..self.counted }
    }
}
