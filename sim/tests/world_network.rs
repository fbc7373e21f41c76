//! Cuts, resets and lost answers: what a process learns, and what was done all the same.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use seriatim_core::identity::{Ticket, Version};
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_core::transport::{Outgoing, Producer, ProducerConfig, Transport};
use seriatim_sim::{SimIndex, World, WorldConfig, run};

const TIMEOUT: Duration = Duration::from_secs(3);

fn config() -> WorldConfig {
    WorldConfig { request_timeout: TIMEOUT, ..WorldConfig::default() }
}

async fn write(index: &SimIndex, version: u64) -> Result<Vec<ItemOutcome>, BackendError> {
    let op = IndexOp {
        index: None,
        id: "a".into(),
        version: Some(Version::from_hlc(version)),
        action: Action::Upsert(Bytes::from_static(b"{}").into()),
        ticket: Ticket::default(),
        position: None,
    };
    index.bulk(&[op]).await
}

/// The version that the index has.
fn indexed(world: &World) -> u64 {
    world.index_documents().values().next().map_or(0, |(version, _)| version.hlc())
}

fn is_unknown(outcome: &Result<Vec<ItemOutcome>, BackendError>) -> bool {
    matches!(outcome, Err(BackendError::UnknownOutcome(_)))
}

fn is_unavailable(outcome: &Result<Vec<ItemOutcome>, BackendError>) -> bool {
    matches!(outcome, Err(BackendError::Unavailable(_)))
}

#[test]
fn a_bulk_over_a_link_cut_out_of_the_node_is_not_applied_and_one_cut_into_it_is() {
    run(1, config(), |world| async move {
        let index = world.node("n").index();
        write(&index, 1).await.unwrap();
        for (out, into, expected) in [(true, false, 1), (false, true, 3), (true, true, 3)] {
            world.cut_link("n", out, into);
            let since = world.now();
            // On the connection that stands.
            let lost = write(&index, expected.max(2)).await;
            assert!(is_unknown(&lost) && world.now().since(since) >= TIMEOUT, "{lost:?}");
            assert_eq!(indexed(&world), expected);
            // The next one needs a new connection, and there is none to be had.
            let unsent = write(&index, 9).await;
            assert!(is_unavailable(&unsent), "{unsent:?}");
            assert_eq!(indexed(&world), expected);
            world.cut_link("n", false, false);
            let after = write(&index, expected).await.unwrap();
            assert_eq!(after, [ItemOutcome::Duplicate]);
        }
    })
    .unwrap();
}

#[test]
fn a_bulk_learns_at_once_of_a_reset_and_of_a_mended_link() {
    run(1, config(), |world| async move {
        let index = world.node("n").index();
        write(&index, 1).await.unwrap();
        // Under way: applied, and the answer does not come.
        let since = world.now();
        let resetting = async {
            world.sleep(Duration::from_micros(1)).await;
            world.reset_connections("n");
        };
        let (outcome, ()) = join(pin!(write(&index, 2)), resetting).await;
        assert!(is_unknown(&outcome) && world.now().since(since) < Duration::from_millis(1), "{outcome:?}");
        world.sleep(Duration::from_millis(10)).await;
        assert_eq!(indexed(&world), 2, "a request outlives its connection");
        // Swallowed, or answered in vain, until the link is mended.
        for (version, out, into) in [(3, true, false), (4, false, true)] {
            write(&index, 2).await.unwrap();
            world.cut_link("n", out, into);
            let since = world.now();
            let mending = async {
                world.sleep(Duration::from_secs(1)).await;
                world.cut_link("n", false, false);
            };
            let (outcome, ()) = join(pin!(write(&index, version)), mending).await;
            assert!(is_unknown(&outcome), "{outcome:?}");
            assert_eq!(world.now().since(since), Duration::from_secs(1));
        }
        assert_eq!(indexed(&world), 4);
    })
    .unwrap();
}

#[test]
fn lost_answers_are_those_of_brokers_and_of_the_index_alike() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        let node = world.node("n");
        let (index, producer) = (node.index(), node.transport().producer(ProducerConfig::default()).await.unwrap());
        let record = || {
            let value = Some(Bytes::from_static(b"v"));
            Outgoing { topic: "t".into(), partition: Some(0), key: None, value, headers: Vec::new() }
        };
        producer.send_all(vec![record()]).await.await.remove(0).unwrap();
        write(&index, 1).await.unwrap();
        world.lose_answers("n", 2);
        assert!(is_unknown(&write(&index, 2).await));
        assert_eq!(indexed(&world), 2);
        producer.send_all(vec![record()]).await.await.remove(0).unwrap();
        let resent = world.trace().iter().filter(|line| line.text.contains("(lost)")).count();
        assert_eq!(resent, 1, "the broker's answer was the second");
        write(&index, 3).await.unwrap();
        assert_eq!(world.log("t").values().map(Vec::len).sum::<usize>(), 2);
    })
    .unwrap();
}
