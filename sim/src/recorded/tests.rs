//! The wrappers over a scripted transport: what goes in comes out, on the same poll, and is written down.

use std::collections::VecDeque;
use std::future::{Future, pending, ready};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use seriatim_core::env::Instant;
use seriatim_core::event::encode_batch;
use seriatim_core::identity::{Position, RunId, Ticket, Version};
use seriatim_core::transport::{Admin, Appended, Assignment, Committed, NewTopic, Watermarks};
use tokio::sync::oneshot;

use super::*;
use crate::history::{Event, Keep, Recorder};

/// The output of a future that is ready on its first poll: a wrapper may not add a wait.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits where the wrapped port does not"),
    }
}

type Acks = oneshot::Sender<Vec<Result<Appended, TransportError>>>;

/// Gives what its script holds, and keeps what it was given.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    polls: VecDeque<Result<Polled, TransportError>>,
    commits: VecDeque<Vec<Result<(), TransportError>>>,
    sent: Vec<Outgoing>,
    acks: Vec<Acks>,
    calls: Vec<String>,
}

impl Scripted {
    fn note(&self, call: String) {
        self.0.lock().unwrap().calls.push(call);
    }
}

impl Transport for Scripted {
    type Producer = Scripted;
    type Poller = Scripted;
    type Group = Scripted;
    type Assigned = Scripted;
    type Admin = Scripted;

    async fn producer(&self, _: ProducerConfig) -> Result<Scripted, TransportError> {
        Ok(self.clone())
    }
    async fn join(&self, _: GroupConfig) -> Result<(Scripted, Scripted), TransportError> {
        Ok((self.clone(), self.clone()))
    }
    async fn assign(&self, _: String, _: Vec<(TopicPartition, i64)>) -> Result<Scripted, TransportError> {
        Ok(self.clone())
    }
    fn admin(&self) -> Scripted {
        self.clone()
    }
}

impl Producer for Scripted {
    async fn send_all(&self, records: Vec<Outgoing>) -> Delivery {
        let (acks, delivery) = Delivery::new(records.len());
        let mut script = self.0.lock().unwrap();
        script.sent.extend(records);
        script.acks.push(acks);
        delivery
    }
    async fn flush(&self) {
        self.note("flush".into());
    }
}

impl Poller for Scripted {
    async fn poll(&mut self, _: usize, _: Duration) -> Result<Polled, TransportError> {
        self.0.lock().unwrap().polls.pop_front().expect("the script has another poll")
    }
}

impl Group for Scripted {
    async fn commit(&self, _: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        let next = self.0.lock().unwrap().commits.pop_front();
        match next {
            Some(results) => results,
            None => pending().await,
        }
    }
    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        self.note(format!("release {}", event.0));
        Ok(())
    }
    fn pause(&self, partitions: &[TopicPartition]) {
        self.note(format!("pause {partitions:?}"));
    }
    fn resume(&self, partitions: &[TopicPartition]) {
        self.note(format!("resume {partitions:?}"));
    }
    async fn leave(&self) {
        self.note("leave".into());
    }
}

impl Assigned for Scripted {
    async fn poll(&mut self, _: usize, _: Duration) -> Result<Vec<Record>, TransportError> {
        match self.0.lock().unwrap().polls.pop_front() {
            Some(Ok(Polled::Records(records))) => Ok(records),
            other => panic!("not for a consumer by assignment: {other:?}"),
        }
    }
    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        vec![(place(), 5)]
    }
}

impl Admin for Scripted {
    async fn create_topics(&self, _: Vec<NewTopic>) -> Vec<Result<(), TransportError>> {
        Vec::new()
    }
    async fn partition_counts(&self, _: Vec<Arc<str>>) -> Vec<Result<u32, TransportError>> {
        Vec::new()
    }
    async fn watermarks(&self, _: Vec<TopicPartition>) -> Result<Vec<Watermarks>, TransportError> {
        Ok(Vec::new())
    }
    async fn committed(&self, _: String, _: Vec<TopicPartition>) -> Result<Vec<Option<Committed>>, TransportError> {
        Ok(Vec::new())
    }
}

fn place() -> TopicPartition {
    TopicPartition::new("p_source", 1)
}

fn envelope() -> Envelope {
    let ticket = Ticket { run: RunId(9), sequence: 3, attempt: 7, ordinal: 0 };
    Envelope { ticket, version: Version(4 << 10), origin_partition: -1, origin_offset: -1, ..Envelope::default() }
}

fn header() -> Header {
    Header { name: Envelope::HEADER.into(), value: envelope().encode() }
}

fn record(offset: i64) -> Record {
    Record {
        position: Position { partition: place(), offset, epoch: Epoch(2) },
        key: Some(Bytes::from_static(b"a")),
        value: Some(Bytes::from_static(b"{}")),
        headers: vec![header()],
        timestamp_millis: 0,
    }
}

