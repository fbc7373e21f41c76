//! Order of effects: within one ownership, one key's attempts follow offsets without overlap, and nothing of an
//! ownership starts after it was given back.
//!
//! At the worker hop an attempt is a record handed to the producer for the destination topic; the producer is ordered
//! and idempotent, so the order of the calls suffices. At the indexer hop it is a write in a batch: a later offset of
//! the same key must wait until the request of the earlier one ended, unless both are in the same request or go to
//! other documents: each index is written to by itself, and an id in another is another document.
//! A pair of worker and indexer writes what it read from the source topic: there each document that a key gave has its
//! order by the key's offsets. Without Kafka the sequence of the publish stands for the offset, within one run.
//!
//! An effect belongs to the ownership under which its node was last given its record. An event or a dead letter is one
//! when it is the first of its attempt: a report on what had begun may come when its partition is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use compact_str::CompactString;
use seriatim_core::identity::{Epoch, Position, RunId, Ticket, TopicPartition, Version};

use super::facts::{At, Role};
use super::index::HistoryIndex;
use super::keyed::{ByOffset, Keyed};
use super::{History, Violation};
use crate::history::{Ack, Call, Delivered, Event, IndexWrite, Lifecycle, LifecycleKind, Produced, What, WriteOutcome};

const CHECKER: &str = "order";

/// Whose attempts are compared: an ownership and a key; an ownership, a key and the document that was written of it; or
/// a run and a document, where there is no Kafka.
#[derive(PartialEq, Eq, Hash)]
enum Line {
    Sent(usize, Bytes),
    Written(usize, Bytes, CompactString),
    Local(RunId, CompactString),
}

/// One attempt: the offset that it is made for, the version that it writes, and the event that starts it.
#[derive(Clone, Copy)]
struct Attempt {
    offset: i64,
    version: Option<Version>,
    at: At,
}

impl Attempt {
    /// Whether it must have come before `other`. Where a record was delivered twice, its version or an older one may
    /// lie at a later offset; what was throttled is made again behind it.
    fn belongs_before(&self, other: &Attempt) -> bool {
        self.offset < other.offset && (self.version.is_none() || self.version < other.version)
    }
}

/// One line's attempts so far.
#[derive(Default)]
struct Attempts {
    /// Those that ended for good, less those that others stand for.
    ended: Vec<Attempt>,
    /// Those whose request is out.
    open: Vec<(Call, Attempt)>,
}

impl Attempts {
    fn end(&mut self, ended: Attempt) {
        let stands_for = |one: &Attempt, other: &Attempt| one.offset >= other.offset && one.version >= other.version;
        if !self.ended.iter().any(|one| stands_for(one, &ended)) {
            self.ended.retain(|one| !stands_for(&ended, one));
            self.ended.push(ended);
        }
    }
}

#[derive(Default)]
struct Orders {
    lines: Keyed<Line, Attempts>,
    /// The attempts of each call, with the numbers of their lines.
    calls: BTreeMap<Call, Vec<Option<(usize, Attempt)>>>,
}

impl Orders {
    /// Takes an attempt; gives the property that it breaks and the start of the attempt that it conflicts with.
    fn start(&mut self, call: Call, line: Line, attempt: Attempt, overlaps: bool) -> Option<(&'static str, At)> {
        let entry = self.lines.entry(line);
        let (number, attempts) = (entry.index(), entry.or_default());
        let ahead = attempts.ended.iter().find(|ended| attempt.belongs_before(ended));
        let open = attempts.open.iter().find(|(other, open)| match overlaps {
            true if *other != call => open.offset != attempt.offset,
            _ => open.offset > attempt.offset,
        });
        let conflict = match (ahead, open) {
            (Some(ended), _) => Some(("write-order", ended.at)),
            (None, Some((_, other))) if other.offset > attempt.offset => Some(("write-order", other.at)),
            (None, Some((_, other))) => Some(("write-overlap", other.at)),
            (None, None) => None,
        };
        attempts.open.push((call, attempt));
        self.calls.entry(call).or_default().push(Some((number, attempt)));
        conflict
    }

    fn pass(&mut self, call: Call) {
        self.calls.entry(call).or_default().push(None);
    }

