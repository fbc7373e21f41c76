//! Pairs whose partitions go, whose membership ends, and whose halves close, with documents in the queue.

use std::sync::Mutex as StdMutex;

use super::*;
use crate::event::Event;
use crate::identity::{Envelope, Epoch, Position, RunId, Ticket, TopicPartition, Version};
use crate::index::memory::{MemoryIndex, SharedMemoryIndex};
use crate::indexer::IndexerConfig;
use crate::machines::batcher::BatchLimits;
use crate::messenger::Outbound;
use crate::pipeline::PipelineSpec;
use crate::runner::{RunError, run_pool, run_worker_indexer};
use crate::stop::Stop;
use crate::testing::{Bench, Script, assigned};
use crate::transport::{Header, Polled, RebalanceId, Record};
use crate::worker::WorkerConfig;

type Factory = HybridMessengers<Bench, Script>;
type Worker = HybridWorker<Bench, Script>;
type Indexer = HybridIndexer<Bench, Script>;

const SECOND: Duration = Duration::from_secs(1);

fn envelope(sequence: u64) -> Envelope {
    let ticket = Ticket { run: RunId(5), sequence, attempt: 0, ordinal: 0 };
    Envelope { ticket, version: Version::from_hlc(1_000 + sequence), ..Envelope::default() }
}

fn record(offset: i64, epoch: u64, json: &str) -> Record {
    Record {
        position: Position { partition: TopicPartition::new("t", 0), offset, epoch: Epoch(epoch) },
        key: Some(format!("doc-{offset}").into()),
        value: Some(json.to_owned().into()),
        headers: vec![Header { name: Envelope::HEADER.into(), value: envelope(offset as u64).encode() }],
        timestamp_millis: 0,
    }
}

fn plain(offset: i64, epoch: u64) -> Record {
    record(offset, epoch, &format!("{{\"id\":\"doc-{offset}\"}}"))
}

fn factory(bench: &Bench, lane_records_max: usize) -> (Script, Factory) {
    let script = Script::new(bench, |_| Ok(()));
    let config = HybridConfig { lane_records_max, ..HybridConfig::new("p") };
    (script.clone(), HybridMessengers::new(bench.clone(), script, config))
}

fn halves(bench: &Bench, factory: &Factory) -> (Worker, Indexer) {
    let made = async { (factory.worker().await.unwrap(), factory.indexer().await.unwrap()) };
    bench.run(SECOND, made).expect("in time")
}

/// A pair whose partition has `records`.
fn given(lane_records_max: usize, records: Vec<Record>) -> (Bench, Script, Worker, Indexer) {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, lane_records_max);
    script.say([assigned(1), Polled::Records(records)]);
    let (worker, indexer) = halves(&bench, &factory);
    (bench, script, worker, indexer)
}

fn taken(bench: &Bench, worker: &mut Worker) -> Vec<Work> {
    bench.run(SECOND, worker.poll(10)).expect("records came").expect("no error").expect("not closed")
}

fn queued(bench: &Bench, indexer: &mut Indexer) -> Vec<Work> {
    bench.run(SECOND, indexer.poll(10)).expect("documents came").expect("no error").expect("not closed")
}

/// What comes of `work`: as many documents as told, and an event if told.
fn emission(work: Work, outputs: usize, events: usize) -> Emission {
    assert!(work.claim.begin());
    let Payload::Document(document, envelope) = work.payload else { panic!("no document") };
    let output = |number| Outbound { document: document.child(format!("c{number}")).unwrap(), envelope };
    let event = Event::dropped(&envelope, document.id(), 0);
    let (outputs, events) = ((0..outputs).map(output).collect(), vec![event; events]);
    Emission { claim: work.claim, outputs, events, dead_letters: Vec::new() }
}

fn indexed(work: Work) -> Emission {
    let Payload::Document(document, envelope) = work.payload else { panic!("no document") };
    let events = vec![Event::finished(&envelope, document.id(), 0)];
    Emission { claim: work.claim, outputs: Vec::new(), events, dead_letters: Vec::new() }
}

