//! What leaves through a producer that refuses, dies and comes back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};

use super::*;
use crate::event::{self, Event, EventKind};
use crate::identity::{Epoch, Position, TopicPartition};
use crate::identity::{Ticket, Version};
use crate::index::memory::{MemoryIndex, SharedMemoryIndex};
use crate::index::{Backend, BackendError, IndexOp, ItemOutcome};
use crate::indexer::{Indexer, IndexerConfig};
use crate::machines::batcher::BatchLimits;
use crate::messenger::{DeadLetter, EventSource, Outbound, PublicationSender, PublisherMessenger};
use crate::stop::Stop;
use crate::testing::{Bench, Script, assigned};
use crate::transport::{ErrorKind, Header, Polled, RebalanceId, TransportError};

const LIMIT: usize = 1_000_000;

/// Refuses records over the limit.
fn refusing(bench: &Bench) -> Script {
    Script::new(bench, |record| {
        let headers: usize = record.headers.iter().map(|header| header.value.len()).sum();
        let bytes = record.value.as_ref().map_or(0, Bytes::len) + record.key.as_ref().map_or(0, Bytes::len) + headers;
        let too_large = || TransportError::new(ErrorKind::Refused, "MESSAGE_TOO_LARGE", "test");
        if bytes > LIMIT { Err(too_large()) } else { Ok(()) }
    })
}

fn envelope(sequence: u64) -> Envelope {
    let ticket = Ticket { run: RunId(5), sequence, attempt: 0, ordinal: 0 };
    Envelope { ticket, version: Version::from_hlc(1_000 + sequence), ..Envelope::default() }
}

fn document(id: &str, bytes: usize) -> Document {
    let mut document = Document::new(id).unwrap();
    document.set("text", "x".repeat(bytes)).unwrap();
    document
}

fn handed_over(script: &Script, emissions: Vec<Emission>) {
    let bench = &script.env;
    let config = KafkaConfig::new("p");
    let consumer = KafkaMessengers::new(bench.clone(), script.clone(), config);
    let mut worker = bench.run(Duration::from_secs(1), consumer.worker()).unwrap().unwrap();
    bench.run(Duration::from_secs(1), WorkerMessenger::send(&mut worker, emissions)).unwrap().unwrap();
    bench.pass(Duration::from_secs(1));
}

/// Kinds and ids of the events that arrived.
fn events(script: &Script) -> Vec<(EventKind, CompactString)> {
    let topic = Topics::of("p").event(RunId(5));
    let lines = script.lines();
    let records = lines.sent.iter().filter(|record| record.topic == topic);
    let all = records.flat_map(|record| event::decode_batch(record.value.as_ref().unwrap()).unwrap());
    all.map(|event| (event.kind, event.document_id)).collect()
}

fn dead_letters(script: &Script) -> Vec<(Bytes, Option<usize>)> {
    let lines = script.lines();
    let dead = lines.sent.iter().filter(|record| record.topic.ends_with("_fail"));
    dead.map(|record| (record.key.clone().unwrap(), record.value.as_ref().map(Bytes::len))).collect()
}

#[test]
fn reports_with_long_causes_all_arrive() {
    let script = refusing(&Bench::default());
    let long = "\u{1}long cause ".repeat(1_000);
    let emission = |sequence| Emission {
        claim: Claim::unfenced(),
        outputs: Vec::new(),
        events: vec![Event::failed(&envelope(sequence), "a", &long, 0)],
        dead_letters: Vec::new(),
    };
    handed_over(&script, (0..900).map(emission).collect());
    assert_eq!(events(&script).len(), 900);
}

#[test]
fn a_dead_letter_that_is_too_large_leaves_without_its_body() {
    let script = refusing(&Bench::default());
    let dead =
        DeadLetter { id: "a".into(), envelope: envelope(0), body: Some(vec![b'x'; LIMIT].into()), cause: "c".into() };
    let emission =
        Emission { claim: Claim::unfenced(), outputs: Vec::new(), events: Vec::new(), dead_letters: vec![dead] };
    handed_over(&script, vec![emission]);
    assert_eq!(dead_letters(&script), [("a".into(), None)]);
}

