//! Ledgers that count ids, as the documented system does: a bag of pending ids, which early endings take below zero.

use std::collections::BTreeMap;

use seriatim_core::identity::RunId;
use seriatim_core::machines::ledger::{Ledger, LedgerEvent, LedgerEventKind, LedgerSummary, Outcome, Tally};

use crate::drive::Variant;

/// How ids are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountIds {
    /// In a bag: two publishes of one id need two endings, whichever publish or attempt they speak of.
    Bag,
    /// In a set: one ending clears the id.
    Set,
}

impl Variant for CountIds {
    fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
        Box::new(IdLedger {
            how: *self,
            run,
            ids: BTreeMap::new(),
            pending: BTreeMap::new(),
            published: 0,
            acknowledged: 0,
            closed: false,
            parents: Tally::default(),
            children: Tally::default(),
        })
    }
}

struct IdLedger {
    how: CountIds,
    run: RunId,
    ids: BTreeMap<u64, String>,
    pending: BTreeMap<String, i64>,
    published: u64,
    acknowledged: u64,
    closed: bool,
    parents: Tally,
    children: Tally,
}

impl IdLedger {
    fn id_of(&self, event: &LedgerEvent) -> Option<String> {
        let id = self.ids.get(&event.ticket.sequence)?;
        Some(if event.is_parent { id.clone() } else { format!("{id}/{}", event.ticket.ordinal) })
    }

    fn add(&mut self, id: &str, count: i64) {
        let pending = self.pending.entry(id.to_owned()).or_default();
        *pending = match self.how {
            CountIds::Set => count.max(0),
            CountIds::Bag => *pending + count,
        };
        if *pending == 0 {
            self.pending.remove(id);
        }
    }
}

impl Ledger for IdLedger {
    fn published(&mut self, sequence: u64, id: &str) {
        self.published += 1;
        self.ids.insert(sequence, id.to_owned());
        self.add(id, 1);
    }

    fn observe(&mut self, event: &LedgerEvent) {
        if event.ticket.run != self.run {
            return;
        }
        let Some(id) = self.id_of(event) else { return };
        let LedgerEventKind::Terminal(outcome) = event.kind else { return self.add(&id, 1) };
        self.add(&id, -1);
        let tally = if event.is_parent { &mut self.parents } else { &mut self.children };
        match outcome {
            Outcome::Indexed => tally.indexed += 1,
            Outcome::Superseded => tally.superseded += 1,
            Outcome::Dropped => tally.dropped += 1,
            Outcome::Failed => tally.failed += 1,
        }
    }

    fn acknowledged(&mut self, sequence: u64) {
        self.acknowledged = sequence;
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn is_complete(&self) -> bool {
        self.closed && self.acknowledged >= self.published && self.pending() == 0
    }

    fn pending(&self) -> u64 {
        self.pending.values().map(|count| u64::try_from(*count).unwrap_or(0)).sum()
    }

    fn describe_pending(&self, max: usize) -> Vec<String> {
        self.pending.iter().take(max).map(|(id, count)| format!("{id}: {count}")).collect()
    }

    fn summary(&self) -> LedgerSummary {
        LedgerSummary {
            published: self.published,
            completed: self.published.saturating_sub(self.pending()),
            pending: self.pending(),
            parents: self.parents,
            children: self.children,
            ..LedgerSummary::default()
        }
    }
}