fn send(bench: &Bench, worker: &mut Worker, emissions: Vec<Emission>) {
    bench.run(SECOND, worker.send(emissions)).expect("there is room").expect("no error");
}

fn complete(bench: &Bench, indexer: &mut Indexer, work: Work) {
    assert!(work.claim.begin());
    bench.run(SECOND, indexer.complete(vec![indexed(work)])).expect("in time").expect("no error");
}

fn commits(script: &Script) -> Vec<i64> {
    script.lines().commits.iter().map(|commit| commit.offset).collect()
}

fn partitions() -> Vec<(TopicPartition, Epoch)> {
    vec![(TopicPartition::new("t", 0), Epoch(1))]
}

#[test]
fn a_record_is_done_when_all_of_its_family_is() {
    let (bench, script, mut worker, mut indexer) = given(10, vec![plain(0, 1)]);
    let work = taken(&bench, &mut worker).remove(0);
    send(&bench, &mut worker, vec![emission(work, 2, 1)]);
    let mut family = queued(&bench, &mut indexer);
    assert_eq!(family.len(), 2);
    complete(&bench, &mut indexer, family.remove(0));
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), vec![0i64; 0], "one child is not indexed");
    complete(&bench, &mut indexer, family.remove(0));
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), [1]);
}

#[test]
fn what_was_dropped_yields_its_offset() {
    let (bench, script, mut worker, _indexer) = given(10, vec![plain(0, 1), plain(1, 1)]);
    let emissions = taken(&bench, &mut worker).into_iter().map(|work| emission(work, 0, 1)).collect();
    send(&bench, &mut worker, emissions);
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), [2]);
    assert_eq!(script.lines().sent.len(), 1, "the events, in one record");
}

#[test]
fn what_has_begun_is_finished_before_a_revoked_partition_goes() {
    let (bench, script, mut worker, mut indexer) = given(10, vec![plain(0, 1), plain(1, 1)]);
    let mut works = taken(&bench, &mut worker);
    send(&bench, &mut worker, vec![emission(works.remove(0), 1, 0)]);
    let deadline = bench.now() + 20 * SECOND;
    script.say([Polled::Revoking { event: RebalanceId(1), partitions: partitions(), deadline }]);
    bench.pass(2 * SECOND);
    assert_eq!(script.lines().released, [], "a document waits in the queue");
    assert!(!works[0].claim.is_active() && !works[0].claim.begin(), "what has not begun is abandoned");
    let document = queued(&bench, &mut indexer).remove(0);
    complete(&bench, &mut indexer, document);
    bench.pass(SECOND);
    assert_eq!((commits(&script), script.lines().released.clone()), (vec![1], vec![RebalanceId(1)]));
}

/// A pair of two workers whose partition has `count` records, and what each worker took.
fn in_two_lanes(count: i64) -> (Bench, Script, [Worker; 2], Indexer, [Vec<Work>; 2]) {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    let config = HybridConfig { workers: 2, ..HybridConfig::new("p") };
    let factory = HybridMessengers::new(bench.clone(), script.clone(), config);
    script.say([assigned(1), Polled::Records((0..count).map(|offset| plain(offset, 1)).collect())]);
    let (first, indexer) = halves(&bench, &factory);
    let second = bench.run(SECOND, factory.worker()).expect("in time").expect("no error");
    let mut workers = [first, second];
    let works = workers.each_mut().map(|worker| taken(&bench, worker));
    (bench, script, workers, indexer, works)
}

fn offset(work: &Work) -> i64 {
    work.claim.position().expect("it was read").offset
}

