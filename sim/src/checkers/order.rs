//! Order of effects: within one ownership, one key's attempts follow offsets without overlap, and nothing of an
//! ownership starts after it was given back.
//!
//! At the worker hop an attempt is a record handed to the producer for the destination topic; the producer is ordered
//! and idempotent, so the order of the calls suffices. At the indexer hop it is a write in a batch: a later offset of
//! the same key must wait until the request of the earlier one ended, unless both are in the same request.
//! Without Kafka the sequence of the publish stands for the offset, within one run.
//!
//! An effect belongs to the ownership under which its node was last given its record.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use seriatim_core::identity::{Epoch, RunId, TopicPartition};

use super::facts::{At, Role};
use super::index::HistoryIndex;
use super::{History, Violation};
use crate::history::{Ack, Call, Delivered, Event, IndexWrite, Produced, What, WriteOutcome};

const CHECKER: &str = "order";

/// Whose attempts are compared: an ownership and a key; or a run and an id, where there is no Kafka.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Owned(usize, Bytes),
    Local(RunId, Bytes),
}

/// One line's attempts so far.
#[derive(Default)]
struct Attempts {
    /// Highest offset whose attempt ended for good, and the event that started it.
    ended: Option<(i64, At)>,
    /// Attempts whose request is out: call, offset, start.
    open: Vec<(Call, i64, At)>,
}

/// Line, offset and start of one attempt.
type Attempt = (Line, i64, At);

#[derive(Default)]
struct Orders {
    lines: BTreeMap<Line, Attempts>,
    calls: BTreeMap<Call, Vec<Option<Attempt>>>,
}

impl Orders {
    /// Takes an attempt; gives the property that it breaks and the start of the attempt that it conflicts with.
    fn start(&mut self, call: Call, line: Line, offset: i64, at: At, overlaps: bool) -> Option<(&'static str, At)> {
        let attempts = self.lines.entry(line.clone()).or_default();
        let ahead = attempts.ended.iter().copied().find(|(ended, _)| *ended > offset).map(|(_, start)| start);
        let open = attempts.open.iter().find(|(other, open, _)| match overlaps {
            true => *other != call && *open != offset || *other == call && *open > offset,
            false => *open > offset,
        });
        let conflict = match (ahead, open) {
            (Some(start), _) => Some(("write-order", start)),
            (None, Some((_, other, start))) if *other > offset => Some(("write-order", *start)),
            (None, Some((_, _, start))) => Some(("write-overlap", *start)),
            (None, None) => None,
        };
        attempts.open.push((call, offset, at));
        self.calls.entry(call).or_default().push(Some((line, offset, at)));
        conflict
    }

    fn pass(&mut self, call: Call) {
        self.calls.entry(call).or_default().push(None);
    }

    /// Ends a call. An attempt that the index did not take has no effect: others may come before it or after it.
    fn end(&mut self, call: Call, for_good: impl Fn(usize) -> bool) {
        for (number, attempt) in self.calls.remove(&call).unwrap_or_default().into_iter().enumerate() {
            let Some((line, offset, at)) = attempt else { continue };
            let Some(attempts) = self.lines.get_mut(&line) else { continue };
            attempts.open.retain(|(open, ..)| *open != call);
            if for_good(number) && attempts.ended.is_none_or(|(ended, _)| ended < offset) {
                attempts.ended = Some((offset, at));
            }
        }
    }
}

/// A life of a node, by the number that [`Walk::life`] gives it.
type Life = usize;

/// Ownership, key and time of a delivery.
type Given = (usize, Option<Bytes>, At);

/// What a node was last given of each record.
#[derive(Default)]
struct Deliveries {
    owned: BTreeMap<(Life, TopicPartition, i64), Given>,
    current: BTreeMap<(Life, TopicPartition, Epoch), usize>,
    sources: BTreeMap<Arc<str>, Arc<str>>,
}

impl Deliveries {
    fn take(&mut self, index: &HistoryIndex, life: Life, consumer: Call, records: &[Delivered], at: At) {
        for record in records {
            let position = &record.position;
            let key = (consumer, position.partition.clone(), position.epoch);
            if let Some(span) = index.span_of.get(&key) {
                let place = (life, position.partition.clone(), position.offset);
                self.owned.insert(place, (*span, record.key.clone(), at));
                self.current.insert((life, position.partition.clone(), position.epoch), *span);
            }
        }
    }

    /// The ownership, key and delivery of the source record behind a record for the destination topic.
    fn of_produced(&mut self, life: Life, record: &Produced) -> Option<(usize, Option<Bytes>, At, i64)> {
        let (partition, offset) = record.stamp?.origin?;
        let source = self.sources.entry(record.topic.clone()).or_insert_with(|| {
            let pipeline = record.topic.strip_suffix("_dest").unwrap_or(&record.topic);
            format!("{pipeline}_source").into()
        });
        let place = (life, TopicPartition::new(source.clone(), partition), offset);
        self.owned.get(&place).map(|(span, key, at)| (*span, key.clone(), *at, offset))
    }

    /// The ownership, key and delivery of the record behind a write.
    fn of_write(&self, life: Life, write: &IndexWrite) -> Option<(usize, Option<Bytes>, At, i64)> {
        let position = write.position.as_ref()?;
        let place = (life, position.partition.clone(), position.offset);
        let (span, key, at) = self.owned.get(&place)?;
        // The record may have come again since under a new ownership, while this is a write of the old one.
        let own = (life, position.partition.clone(), position.epoch);
        Some((self.current.get(&own).copied().unwrap_or(*span), key.clone(), *at, position.offset))
    }
}

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    let lives = BTreeMap::new();
    let mut walk = Walk { history, found, lives, orders: Orders::default(), deliveries: Deliveries::default() };
    for (at, event) in history.events.iter().enumerate() {
        walk.take(at, event);
    }
}

