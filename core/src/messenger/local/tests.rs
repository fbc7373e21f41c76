//! Queues whose other side goes away, and runs one after the other.

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::*;
use crate::document::Document;
use crate::identity::{Envelope, Version};
use crate::messenger::DeadLetter;
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

/// Keeps what it has room for.
#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<DeadLetter>>);

impl DeadLetterSink for Shelf {
    fn keep(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, Result<(), String>> {
        let mut shelf = self.0.lock().unwrap();
        shelf.extend(letters);
        let full = shelf.len() > 1;
        ready(if full { Err("it is full".into()) } else { Ok(()) }).boxed()
    }
}

#[test]
fn a_dead_letter_is_kept_before_its_failure_is_told_and_what_is_not_kept_is_said() {
    let bench = Bench::default();
    let shelf = Arc::new(Shelf::default());
    let config = LocalConfig { dead_letters: Some(shelf.clone()), ..LocalConfig::default() };
    let messengers = LocalMessengers::new(bench.clone(), &config);
    let failed = |id: &str| Emission {
        events: vec![Event::finished(&Envelope::default(), "fine", 0), Event::failed(&Envelope::default(), id, "c", 0)],
        dead_letters: vec![DeadLetter { id: id.into(), envelope: Envelope::default(), body: None, cause: "c".into() }],
        ..emission()
    };
    let told = bench.run(Duration::from_secs(1), async {
        let mut worker = messengers.worker().await?;
        let mut indexer = messengers.indexer().await?;
        let (_, _sender, mut events) = messengers.publisher().await?.open(RunId(1)).await?;
        worker.send(vec![failed("a")]).await?;
        indexer.complete(vec![Emission { outputs: Vec::new(), ..failed("b") }]).await?;
        events.poll(Duration::from_millis(10)).await
    });
    let told: Vec<_> = told.unwrap().unwrap().into_iter().map(|event| event.cause().map(str::to_owned)).collect();
    assert_eq!(
        told,
        [None, Some("c".to_owned()), None, Some("c; its dead letter was not kept: it is full".to_owned())]
    );
    assert_eq!(shelf.0.lock().unwrap().iter().map(|letter| &*letter.id).collect::<Vec<_>>(), ["a", "b"]);
}
