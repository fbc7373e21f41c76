//! What goes wrong with a real cluster: a clear error in seconds, nothing lost, and no hang.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::*;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};

use common::*;

fn kind_and_code(error: &TransportError) -> (ErrorKind, &'static str) {
    (error.kind, error.code)
}

#[tokio::test]
async fn a_wrong_address_is_an_error_in_seconds_with_the_address_and_the_reason() {
    let env = TokioEnv::new();
    for address in ["127.0.0.1:1", "no-such-host.invalid:9092"] {
        let begun = env.now();
        let settings = KafkaSettings { connect_limit: Duration::from_secs(3), ..KafkaSettings::new(address) };
        let error = KafkaTransport::connect(env.clone(), settings).await.expect_err("nobody is there");
        assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "BROKER_NOT_AVAILABLE"), "{error}");
        assert!(error.context.contains(address) && error.context.to_lowercase().contains("fail"), "{error}");
        assert!(env.now().since(begun) < Duration::from_secs(8));
    }
}

#[tokio::test]
async fn a_property_that_librdkafka_does_not_know_is_named() {
    let settings = KafkaSettings::new("127.0.0.1:1").with("no.such.property", "1");
    let transport = KafkaTransport::new(TokioEnv::new(), settings).expect("nothing that is refused here");
    let error = transport.producer(ProducerConfig::default()).await.expect_err("unknown");
    assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "INVALID_CONFIG"));
    assert!(error.context.contains("no.such.property"), "{error}");
}

#[tokio::test]
async fn what_librdkafka_cannot_do_is_refused_before_a_member_is_made() {
    let transport = KafkaTransport::new(TokioEnv::new(), KafkaSettings::new("127.0.0.1:1")).expect("good settings");
    let config = GroupConfig::new("group", vec!["topic".into()]);
    let with = |assignors: &[Assignor]| GroupConfig { assignors: assignors.to_vec(), ..config.clone() };
    let table = [
        (GroupConfig { group: String::new(), ..config.clone() }, "INVALID_GROUP_ID"),
        (GroupConfig { topics: Vec::new(), ..config.clone() }, "INVALID_GROUP_ID"),
        (GroupConfig { topics: vec!["a\0b".into()], ..config.clone() }, "INVALID_TOPIC_EXCEPTION"),
        (with(&[]), "INCONSISTENT_GROUP_PROTOCOL"),
        (with(&[Assignor::Sticky]), "UNSUPPORTED_ASSIGNOR"),
        (with(&[Assignor::Range, Assignor::CooperativeSticky]), "UNSUPPORTED_ASSIGNOR"),
        (GroupConfig { poll_limit: Duration::from_secs(1), ..config.clone() }, "INVALID_CONFIG"),
    ];
    for (config, code) in table {
        let error = transport.join(config).await.map(|_| ()).expect_err(code);
        assert_eq!(kind_and_code(&error), (ErrorKind::Refused, code), "{error}");
    }
}

#[test]
fn a_record_over_a_limit_is_refused_by_client_and_broker_alike_and_others_go_on() {
    with_broker("a_record_over_a_limit_is_refused", 60, async |world| {
        let topic = world.topic_with(1, &[("max.message.bytes", "50000")]).await;
        let sized = |bytes: usize| Outgoing { value: Some(Bytes::from(vec![b'x'; bytes])), ..numbered(&topic, 0, 0) };
        let config = ProducerConfig { record_bytes_max: 200_000, linger: Duration::ZERO, ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let mut outcomes = Vec::new();
        for record in [sized(10), sized(300_000), sized(100_000), sized(10)] {
            outcomes.extend(producer.send_all(vec![record]).await.await);
        }
        for place in [1, 2] {
            let error = outcomes[place].clone().expect_err("too large");
            assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "MESSAGE_TOO_LARGE"), "{error}");
            assert!(error.context.contains(&*topic), "{error}");
        }
        assert_eq!(outcomes[0].as_ref().map(|at| at.offset), Ok(0));
        assert_eq!(outcomes[3].as_ref().map(|at| at.offset), Ok(1));
    });
}