struct Walk<'a, 'f> {
    history: &'a History<'a>,
    found: &'f mut Vec<Violation>,
    lives: BTreeMap<(Arc<str>, u32), Life>,
    orders: Orders,
    deliveries: Deliveries,
}

impl Walk<'_, '_> {
    fn life(&mut self, event: &Event) -> Life {
        let next = self.lives.len();
        *self.lives.entry((event.node.clone(), event.incarnation)).or_insert(next)
    }

    fn take(&mut self, at: At, event: &Event) {
        match &event.what {
            What::Polled { consumer, records } => {
                let life = self.life(event);
                self.deliveries.take(self.history.index, life, *consumer, records, at);
            }
            What::ProduceInvoked { call, records, .. } => {
                let life = self.life(event);
                for record in records {
                    self.produced(life, *call, record, at);
                }
            }
            What::ProduceResolved { call, outcomes } => {
                self.orders.end(*call, |number| matches!(outcomes.get(number), Some(Ack::Ok(_))));
            }
            What::BulkInvoked { call, writes } => {
                let life = self.life(event);
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
                        && !refused(self.history, *call, number)
                    {
                        self.effect(*span, at, || format!("a commit of {} at {}", commit.partition, commit.offset));
                    }
                }
            }
            _ => {}
        }
    }

    fn produced(&mut self, life: Life, call: Call, record: &Produced, at: At) {
        let owned = match Role::of(&record.topic) {
            Role::Dest => self.deliveries.of_produced(life, record),
            _ => None,
        };
        let Some((span, key, delivered, offset)) = owned else { return self.orders.pass(call) };
        let (partition, topic) = (&self.history.index.spans[span].partition, &record.topic);
        self.effect(span, at, || format!("a record for {topic} from {partition}@{offset}"));
        let Some(key) = key else { return self.orders.pass(call) };
        if let Some((property, earlier)) = self.orders.start(call, Line::Owned(span, key.clone()), offset, at, false) {
            let id = text(&key);
            let words =
                format!("key {id}: {partition}@{offset} went to {topic} after a later offset of the same ownership");
            let witness = [delivered, earlier, at];
            self.found.push(Violation::new(CHECKER, property, words, witness).on(partition).about(id));
        }
    }

    fn written(&mut self, life: Life, call: Call, write: &IndexWrite, at: At) {
        if self.history.options.local_mode {
            return self.written_locally(call, write, at);
        }
        let Some((span, key, delivered, offset)) = self.deliveries.of_write(life, write) else {
            return self.orders.pass(call);
        };
        let partition = &self.history.index.spans[span].partition;
        self.effect(span, at, || format!("a write of {} from {partition}@{offset}", write.id));
        let Some(key) = key else { return self.orders.pass(call) };
        if let Some((property, earlier)) = self.orders.start(call, Line::Owned(span, key.clone()), offset, at, true) {
            let words = match property {
                "write-overlap" => format!(
                    "key {}: the write from {partition}@{offset} was sent while that of another offset was out",
                    text(&key)
                ),
                _ => format!("key {}: {partition}@{offset} was written after a later offset", text(&key)),
            };
            let witness = [delivered, earlier, at];
            self.found.push(Violation::new(CHECKER, property, words, witness).on(partition).about(write.id.clone()));
        }
    }

    /// Children and overridden ids have no order of their own; a document under the id it was published with has.
    fn written_locally(&mut self, call: Call, write: &IndexWrite, at: At) {
        let sequence = (write.ticket.run, write.ticket.sequence);
        let published =
            self.history.index.by_sequence.get(&sequence).map(|number| &self.history.index.publishes[*number]);
        let Some(published) = published.filter(|publish| publish.id == write.id) else { return self.orders.pass(call) };
        let line = Line::Local(write.ticket.run, Bytes::copy_from_slice(write.id.as_bytes()));
        let offset = i64::try_from(write.ticket.sequence).unwrap_or(i64::MAX);
        if let Some((property, earlier)) = self.orders.start(call, line, offset, at, true) {
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

    fn effect(&mut self, span: usize, at: At, what: impl Fn() -> String) {
        let (events, span) = (self.history.events, &self.history.index.spans[span]);
        let released = span.released.filter(|released| *released < at);
        let lost = span
            .lost
            .filter(|lost| *lost < at && events[at].at.since(events[*lost].at) > self.history.options.lost_grace);
        if let Some(ended) = released.or(lost) {
            let how = if released.is_some() { "released" } else { "lost" };
            let words = format!("{} began after {} was {how} (epoch {})", what(), span.partition, span.epoch.0);
            let violation = Violation::new(CHECKER, "effect-after-release", words, [ended, at]);
            self.found.push(violation.on(&span.partition));
        }
    }
}

/// Whether a commit never left: the transport's fence refused it.
fn refused(history: &History<'_>, call: Call, number: usize) -> bool {
    let resolved = history.index.resolved.get(&call).map(|at| &history.events[*at].what);
    match resolved {
        Some(What::CommitResolved { outcomes, .. }) => matches!(outcomes.get(number), Some(Ack::Fail(_))),
        _ => false,
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
