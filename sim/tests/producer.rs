//! The producer and the consumer by assignment, seen through the ports.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join, select};
use proptest::prelude::*;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{
    Admin, Assigned, Delivery, ErrorKind, NewTopic, Outgoing, Producer, ProducerConfig, Transport, Watermarks,
};
use seriatim_sim::history::What;
use seriatim_sim::rng::Concern;
use seriatim_sim::{Node, SimProducer, World, WorldConfig, run};

fn numbered(partition: i32, number: u64) -> Outgoing {
    let value = Some(Bytes::from(number.to_string()));
    Outgoing { topic: "t".into(), partition: Some(partition), key: None, value, headers: Vec::new() }
}

async fn open(node: &Node, config: ProducerConfig) -> SimProducer {
    node.transport().producer(config).await.unwrap()
}

fn values(world: &World) -> BTreeMap<i32, Vec<u64>> {
    let number = |record: &seriatim_sim::cluster::protocol::Record| {
        std::str::from_utf8(record.value.as_ref().unwrap()).unwrap().parse().unwrap()
    };
    let log = world.log("t");
    log.iter().map(|(at, log)| (at.partition, log.iter().map(|(_, record)| number(record)).collect())).collect()
}

/// Sends 600 records to 3 partitions in calls of random size while answers are lost, links cut and connections reset;
/// then every record must lie there once, in order, at the offset that its acknowledgement says.
fn order_survives(seed: u64, brokers: u32) -> Result<(), TestCaseError> {
    let mut config = WorldConfig { request_timeout: Duration::from_millis(300), ..WorldConfig::default() };
    config.cluster.brokers = brokers;
    let (log, acknowledged) = run(seed, config, |world| async move {
        world.create_topic("t", 3);
        let node = world.node("p");
        let producer = open(&node, ProducerConfig::default()).await;
        let trouble = async {
            let mut faults = world.stream(Concern::Faults);
            for _ in 0..40 {
                world.sleep(Duration::from_millis(faults.between(1, 30))).await;
                match faults.between(0, 3) {
                    0 => world.lose_answers("p", faults.between(1, 4)),
                    1 => world.cut_link("p", faults.one_in(2), true),
                    2 => world.reset_connections("p"),
                    _ => world.cut_link("p", false, false),
                }
            }
            world.cut_link("p", false, false);
            world.lose_answers("p", 0);
        };
        let sending = async {
            let mut workload = world.stream(Concern::Workload);
            let (mut next, mut deliveries) = ([0; 3], Vec::new());
            while next.iter().sum::<u64>() < 600 {
                let mut sent = Vec::new();
                for _ in 0..workload.between(1, 25) {
                    let partition = workload.between(0, 2) as usize;
                    sent.push((partition as i32, next[partition]));
                    next[partition] += 1;
                }
                let records = sent.iter().map(|(partition, number)| numbered(*partition, *number)).collect();
                deliveries.push((sent, producer.send_all(records).await));
                world.sleep(Duration::from_micros(workload.between(0, 4_000))).await;
            }
            producer.flush().await;
            let mut acknowledged = Vec::new();
            for (sent, delivery) in deliveries {
                acknowledged.extend(sent.into_iter().zip(delivery.await));
            }
            acknowledged
        };
        let ((), acknowledged) = join(trouble, sending).await;
        (values(&world), acknowledged)
    })
    .unwrap();
    for ((partition, number), outcome) in acknowledged {
        let appended = outcome.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!((appended.partition, appended.offset as u64), (partition, number));
    }
    for numbers in log.values() {
        prop_assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{:?}", numbers);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn retries_keep_order_and_append_once(seed in any::<u64>(), brokers in 1..=3_u32) {
        order_survives(seed, brokers)?;
    }
}

#[test]
fn a_batch_whose_answer_was_lost_is_sent_again_and_appended_once() {
    let config = WorldConfig { request_timeout: Duration::from_millis(300), ..WorldConfig::default() };
    run(1, config, |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world.node("p"), ProducerConfig::default()).await;
        producer.send_all(vec![numbered(0, 0)]).await.await.remove(0).unwrap();
        world.lose_answers("p", 1);
        producer.send_all(vec![numbered(0, 1)]).await.await.remove(0).unwrap();
        let resent =
            world.trace().into_iter().filter(|line| line.text.contains("Produce") && line.text.contains("seq 1"));
        assert_eq!(resent.count(), 2);
        assert_eq!(values(&world)[&0], [0, 1]);
    })
    .unwrap();
}

