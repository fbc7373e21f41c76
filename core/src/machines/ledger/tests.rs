//! The ledger against a model that keeps every ticket.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const RUN: RunId = RunId(7);

fn event(sequence: u64, attempt: u64, ordinal: u32, is_parent: bool, kind: LedgerEventKind) -> LedgerEvent {
    LedgerEvent { ticket: Ticket { run: RUN, sequence, attempt, ordinal }, is_parent, kind, digest: 0 }
}

fn terminal(sequence: u64, attempt: u64, ordinal: u32, is_parent: bool) -> LedgerEvent {
    event(sequence, attempt, ordinal, is_parent, LedgerEventKind::Terminal(Outcome::Indexed))
}

#[test]
fn attempts_are_never_mixed() {
    let mut ledger = TicketLedger::new(RUN);
    ledger.published(0, "doc-0");
    ledger.published(1, "doc-1");
    ledger.acknowledged(2);
    ledger.close();
    ledger.observe(&terminal(0, 0x4f2a, 0, false));
    ledger.observe(&terminal(0, 0x4f2a, 2, true));
    ledger.observe(&terminal(0, 0xbeef, 1, false));
    assert_eq!(ledger.pending(), 2, "ordinals 0 and 2 of one attempt and 1 of another are no whole");
    let lines = ledger.describe_pending(10);
    let expected = "#0 doc-0: 1 terminal in attempt beef, its parent not yet (1 earlier attempts)";
    assert_eq!(lines, [expected, "#1 doc-1: no event yet"]);
    ledger.observe(&terminal(0, 0x4f2a, 1, false));
    ledger.observe(&terminal(1, 5, 0, true));
    assert!(ledger.is_complete());
}

#[test]
fn contradictions_are_counted_and_the_first_to_close_decides() {
    let mut ledger = TicketLedger::new(RUN);
    ledger.published(0, "doc");
    let failed = LedgerEventKind::Terminal(Outcome::Failed);
    let superseded = LedgerEventKind::Terminal(Outcome::Superseded);
    ledger.observe(&LedgerEvent { digest: 11, ..event(0, 1, 0, true, failed) });
    ledger.observe(&event(0, 1, 0, true, LedgerEventKind::Terminal(Outcome::Dropped)));
    ledger.observe(&LedgerEvent { digest: 12, ..terminal(0, 2, 0, true) });
    ledger.observe(&LedgerEvent { digest: 13, ..event(0, 2, 0, true, superseded) });
    let summary = ledger.summary();
    assert_eq!(summary.parents, Tally { failed: 1, ..Tally::default() });
    assert_eq!((summary.conflicts, summary.late, summary.duplicates, summary.ambiguous_families), (2, 1, 1, 1));
}

#[test]
fn a_family_smaller_than_its_ordinals_is_a_contradiction() {
    let mut ledger = TicketLedger::new(RUN);
    ledger.published(0, "doc");
    ledger.observe(&terminal(0, 1, 4, false));
    ledger.observe(&terminal(0, 1, 1, true));
    ledger.observe(&terminal(0, 1, 3, false));
    assert_eq!((ledger.pending(), ledger.summary().conflicts), (1, 2), "neither hidden nor complete early");
    ledger.observe(&terminal(0, 1, 0, false));
    assert_eq!(ledger.pending(), 0);
}

#[test]
fn memory_follows_what_is_in_flight() {
    let mut ledger = TicketLedger::new(RUN);
    let records = 3 * TicketLedger::RECENT_MAX as u64;
    for sequence in 0..records {
        ledger.published(sequence, "doc");
        ledger.observe(&terminal(sequence, 1, 0, true));
        assert!(ledger.held() <= TicketLedger::RECENT_MAX + 1);
    }
    ledger.observe(&terminal(0, 1, 0, true));
    ledger.published(0, "doc");
    ledger.published(records, "the last");
    for attempt in 0..100 {
        ledger.observe(&terminal(records, attempt, 0, false));
    }
    ledger.observe(&terminal(records, 99, 1, true));
    ledger.acknowledged(records + 1);
    ledger.close();
    ledger.observe(&terminal(records + 1, 1, 0, true));
    let summary = ledger.summary();
    assert_eq!((summary.published, summary.completed), (records + 1, records + 1));
    assert_eq!((summary.late, summary.evicted_attempts, summary.strays), (1, 36, 1));
    assert!(ledger.is_complete());
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u64),
    Acknowledged(u64),
    Event(LedgerEvent),
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Indexed), Just(Outcome::Superseded), Just(Outcome::Dropped), Just(Outcome::Failed)]
}

/// The events of one attempt with as many outputs as `outcomes`; those whose `copies` are 0 were lost with a crash.
fn attempt(sequence: u64, nonce: u64, partial: bool) -> impl Strategy<Value = Vec<Step>> {
    let output = (outcome(), if partial { 0..2usize } else { 1..3 }, 0..2usize);
    prop::collection::vec(output, 1..5).prop_map(move |outputs| {
        let last = outputs.len() - 1;
        let mut steps = Vec::new();
        for (ordinal, (outcome, terminals, creates)) in outputs.into_iter().enumerate() {
            let event = |kind| Step::Event(event(sequence, nonce, ordinal as u32, ordinal == last, kind));
            steps.extend(vec![event(LedgerEventKind::Terminal(outcome)); terminals]);
            steps.extend(vec![event(LedgerEventKind::Created); creates]);
        }
        steps
    })
}