#[test]
fn a_revoked_partition_leaves_no_gap_below_what_has_begun() {
    let (bench, script, mut workers, mut indexer, [mut ahead, behind]) = in_two_lanes(10);
    let first = offset(&behind[0]);
    let begun = ahead.iter().position(|work| offset(work) > first).expect("lanes are mixed");
    let highest = offset(&ahead[begun]);
    send(&bench, &mut workers[0], ahead.drain(..=begun).map(|work| emission(work, 1, 0)).collect());
    let deadline = bench.now() + 20 * SECOND;
    script.say([Polled::Revoking { event: RebalanceId(1), partitions: partitions(), deadline }]);
    bench.pass(SECOND);
    for work in queued(&bench, &mut indexer) {
        complete(&bench, &mut indexer, work);
    }
    bench.pass(SECOND);
    assert_eq!((script.lines().released.clone(), ahead[0].claim.begin()), (vec![], false), "it must end somewhere");
    let (below, above): (Vec<Work>, Vec<Work>) = behind.into_iter().partition(|work| offset(work) < highest);
    assert!(!below.is_empty() && above.iter().all(|work| !work.claim.is_active() && !work.claim.begin()));
    assert!(below.iter().all(|work| work.claim.is_active()));
    send(&bench, &mut workers[1], below.into_iter().map(|work| emission(work, 1, 0)).collect());
    for work in queued(&bench, &mut indexer) {
        complete(&bench, &mut indexer, work);
    }
    bench.pass(SECOND);
    assert_eq!(script.lines().released, [RebalanceId(1)]);
    assert_eq!(commits(&script).last(), Some(&(highest + 1)), "its next owner has effects again that were had");
}

#[test]
fn a_stop_leaves_no_gap_below_what_has_begun() {
    let (bench, script, mut workers, mut indexer, [mut ahead, behind]) = in_two_lanes(10);
    let last = ahead.pop().expect("lanes are mixed");
    let highest = offset(&last);
    drop(ahead);
    send(&bench, &mut workers[0], vec![emission(last, 1, 0)]);
    let [mut first, mut second] = workers;
    first.drain();
    assert!(bench.run(SECOND, first.poll(10)).expect("it must not wait").unwrap().is_none());
    bench.spawn(async move { first.close().await });
    bench.pass(SECOND);
    assert!(!script.lines().left, "a lane is behind");
    let (below, above): (Vec<Work>, Vec<Work>) = behind.into_iter().partition(|work| offset(work) < highest);
    assert!(!below.is_empty() && above.iter().all(|work| !work.claim.is_active()));
    drop(above);
    send(&bench, &mut second, below.into_iter().map(|work| emission(work, 1, 0)).collect());
    assert!(bench.run(SECOND, second.poll(10)).expect("it must not wait").unwrap().is_none());
    bench.spawn(async move { second.close().await });
    for work in queued(&bench, &mut indexer) {
        complete(&bench, &mut indexer, work);
    }
    bench.pass(SECOND);
    assert!(bench.run(SECOND, indexer.poll(10)).expect("it must not wait").unwrap().is_none());
    bench.run(SECOND, indexer.close()).expect("in time");
    bench.pass(Duration::from_millis(10));
    assert!(script.lines().left && bench.tasks() == 0);
}

#[test]
fn queued_documents_of_a_lost_partition_change_nothing() {
    let (bench, script, mut worker, mut indexer) = given(10, vec![plain(0, 1), plain(1, 1)]);
    let mut works = taken(&bench, &mut worker);
    send(&bench, &mut worker, vec![emission(works.remove(0), 1, 0), emission(works.remove(0), 1, 0)]);
    let mut documents = queued(&bench, &mut indexer);
    script.say([Polled::Lost { event: RebalanceId(1), partitions: partitions() }, assigned(2)]);
    bench.pass(SECOND);
    assert_eq!(script.lines().released, [RebalanceId(1)]);
    assert!(!documents[0].claim.begin(), "somebody else owns it");
    // The other had its request out already.
    let late = indexed(documents.remove(1));
    bench.run(SECOND, indexer.complete(vec![late])).unwrap().unwrap();
    drop(documents);
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), vec![0i64; 0]);
}