#[test]
fn a_full_producer_makes_send_all_wait() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 1);
        let config = ProducerConfig { queue_records_max: 10, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        producer.send_all(vec![numbered(0, 0)]).await.await.remove(0).unwrap();
        world.cut_link("p", true, true);
        let _held: Delivery = producer.send_all((1..11).map(|number| numbered(0, number)).collect()).await;
        let more = std::pin::pin!(producer.send_all(vec![numbered(0, 11)]));
        let Either::Right(((), more)) = select(more, std::pin::pin!(world.sleep(Duration::from_secs(60)))).await else {
            panic!("a full producer took a record");
        };
        world.cut_link("p", false, false);
        more.await.await.remove(0).unwrap();
        assert!(values(&world)[&0].iter().copied().eq(0..12));
    })
    .unwrap();
}

#[test]
fn a_producer_that_is_full_says_so_once() {
    let outcome = run(8, WorldConfig::default(), |world| async move {
        world.create_topic("t", 1);
        let producer =
            open(&world.node("p"), ProducerConfig { queue_records_max: 2, ..ProducerConfig::default() }).await;
        for _ in 0..3 {
            producer.send_all((0..6).map(|number| numbered(0, number)).collect()).await.await;
        }
        world.recorder().with_events(|events| {
            let full = events.iter().filter_map(|event| match &event.what {
                What::FaultInjected { kind, target, in_flight } => Some((kind.clone(), target.clone(), *in_flight)),
                _ => None,
            });
            full.collect::<Vec<_>>()
        })
    });
    assert_eq!(outcome.unwrap(), [("full-queue".into(), "p".into(), 2)]);
}

#[test]
fn requests_that_touch_a_slow_topic_arrive_late_and_others_do_not() {
    run(9, WorldConfig::default(), |world| async move {
        world.create_topic("t", 1);
        world.create_topic("slow_one", 1);
        let producer = open(&world.node("p"), ProducerConfig::default()).await;
        let takes = async |topic: &str| {
            let begun = world.now();
            let acknowledged = producer.send_all(vec![Outgoing { topic: topic.into(), ..numbered(0, 1) }]).await.await;
            assert!(acknowledged[0].is_ok());
            world.now().since(begun)
        };
        let late = Duration::from_secs(2);
        world.slow_topics("slow_", late);
        assert!(takes("t").await < Duration::from_millis(100));
        assert!(takes("slow_one").await > late);
        world.slow_topics("slow_", Duration::ZERO);
        assert!(takes("slow_one").await < Duration::from_millis(100));
    })
    .unwrap();
}

#[test]
fn topics_are_deleted_by_how_their_names_begin() {
    run(10, WorldConfig::default(), |world| async move {
        for name in ["run_1", "run_2", "other"] {
            world.create_topic(name, 1);
        }
        assert_eq!((world.delete_topics("run_"), world.delete_topics("run_")), (2, 0));
        assert_eq!((world.partitions("run_1").len(), world.partitions("other").len()), (0, 1));
    })
    .unwrap();
}

#[test]
fn what_is_refused_is_refused_alone() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 2);
        let config = ProducerConfig { record_bytes_max: 1_000, ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        let large = Outgoing { value: Some(Bytes::from(vec![b'x'; 1_001])), ..numbered(0, 0) };
        let nowhere = Outgoing { topic: "nowhere".into(), ..numbered(0, 0) };
        let records = vec![numbered(0, 0), large, nowhere, numbered(7, 0), numbered(0, 1)];
        let outcomes = producer.send_all(records).await.await;
        let codes: Vec<_> = outcomes.iter().map(|o| o.as_ref().map_err(|e| (e.kind, e.code)).err()).collect();
        let unknown = Some((ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"));
        assert_eq!(codes, [None, Some((ErrorKind::Refused, "MESSAGE_TOO_LARGE")), unknown, unknown, None]);
        assert_eq!(values(&world)[&0], [0, 1]);
    })
    .unwrap();
}