#[test]
fn an_output_that_is_too_large_fails_under_its_own_id() {
    let script = refusing(&Bench::default());
    let outputs = vec![Outbound { document: document("a", LIMIT), envelope: envelope(0) }];
    let emission = Emission { claim: Claim::unfenced(), outputs, events: Vec::new(), dead_letters: Vec::new() };
    handed_over(&script, vec![emission]);
    assert_eq!(events(&script), [(EventKind::Fail, "a".into())]);
    assert_eq!(dead_letters(&script), [("a".into(), None)]);
}

#[test]
fn a_published_document_that_is_too_large_fails_and_the_run_goes_on() {
    let bench = Bench::default();
    let script = refusing(&bench);
    let messengers = KafkaMessengers::new(bench.clone(), script.clone(), KafkaConfig::new("p"));
    let outcome = bench.run(Duration::from_secs(20), async {
        let (_, mut sender, mut events) = messengers.publisher().await?.open(RunId(5)).await?;
        let batch = [("a", LIMIT), ("b", 10)].into_iter().enumerate();
        let batch = batch.map(|(sequence, (id, bytes))| Outbound {
            document: document(id, bytes),
            envelope: envelope(sequence as u64),
        });
        sender.send(batch.collect()).await?;
        sender.flush().await?;
        events.poll(Duration::from_secs(1)).await
    });
    let events = outcome.expect("it ends").expect("without an error");
    let [failed] = &events[..] else { panic!("{events:?}") };
    assert_eq!((failed.kind, &*failed.document_id, failed.is_parent), (EventKind::Fail, "a", true));
    assert_eq!(failed.ticket, envelope(0).ticket);
    assert_eq!(dead_letters(&script), [("a".into(), None)]);
    assert_eq!(script.lines().sent.iter().filter(|record| record.topic.ends_with("_source")).count(), 1);
}

#[test]
fn a_publisher_waits_for_a_new_producer_as_long_as_it_takes() {
    let bench = Bench::default();
    let tries = AtomicUsize::new(0);
    let script = Script::new(&bench, move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => Err(TransportError::new(ErrorKind::Fatal, "OUT_OF_ORDER_SEQUENCE_NUMBER", "test")),
        _ => Ok(()),
    });
    let messengers = KafkaMessengers::new(bench.clone(), script.clone(), KafkaConfig::new("p"));
    let outcome = bench.run(Duration::from_secs(60), async {
        let (_, mut sender, _) = messengers.publisher().await?.open(RunId(5)).await?;
        let away = || TransportError::new(ErrorKind::Retriable, "BROKER_NOT_AVAILABLE", "test");
        script.lines().producer_errors.extend((0..3).map(|_| away()));
        sender.send(vec![Outbound { document: document("a", 10), envelope: envelope(0) }]).await?;
        sender.flush().await
    });
    outcome.expect("it ends").expect("without an error");
    assert_eq!(script.lines().sent.len(), 1);
}

#[test]
fn a_run_does_not_begin_below_tails_that_cannot_be_read() {
    let bench = Bench::default();
    let script = refusing(&bench);
    let messengers = KafkaMessengers::new(bench.clone(), script.clone(), KafkaConfig::new("p"));
    let open = async || {
        let (opened, mut sender, _) = messengers.publisher().await?.open(RunId(5)).await?;
        sender.send(vec![Outbound { document: document("a", 10), envelope: envelope(7) }]).await?;
        sender.flush().await?;
        Ok::<u64, MessengerError>(opened.clock_floor)
    };
    let limit = Duration::from_secs(100);
    assert_eq!(bench.run(limit, open()).unwrap().unwrap(), 0);
    assert_eq!(bench.run(limit, open()).unwrap().unwrap(), 1_007);
    script.lines().unreadable = true;
    let unread = bench.run(limit, open()).expect("it ends");
    assert!(unread.is_err(), "its versions may lie below what is in the index: {unread:?}");
}

