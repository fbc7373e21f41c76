//! Ledgers of tickets that decide or tell something else than the right one.

use std::collections::{BTreeMap, BTreeSet};

use seriatim_core::identity::{RunId, Ticket};
use seriatim_core::machines::ledger::{Ledger, LedgerEvent, LedgerEventKind, LedgerSummary, Outcome, TicketLedger};

use crate::drive::Variant;

/// What a twisted ledger was told, beside the events.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    published: u64,
    acknowledged: u64,
    closed: bool,
}

/// One twist of the right ledger.
trait Twist: Default + Send + 'static {
    fn published(&mut self, sequence: u64, id: &str, ledger: &mut TicketLedger) {
        ledger.published(sequence, id);
    }

    fn acknowledged(&mut self, sequence: u64, ledger: &mut TicketLedger) {
        ledger.acknowledged(sequence);
    }

    fn observe(&mut self, event: &LedgerEvent, ledger: &mut TicketLedger) {
        ledger.observe(event);
    }

    fn is_complete(told: Told, ledger: &TicketLedger) -> bool {
        let _ = told;
        ledger.is_complete()
    }

    fn summary(summary: LedgerSummary) -> LedgerSummary {
        summary
    }
}

struct Twisted<T> {
    ledger: TicketLedger,
    told: Told,
    twist: T,
}

impl<T: Twist> Ledger for Twisted<T> {
    fn published(&mut self, sequence: u64, id: &str) {
        self.told.published += 1;
        self.twist.published(sequence, id, &mut self.ledger);
    }

    fn observe(&mut self, event: &LedgerEvent) {
        self.twist.observe(event, &mut self.ledger);
    }

    fn acknowledged(&mut self, sequence: u64) {
        self.told.acknowledged = sequence;
        self.twist.acknowledged(sequence, &mut self.ledger);
    }

    fn close(&mut self) {
        self.told.closed = true;
        self.ledger.close();
    }

    fn is_complete(&self) -> bool {
        T::is_complete(self.told, &self.ledger)
    }

    fn pending(&self) -> u64 {
        self.ledger.pending()
    }

    fn describe_pending(&self, max: usize) -> Vec<String> {
        self.ledger.describe_pending(max)
    }

    fn summary(&self) -> LedgerSummary {
        T::summary(self.ledger.summary())
    }
}

macro_rules! ledger {
    ($(#[$doc:meta])* $name:ident, $twist:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Variant for $name {
            fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
                let (told, twist) = (Told::default(), $twist::default());
                Box::new(Twisted { ledger: TicketLedger::new(run), told, twist })
            }
        }
    };
}

ledger! {
    /// Complete when everything published so far is acknowledged and terminal, whether or not the connector is through.
    WithoutClose, AnyLull
}

#[derive(Default)]
struct AnyLull;

impl Twist for AnyLull {
    fn is_complete(told: Told, ledger: &TicketLedger) -> bool {
        told.published > 0 && told.acknowledged >= told.published && ledger.pending() == 0
    }
}

ledger! {
    /// Complete when the connector is through and nothing pends; a publish pends from its acknowledgement on, which
    /// nobody waits for.
    WithoutAcknowledged, Heard
}

/// Publishes that are not acknowledged.
#[derive(Default)]
struct Heard(BTreeMap<u64, String>);

impl Twist for Heard {
    fn published(&mut self, sequence: u64, id: &str, _: &mut TicketLedger) {
        self.0.insert(sequence, id.to_owned());
    }

    fn acknowledged(&mut self, sequence: u64, ledger: &mut TicketLedger) {
        let out = self.0.split_off(&sequence);
        for (sequence, id) in std::mem::replace(&mut self.0, out) {
            ledger.published(sequence, &id);
        }
        ledger.acknowledged(sequence);
    }

    fn is_complete(told: Told, ledger: &TicketLedger) -> bool {
        told.closed && ledger.pending() == 0
    }
}

ledger! {
    /// Complete when the connector is through and everything is acknowledged, whatever is pending.
    WithoutPending, Sent
}

#[derive(Default)]
struct Sent;

impl Twist for Sent {
    fn is_complete(told: Told, _: &TicketLedger) -> bool {
        told.closed && told.acknowledged >= told.published
    }
}

ledger! {
    /// Counts the ends that it hears of a record, whichever outputs and attempts they speak of.
    MixedAttempts, AnyEnd
}

#[derive(Default)]
struct AnyEnd(BTreeMap<u64, Family>);

/// The ends of one record, until there are enough.
#[derive(Default)]
struct Family {
    parent: Option<u32>,
    ends: Vec<Outcome>,
}

impl Twist for AnyEnd {
    fn observe(&mut self, event: &LedgerEvent, ledger: &mut TicketLedger) {
        let LedgerEventKind::Terminal(outcome) = event.kind else { return };
        let family = self.0.entry(event.ticket.sequence).or_default();
        family.ends.push(outcome);
        if event.is_parent {
            family.parent = Some(event.ticket.ordinal);
        }
        if let Some(parent) = family.parent.filter(|parent| family.ends.len() > *parent as usize) {
            for (ordinal, outcome) in (0..=parent).zip(family.ends.drain(..)) {
                let ticket = Ticket { attempt: 0, ordinal, ..event.ticket };
                let kind = LedgerEventKind::Terminal(outcome);
                ledger.observe(&LedgerEvent { ticket, is_parent: ordinal == parent, kind, digest: 0 });
            }
        }
    }
}

ledger! {
    /// Keeps nothing for later: the end of a child that it has not heard of yet is no news to it.
    WithoutEarlyEnds, OnlyKnown
}

#[derive(Default)]
struct OnlyKnown(BTreeSet<Ticket>);

impl Twist for OnlyKnown {
    fn observe(&mut self, event: &LedgerEvent, ledger: &mut TicketLedger) {
        if event.kind == LedgerEventKind::Created {
            self.0.insert(event.ticket);
        }
        if event.is_parent || self.0.contains(&event.ticket) {
            ledger.observe(event);
        }
    }
}

ledger! {
    /// Tells the children that were indexed as failed.
    MisfiledChildren, Misfiled
}

#[derive(Default)]
struct Misfiled;

impl Twist for Misfiled {
    fn summary(mut summary: LedgerSummary) -> LedgerSummary {
        summary.children.failed += std::mem::take(&mut summary.children.indexed);
        summary
    }
}
