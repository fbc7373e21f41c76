//! What leaves a worker or an indexer through a producer: outputs, dead letters and events, whose acknowledgements
//! settle the claims they were handed over with. Kafka and hybrid messengers share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use compact_str::CompactString;

use super::Topics;
use crate::env::Env;
use crate::event::{self, Event};
use crate::identity::Envelope;
use crate::intake::{Claim, FailureHandle};
use crate::messenger::{DeadLetter, Emission, Outbound};
use crate::partitioner::partition;
use crate::transport::{Appended, Delivery, ErrorKind, Header, Outgoing, Producer, TransportError};

/// What a broker or a client says of a record over its limit.
pub(super) const TOO_LARGE: &str = "MESSAGE_TOO_LARGE";
/// What a client says of a topic that is not there.
pub(super) const UNKNOWN_TOPIC: &str = "UNKNOWN_TOPIC_OR_PARTITION";
/// Of an id or a cause in a report.
const TEXT_BYTES_MAX: usize = 4_096;
/// Of the events in one record.
const EVENT_RECORD_BYTES_MAX: usize = 500_000;

/// What leaves a worker or an indexer.
#[derive(Clone, Debug)]
pub(in crate::messenger) struct Outbox<E, P> {
    env: E,
    producer: P,
    topics: Topics,
    failure: FailureHandle,
    /// Events of runs that were over.
    late_events: Arc<AtomicU64>,
}

/// What one record of a hand-over stands for: whose claim waits for it, and what to say when it is refused.
#[derive(Clone, Debug)]
struct Pending {
    emission: usize,
    id: CompactString,
    envelope: Envelope,
    /// Of a dead letter: why there is one.
    cause: Option<String>,
}

impl<E: Env, P: Producer> Outbox<E, P> {
    /// A way out through `producer`; when that fails for good, so does the intake behind `failure`. Events that come
    /// too late for their run are added to `late_events`.
    pub(in crate::messenger) fn new(
        env: E,
        producer: P,
        topics: Topics,
        failure: FailureHandle,
        late_events: Arc<AtomicU64>,
    ) -> Self {
        Outbox { env, producer, topics, failure, late_events }
    }

    /// Enqueues everything, in order; the claims are done when all of it is acknowledged.
    pub(in crate::messenger) async fn send(&self, emissions: Vec<Emission>) {
        let mut outgoing = Vec::new();
        let mut pending = Vec::new();
        let mut events: Vec<Event> = Vec::new();
        let mut claims = Vec::with_capacity(emissions.len());
        for (index, emission) in emissions.into_iter().enumerate() {
            for output in &emission.outputs {
                let id = output.document.id().clone();
                pending.push(Pending { emission: index, id, envelope: output.envelope, cause: None });
                outgoing.push(self.output(output));
            }
            for dead in emission.dead_letters {
                outgoing.push(dead_letter(&self.topics, &dead));
                let DeadLetter { id, envelope, cause, .. } = dead;
                pending.push(Pending { emission: index, id, envelope, cause: Some(cause) });
            }
            let reports = emission.events.len();
            events.extend(emission.events);
            claims.push((emission.claim, reports > 0));
        }
        let outputs = outgoing.len();
        outgoing.extend(event_records(&self.topics, events));
        let reports = outgoing[outputs..].iter().map(|record| record.value.clone()).collect();
        let delivery = self.producer.send_all(outgoing).await;
        let outbox = self.clone();
        self.env.spawn(async move { outbox.settle(delivery, reports, pending, claims).await });
    }

    /// Waits for the acknowledgements and settles the claims.
    async fn settle(
        self,
        delivery: Delivery,
        reported: Vec<Option<Bytes>>,
        pending: Vec<Pending>,
        claims: Vec<(Claim, bool)>,
    ) {
        let results = delivery.await;
        let (sent, reports) = results.split_at(pending.len().min(results.len()));
        self.count_late(reports, &reported);
        // A refused report: no event topic any more, so the run is over, and so is the need to report to it.
        let reported = fatal(reports).is_none();
        let mut acknowledged = vec![true; claims.len()];
        let (mut failed, mut dead) = (Vec::new(), Vec::new());
        for (result, Pending { emission, id, envelope, cause }) in sent.iter().zip(pending) {
            match (result, cause) {
                (Ok(_), _) => {}
                // Nothing is wrong with the document: it stays, for whoever may write.
                (Err(error), _) if error.is_denied() => acknowledged[emission] = false,
                (Err(error), None) if error.kind == ErrorKind::Refused => {
                    let (event, letter) = refusal(id, envelope, error, self.env.wall_micros());
                    failed.push(event);
                    dead.push(letter);
                }
                (Err(error), Some(cause)) if error.code == TOO_LARGE => {
                    let cause = format!("{}; without the document: {error}", cut(&cause, TEXT_BYTES_MAX));
                    dead.push(DeadLetter { id, envelope, body: None, cause });
                }
                (Err(error), Some(_)) if error.kind == ErrorKind::Refused => {}
                (Err(_), _) => acknowledged[emission] = false,
            }
        }
        if !dead.is_empty() {
            let mut outgoing: Vec<Outgoing> = dead.iter().map(|dead| dead_letter(&self.topics, dead)).collect();
            outgoing.extend(event_records(&self.topics, failed));
            let reported: Vec<_> = outgoing[dead.len()..].iter().map(|record| record.value.clone()).collect();
            let results = self.producer.send_all(outgoing).await.await;
            self.count_late(&results[dead.len().min(results.len())..], &reported);
            if let Some(error) = fatal(&results) {
                self.failure.fail(error);
                return;
            }
        }
        if let Some(error) = fatal(&results) {
            self.failure.fail(error);
        }
        for ((claim, reports), acknowledged) in claims.into_iter().zip(acknowledged) {
            if acknowledged && (reported || !reports) {
                claim.done();
            }
        }
    }