/// The record at `offset`, for the index called `index`.
fn to_index(offset: i64, index: &str) -> Record {
    let mut document = document(&format!("doc-{offset}"), 1);
    document.set("index", index).unwrap();
    Record {
        position: Position { partition: TopicPartition::new("t", 0), offset, epoch: Epoch(1) },
        key: None,
        value: Some(document.to_json()),
        headers: vec![Header { name: Envelope::HEADER.into(), value: envelope(offset as u64).encode() }],
        timestamp_millis: 0,
    }
}

#[test]
fn an_indexer_that_drains_writes_what_waits_below_what_it_has_written_and_no_more() {
    for stops in [false, true] {
        let bench = Bench::default();
        let script = Script::new(&bench, |_| Ok(()));
        // Two are a batch: the first of all and the last wait.
        let records = ["y", "x", "x", "x"].into_iter().zip(0..).map(|(index, offset)| to_index(offset, index));
        script.say([assigned(1), Polled::Records(records.collect())]);
        let messengers = KafkaMessengers::new(bench.clone(), script.clone(), KafkaConfig::new("p"));
        let messenger = bench.run(Duration::from_secs(1), messengers.indexer()).unwrap().unwrap();
        let index = SharedMemoryIndex::new(bench.clone(), MemoryIndex::new(Duration::from_secs(60)));
        let age_max = Duration::from_secs(300);
        let batch = BatchLimits { items_max: 2, bytes_max: 1 << 20, age_max };
        let config = IndexerConfig { batch, index_override: Some("index".into()), ..IndexerConfig::default() };
        let (stop, backend) = (Stop::new(), Arc::new(index.clone()));
        let indexer = Indexer::new(bench.clone(), messenger, backend, config, stop.clone());
        bench.spawn(async move { indexer.run().await.unwrap() });
        bench.pass(Duration::from_secs(3));
        let count = |name| index.lock().documents_in(name).count();
        assert_eq!((count("x"), count("y"), script.lines().commits.len()), (2, 0, 0));
        if stops {
            stop.request();
        } else {
            let partitions = vec![(TopicPartition::new("t", 0), Epoch(1))];
            let deadline = bench.now() + age_max;
            script.say([Polled::Revoking { event: RebalanceId(1), partitions, deadline }]);
        }
        bench.pass(Duration::from_secs(1));
        assert_eq!((count("x"), count("y")), (2, 1), "stops: {stops}");
        let lines = script.lines();
        assert_eq!(lines.commits.last().map(|commit| commit.offset), Some(3), "stops: {stops}");
        assert_eq!((lines.left, lines.released.len()), (stops, usize::from(!stops)));
    }
}

/// An index whose answers are lost.
#[derive(Debug)]
struct Unanswered;

impl Backend for Unanswered {
    fn bulk<'a>(&'a self, _: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        ready(Err(BackendError::UnknownOutcome("timed out".into()))).boxed()
    }
}

#[test]
fn an_indexer_that_stops_with_a_write_of_unknown_outcome_is_counted() {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    script.say([assigned(1), Polled::Records(vec![to_index(0, "x")])]);
    let config = KafkaConfig::new("p");
    let uncovered = config.indexer.uncovered.clone();
    let messengers = KafkaMessengers::new(bench.clone(), script.clone(), config);
    let messenger = bench.run(Duration::from_secs(1), messengers.indexer()).unwrap().unwrap();
    let stop = Stop::new();
    let indexer = Indexer::new(bench.clone(), messenger, Arc::new(Unanswered), IndexerConfig::default(), stop.clone());
    bench.spawn(async move { indexer.run().await.unwrap() });
    bench.pass(Duration::from_secs(3));
    assert_eq!(uncovered.count(), 0);
    stop.request();
    bench.pass(Duration::from_secs(1));
    assert!(script.lines().left && script.lines().commits.is_empty());
    assert_eq!(uncovered.count(), 1, "the write may be applied yet, and the next owner makes it again");
}
