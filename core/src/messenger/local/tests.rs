//! Queues whose other side goes away, and runs one after the other.

use super::*;
use crate::document::Document;
use crate::identity::{Envelope, Version};
use crate::testing::Bench;

fn outbound(hlc: u64) -> Outbound {
    let envelope = Envelope { version: Version::from_hlc(hlc), ..Envelope::default() };
    Outbound { document: Document::new("a").unwrap(), envelope }
}

fn emission() -> Emission {
    Emission { claim: Claim::unfenced(), outputs: vec![outbound(1)], events: Vec::new(), dead_letters: Vec::new() }
}

#[test]
fn a_sender_does_not_wait_for_room_behind_consumers_that_are_gone() {
    let bench = Bench::default();
    let messengers =
        LocalMessengers::new(bench.clone(), &LocalConfig { lane_records_max: 1, ..LocalConfig::default() });
    let second = Duration::from_secs(1);
    let (mut worker, indexer) =
        bench.run(second, async { (messengers.worker().await.unwrap(), messengers.indexer().await.unwrap()) }).unwrap();
    let sent = Arc::new(Mutex::new(None));
    let told = sent.clone();
    bench.spawn(async move {
        let outcome = worker.send(vec![emission(), emission()]).await;
        *told.lock().unwrap() = Some(outcome.is_err());
    });
    bench.pass(second);
    assert_eq!(*sent.lock().unwrap(), None, "the queue is full");
    drop(indexer);
    bench.pass(second);
    assert_eq!(*sent.lock().unwrap(), Some(true), "it waits for ever");
}

#[test]
fn a_later_run_has_later_versions_whatever_the_wall_clock_does() {
    let bench = Bench::default();
    let messengers = LocalMessengers::new(bench.clone(), &LocalConfig::default());
    let floor = |sent| {
        let messengers = messengers.clone();
        let run = async move {
            let (opened, mut sender, _) = messengers.publisher().await?.open(RunId(1)).await?;
            sender.send(vec![outbound(sent)]).await?;
            Ok::<u64, MessengerError>(opened.clock_floor)
        };
        bench.run(Duration::from_secs(1), run).unwrap().unwrap()
    };
    assert_eq!([floor(70), floor(60), floor(80), floor(1)], [0, 70, 70, 80]);
}