fn recorded() -> (Recorder, Scripted, RecordedTransport<Scripted>) {
    let recorder = Recorder::new(Keep::Events, || Instant::from_micros(5));
    let scripted = Scripted::default();
    let transport = RecordedTransport::new(scripted.clone(), recorder.node("worker-1", 2), decode_lifecycle);
    (recorder, scripted, transport)
}

fn whats(recorder: &Recorder) -> Vec<What> {
    let events: Vec<Event> = recorder.take();
    assert!(events.iter().all(|event| (&*event.node, event.incarnation) == ("worker-1", 2)));
    events.into_iter().map(|event| event.what).collect()
}

fn unknown(code: &'static str) -> TransportError {
    TransportError::new(ErrorKind::UnknownOutcome, code, "in a test")
}

#[test]
fn produced_records_and_their_acknowledgements_are_written() {
    let (recorder, scripted, transport) = recorded();
    let producer = at_once(transport.producer(ProducerConfig::default())).unwrap();
    let mut event = LifecycleEvent::new(EventKind::Finish, envelope().ticket, "a", 0);
    event.superseded = true;
    let outgoing = |topic: &str, value: Bytes, headers| Outgoing {
        topic: topic.into(),
        partition: Some(1),
        key: Some(Bytes::from_static(b"a")),
        value: Some(value),
        headers,
    };
    let json = Header { name: LifecycleEvent::HEADER.into(), value: event.to_header() };
    let records = vec![
        outgoing("p_source", Bytes::from_static(b"{}"), vec![header()]),
        outgoing("p_event_9", encode_batch(&[event.clone()]), Vec::new()),
        outgoing("p_event_9", event.to_json(), vec![json]),
    ];
    let delivery = at_once(producer.send_all(records.clone()));
    at_once(producer.flush());
    let acks = vec![
        Ok(Appended { partition: 1, offset: 8 }),
        Err(unknown("TIMED_OUT")),
        Ok(Appended { partition: 1, offset: 9 }),
    ];
    let sender = scripted.0.lock().unwrap().acks.remove(0);
    sender.send(acks.clone()).unwrap();
    let before = whats(&recorder);
    assert_eq!(at_once(delivery), acks);
    {
        let script = scripted.0.lock().unwrap();
        assert_eq!((&script.sent, &script.calls[..]), (&records, &["flush".to_owned()][..]));
    }
    let lifecycle =
        vec![Lifecycle { ticket: envelope().ticket, kind: LifecycleKind::Superseded, is_parent: false, digest: 0 }];
    let [What::ProduceInvoked { call, records: produced, .. }] = &before[..] else { panic!("{before:?}") };
    assert_eq!((produced[0].stamp, produced[0].size), (Some(Stamp::from(envelope())), 2));
    assert_eq!((&produced[1].lifecycle, &produced[2].lifecycle), (&lifecycle, &lifecycle));
    let outcomes = vec![Ack::Ok((1, 8)), Ack::Unknown("TIMED_OUT".into()), Ack::Ok((1, 9))];
    assert_eq!(whats(&recorder), [What::ProduceResolved { call: *call, outcomes }]);
}

#[test]
fn what_polls_give_is_written_and_empty_polls_are_not() {
    let (recorder, scripted, transport) = recorded();
    let (mut poller, group) = at_once(transport.join(GroupConfig::new("g", vec!["p_source".into()]))).unwrap();
    let committed = Some(Committed { offset: 5, metadata: "m".into() });
    let assignment = Assignment { partition: place(), epoch: Epoch(2), committed, start: 5 };
    let (event, partitions) = (RebalanceId(3), vec![(place(), Epoch(2))]);
    let deadline = Instant::from_micros(9);
    let script = [
        Ok(Polled::Assigned(vec![assignment])),
        Ok(Polled::Records(Vec::new())),
        Ok(Polled::Records(vec![record(5), record(6)])),
        Err(unknown("NETWORK")),
        Ok(Polled::Revoking { event, partitions: partitions.clone(), deadline }),
        Ok(Polled::Lost { event, partitions: partitions.clone() }),
    ];
    scripted.0.lock().unwrap().polls.extend(script.clone());
    let given: Vec<_> = script.iter().map(|_| at_once(poller.poll(10, Duration::ZERO))).collect();
    assert_eq!(given, script);
    at_once(group.release(event)).unwrap();
    group.pause(&[place()]);
    group.resume(&[place()]);
    at_once(group.leave());
    let calls = ["release 3", "pause [p_source-1]", "resume [p_source-1]", "leave"];
    assert_eq!(scripted.0.lock().unwrap().calls, calls);

    let consumer = 1;
    let noted = AssignedPartition { partition: place(), epoch: Epoch(2), committed: Some(5), start: 5 };
    let stamp = Some(Stamp::from(envelope()));
    let delivered = |offset| Delivered { position: record(offset).position, key: record(offset).key, stamp };
    let topics = vec!["p_source".into()];
    let due = [
        What::Joined { consumer, group: "g".into(), name: "seriatim".into(), topics, earliest: true },
        What::Assigned { consumer, partitions: vec![noted] },
        What::Polled { consumer, records: vec![delivered(5), delivered(6)] },
        What::Revoking { consumer, event: 3, partitions: partitions.clone(), deadline },
        What::Lost { consumer, event: 3, partitions },
        What::ReleaseInvoked { call: 2, consumer, event: 3 },
        What::ReleaseResolved { call: 2, outcome: Ack::Ok(()) },
        What::Left { consumer },
    ];
    assert_eq!(whats(&recorder), due);
}