#[test]
fn a_full_queue_holds_nobody_when_the_membership_ends() {
    let (bench, script, mut worker, mut indexer) = given(1, vec![plain(0, 1)]);
    let work = taken(&bench, &mut worker).remove(0);
    let sent = Arc::new(StdMutex::new(None));
    let told = sent.clone();
    bench.spawn(async move {
        let outcome = worker.send(vec![emission(work, 3, 0)]).await;
        *told.lock().unwrap() = Some(outcome.is_err());
    });
    bench.pass(2 * SECOND);
    assert_eq!(*sent.lock().unwrap(), None, "there is room for one");
    script.lines().polls.push_back(Err(TransportError::new(ErrorKind::Fatal, "UNKNOWN_MEMBER_ID", "test")));
    bench.pass(2 * SECOND);
    assert_eq!(*sent.lock().unwrap(), Some(true), "it waits for ever");
    assert!(bench.run(SECOND, indexer.poll(10)).expect("it must not wait").is_err());
    assert_eq!(commits(&script), vec![0i64; 0]);
}

#[test]
fn a_half_that_goes_takes_the_other_with_it_and_the_next_pair_begins_with_an_empty_queue() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 10);
    script.say([assigned(1), Polled::Records(vec![plain(0, 1)])]);
    let (mut worker, mut indexer) = halves(&bench, &factory);
    let work = taken(&bench, &mut worker).remove(0);
    send(&bench, &mut worker, vec![emission(work, 2, 0)]);
    let old = bench.run(SECOND, indexer.poll(1)).unwrap().unwrap().unwrap().remove(0);
    drop(indexer);
    assert!(bench.run(SECOND, worker.poll(10)).expect("it must not wait").is_err());
    drop(worker);
    bench.pass(SECOND);
    assert!(std::mem::take(&mut script.lines().left), "the membership ends with the pair");
    assert_eq!(factory.config.kafka.worker.uncovered.count(), 1, "its next owner has effects again");
    script.say([assigned(2), Polled::Records(vec![plain(0, 2)])]);
    let (mut worker, mut indexer) = halves(&bench, &factory);
    assert!(!old.claim.begin(), "a claim of a dead pair");
    assert!(bench.run(SECOND, indexer.poll(10)).is_none(), "what the dead pair had queued came through");
    let work = taken(&bench, &mut worker).remove(0);
    send(&bench, &mut worker, vec![emission(work, 1, 0)]);
    let document = queued(&bench, &mut indexer).remove(0);
    complete(&bench, &mut indexer, document);
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), [1]);
}

#[test]
fn what_was_handed_over_is_indexed_and_committed_when_the_worker_closes() {
    let (bench, script, mut worker, mut indexer) = given(10, vec![plain(0, 1), plain(1, 1)]);
    let mut works = taken(&bench, &mut worker);
    send(&bench, &mut worker, vec![emission(works.remove(0), 2, 1)]);
    drop(works);
    bench.spawn(async move { worker.close().await });
    bench.pass(SECOND);
    assert!(!script.lines().left, "it left with documents in the queue");
    for work in queued(&bench, &mut indexer) {
        complete(&bench, &mut indexer, work);
    }
    assert!(bench.run(SECOND, indexer.poll(10)).expect("it must not wait").unwrap().is_none(), "the queue goes on");
    bench.run(SECOND, indexer.close()).expect("in time");
    bench.pass(Duration::from_millis(10));
    assert!(script.lines().left);
    assert_eq!((commits(&script), bench.tasks()), (vec![1], 0));
}

#[test]
fn a_close_waits_for_a_stuck_indexer_no_longer_than_its_limit() {
    let (bench, script, mut worker, mut indexer) = given(10, vec![plain(0, 1)]);
    let work = taken(&bench, &mut worker).remove(0);
    send(&bench, &mut worker, vec![emission(work, 1, 0)]);
    let stuck = queued(&bench, &mut indexer).remove(0);
    bench.run(12 * SECOND, worker.close()).expect("its limit is 10 s");
    bench.pass(SECOND);
    assert!(script.lines().left && !stuck.claim.begin());
    bench.run(SECOND, indexer.complete(vec![indexed(stuck)])).unwrap().unwrap();
    bench.pass(3 * SECOND);
    assert_eq!(commits(&script), vec![0i64; 0], "half committed");
}