#[test]
fn keys_go_where_java_puts_them_and_flush_cuts_the_linger_short() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 6);
        let config = ProducerConfig { linger: Duration::from_secs(10), ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        let keyed = |key: &'static str| Outgoing {
            partition: None,
            key: Some(Bytes::from_static(key.as_bytes())),
            ..numbered(0, 0)
        };
        let delivery = producer.send_all(["doc-1", "doc-3", "user:42", "kafka"].map(keyed).to_vec()).await;
        let since = world.now();
        producer.flush().await;
        assert!(world.now().since(since) < Duration::from_millis(20));
        let placed: Vec<_> = delivery.await.into_iter().map(|outcome| outcome.unwrap().partition).collect();
        assert_eq!(placed, [5, 0, 1, 4]);
    })
    .unwrap();
}

#[test]
fn a_dropped_producer_abandons_what_is_not_acknowledged() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 1);
        let config = ProducerConfig { linger: Duration::from_secs(10), ..ProducerConfig::default() };
        let producer = open(&world.node("p"), config).await;
        let delivery = producer.send_all(vec![numbered(0, 0)]).await;
        drop(producer);
        assert_eq!(delivery.await.remove(0).unwrap_err().kind, ErrorKind::UnknownOutcome);
        world.sleep(Duration::from_secs(20)).await;
        assert!(values(&world)[&0].is_empty());
    })
    .unwrap();
}

#[test]
fn a_consumer_by_assignment_reads_on_and_knows_its_positions() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 2);
        let node = world.node("n");
        let producer = open(&node, ProducerConfig::default()).await;
        let all = |from, to| (from..to).flat_map(|number| [numbered(0, number), numbered(1, number)]).collect();
        producer.send_all(all(0, 20)).await.await;
        let at = |number| TopicPartition::new("t", number);
        let mut consumer = node.transport().assign("reader".into(), vec![(at(0), 0), (at(1), 15)]).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 25 {
            seen.extend(consumer.poll(7, Duration::from_millis(100)).await.unwrap());
        }
        assert_eq!(seen.len(), 25);
        assert_eq!(consumer.positions(), [(at(0), 20), (at(1), 20)]);
        assert!(consumer.poll(7, Duration::from_millis(700)).await.unwrap().is_empty());
        // What comes later answers the fetch that is parked at the broker.
        let since = world.now();
        producer.send_all(all(20, 21)).await.await;
        let later = consumer.poll(7, Duration::from_secs(5)).await.unwrap();
        assert!(!later.is_empty() && world.now().since(since) < Duration::from_millis(50));
        // Past the end.
        let mut lost = node.transport().assign("reader".into(), vec![(at(0), 999)]).await.unwrap();
        assert_eq!(lost.poll(1, Duration::from_secs(1)).await.unwrap_err().code, "OFFSET_OUT_OF_RANGE");
    })
    .unwrap();
}

#[test]
fn the_admin_client_creates_counts_and_measures() {
    let mut config = WorldConfig::default();
    config.cluster.brokers = 3;
    run(1, config, |world| async move {
        let node = world.node("n");
        let admin = node.transport().admin();
        let topic = |name: &str| NewTopic { name: name.into(), partitions: 4, replication: 1 };
        let made = admin.create_topics(vec![topic("t"), topic("t")]).await;
        assert_eq!(made[0], Ok(()));
        assert_eq!(made[1].as_ref().unwrap_err().code, "TOPIC_ALREADY_EXISTS");
        let counts = admin.partition_counts(vec!["t".into(), "u".into()]).await;
        assert_eq!((counts[0].clone(), counts[1].as_ref().unwrap_err().kind), (Ok(4), ErrorKind::Refused));
        let producer = open(&node, ProducerConfig::default()).await;
        producer.send_all(vec![numbered(2, 0)]).await.await.remove(0).unwrap();
        let partitions: Vec<_> = (0..4).map(|number| TopicPartition::new("t", number)).collect();
        let marks = admin.watermarks(partitions.clone()).await.unwrap();
        let empty = Watermarks { start: 0, end: 0 };
        assert_eq!(marks, [empty, empty, Watermarks { start: 0, end: 1 }, empty]);
        assert_eq!(admin.committed("g".into(), partitions).await.unwrap(), [None, None, None, None]);
    })
    .unwrap();
}
