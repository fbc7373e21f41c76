//! Outcomes of writes against a scripted backend.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::*;
use crate::testing::Bench;

/// Answers as told, then applies everything.
#[derive(Default)]
struct Scripted(Mutex<VecDeque<Result<ItemOutcome, BackendError>>>);

impl Backend for Scripted {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        let answer = self.0.lock().unwrap().pop_front().unwrap_or(Ok(ItemOutcome::Applied));
        ready(answer.map(|outcome| vec![outcome; ops.len()])).boxed()
    }
}

/// One document, then nothing; keeps what is reported.
#[derive(Clone, Default)]
struct One {
    given: bool,
    draining: bool,
    events: Arc<Mutex<Vec<Event>>>,
}

impl IndexerMessenger for One {
    async fn poll(&mut self, _: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        if self.draining {
            return Ok(None);
        }
        if std::mem::replace(&mut self.given, true) {
            std::future::pending::<()>().await;
        }
        let payload = Payload::Document(Document::new("a").unwrap(), Envelope::default());
        Ok(Some(vec![Work { payload, claim: Claim::unfenced() }]))
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.events.lock().unwrap().extend(outcomes.into_iter().flat_map(|outcome| outcome.events));
        Ok(())
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    async fn close(&mut self) {}
}

fn config(attempts_max: u32) -> IndexerConfig {
    let retry =
        RetryPolicy { base: Duration::from_millis(10), cap: Duration::from_secs(30), attempts_max: Some(attempts_max) };
    IndexerConfig { retry, ..IndexerConfig::default() }
}

/// Names of the events after answers that were given.
fn events_after(attempts_max: u32, answers: Vec<Result<ItemOutcome, BackendError>>) -> Vec<&'static str> {
    let (bench, messenger) = (Bench::default(), One::default());
    let backend = Arc::new(Scripted(Mutex::new(answers.into())));
    let indexer = Indexer::new(bench.clone(), messenger.clone(), backend, config(attempts_max), Stop::new());
    bench.run(Duration::from_secs(100), indexer.run());
    messenger.events.lock().unwrap().iter().map(|event| event.kind.name()).collect()
}

#[test]
fn a_write_that_was_never_answered_is_not_failed_when_later_tries_are_throttled() {
    let unknown = || Err(BackendError::UnknownOutcome("timed out".into()));
    let throttled = || Ok(ItemOutcome::Throttled);
    assert_eq!(events_after(3, vec![throttled(), throttled(), throttled()]), ["FAIL"]);
    assert_eq!(events_after(3, vec![unknown(), throttled(), throttled(), throttled()]), ["FINISH"]);
}

#[test]
fn tries_while_the_backend_was_away_do_not_count_against_a_throttled_document() {
    let away = || Err(BackendError::Unavailable("away".into()));
    assert_eq!(events_after(3, vec![away(), away(), Ok(ItemOutcome::Throttled)]), ["FINISH"]);
}

#[test]
fn a_stop_does_not_wait_for_the_next_try() {
    let (bench, stop) = (Bench::default(), Stop::new());
    let away = || Err(BackendError::Unavailable("away".into()));
    let backend = Arc::new(Scripted(Mutex::new((0..100).map(|_| away()).collect())));
    let indexer = Indexer::new(bench.clone(), One::default(), backend, config(2), stop.clone());
    bench.spawn(async move { indexer.run().await.unwrap() });
    bench.pass(Duration::from_secs(1));
    stop.request();
    bench.pass(Duration::from_millis(10));
    assert_eq!(bench.tasks(), 0, "it sleeps until the next try");
}

/// Takes 10 ms for a batch, and keeps the index of each.
struct Slow(Bench, Arc<Mutex<Vec<Option<CompactString>>>>);

impl Backend for Slow {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        async move {
            self.0.sleep(Duration::from_millis(10)).await;
            assert!(ops.iter().all(|op| op.index == ops[0].index), "a batch of two indexes");
            self.1.lock().unwrap().push(ops[0].index.clone());
            Ok(vec![ItemOutcome::Applied; ops.len()])
        }
        .boxed()
    }
}

/// One document of the index `y`, then as many of `x` as are asked for, always at once.
struct Busy(bool);

impl IndexerMessenger for Busy {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let first = std::mem::take(&mut self.0);
        let work = |number| {
            let mut document = Document::new(format!("d{number}")).unwrap();
            document.set("index", if first && number == 0 { "y" } else { "x" }).unwrap();
            Work { payload: Payload::Document(document, Envelope::default()), claim: Claim::unfenced() }
        };
        Ok(Some((0..records_max).map(work).collect()))
    }

    async fn complete(&mut self, _: Vec<Emission>) -> Result<(), MessengerError> {
        Ok(())
    }

    fn drain(&mut self) {}

    async fn close(&mut self) {}
}

#[test]
fn a_batch_that_is_due_goes_although_another_index_is_always_full() {
    let (bench, written) = (Bench::default(), Arc::default());
    let backend = Arc::new(Slow(bench.clone(), Arc::clone(&written)));
    let config = IndexerConfig {
        batch: BatchLimits { items_max: 2, bytes_max: 1 << 20, age_max: Duration::from_millis(100) },
        index_override: Some("index".into()),
        ..IndexerConfig::default()
    };
    let indexer = Indexer::new(bench.clone(), Busy(true), backend, config, Stop::new());
    bench.run(Duration::from_millis(500), indexer.run());
    let place = written.lock().unwrap().iter().position(|index| index.as_deref() == Some("y"));
    assert!(place.is_some_and(|place| place <= 10), "after 100 ms of batches of 10 ms: {place:?}");
}

#[test]
fn what_was_throttled_comes_behind_no_later_version_of_its_id() {
    let version = |reading| Version::from_hlc(reading);
    let item = |reading| Item {
        op: IndexOp {
            index: None,
            id: "a".into(),
            version: Some(version(reading)),
            action: Action::Delete,
            ticket: Default::default(),
            position: None,
        },
        envelope: Envelope { version: version(reading), ..Envelope::default() },
        document_id: "a".into(),
        claim: Claim::unfenced(),
        throttled: 0,
        unanswered: false,
    };
    let again = |outcomes: [ItemOutcome; 3]| {
        // The first two were redelivered, the third is the first again.
        let (_, again) = sort_out(vec![item(3), item(5), item(3)], outcomes.into());
        again.into_iter().map(|item| item.envelope.version).collect::<Vec<_>>()
    };
    let superseded = || ItemOutcome::Superseded { current: version(9) };
    assert_eq!(again([ItemOutcome::Throttled, ItemOutcome::Applied, ItemOutcome::Applied]), []);
    assert_eq!(again([ItemOutcome::Throttled, ItemOutcome::Throttled, superseded()]), [], "the index has the ninth");
    assert_eq!(again([ItemOutcome::Applied, ItemOutcome::Throttled, ItemOutcome::Duplicate]), [version(5)]);
}