#[test]
fn commits_are_written_and_a_cancelled_one_is_of_unknown_outcome() {
    let (recorder, scripted, transport) = recorded();
    let (_, group) = at_once(transport.join(GroupConfig::new("g", vec!["p_source".into()]))).unwrap();
    let commit = Commit { partition: place(), epoch: Epoch(2), offset: 6, metadata: "m".into() };
    let fenced = Err(TransportError::new(ErrorKind::Fenced, "FENCED", "in a test"));
    scripted.0.lock().unwrap().commits.push_back(vec![Ok(()), fenced.clone()]);
    assert_eq!(at_once(group.commit(vec![commit.clone(), commit.clone()])), [Ok(()), fenced]);
    {
        let unanswered = pin!(group.commit(vec![commit]));
        assert!(unanswered.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let outcomes: Vec<_> = whats(&recorder)
        .into_iter()
        .filter_map(|what| match what {
            What::CommitResolved { call, outcomes } => Some((call, outcomes)),
            _ => None,
        })
        .collect();
    let answered = vec![Ack::Ok(()), Ack::Fail("FENCED".into())];
    assert_eq!(outcomes, [(2, answered), (3, vec![Ack::Unknown("CANCELLED".into())])]);
}

#[test]
fn a_killed_node_writes_no_cancellation() {
    let (recorder, _, transport) = recorded();
    let (_, group) = at_once(transport.join(GroupConfig::new("g", vec!["p_source".into()]))).unwrap();
    let commit = Commit { partition: place(), epoch: Epoch(2), offset: 6, metadata: "m".into() };
    {
        let unanswered = pin!(group.commit(vec![commit]));
        assert!(unanswered.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        recorder.node("worker-1", 2).record(What::Crashed);
    }
    assert_eq!(whats(&recorder).last(), Some(&What::Crashed));
}

#[test]
fn a_consumer_by_assignment_writes_what_it_reads() {
    let (recorder, scripted, transport) = recorded();
    let mut assigned = at_once(transport.assign("c".into(), vec![(place(), 5)])).unwrap();
    scripted.0.lock().unwrap().polls.push_back(Ok(Polled::Records(vec![record(5)])));
    assert_eq!(at_once(assigned.poll(10, Duration::ZERO)).unwrap(), [record(5)]);
    assert_eq!(assigned.positions(), [(place(), 5)]);
    assert!(matches!(&whats(&recorder)[..], [What::Read { records, .. }] if records[0].position.offset == 5));
}

/// Answers with its one result, and keeps nothing.
struct Answers(Result<Vec<ItemOutcome>, BackendError>);

impl Backend for Answers {
    fn bulk<'a>(&'a self, _: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        Box::pin(ready(self.0.clone()))
    }
}

#[test]
fn index_writes_are_written_with_a_hash_of_the_body() {
    let op = |id: &str, action| IndexOp {
        index: None,
        id: id.into(),
        version: Some(Version(7)),
        action,
        ticket: envelope().ticket,
        position: Some(record(5).position),
    };
    let ops = [op("a", Action::Upsert(Bytes::from_static(b"{}").into())), op("b", Action::Delete)];
    let results = [
        Ok(vec![ItemOutcome::Superseded { current: Version(9) }, ItemOutcome::Rejected { reason: "no".into() }]),
        Err(BackendError::Unavailable("down".into())),
        Err(BackendError::UnknownOutcome("late".into())),
    ];
    let noted = [
        Ack::Ok(vec![WriteOutcome::Superseded(Version(9)), WriteOutcome::Rejected]),
        Ack::Fail("UNAVAILABLE".into()),
        Ack::Unknown("NO_ANSWER".into()),
    ];
    for (result, outcome) in results.into_iter().zip(noted) {
        let recorder = Recorder::new(Keep::Events, Instant::default);
        let backend = RecordedBackend::new(Answers(result.clone()), recorder.node("worker-1", 2));
        assert_eq!(at_once(backend.bulk(&ops)), result);
        let writes = vec![index_write(&ops[0]), index_write(&ops[1])];
        assert_eq!((writes[0].body_hash, writes[1].body_hash), (body_hash(b"{}"), 0));
        let due = [What::BulkInvoked { call: 1, writes }, What::BulkResolved { call: 1, outcome }];
        assert_eq!(whats(&recorder), due);
    }
}
