//! The producer when brokers refuse: nothing lost, nothing doubled, nothing out of order.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use proptest::prelude::*;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Delivery, ErrorKind, Outgoing, Producer, ProducerConfig, Transport};
use seriatim_sim::cluster::protocol::ErrorCode;
use seriatim_sim::rng::Concern;
use seriatim_sim::{SimProducer, TraceMode, World, WorldConfig, run};

fn config(brokers: u32) -> WorldConfig {
    let mut config = WorldConfig { trace: TraceMode::Ring(5_000), ..WorldConfig::default() };
    config.cluster.brokers = brokers;
    config
}

fn numbered(number: u64) -> Outgoing {
    let value = Some(Bytes::from(number.to_string()));
    Outgoing { topic: "t".into(), partition: Some(0), key: None, value, headers: Vec::new() }
}

/// Of so many bytes.
fn heavy(number: u64, bytes: usize) -> Outgoing {
    Outgoing { value: Some(Bytes::from(format!("{number:0bytes$}"))), ..numbered(number) }
}

async fn open(world: &World, config: ProducerConfig) -> SimProducer {
    world.node("p").transport().producer(config).await.unwrap()
}

fn at() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn values(world: &World) -> Vec<u64> {
    let log = world.log("t").remove(&at()).unwrap_or_default();
    log.iter()
        .map(|(_, record)| std::str::from_utf8(record.value.as_ref().unwrap()).unwrap().parse().unwrap())
        .collect()
}

/// Refuses the next batches with these, then takes all.
fn refuse(world: &World, codes: impl IntoIterator<Item = ErrorCode>) {
    let mut codes: VecDeque<ErrorCode> = codes.into_iter().collect();
    world.on_produce(Some(Box::new(move |_| codes.pop_front())));
}

/// Five calls of one record, each a batch of its own, all out at once.
async fn five(world: &World, producer: &SimProducer, from: u64) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for number in from..from + 5 {
        deliveries.push(producer.send_all(vec![numbered(number)]).await);
        // Longer than the linger, far shorter than the way there.
        world.sleep(Duration::from_micros(1)).await;
    }
    deliveries
}

fn batches_of_one() -> ProducerConfig {
    ProducerConfig { linger: Duration::ZERO, batch_records_max: 1, ..ProducerConfig::default() }
}

async fn all_ok(deliveries: Vec<Delivery>) {
    for delivery in deliveries {
        assert!(delivery.await.into_iter().all(|outcome| outcome.is_ok()));
    }
}

#[test]
fn a_moved_leader_is_looked_up_and_everything_goes_there_in_order() {
    run(1, config(3), |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world, batches_of_one()).await;
        all_ok(vec![producer.send_all(vec![numbered(0)]).await]).await;
        for (turn, leader) in [(0, 1), (1, 2), (2, 0)] {
            let deliveries = five(&world, &producer, 1 + 5 * turn).await;
            let since = world.now();
            world.move_leader(&at(), leader);
            all_ok(deliveries).await;
            assert!(world.now().since(since) < Duration::from_secs(1), "not only when the metadata have their age");
        }
        assert!(values(&world).into_iter().eq(0..16));
        let refused = world.trace().iter().any(|line| line.text.contains("NOT_LEADER_OR_FOLLOWER"));
        assert!(refused, "no batch met the old leader");
    })
    .unwrap();
}

#[test]
fn a_record_over_the_brokers_limit_is_refused_alone_and_the_rest_goes_on_in_order() {
    let mut config = config(1);
    config.cluster.message_max_bytes = 5_000;
    run(1, config, |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world, ProducerConfig::default()).await;
        // The first batch already, and as a whole: nothing of the producer is known to the broker.
        let mut records: Vec<_> = (0..40).map(|number| heavy(number, 1_000)).collect();
        records[17] = heavy(17, 6_000);
        records[31] = heavy(31, 7_000);
        let first = producer.send_all(records).await;
        let second = producer.send_all((40..50).map(numbered).collect()).await;
        let outcomes: Vec<_> = first.await.into_iter().chain(second.await).collect();
        for (number, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(_) => assert!(number != 17 && number != 31, "{number} was taken"),
                Err(error) => {
                    assert_eq!((error.kind, error.code), (ErrorKind::Refused, "MESSAGE_TOO_LARGE"));
                    assert!(number == 17 || number == 31, "{number} was refused");
                }
            }
        }
        assert!(values(&world).into_iter().eq((0..50).filter(|number| *number != 17 && *number != 31)));
        // The pipeline goes on: no hole is left in the sequences.
        all_ok(five(&world, &producer, 50).await).await;
        assert_eq!(values(&world).len(), 53);
    })
    .unwrap();
}