#[test]
fn an_indexer_that_closes_first_abandons_what_it_has_not_written() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 10);
    script.say([assigned(1), Polled::Records(vec![plain(0, 1), plain(1, 1)])]);
    let (mut worker, mut indexer) = halves(&bench, &factory);
    let mut works = taken(&bench, &mut worker);
    send(&bench, &mut worker, vec![emission(works.remove(1), 2, 1)]);
    bench.spawn(async move { indexer.close().await });
    bench.pass(SECOND);
    send(&bench, &mut worker, vec![emission(works.remove(0), 1, 0)]);
    assert!(bench.run(SECOND, worker.poll(10)).expect("it must not wait").unwrap().is_none());
    bench.run(SECOND, worker.close()).expect("nothing is out");
    bench.pass(Duration::from_millis(10));
    assert!(script.lines().left);
    assert_eq!((commits(&script), bench.tasks()), (vec![], 0));
}

fn pair(bench: &Bench, factory: &Factory, stop: &Stop, index: &SharedMemoryIndex<Bench>, indexer: IndexerConfig) {
    let pipeline = Arc::new(PipelineSpec::new("p", Vec::new()));
    let (factory, backend) = (factory.clone(), Arc::new(index.clone()));
    let pair =
        run_worker_indexer(bench.clone(), factory, pipeline, backend, WorkerConfig::default(), indexer, stop.clone());
    bench.spawn(async move { pair.await.expect("it ends well") });
}

fn memory(bench: &Bench) -> SharedMemoryIndex<Bench> {
    SharedMemoryIndex::new(bench.clone(), MemoryIndex::new(60 * SECOND))
}

#[test]
fn no_batch_of_another_index_carries_the_offset_past_one_that_waits() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 100);
    let of = |offset: i64| if offset == 2 { "y" } else { "x" };
    let records = |range: std::ops::Range<i64>| {
        let record = |offset| record(offset, 1, &format!("{{\"id\":\"doc-{offset}\",\"index\":\"{}\"}}", of(offset)));
        Polled::Records(range.map(record).collect())
    };
    script.say([assigned(1), records(0..6), records(6..11)]);
    let config = IndexerConfig {
        batch: BatchLimits { items_max: 5, bytes_max: 1 << 20, age_max: 30 * SECOND },
        index_override: Some("index".into()),
        ..IndexerConfig::default()
    };
    let (index, stop) = (memory(&bench), Stop::new());
    pair(&bench, &factory, &stop, &index, config);
    bench.pass(10 * SECOND);
    let count = |name| index.lock().documents_in(name).count();
    assert_eq!((count("x"), count("y")), (10, 0));
    assert_eq!(commits(&script).last(), Some(&2), "offset 2 waits in its batch");
    bench.pass(30 * SECOND);
    assert_eq!((count("y"), commits(&script).last()), (1, Some(&11)));
    stop.request();
    bench.pass(SECOND);
    assert_eq!(bench.tasks(), 0, "something of the pair lives on");
}

#[test]
fn a_drain_does_not_wait_for_the_age_of_a_batch() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 100);
    script.say([assigned(1), Polled::Records((0..5).map(|offset| plain(offset, 1)).collect())]);
    let batch = BatchLimits { items_max: 100, bytes_max: 1 << 20, age_max: 300 * SECOND };
    let (index, stop) = (memory(&bench), Stop::new());
    pair(&bench, &factory, &stop, &index, IndexerConfig { batch, ..IndexerConfig::default() });
    bench.pass(5 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (0, vec![]));
    let deadline = bench.now() + 200 * SECOND;
    script.say([Polled::Revoking { event: RebalanceId(1), partitions: partitions(), deadline }]);
    bench.pass(2 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (5, vec![5]));
    assert_eq!(script.lines().released, [RebalanceId(1)]);
}

