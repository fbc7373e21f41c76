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
