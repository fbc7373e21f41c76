//! The producer's partitions, batches and bounds, seen through the ports.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use seriatim_core::partitioner::{Partitioner, partition};
use seriatim_core::transport::{Admin, Outgoing, Producer, ProducerConfig, Transport};
use seriatim_sim::{Node, SimProducer, TraceMode, World, WorldConfig, run};

fn config() -> WorldConfig {
    WorldConfig { trace: TraceMode::Ring(5_000), ..WorldConfig::default() }
}

fn free(key: Option<&str>, number: u64) -> Outgoing {
    let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
    let value = Some(Bytes::from(number.to_string()));
    Outgoing { topic: "t".into(), partition: None, key, value, headers: Vec::new() }
}

fn named(partition: i32, number: u64) -> Outgoing {
    Outgoing { partition: Some(partition), ..free(None, number) }
}

async fn open(node: &Node, config: ProducerConfig) -> SimProducer {
    node.transport().producer(config).await.unwrap()
}

async fn placed(producer: &SimProducer, records: Vec<Outgoing>) -> Vec<i32> {
    producer.send_all(records).await.await.into_iter().map(|outcome| outcome.unwrap().partition).collect()
}

fn values(world: &World) -> BTreeMap<i32, Vec<u64>> {
    let number = |record: &seriatim_sim::cluster::protocol::Record| {
        std::str::from_utf8(record.value.as_ref().unwrap()).unwrap().parse().unwrap()
    };
    let log = world.log("t");
    log.iter().map(|(at, log)| (at.partition, log.iter().map(|(_, record)| number(record)).collect())).collect()
}

/// Produce requests that were sent.
fn requests(world: &World) -> usize {
    world.trace().iter().filter(|line| line.text.contains("-> ") && line.text.contains("Produce ")).count()
}

#[test]
fn each_partitioner_places_records_as_its_hash_says() {
    run(1, config(), |world| async move {
        world.create_topic("t", 17);
        let node = world.node("p");
        for (partitioner, doc_1, empty) in [
            (Partitioner::ConsistentRandom, 13, None),
            (Partitioner::Consistent, 13, Some(0)),
            (Partitioner::Murmur2Random, 11, Some(partition(b"", 17))),
            (Partitioner::Murmur2, 11, Some(partition(b"", 17))),
        ] {
            let producer = open(&node, ProducerConfig { partitioner, ..ProducerConfig::default() }).await;
            assert_eq!(placed(&producer, vec![free(Some("doc-1"), 0)]).await, [doc_1], "{partitioner:?}");
            let found = placed(&producer, vec![free(Some(""), 0)]).await;
            assert!(empty.is_none_or(|empty| found == [empty]), "{partitioner:?}: {found:?}");
        }
    })
    .unwrap();
}

#[test]
fn records_without_a_key_keep_to_a_partition_for_a_while_and_then_to_another() {
    let spread = |sticky_linger| {
        run(1, config(), move |world| async move {
            world.create_topic("t", 100);
            let config = ProducerConfig { sticky_linger, ..ProducerConfig::default() };
            let producer = open(&world.node("p"), config).await;
            placed(&producer, vec![free(None, 0)]).await;
            world.sleep(Duration::from_secs(1)).await;
            let mut groups = Vec::new();
            for _ in 0..4 {
                let records = (0..20).map(|number| free(None, number)).collect();
                groups.push(placed(&producer, records).await.into_iter().collect::<BTreeSet<_>>());
                world.sleep(Duration::from_millis(50)).await;
            }
            groups
        })
        .unwrap()
    };
    let sticky = spread(Duration::from_millis(10));
    assert!(sticky.iter().all(|group| group.len() == 1), "{sticky:?}");
    assert!(sticky.iter().collect::<BTreeSet<_>>().len() > 1, "{sticky:?}");
    assert_eq!(spread(Duration::from_millis(10)), sticky, "the draws are the seed's");
    assert!(spread(Duration::ZERO).iter().all(|group| group.len() > 5));
}

