//! The ends of a publisher.

use futures_util::future::pending;

use super::*;
use crate::machines::ledger::TicketLedger;
use crate::testing::Bench;

/// Queues that never take a document and never tell anything.
struct Stuck(Bench);

impl PublisherMessenger for Stuck {
    type Sender = Stuck;
    type Events = Stuck;

    async fn open(self, _: RunId) -> Result<(Opened, Stuck, Stuck), MessengerError> {
        let events = Stuck(self.0.clone());
        Ok((Opened::default(), self, events))
    }
}

impl PublicationSender for Stuck {
    async fn send(&mut self, _: Vec<Outbound>) -> Result<(), MessengerError> {
        pending().await
    }

    async fn flush(&mut self) -> Result<(), MessengerError> {
        pending().await
    }
}

impl EventSource for Stuck {
    async fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, MessengerError> {
        self.0.sleep(wait).await;
        Ok(Vec::new())
    }
}

#[test]
fn an_aborted_run_leaves_no_task_behind() {
    let bench = Bench::default();
    let ledger = Box::new(TicketLedger::new(RunId(1)));
    let open = Publisher::open(bench.clone(), Stuck(bench.clone()), RunId(1), ledger, PublisherConfig::default());
    let publisher = bench.run(Duration::from_secs(1), open).unwrap().unwrap();
    let document = Document::new("a").unwrap();
    bench.run(Duration::from_secs(1), publisher.publish(document)).unwrap().unwrap();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.tasks(), 2);
    publisher.abort();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.tasks(), 0, "the documents of an aborted run are still being sent");
}

fn open(bench: &Bench, config: PublisherConfig) -> Publisher {
    let ledger = Box::new(TicketLedger::new(RunId(1)));
    let open = Publisher::open(bench.clone(), Stuck(bench.clone()), RunId(1), ledger, config);
    bench.run(Duration::from_secs(1), open).expect("in time").expect("no error")
}

fn publish(bench: &Bench, publisher: &Publisher, document: Document) -> Option<u64> {
    bench.run(Duration::from_secs(1), publisher.publish(document)).map(|sequence| sequence.expect("it is taken"))
}

#[test]
fn a_paused_publisher_takes_nothing_until_it_is_resumed() {
    let bench = Bench::default();
    let publisher = open(&bench, PublisherConfig::default());
    let document = |id: &str| Document::new(id).expect("an id");
    assert!(publisher.resume().is_err(), "it runs");
    publisher.pause().expect("it runs");
    assert!(publisher.pause().is_err(), "it is paused");
    assert_eq!(publish(&bench, &publisher, document("a")), None);
    publisher.resume().expect("it is paused");
    assert_eq!(publish(&bench, &publisher, document("a")), Some(0));
}

#[test]
fn a_publisher_with_enough_pending_waits_whether_it_is_many_or_large() {
    let bench = Bench::default();
    let few = open(&bench, PublisherConfig { pending_records_max: 2, ..PublisherConfig::default() });
    let document = |text: usize| {
        let json = format!(r#"{{"id":"a","text":"{}"}}"#, "x".repeat(text));
        Document::parse(json.into()).expect("a document")
    };
    let taken: Vec<_> = (0..3).map(|_| publish(&bench, &few, document(1))).collect();
    assert_eq!(taken, [Some(0), Some(1), None]);
    let small = open(&bench, PublisherConfig { gathered_bytes_max: 5_000, ..PublisherConfig::default() });
    // The first two go to the queues, which are stuck; what gathers behind them is bounded.
    let taken: Vec<_> = (0..6).map(|_| publish(&bench, &small, document(3_000))).collect();
    assert_eq!(taken, [Some(0), Some(1), Some(2), Some(3), None, None]);
}

#[test]
fn many_are_published_up_to_the_first_that_is_refused_and_wait_for_room() {
    let bench = Bench::default();
    let publish_all = |publisher: &Publisher, documents| {
        bench.run(Duration::from_secs(1), publisher.publish_all(documents)).map(|published| published.is_ok())
    };
    let document = |id: &str| Document::new(id).expect("an id");
    let mut of_another_run = document("b");
    of_another_run.initialize_run_id("r").expect("it has none");
    let publisher = open(&bench, PublisherConfig::default());
    let documents = vec![document("a"), of_another_run, document("c")];
    assert_eq!(publish_all(&publisher, documents), Some(false));
    assert_eq!(publisher.summary().published, 1);
    let few = open(&bench, PublisherConfig { pending_records_max: 2, ..PublisherConfig::default() });
    assert_eq!(publish_all(&few, vec![document("a"), document("b"), document("c")]), None);
    assert_eq!(few.summary().published, 2);
}