#[test]
fn a_stop_writes_what_its_workers_have_handed_over() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 100);
    script.say([assigned(1), Polled::Records((0..5).map(|offset| plain(offset, 1)).collect())]);
    let batch = BatchLimits { items_max: 100, bytes_max: 1 << 20, age_max: 300 * SECOND };
    let (index, stop) = (memory(&bench), Stop::new());
    pair(&bench, &factory, &stop, &index, IndexerConfig { batch, ..IndexerConfig::default() });
    bench.pass(5 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (0, vec![]));
    stop.request();
    bench.pass(2 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (5, vec![5]));
    assert!(script.lines().left && bench.tasks() == 0);
}

#[test]
fn a_pair_whose_membership_fails_comes_back_whole() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 100);
    let fatal = || TransportError::new(ErrorKind::Fatal, "UNKNOWN_MEMBER_ID", "test");
    script.say([assigned(1), Polled::Records(vec![plain(0, 1)])]);
    script.lines().polls.push_back(Err(fatal()));
    let batch = BatchLimits { items_max: 2, bytes_max: 1 << 20, age_max: 300 * SECOND };
    let (index, stop) = (memory(&bench), Stop::new());
    pair(&bench, &factory, &stop, &index, IndexerConfig { batch, ..IndexerConfig::default() });
    bench.pass(SECOND / 2);
    script.say([assigned(2), Polled::Records(vec![plain(0, 2), plain(1, 2)])]);
    bench.pass(5 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (2, vec![2]));
    stop.request();
    bench.pass(2 * SECOND);
    assert_eq!(bench.tasks(), 0, "something of the pair lives on");
}

#[test]
fn a_pair_that_cannot_begin_leaves_no_half_in_the_group() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 100);
    script.lines().producer_errors.push_back(TransportError::new(ErrorKind::Retriable, "NO_BROKER", "test"));
    script.say([assigned(1), Polled::Records(vec![plain(0, 1)])]);
    let (index, stop) = (memory(&bench), Stop::new());
    pair(&bench, &factory, &stop, &index, IndexerConfig::default());
    bench.pass(SECOND / 2);
    assert_eq!(script.lines().joined, 0, "an indexer without a worker holds partitions");
    bench.pass(3 * SECOND);
    assert_eq!((index.lock().len(), commits(&script)), (1, vec![1]));
    assert_eq!(script.lines().joined, 1);
    stop.request();
    bench.pass(2 * SECOND);
    assert_eq!(bench.tasks(), 0, "something of the pair lives on");
}

#[test]
fn a_pair_that_gives_up_ends_the_pool_and_is_named() {
    let bench = Bench::default();
    let (_, good) = factory(&bench, 100);
    let (script, bad) = factory(&bench, 100);
    let away = || TransportError::new(ErrorKind::Fatal, "BROKER_NOT_AVAILABLE", "test");
    script.lines().producer_errors.extend((0..1_000).map(|_| away()));
    let pipeline = Arc::new(PipelineSpec::new("p", Vec::new()));
    let (worker, indexer) = (WorkerConfig::default(), IndexerConfig::default());
    let backend = Arc::new(memory(&bench));
    let pool = run_pool(bench.clone(), vec![good, bad], pipeline, backend, worker, indexer, Stop::new());
    let outcome = bench.run(120 * SECOND, pool).expect("it ends");
    let Err(RunError::Component { component, .. }) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(component, "pair 1");
    assert!(bench.run(SECOND, async {}).is_some() && bench.tasks() == 0, "the other pair lives on");
}

#[test]
fn a_run_needs_no_topic_between_the_halves() {
    let bench = Bench::default();
    let (script, factory) = factory(&bench, 1);
    script.lines().absent.insert("p_dest".into());
    let opened = bench.run(5 * SECOND, async {
        use crate::messenger::PublisherMessenger;
        factory.publisher().await?.open(RunId(5)).await.map(|(opened, ..)| opened)
    });
    assert_eq!(opened.expect("in time").expect("no error").dest_partitions, 0);
}