#[test]
fn records_from_before_the_metadata_come_behind_those_that_name_their_partition() {
    run(1, config(), |world| async move {
        let producer = open(&world.node("p"), ProducerConfig::default()).await;
        // One partition, so that all meet; the topic is not there yet, and nothing waits for it but the records.
        let records = vec![free(Some("a"), 10), named(0, 20), free(Some("b"), 11), named(0, 21)];
        let delivery = producer.send_all(records).await;
        world.sleep(Duration::from_secs(5)).await;
        world.create_topic("t", 1);
        assert!(delivery.await.into_iter().all(|outcome| outcome.is_ok()));
        assert_eq!(values(&world)[&0], [20, 21, 10, 11]);
    })
    .unwrap();
}

#[test]
fn a_batch_leaves_when_it_is_full_or_when_its_oldest_record_has_waited() {
    run(1, config(), |world| async move {
        world.create_topic("t", 2);
        let linger = Duration::from_secs(1);
        let config =
            ProducerConfig { linger, batch_records_max: 10, batch_bytes_max: 4_000, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        placed(&producer, vec![named(0, 0), named(1, 0)]).await;
        let since = world.now();
        let full = producer.send_all((1..11).map(|number| named(0, number)).collect()).await;
        assert_eq!(full.await.len(), 10);
        assert!(world.now().since(since) < Duration::from_millis(20), "a full batch does not wait");
        let value = Some(Bytes::from(vec![b'1'; 3_000]));
        let heavy = Outgoing { value, ..named(0, 0) };
        let since = world.now();
        producer.send_all(vec![heavy.clone(), heavy]).await.await;
        // The first fills no batch with the second; the second is not full and waits.
        let waited = world.now().since(since);
        assert!(waited >= linger && waited < linger + Duration::from_millis(20), "{waited:?}");
        // Each partition waits on its own.
        let first = producer.send_all(vec![named(0, 1)]).await;
        world.sleep(Duration::from_millis(600)).await;
        let (since, second) = (world.now(), producer.send_all(vec![named(1, 1)]).await);
        first.await;
        assert!(world.now().since(since) < Duration::from_millis(500));
        second.await;
        assert!(world.now().since(since) >= linger);
    })
    .unwrap();
}

#[test]
fn a_long_queue_leaves_in_batches_of_their_bound_and_in_order() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        let config = ProducerConfig { batch_records_max: 100, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        placed(&producer, vec![named(0, 0)]).await;
        let before = requests(&world);
        placed(&producer, (1..1_001).map(|number| named(0, number)).collect()).await;
        assert_eq!(requests(&world) - before, 10);
        assert!(values(&world)[&0].iter().copied().eq(0..1_001));
    })
    .unwrap();
}

#[test]
fn a_queue_full_of_bytes_makes_send_all_wait_and_goes_on() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        let config = ProducerConfig { queue_bytes_max: 10_000, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        placed(&producer, vec![named(0, 0)]).await;
        world.cut_link("p", true, true);
        let heavy = |number: u64| Outgoing { value: Some(Bytes::from(format!("{number:03000}"))), ..named(0, number) };
        let held = producer.send_all((1..4).map(heavy).collect()).await;
        {
            let more = pin!(producer.send_all(vec![heavy(4), named(0, 5)]));
            let Either::Right(((), more)) = select(more, pin!(world.sleep(Duration::from_secs(60)))).await else {
                panic!("a full producer took a record");
            };
            world.cut_link("p", false, false);
            assert!(more.await.await.into_iter().all(|outcome| outcome.is_ok()));
        }
        assert!(held.await.into_iter().all(|outcome| outcome.is_ok()));
        assert!(values(&world)[&0].iter().copied().eq(0..6));
        // One that is larger than the whole queue goes alone.
        let huge = Outgoing { value: Some(Bytes::from(format!("{:020000}", 6))), ..named(0, 6) };
        placed(&producer, vec![huge]).await;
        assert!(values(&world)[&0].iter().copied().eq(0..7));
    })
    .unwrap();
}