    /// Counts the events that were refused: their run is over, and its event topic gone.
    fn count_late(&self, results: &[Result<Appended, TransportError>], reported: &[Option<Bytes>]) {
        let is_refused =
            |result: &Result<_, TransportError>| result.as_ref().is_err_and(|error| error.kind == ErrorKind::Refused);
        let events = |value: &Bytes| event::decode_batch(value).map_or(1, |events| events.len() as u64);
        let refused = results.iter().zip(reported).filter(|(result, _)| is_refused(result));
        let late: u64 = refused.map(|(_, value)| value.as_ref().map_or(0, events)).sum();
        self.late_events.fetch_add(late, Ordering::Relaxed);
    }

    fn output(&self, output: &Outbound) -> Outgoing {
        let key = Bytes::copy_from_slice(output.document.id().as_bytes());
        Outgoing {
            topic: self.topics.dest.clone(),
            partition: pinned_partition(&key, output.envelope.dest_partitions),
            key: Some(key),
            value: Some(output.document.to_json()),
            headers: vec![Header { name: Envelope::HEADER.into(), value: output.envelope.encode() }],
        }
    }
}

pub(super) fn dead_letter(topics: &Topics, dead: &DeadLetter) -> Outgoing {
    Outgoing {
        topic: topics.fail.clone(),
        partition: None,
        key: Some(Bytes::copy_from_slice(dead.id.as_bytes())),
        value: dead.body.clone(),
        headers: vec![
            Header { name: Envelope::HEADER.into(), value: dead.envelope.encode() },
            Header { name: "cause".into(), value: Bytes::copy_from_slice(dead.cause.as_bytes()) },
        ],
    }
}

/// Records of events, each of one run and far below the smallest record limit that brokers are run with.
pub(super) fn event_records(topics: &Topics, mut events: Vec<Event>) -> Vec<Outgoing> {
    for event in &mut events {
        event.document_id = cut(&event.document_id, TEXT_BYTES_MAX).into();
        event.message = event.message.take().map(|message| cut(&message, TEXT_BYTES_MAX).into());
    }
    events.sort_by_key(|event| event.ticket.run);
    let mut records = Vec::new();
    let mut rest = &events[..];
    while let Some(first) = rest.first() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|event| {
            bytes += event_bytes_max(event);
            event.ticket.run == first.ticket.run && bytes <= EVENT_RECORD_BYTES_MAX
        });
        let (chunk, later) = rest.split_at(fits.count().max(1));
        rest = later;
        records.push(Outgoing {
            topic: topics.event(first.ticket.run),
            partition: Some(0),
            key: None,
            value: Some(event::encode_batch(chunk)),
            headers: Vec::new(),
        });
    }
    records
}

/// The longest that an event can be, were every letter of its texts escaped.
fn event_bytes_max(event: &Event) -> usize {
    400 + 6 * (event.document_id.len() + event.message.as_ref().map_or(0, |message| message.len()))
}

/// What is told of a document that the broker refused.
pub(super) fn refusal(
    id: CompactString,
    envelope: Envelope,
    error: &TransportError,
    wall_micros: u64,
) -> (Event, DeadLetter) {
    let cause = format!("the broker refused the document: {error}");
    let event = Event::failed(&envelope, &id, &cause, wall_micros);
    (event, DeadLetter { id, envelope, body: None, cause })
}

/// The start of `text`, in whole letters.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The partition of `key` among as many as the run pinned, so that growth in mid-run moves no key.
pub(super) fn pinned_partition(key: &[u8], partitions: u32) -> Option<i32> {
    (partitions > 0).then(|| partition(key, partitions))
}

/// The first error that is not a refusal of one record: the producer is of no use any more.
fn fatal(results: &[Result<Appended, TransportError>]) -> Option<TransportError> {
    results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .find(|error| error.kind != ErrorKind::Refused || error.is_denied())
        .cloned()
}