#[test]
fn a_topic_that_is_not_there_is_refused_once_its_time_to_appear_is_over() {
    with_broker("a_topic_that_is_not_there_is_refused", 60, async |world| {
        let topic: Arc<str> = unique("absent").into();
        let config = ProducerConfig { topic_propagation_max: Duration::from_secs(2), ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let records = vec![numbered(&topic, 0, 0), Outgoing { partition: None, ..numbered(&topic, 0, 1) }];
        for outcome in producer.send_all(records).await.await {
            let error = outcome.expect_err("there is no such topic");
            assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"), "{error}");
            assert!(error.context.contains(&*topic) && error.context.contains("create"), "{error}");
        }
        let from = vec![(TopicPartition::new(topic.clone(), 0), 0)];
        let mut reader = world.transport.assign("reader".into(), from).await.expect("a reader");
        let until = world.env.now() + Duration::from_secs(30);
        let error = loop {
            match reader.poll(1, WAIT).await {
                Ok(records) => assert!(records.is_empty() && world.env.now() < until),
                Err(error) => break error,
            }
        };
        assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"), "{error}");
        // One that goes while it is read.
        let gone = world.topic(1).await;
        let from = vec![(TopicPartition::new(gone.clone(), 0), 0)];
        let mut reader = world.transport.assign("reader".into(), from).await.expect("a reader");
        assert_eq!(reader.poll(1, WAIT).await, Ok(Vec::new()));
        world.transport.admin().delete_topic(&gone).await.expect("deleted");
        let error = loop {
            match reader.poll(1, WAIT).await {
                Ok(records) => assert!(records.is_empty() && world.env.now() < until),
                Err(error) => break error,
            }
        };
        assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"), "{error}");
        // A member waits for its topic.
        let mut member = world.join(group(&topic)).await;
        for _ in 0..10 {
            assert!(matches!(member.poll().await, Polled::Records(records) if records.is_empty()));
        }
        let new = NewTopic { name: topic.clone(), partitions: 1, replication: 1 };
        world.transport.admin().create_topics(vec![new]).await.pop().expect("one").expect("it is made");
        world.seen(&topic, 1).await;
        world.fill(&topic, 0, 0, 5).await;
        member.until_records(5).await;
    });
}

#[test]
fn records_deleted_under_a_reader_are_passed_over_and_a_position_past_the_end_is_an_error() {
    with_broker("records_deleted_under_a_reader_are_passed_over", 60, async |world| {
        let topic = world.topic(1).await;
        let partition = TopicPartition::new(topic.clone(), 0);
        world.fill(&topic, 0, 0, 20).await;
        world.transport.admin().delete_records(&partition, 12).await.expect("deleted");
        let mut reader = world.transport.assign("reader".into(), vec![(partition.clone(), 3)]).await.expect("a reader");
        let mut numbers = Vec::new();
        while numbers.len() < 8 {
            numbers.extend(reader.poll(500, Duration::from_secs(5)).await.expect("records").iter().map(number));
        }
        assert_eq!(numbers, (12..20).collect::<Vec<_>>());
        assert_eq!(reader.positions(), [(partition.clone(), 20)]);

        let mut reader =
            world.transport.assign("reader".into(), vec![(partition.clone(), 99)]).await.expect("a reader");
        let until = world.env.now() + Duration::from_secs(20);
        let error = loop {
            match reader.poll(1, WAIT).await {
                Ok(records) => assert!(records.is_empty() && world.env.now() < until),
                Err(error) => break error,
            }
        };
        assert_eq!(kind_and_code(&error), (ErrorKind::Refused, "OFFSET_OUT_OF_RANGE"), "{error}");

        // A member whose committed offset is gone begins where it was told to.
        let config = group(&topic);
        let mut member = world.join(config.clone()).await;
        member.until_records(8).await;
        assert_eq!(member.commit(&topic, 0, 15).await, Ok(()));
        member.group.leave().await;
        world.transport.admin().delete_records(&partition, 18).await.expect("deleted");
        let mut member = world.join(config).await;
        member.until_records(2).await;
        assert_eq!(member.records.iter().map(number).collect::<Vec<_>>(), [18, 19]);
    });
}

#[test]
fn a_member_without_a_committed_offset_begins_where_it_was_told_to() {
    with_broker("a_member_without_a_committed_offset_begins_where_it_was_told_to", 60, async |world| {
        let topic = world.topic(1).await;
        world.fill(&topic, 0, 0, 10).await;
        let config = GroupConfig { offset_reset: OffsetReset::Latest, ..group(&topic) };
        let mut member = world.join(config).await;
        member.until_assigned(1).await;
        assert_eq!(member.assigned[0].start, 10);
        world.fill(&topic, 0, 10, 5).await;
        member.until_records(5).await;
        assert_eq!(member.records.iter().map(number).collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
    });
}

/// A cluster that answers slowly. librdkafka's own mock: it is slow as asked, and no more is asked of it here.
async fn slow_cluster(topic: &str) -> (MockCluster<'static, DefaultProducerContext>, KafkaTransport<TokioEnv>) {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic(topic, 2, 1).expect("a topic");
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    (cluster, KafkaTransport::new(TokioEnv::new(), settings).expect("good settings"))
}

async fn join(transport: KafkaTransport<TokioEnv>, config: GroupConfig) -> Consumer {
    let (poller, group) = transport.join(config).await.expect("a member");
    Consumer { env: TokioEnv::new(), poller, group, assigned: Vec::new(), records: Vec::new() }
}

/// What librdkafka does not say of a cooperative member that is thrown out while it drains: that what stays is gone
/// too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooperative_member_that_is_thrown_out_in_a_drain_begins_anew() {
    let topic: Arc<str> = "thrown-out".into();
    let (cluster, transport) = slow_cluster(&topic).await;
    let config = GroupConfig { assignors: vec![Assignor::CooperativeSticky], ..group(&topic) };
    let mut first = join(transport.clone(), config.clone()).await;
    first.until_assigned(2).await;
    let epochs = [first.epoch(0), first.epoch(1)];
    let commits = [first.commit_of(&topic, 0, 5), first.commit_of(&topic, 1, 6)];
    let second = Background::start(join(transport.clone(), config.clone()).await);
    let polled = first.until(30, |polled| matches!(polled, Polled::Revoking { .. })).await;
    let Polled::Revoking { event, partitions, .. } = polled else { unreachable!() };
    assert_eq!(partitions.len(), 1);
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
    let results = first.group.commit(commits.to_vec()).await;
    for result in results {
        let error = result.expect_err("it is not known any more");
        assert_eq!(kind_and_code(&error), (ErrorKind::Fenced, "UNKNOWN_MEMBER_ID"));
    }
    let polled = first.until(5, |polled| matches!(polled, Polled::Lost { .. })).await;
    let Polled::Lost { event: loss, partitions } = polled else { unreachable!() };
    assert_eq!(partitions.len(), 2, "all of it");
    first.group.release(event).await.expect("released");
    first.group.release(loss).await.expect("released");
    first.until_assigned(1).await;
    assert!(!epochs.contains(&first.assigned[0].epoch), "an ownership that comes back is a new one");
    second.until_assigned(1, 30).await;
    first.group.leave().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_waits_for_commits_that_are_out_and_later_ones_are_fenced() {
    let topic: Arc<str> = "slow".into();
    let (cluster, transport) = slow_cluster(&topic).await;
    let env = TokioEnv::new();
    let config = group(&topic);
    let mut first = join(transport.clone(), config.clone()).await;
    first.until_assigned(2).await;
    let commits = [first.commit_of(&topic, 0, 5), first.commit_of(&topic, 1, 6)];
    let second = Background::start(join(transport.clone(), config.clone()).await);
    let polled = first.until(30, |polled| matches!(polled, Polled::Revoking { .. })).await;
    let Polled::Revoking { event, .. } = polled else { unreachable!() };
    cluster.broker_round_trip_time(1, Duration::from_millis(1_500)).expect("slow");
    let begun = env.now();
    // On the wire, and its caller lost interest; and one that waits for its turn.
    let (group, commit) = (first.group.clone(), commits[0].clone());
    let out = tokio::spawn(async move { group.commit(vec![commit]).await });
    env.sleep(Duration::from_millis(200)).await;
    out.abort();
    let (group, commit) = (first.group.clone(), commits[1].clone());
    let waiting = tokio::spawn(async move { group.commit(vec![commit]).await });
    env.sleep(Duration::from_millis(100)).await;
    first.group.release(event).await.expect("released");
    let took = env.now().since(begun);
    assert!(took > Duration::from_millis(1_300), "the release did not wait: {took:?}");
    let fenced = waiting.await.expect("it ended").pop().expect("one").expect_err("the release had begun");
    assert_eq!(kind_and_code(&fenced), (ErrorKind::Fenced, "STALE_EPOCH"), "{fenced}");
    let late = first.group.commit(commits.to_vec()).await;
    assert!(late.iter().all(|result| result.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced)), "{late:?}");
    cluster.broker_round_trip_time(1, Duration::ZERO).expect("fast");
    second.stop().await;
}

/// Thrown out while it takes an assignment over, at one moment or another: what it was told it has, it is told to have
/// lost before it is told again that it has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_thrown_out_while_it_takes_over_is_told_so() {
    let topic: Arc<str> = "taking".into();
    for (assignor, millis) in [(Assignor::CooperativeSticky, 0), (Assignor::Range, 250)] {
        let (cluster, transport) = slow_cluster(&topic).await;
        let config = GroupConfig { assignors: vec![assignor], ..group(&topic) };
        cluster.broker_round_trip_time(1, Duration::from_millis(millis)).expect("slow");
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
        cluster.request_errors(RDKafkaApiKey::Heartbeat, &[unknown]);
        let mut member = join(transport, config).await;
        let (mut owned, mut calm) = (std::collections::BTreeMap::new(), 0);
        let until = member.env.now() + Duration::from_secs(30);
        // Until it has been calm for as long as several heartbeats take.
        while calm < 10 || owned.len() < 2 {
            assert!(member.env.now() < until, "{assignor:?}, {millis} ms: it owns {owned:?}");
            calm += 1;
            let polled = member.poll().await;
            if !matches!(polled, Polled::Records(_)) {
                calm = 0;
            }
            match polled {
                Polled::Assigned(new) => {
                    for one in new {
                        let before = owned.insert(one.partition.clone(), one.epoch);
                        assert_eq!(before, None, "{assignor:?}, {millis} ms: {} came twice", one.partition);
                    }
                }
                Polled::Revoking { event, partitions, .. } | Polled::Lost { event, partitions } => {
                    for (partition, epoch) in partitions {
                        assert_eq!(owned.remove(&partition), Some(epoch), "{assignor:?}, {millis} ms");
                    }
                    member.group.release(event).await.expect("released");
                }
                Polled::Records(_) => {}
            }
        }
        for partition in 0..2 {
            let epoch = owned[&TopicPartition::new(topic.clone(), partition)];
            let partition = TopicPartition::new(topic.clone(), partition);
            let commit = Commit { partition, epoch, offset: 0, metadata: String::new() };
            assert_eq!(member.group.commit(vec![commit]).await, [Ok(())], "{assignor:?}, {millis} ms");
        }
        member.group.leave().await;
    }
}