fn record(sequence: u64) -> impl Strategy<Value = Vec<Step>> {
    let contradiction = (0..3u64, 0..4u32, outcome()).prop_map(move |(nonce, ordinal, outcome)| {
        Step::Event(event(sequence, nonce, ordinal, false, LedgerEventKind::Terminal(outcome)))
    });
    let partial = prop::collection::vec(any::<bool>(), 2);
    (partial, prop::option::weighted(0.2, contradiction)).prop_flat_map(move |(partial, contradiction)| {
        let others = (attempt(sequence, 0, partial[0]), attempt(sequence, 1, partial[1]));
        (others, attempt(sequence, 9, false)).prop_map(move |((first, second), whole)| {
            let publish = [Step::Publish(sequence)];
            publish.into_iter().chain(first).chain(second).chain(whole).chain(contradiction.clone()).collect()
        })
    })
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let foreign =
        Step::Event(LedgerEvent { ticket: Ticket { run: RunId(8), ..Ticket::default() }, ..terminal(0, 9, 0, true) });
    (record(0), record(1), record(2))
        .prop_map(move |(a, b, c)| {
            let told = [Step::Acknowledged(1), Step::Acknowledged(3), foreign.clone()];
            a.into_iter().chain(b).chain(c).chain(told).collect::<Vec<_>>()
        })
        .prop_shuffle()
}

/// Sets of tickets, judged from scratch after every step.
#[derive(Default)]
struct Model {
    published: BTreeSet<u64>,
    acknowledged: u64,
    parents: BTreeMap<(u64, u64), u32>,
    told: BTreeMap<(u64, u64), BTreeMap<u32, Outcome>>,
    winners: BTreeMap<u64, BTreeMap<u32, Outcome>>,
}

impl Model {
    fn observe(&mut self, event: &LedgerEvent) {
        let Ticket { run, sequence, attempt, ordinal } = event.ticket;
        if run != RUN {
            return;
        }
        let key = (sequence, attempt);
        if event.is_parent {
            self.parents.entry(key).or_insert(ordinal);
        }
        if let LedgerEventKind::Terminal(outcome) = event.kind {
            self.told.entry(key).or_default().entry(ordinal).or_insert(outcome);
        }
        if let (Some(parent), Some(told)) = (self.parents.get(&key), self.told.get(&key))
            && (0..=*parent).all(|ordinal| told.contains_key(&ordinal))
        {
            let outputs = told.range(..=*parent).map(|(ordinal, outcome)| (*ordinal, *outcome)).collect();
            self.winners.entry(sequence).or_insert(outputs);
        }
    }

    fn tallies(&self) -> (Tally, Tally) {
        let (mut parents, mut children) = (Tally::default(), Tally::default());
        for (_, outputs) in self.winners.iter().filter(|(sequence, _)| self.published.contains(sequence)) {
            let last = outputs.len() as u32 - 1;
            for (ordinal, outcome) in outputs {
                (if *ordinal == last { &mut parents } else { &mut children }).add(*outcome, 1);
            }
        }
        (parents, children)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_run_is_complete_when_one_attempt_of_each_record_is(steps in history()) {
        let (mut ledger, mut model) = (TicketLedger::new(RUN), Model::default());
        for step in &steps {
            match step {
                Step::Publish(sequence) => {
                    ledger.published(*sequence, "doc");
                    model.published.insert(*sequence);
                    if model.published.len() == 3 {
                        ledger.close();
                    }
                }
                Step::Acknowledged(below) => {
                    ledger.acknowledged(*below);
                    model.acknowledged = model.acknowledged.max(*below);
                }
                Step::Event(event) => {
                    ledger.observe(event);
                    model.observe(event);
                }
            }
            let pending = model.published.iter().filter(|sequence| !model.winners.contains_key(sequence)).count();
            prop_assert_eq!(ledger.pending(), pending as u64);
            prop_assert_eq!(ledger.describe_pending(9).len(), pending);
            let through = model.published.len() == 3 && model.acknowledged == 3;
            prop_assert_eq!(ledger.is_complete(), through && pending == 0);
            let summary = ledger.summary();
            prop_assert_eq!((summary.parents, summary.children), model.tallies());
            prop_assert_eq!(summary.parents.total(), summary.completed);
            prop_assert_eq!(summary.published, summary.completed + summary.pending);
        }
        prop_assert!(ledger.is_complete(), "a whole attempt of each record was told");
        prop_assert_eq!(ledger.summary().foreign, 1);
    }

    #[test]
    fn an_honest_history_has_no_conflict(steps in attempt(0, 3, false).prop_shuffle()) {
        let mut ledger = TicketLedger::new(RUN);
        let events = || steps.iter().filter_map(|step| if let Step::Event(event) = step { Some(event) } else { None });
        events().for_each(|event| ledger.observe(event));
        ledger.published(0, "doc");
        events().for_each(|event| ledger.observe(event));
        let repeated = events().filter(|event| matches!(event.kind, LedgerEventKind::Terminal(_))).count() as u64 * 2;
        let summary = ledger.summary();
        let documents = summary.parents.total() + summary.children.total();
        prop_assert_eq!((summary.completed, summary.conflicts, summary.late), (1, 0, 0));
        prop_assert_eq!(summary.duplicates, repeated - documents);
    }
}