    /// Ends a call. An attempt that the index did not take has no effect: others may come before it or after it.
    fn end(&mut self, call: Call, for_good: impl Fn(usize) -> bool) {
        for (number, attempt) in self.calls.remove(&call).unwrap_or_default().into_iter().enumerate() {
            let Some((line, attempt)) = attempt else { continue };
            let attempts = &mut self.lines[line];
            attempts.open.retain(|(open, _)| *open != call);
            if for_good(number) {
                attempts.end(attempt);
            }
        }
    }
}

/// What a node was given, in one of its lives.
struct Given<'e> {
    span: usize,
    at: At,
    offset: i64,
    key: Option<&'e Bytes>,
}

/// What each life of a node was given of each partition, by ownership.
struct Deliveries<'e> {
    /// Of each ownership: event, key.
    records: Vec<ByOffset<(At, Option<&'e Bytes>)>>,
    /// Ownerships of a partition in one life of a node; the one that was last given something is last.
    spans: BTreeMap<TopicPartition, BTreeMap<Life<'e>, Vec<usize>>>,
    sources: BTreeMap<Arc<str>, Arc<str>>,
}

type Life<'e> = (&'e str, u32);

impl<'e> Deliveries<'e> {
    fn new(index: &HistoryIndex) -> Self {
        let records = index.spans.iter().map(|_| ByOffset::default()).collect();
        Deliveries { records, spans: BTreeMap::new(), sources: BTreeMap::new() }
    }

    fn take(&mut self, index: &HistoryIndex, life: Life<'e>, consumer: Call, records: &'e [Delivered], at: At) {
        // Records of one partition come in a row.
        let mut last: Option<(&TopicPartition, Epoch, usize)> = None;
        for record in records {
            let Position { partition, offset, epoch } = &record.position;
            let span = match last {
                Some((same, of, span)) if same == partition && of == *epoch => span,
                _ => {
                    let Some(span) = index.span_of.get(&(consumer, partition.clone(), *epoch)) else { continue };
                    let spans = self.spans.entry(partition.clone()).or_default().entry(life).or_default();
                    spans.retain(|one| one != span);
                    spans.push(*span);
                    last = Some((partition, *epoch, *span));
                    *span
                }
            };
            self.records[span].set(*offset, (at, record.key.as_ref()));
        }
    }

    fn of_span(&self, span: usize, offset: i64) -> Option<Given<'e>> {
        let (at, key) = *self.records[span].get(offset)?;
        Some(Given { span, at, offset, key })
    }

    /// The last delivery of a record to one life of a node, as it is to be seen at `now`: of a process with several
    /// consumers, one that still has the partition is meant rather than one that gave it back.
    fn of_record(
        &self,
        index: &HistoryIndex,
        life: Life<'_>,
        partition: &TopicPartition,
        offset: i64,
        now: At,
    ) -> Option<Given<'e>> {
        let spans = self.spans.get(partition)?.get(&life)?;
        let has_it = |given: &Given<'_>| {
            let span = &index.spans[given.span];
            span.released.into_iter().chain(span.lost).all(|ended| ended >= now)
        };
        let given = || spans.iter().rev().filter_map(|span| self.of_span(*span, offset));
        given().find(has_it).or_else(|| given().next())
    }

    /// The delivery of the source record behind a record for the destination topic.
    fn of_produced(&mut self, index: &HistoryIndex, life: Life<'_>, record: &Produced, now: At) -> Option<Given<'e>> {
        let (partition, offset) = record.stamp?.origin?;
        let source = self.sources.entry(record.topic.clone()).or_insert_with(|| {
            let pipeline = record.topic.strip_suffix("_dest").unwrap_or(&record.topic);
            format!("{pipeline}_source").into()
        });
        let partition = TopicPartition::new(source.clone(), partition);
        self.of_record(index, life, &partition, offset, now)
    }

    /// The delivery of the record behind a write.
    fn of_write(&self, index: &HistoryIndex, life: Life<'_>, write: &IndexWrite, now: At) -> Option<Given<'e>> {
        let Position { partition, offset, epoch } = write.position.as_ref()?;
        // The record may have come again since under a new ownership, while this is a write of the old one.
        let spans = self.spans.get(partition)?.get(&life)?;
        let own = spans.iter().rev().find(|span| index.spans[**span].epoch == *epoch);
        own.and_then(|span| self.of_span(*span, *offset))
            .or_else(|| self.of_record(index, life, partition, *offset, now))
    }

    /// The delivery of the record that an output, or what is told of it, came from: the output's own where this life
    /// reads the destination topic, else its publish.
    fn of_ticket(&self, index: &HistoryIndex, life: Life<'_>, ticket: &Ticket, now: At) -> Option<(Given<'e>, bool)> {
        let attempt = index.attempt_of(ticket);
        let dest = attempt.and_then(|one| one.outputs.get(ticket.ordinal)?.dest.as_ref());
        if let Some(given) =
            dest.and_then(|(_, partition, offset)| self.of_record(index, life, partition, *offset, now))
        {
            return Some((given, true));
        }
        let places = index.sources_of(ticket.run, ticket.sequence);
        let given =
            places.iter().filter_map(|(partition, offset)| self.of_record(index, life, partition, *offset, now));
        given.max_by_key(|given| given.at).map(|given| (given, false))
    }
}

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    let mut walk = Walk { history, found, orders: Orders::default(), deliveries: Deliveries::new(history.index) };
    for (at, event) in history.events.iter().enumerate() {
        walk.take(at, event);
    }
}