#[test]
fn a_send_that_is_dropped_while_it_waits_leaves_nothing_for_a_flush_to_wait_for() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        let config = ProducerConfig { queue_records_max: 2, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        placed(&producer, vec![named(0, 0)]).await;
        world.cut_link("p", true, true);
        {
            let sending = pin!(producer.send_all((1..9).map(|number| named(0, number)).collect()));
            assert!(matches!(select(sending, pin!(world.sleep(Duration::from_secs(1)))).await, Either::Right(_)));
        }
        world.cut_link("p", false, false);
        let (flushed, limit) = (pin!(producer.flush()), pin!(world.sleep(Duration::from_secs(60))));
        let is_flushed = matches!(select(flushed, limit).await, Either::Left(_));
        assert!(is_flushed, "the flush waits for what was never enqueued");
        assert_eq!(values(&world)[&0], [0, 1, 2]);
    })
    .unwrap();
}

#[test]
fn growth_is_noticed_at_the_metadata_age_and_moves_keys_of_a_free_producer_only() {
    run(1, config(), |world| async move {
        world.create_topic("t", 3);
        let node = world.node("p");
        let quick = Some(Duration::from_secs(20));
        let config = ProducerConfig { metadata_max_age: quick, ..ProducerConfig::default() };
        let (young, old) = (open(&node, config).await, open(&node, ProducerConfig::default()).await);
        let keys = ["doc-1", "doc-2", "doc-3", "user:42", "kafka", "foobar"];
        let all = || keys.iter().map(|key| free(Some(key), 0)).collect::<Vec<_>>();
        // As a run that pinned three partitions.
        let pinned = || {
            let named = |key: &&str| Outgoing { partition: Some(partition(key.as_bytes(), 3)), ..free(Some(key), 0) };
            keys.iter().map(named).collect::<Vec<_>>()
        };
        let (of_three, of_six) = ([2, 2, 0, 1, 1, 0], [5, 5, 0, 1, 4, 0]);
        for producer in [&young, &old] {
            assert_eq!(placed(producer, all()).await, of_three);
        }
        world.grow_topic("t", 6);
        assert_eq!(node.transport().admin().partition_counts(vec!["t".into()]).await, [Ok(6)]);
        for seconds in [10, 15, 250, 30] {
            world.sleep(Duration::from_secs(seconds)).await;
            let age = world.now().since(seriatim_core::env::Instant::default());
            let expected = |noticed: bool| if noticed { of_six } else { of_three };
            assert_eq!(placed(&young, all()).await, expected(age > Duration::from_secs(20)), "at {age:?}");
            assert_eq!(placed(&old, all()).await, expected(age > Duration::from_secs(300)), "at {age:?}");
            for producer in [&young, &old] {
                assert_eq!(placed(producer, pinned()).await, of_three, "a pinned key never moves");
            }
        }
    })
    .unwrap();
}

#[test]
fn a_named_partition_beyond_the_known_ones_makes_the_producer_look_again() {
    run(1, config(), |world| async move {
        world.create_topic("t", 3);
        let producer = open(&world.node("p"), ProducerConfig::default()).await;
        placed(&producer, vec![named(0, 0)]).await;
        world.grow_topic("t", 6);
        let since = world.now();
        assert_eq!(placed(&producer, vec![named(5, 1), named(5, 2)]).await, [5, 5]);
        assert!(world.now().since(since) < Duration::from_secs(1), "not only when the metadata have their age");
        assert_eq!(values(&world)[&5], [1, 2]);
        let beyond = producer.send_all(vec![named(6, 3)]).await.await.remove(0).unwrap_err();
        assert_eq!(beyond.code, "UNKNOWN_TOPIC_OR_PARTITION");
        assert!(beyond.context.contains("which has 6"), "{beyond}");
        assert!(world.now().since(since) >= ProducerConfig::default().topic_propagation_max, "it may be on its way");
        let coming = producer.send_all(vec![named(6, 5)]).await;
        world.sleep(Duration::from_secs(5)).await;
        world.grow_topic("t", 7);
        assert_eq!(coming.await.remove(0).unwrap().partition, 6);
        // And from then on it hashes among all.
        assert_eq!(placed(&producer, vec![free(Some("doc-1"), 4)]).await, [partition(b"doc-1", 7)]);
    })
    .unwrap();
}