#[test]
fn a_broker_that_lost_the_producers_state_is_met_with_a_new_epoch() {
    for code in [ErrorCode::UnknownProducerId, ErrorCode::OutOfOrderSequenceNumber] {
        run(1, config(1), |world| async move {
            world.create_topic("t", 1);
            let producer = open(&world, batches_of_one()).await;
            all_ok(vec![producer.send_all(vec![numbered(0)]).await]).await;
            // The first of five is refused; the others follow a hole.
            refuse(&world, [code]);
            all_ok(five(&world, &producer, 1).await).await;
            all_ok(five(&world, &producer, 6).await).await;
            assert!(values(&world).into_iter().eq(0..11), "{code}: {:?}", values(&world));
            // Again, while the first answer is lost: what is appended is known, and nothing is doubled.
            refuse(&world, [code, code]);
            let deliveries = five(&world, &producer, 11).await;
            world.lose_answers("p", 1);
            all_ok(deliveries).await;
            assert!(values(&world).into_iter().eq(0..16), "{code}: {:?}", values(&world));
        })
        .unwrap();
    }
}

#[test]
fn an_error_that_may_pass_is_retried_for_as_long_as_it_takes() {
    run(1, config(1), |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world, ProducerConfig::default()).await;
        world.on_produce(Some(Box::new(|_| Some(ErrorCode::NotEnoughReplicas))));
        let deliveries = five(&world, &producer, 0).await;
        world.sleep(Duration::from_secs(3_600)).await;
        assert!(values(&world).is_empty());
        world.on_produce(None);
        all_ok(deliveries).await;
        assert!(values(&world).into_iter().eq(0..5));
    })
    .unwrap();
}

#[test]
fn an_older_epoch_than_the_partitions_ends_the_producer() {
    run(1, config(1), |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world, ProducerConfig::default()).await;
        refuse(&world, [ErrorCode::InvalidProducerEpoch]);
        let error = producer.send_all(vec![numbered(0)]).await.await.remove(0).unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Fatal, "INVALID_PRODUCER_EPOCH"));
        assert_eq!(producer.send_all(vec![numbered(1)]).await.await.remove(0).unwrap_err().kind, ErrorKind::Fatal);
    })
    .unwrap();
}

/// Sends 300 records in calls of random size while leaders move, brokers refuse, answers are lost and some records are
/// over the broker's limit; the log must hold exactly what was acknowledged, once and in order. Answers are lost only
/// when no broker forgets the producer: one that does cannot know a resend.
fn order_survives(seed: u64, forgetful: bool) -> Result<(), TestCaseError> {
    let mut config = config(3);
    config.request_timeout = Duration::from_millis(300);
    config.cluster.message_max_bytes = 2_000;
    let (log, outcomes) = run(seed, config, |world| async move {
        world.create_topic("t", 1);
        let producer = open(&world, ProducerConfig { batch_records_max: 7, ..ProducerConfig::default() }).await;
        let mut refusals = world.stream(Concern::Env { life: 99 });
        world.on_produce(Some(Box::new(move |_| {
            let codes = [
                ErrorCode::NotEnoughReplicas,
                ErrorCode::NotLeaderOrFollower,
                ErrorCode::UnknownProducerId,
                ErrorCode::OutOfOrderSequenceNumber,
            ];
            refusals.one_in(8).then(|| codes[refusals.between(0, if forgetful { 3 } else { 1 }) as usize])
        })));
        let trouble = async {
            let mut faults = world.stream(Concern::Faults);
            for _ in 0..30 {
                world.sleep(Duration::from_millis(faults.between(1, 30))).await;
                match faults.between(0, if forgetful { 0 } else { 2 }) {
                    0 => world.move_leader(&at(), faults.between(0, 2) as i32),
                    1 => world.lose_answers("p", 1),
                    _ => world.reset_connections("p"),
                }
            }
            world.lose_answers("p", 0);
            world.on_produce(None);
        };
        let sending = async {
            let mut workload = world.stream(Concern::Workload);
            let (mut next, mut deliveries) = (0, Vec::new());
            while next < 300 {
                let count = workload.between(1, 20);
                let mut record = |number| {
                    let bytes = if workload.one_in(15) { 3_000 } else { workload.between(3, 700) as usize };
                    heavy(number, bytes)
                };
                let records = (next..next + count).map(&mut record).collect();
                next += count;
                deliveries.push(producer.send_all(records).await);
                world.sleep(Duration::from_micros(workload.between(0, 4_000))).await;
            }
            let mut outcomes = Vec::new();
            for delivery in deliveries {
                outcomes.extend(delivery.await);
            }
            outcomes
        };
        let ((), outcomes) = join(trouble, sending).await;
        (values(&world), outcomes)
    })
    .unwrap();
    let mut expected = Vec::new();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(appended) => {
                prop_assert_eq!(appended.offset as usize, expected.len());
                expected.push(number as u64);
            }
            Err(error) => prop_assert_eq!(error.code, "MESSAGE_TOO_LARGE"),
        }
    }
    prop_assert_eq!(log, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_survives_refusals_and_moves(seed in any::<u64>(), forgetful in any::<bool>()) {
        order_survives(seed, forgetful)?;
    }
}