struct Walk<'a, 'f> {
    history: &'a History<'a>,
    found: &'f mut Vec<Violation>,
    orders: Orders,
    deliveries: Deliveries<'a>,
}

impl<'a> Walk<'a, '_> {
    fn take(&mut self, at: At, event: &'a Event) {
        let life = (&*event.node, event.incarnation);
        match &event.what {
            What::Polled { consumer, records } => {
                self.deliveries.take(self.history.index, life, *consumer, records, at);
            }
            What::ProduceInvoked { call, records, .. } => {
                for record in records {
                    self.produced(life, *call, record, at);
                }
            }
            What::ProduceResolved { call, outcomes } => {
                self.orders.end(*call, |number| matches!(outcomes.get(number), Some(Ack::Ok(_))));
            }
            What::BulkInvoked { call, writes } => {
                for write in writes {
                    self.written(life, *call, write, at);
                }
            }
            What::BulkResolved { call, outcome } => {
                let outcomes = outcome.ok().map_or(&[][..], Vec::as_slice);
                self.orders.end(*call, |number| outcomes.get(number).copied().is_some_and(WriteOutcome::is_indexed));
            }
            What::CommitInvoked { call, consumer, commits } => {
                for (number, commit) in commits.iter().enumerate() {
                    let key = (*consumer, commit.partition.clone(), commit.epoch);
                    if let Some(span) = self.history.index.span_of.get(&key)
                        && !never_left(self.history, *call, number)
                    {
                        let what = || format!("a commit of {} at {}", commit.partition, commit.offset);
                        self.effect(*span, at, None, what);
                    }
                }
            }
            _ => {}
        }
    }

    fn produced(&mut self, life: Life<'_>, call: Call, record: &Produced, at: At) {
        let owned = match Role::of(&record.topic) {
            Role::Dest => self.deliveries.of_produced(self.history.index, life, record, at),
            Role::Fail | Role::Events => {
                self.told(life, record, at);
                None
            }
            Role::Source | Role::Other => None,
        };
        let Some(Given { span, at: delivered, offset, key }) = owned else { return self.orders.pass(call) };
        let partition = &self.history.index.spans[span].partition;
        self.effect(span, at, None, || format!("a record for {} from {partition}@{offset}", record.topic));
        let Some(key) = key else { return self.orders.pass(call) };
        let attempt = Attempt { offset, version: None, at };
        if let Some((property, earlier)) = self.orders.start(call, Line::Sent(span, key.clone()), attempt, false) {
            let (id, topic) = (text(key), &record.topic);
            let words =
                format!("key {id}: {partition}@{offset} went to {topic} after a later offset of the same ownership");
            let witness = [delivered, earlier, at];
            self.found.push(Violation::new(CHECKER, property, words, witness).on(partition).about(id));
        }
    }

    /// A dead letter or lifecycle events.
    fn told(&mut self, life: Life<'_>, record: &Produced, at: At) {
        let letter = record.stamp.iter().filter(|_| Role::of(&record.topic) == Role::Fail).map(|stamp| stamp.ticket);
        // That something was indexed only reports on a write; a child's CREATE goes with its family.
        let is_end = |one: &&Lifecycle| matches!(one.kind, LifecycleKind::Dropped | LifecycleKind::Failed);
        let ended = record.lifecycle.iter().filter(is_end).map(|one| one.ticket);
        let index = self.history.index;
        for ticket in letter.chain(ended) {
            let Some((given, at_dest)) = self.deliveries.of_ticket(index, life, &ticket, at) else { continue };
            let attempt = index.attempt_of(&ticket);
            let begun = match at_dest {
                true => attempt.and_then(|one| one.outputs.get(ticket.ordinal)?.written),
                false => attempt.and_then(|one| one.begun),
            };
            let partition = &index.spans[given.span].partition;
            let what = || format!("a record for {} about {partition}@{}", record.topic, given.offset);
            self.effect(given.span, at, begun, what);
        }
    }

    fn written(&mut self, life: Life<'_>, call: Call, write: &IndexWrite, at: At) {
        if self.history.options.local_mode {
            return self.written_locally(call, write, at);
        }
        let index = self.history.index;
        let Some(Given { span, at: delivered, offset, key }) = self.deliveries.of_write(index, life, write, at) else {
            return self.orders.pass(call);
        };
        let partition = &index.spans[span].partition;
        self.effect(span, at, None, || format!("a write of {} from {partition}@{offset}", write.id));
        let Some(key) = key else { return self.orders.pass(call) };
        let line = Line::Written(span, key.clone(), write.document());
        if let Some((property, earlier)) =
            self.orders.start(call, line, Attempt { offset, version: write.version, at }, true)
        {
            let words = match property {
                "write-overlap" => format!(
                    "key {}: the write from {partition}@{offset} was sent while that of another offset was out",
                    text(key)
                ),
                _ => format!("key {}: {partition}@{offset} was written after a later offset", text(key)),
            };
            let witness = [delivered, earlier, at];
            self.found.push(Violation::new(CHECKER, property, words, witness).on(partition).about(write.id.clone()));
        }
    }

    /// Children and overridden ids have no order of their own; a document under the id it was published with has.
    fn written_locally(&mut self, call: Call, write: &IndexWrite, at: At) {
        let published = self.history.index.publish(write.ticket.run, write.ticket.sequence);
        let Some(published) = published.filter(|publish| publish.id == write.id) else { return self.orders.pass(call) };
        let line = Line::Local(write.ticket.run, write.document());
        let offset = i64::try_from(write.ticket.sequence).unwrap_or(i64::MAX);
        if let Some((property, earlier)) =
            self.orders.start(call, line, Attempt { offset, version: write.version, at }, true)
        {
            let words = match property {
                "write-overlap" => {
                    format!("{}: publish {offset} was written while another publish of it was out", write.id)
                }
                _ => format!("{}: publish {offset} was written after a later publish", write.id),
            };
            let witness = [published.invoked, earlier, at];
            self.found.push(Violation::new(CHECKER, property, words, witness).about(write.id.clone()));
        }
    }

    /// Takes an effect that began at `begun`, or at `at` where there is no such event.
    fn effect(&mut self, span: usize, at: At, begun: Option<At>, what: impl FnOnce() -> String) {
        let (events, span) = (self.history.events, &self.history.index.spans[span]);
        let began = begun.unwrap_or(at).min(at);
        let released = span.released.filter(|released| *released < began);
        let lost = span
            .lost
            .filter(|lost| *lost < began && events[at].at.since(events[*lost].at) > self.history.options.lost_grace);
        if let Some(ended) = released.or(lost) {
            let how = if released.is_some() { "released" } else { "lost" };
            let words = format!("{} began after {} was {how} (epoch {})", what(), span.partition, span.epoch.0);
            let violation = Violation::new(CHECKER, "effect-after-release", words, [ended, at]);
            self.found.push(violation.on(&span.partition));
        }
    }
}

/// What a transport says of a commit that its fence refused.
const FENCED: &str = "STALE_EPOCH";

/// Whether a commit never left, because the transport's fence refused it. What a coordinator refused had been sent.
fn never_left(history: &History<'_>, call: Call, number: usize) -> bool {
    let resolved = history.index.commit_ends.get(&call).map(|at| &history.events[*at].what);
    match resolved {
        Some(What::CommitResolved { outcomes, .. }) => {
            matches!(outcomes.get(number), Some(Ack::Fail(code)) if code == FENCED)
        }
        _ => false,
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
