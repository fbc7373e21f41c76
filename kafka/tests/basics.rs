//! Producer, consumers and admin against a real broker: what every other test rests on.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::*;

use common::*;

#[test]
fn records_come_back_as_they_were_sent_and_in_order() {
    with_broker("records_come_back_as_they_were_sent_and_in_order", 60, async |world| {
        let topic = world.topic(1).await;
        let header = |name: &str, value: &'static [u8]| Header { name: name.into(), value: Bytes::from_static(value) };
        let of = |key: Option<&'static [u8]>, value: Option<&'static [u8]>, headers: Vec<Header>| Outgoing {
            topic: topic.clone(),
            partition: Some(0),
            key: key.map(Bytes::from_static),
            value: value.map(Bytes::from_static),
            headers,
        };
        let sent = vec![
            of(Some(b"key"), Some(b"value"), vec![header("a", b"1"), header("b", b""), header("a", b"2")]),
            of(None, Some(b"no key"), Vec::new()),
            of(Some(b""), Some(b"an empty key"), Vec::new()),
            of(Some(b"tombstone"), None, Vec::new()),
            of(Some(b"empty"), Some(b""), Vec::new()),
        ];
        let producer = world.transport.producer(ProducerConfig::default()).await.expect("a producer");
        let outcomes = producer.send_all(sent.clone()).await.await;
        let offsets: Vec<_> = outcomes.into_iter().map(|outcome| outcome.expect("acknowledged").offset).collect();
        assert_eq!(offsets, [0, 1, 2, 3, 4]);

        let from = vec![(TopicPartition::new(topic.clone(), 0), 1)];
        let mut reader = world.transport.assign("reader".into(), from).await.expect("a reader");
        let mut read = Vec::new();
        while read.len() < 4 {
            read.extend(reader.poll(2, Duration::from_secs(10)).await.expect("records"));
        }
        for (record, sent) in read.iter().zip(&sent[1..]) {
            assert_eq!((&record.key, &record.value, &record.headers), (&sent.key, &sent.value, &sent.headers));
            assert!(record.timestamp_millis > 1_600_000_000_000, "{record:?}");
        }
        assert_eq!(read.iter().map(|record| record.position.offset).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(reader.positions(), [(TopicPartition::new(topic.clone(), 0), 5)]);

        let mut member = world.join(group(&topic)).await;
        member.until_records(5).await;
        let (first, of) = (&member.records[0], &sent[0]);
        assert_eq!((&first.key, &first.value, &first.headers), (&of.key, &of.value, &of.headers));
        assert_eq!(first.position.epoch, member.epoch(0));
    });
}

#[test]
fn an_admin_creates_counts_grows_and_deletes() {
    with_broker("an_admin_creates_counts_grows_and_deletes", 60, async |world| {
        let admin = world.transport.admin();
        let (topic, other): (Arc<str>, Arc<str>) = (unique("topic").into(), unique("other").into());
        let new = |name: &Arc<str>, partitions, replication| NewTopic { name: name.clone(), partitions, replication };
        let made = admin.create_topics(vec![new(&topic, 3, 1), new(&topic, 3, 1), new(&other, 1, 9)]).await;
        assert_eq!(made[0], Ok(()));
        let code =
            |result: &Result<(), TransportError>| result.as_ref().map_err(|error| (error.code, error.kind)).err();
        assert_eq!(code(&made[1]), Some(("TOPIC_ALREADY_EXISTS", ErrorKind::Refused)));
        assert_eq!(code(&made[2]), Some(("INVALID_REPLICATION_FACTOR", ErrorKind::Refused)));
        world.seen(&topic, 3).await;
        let counts = admin.partition_counts(vec![topic.clone(), other.clone()]).await;
        assert_eq!(counts[0], Ok(3));
        let absent = counts[1].clone().expect_err("it was not made");
        assert_eq!((absent.code, absent.kind), ("UNKNOWN_TOPIC_OR_PARTITION", ErrorKind::Refused));

        world.fill(&topic, 1, 0, 10).await;
        let all: Vec<_> = (0..3).map(|number| TopicPartition::new(topic.clone(), number)).collect();
        let marks = |start, end| Watermarks { start, end };
        assert_eq!(admin.watermarks(all.clone()).await, Ok(vec![marks(0, 0), marks(0, 10), marks(0, 0)]));
        assert_eq!(admin.delete_records(&all[1], 4).await, Ok(4));
        assert_eq!(admin.watermarks(vec![all[1].clone()]).await, Ok(vec![marks(4, 10)]));
        for absent in [TopicPartition::new(other, 0), TopicPartition::new(topic.clone(), 7)] {
            let error = admin.watermarks(vec![absent.clone()]).await.expect_err("it is not there");
            assert_eq!((error.code, error.kind), ("UNKNOWN_TOPIC_OR_PARTITION", ErrorKind::Refused), "{absent}");
        }

        admin.create_partitions(&topic, 5).await.expect("it grows");
        world.seen(&topic, 5).await;
        assert!(admin.create_partitions(&topic, 2).await.is_err(), "it cannot shrink");
        let setting = admin.topic_setting(&topic, "cleanup.policy").await;
        assert_eq!(setting, Ok(Some("delete".into())));
        admin.delete_topic(&topic).await.expect("it goes");
    });
}

#[test]
fn an_admin_removes_what_begins_with_a_name_and_waits_for_a_member_that_died() {
    with_broker("an_admin_removes_what_begins_with_a_name", 90, async |world| {
        let (admin, prefix) = (world.transport.admin(), unique("mine"));
        let (topic, other) = (Arc::<str>::from(format!("{prefix}-a")), world.topic(1).await);
        let new = NewTopic { name: topic.clone(), partitions: 1, replication: 1 };
        admin.create_topic(new, &[]).await.expect("a new topic");
        world.seen(&topic, 1).await;
        let mut member = world.join(GroupConfig { group: format!("{prefix}-group"), ..group(&topic) }).await;
        member.until_assigned(1).await;
        // No goodbye.
        drop(member);
        assert_eq!(admin.remove_all(&prefix).await, Ok(vec![topic.to_string(), format!("{prefix}-group")]));
        assert_eq!(admin.remove_all(&prefix).await, Ok(Vec::new()));
        world.seen(&other, 1).await;
        let error = admin.remove_all("").await.expect_err("everything");
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
    });
}

#[test]
fn offsets_and_their_metadata_are_committed_and_read_back() {
    with_broker("offsets_and_their_metadata_are_committed_and_read_back", 60, async |world| {
        let topic = world.topic(2).await;
        world.fill(&topic, 0, 0, 10).await;
        let config = group(&topic);
        assert_eq!(world.committed(&config.group, &topic, 2).await, [None, None]);
        let mut member = world.join(config.clone()).await;
        member.until_assigned(2).await;
        assert!(member.assigned.iter().all(|new| new.committed.is_none() && new.start == 0));
        member.until_records(10).await;
        let mut commits = vec![member.commit_of(&topic, 0, 7), member.commit_of(&topic, 1, 0)];
        commits[1].metadata = "ünïcode".into();
        assert_eq!(member.group.commit(commits.clone()).await, [Ok(()), Ok(())]);
        commits[0].metadata = "x".repeat(4_097);
        let results = member.group.commit(commits).await;
        let error = results[0].clone().expect_err("too much metadata");
        assert_eq!((error.code, error.kind), ("OFFSET_METADATA_TOO_LARGE", ErrorKind::Refused));
        assert_eq!(results[1], Ok(()));
        member.group.leave().await;
        let closed = member.poller.poll(1, WAIT).await.expect_err("it left");
        assert_eq!((closed.code, closed.kind), ("CONSUMER_CLOSED", ErrorKind::Fatal));

        let mut next = world.join(config).await;
        next.until_assigned(2).await;
        next.assigned.sort_by_key(|new| new.partition.partition);
        let committed = |offset, metadata: &str| Some(Committed { offset, metadata: metadata.into() });
        assert_eq!(next.assigned[0].committed, committed(7, "seriatim/1"));
        assert_eq!(next.assigned[1].committed, committed(0, "ünïcode"));
        assert_eq!(next.assigned[0].start, 7);
        next.until_records(3).await;
        assert_eq!(next.records.iter().map(number).collect::<Vec<_>>(), [7, 8, 9]);
    });
}

#[test]
fn a_paused_partition_gives_nothing_and_goes_on_where_it_was() {
    with_broker("a_paused_partition_gives_nothing_and_goes_on_where_it_was", 60, async |world| {
        let topic = world.topic(2).await;
        world.fill(&topic, 0, 0, 1_000).await;
        world.fill(&topic, 1, 1_000, 1_000).await;
        let mut member = world.join(group(&topic)).await;
        member.until_records(100).await;
        let paused = TopicPartition::new(topic.clone(), 0);
        member.group.pause(&[paused.clone(), TopicPartition::new("elsewhere", 0)]);
        let before = member.records.iter().filter(|record| record.position.partition == paused).count();
        member.until_records(1_000 + before).await;
        for _ in 0..5 {
            member.poll().await;
        }
        assert_eq!(member.records.len(), 1_000 + before, "a paused partition gave records");
        member.group.resume(&[paused]);
        member.until_records(2_000).await;
        let mut numbers: Vec<_> = member.records.iter().map(number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
    });
}

#[test]
fn a_full_producer_waits_and_loses_nothing() {
    with_broker("a_full_producer_waits_and_loses_nothing", 60, async |world| {
        let topic = world.topic(1).await;
        let config = ProducerConfig { queue_records_max: 10, ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let mut deliveries = Vec::new();
        for batch in 0..20 {
            let records = (batch * 100..(batch + 1) * 100).map(|one| numbered(&topic, 0, one)).collect();
            deliveries.push(producer.send_all(records).await);
        }
        producer.flush().await;
        let mut offset = 0;
        for delivery in deliveries {
            for outcome in delivery.await {
                assert_eq!(outcome.expect("acknowledged").offset, offset);
                offset += 1;
            }
        }
        assert_eq!(offset, 2_000);
        // A record that is larger than the queue goes alone.
        let config = ProducerConfig { queue_bytes_max: 1_000, ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let large = Outgoing { value: Some(Bytes::from(vec![0; 900_000])), ..numbered(&topic, 0, 0) };
        assert!(producer.send_all(vec![large.clone(), large]).await.await.iter().all(Result::is_ok));
    });
}

#[test]
fn two_calls_are_appended_in_the_order_in_which_they_were_first_polled() {
    with_broker("two_calls_are_appended_in_order", 60, async |world| {
        let topic = world.topic(1).await;
        // Full for long, again and again, with every call waiting.
        let linger = Duration::from_millis(50);
        let config = ProducerConfig { queue_records_max: 50, linger, ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let call = |number: usize| Box::pin(producer.send_all((0..100).map(|_| numbered(&topic, 0, number)).collect()));
        let mut calls: Vec<_> = (0..20).map(call).collect();
        for call in &mut calls {
            assert!(futures_util::poll!(call).is_pending(), "there is not room for one");
        }
        // From here on the last is always asked first.
        calls.reverse();
        let mut deliveries = futures_util::future::join_all(calls).await;
        deliveries.reverse();
        let mut last = -1;
        for delivery in deliveries {
            for outcome in delivery.await {
                let offset = outcome.expect("acknowledged").offset;
                assert_eq!(offset, last + 1);
                last = offset;
            }
        }
        let from = vec![(TopicPartition::new(topic.clone(), 0), 0)];
        let mut reader = world.transport.assign("reader".into(), from).await.expect("a reader");
        let mut numbers = Vec::new();
        while numbers.len() < 2_000 {
            numbers.extend(reader.poll(500, Duration::from_secs(5)).await.expect("records").iter().map(number));
        }
        assert!(numbers.is_sorted());
    });
}

#[test]
fn the_partitioner_is_the_one_that_was_asked_for() {
    use seriatim_core::partitioner::{Choice, Partitioner};
    with_broker("the_partitioner_is_the_one_that_was_asked_for", 60, async |world| {
        let topic = world.topic(17).await;
        for partitioner in [Partitioner::Murmur2Random, Partitioner::ConsistentRandom, Partitioner::Consistent] {
            let config = ProducerConfig { partitioner, ..ProducerConfig::default() };
            let producer = world.transport.producer(config).await.expect("a producer");
            let keyed = |one| Outgoing { partition: None, ..numbered(&topic, 0, one) };
            let records: Vec<_> = (0..200).map(keyed).collect();
            let outcomes = producer.send_all(records.clone()).await.await;
            for (record, outcome) in records.iter().zip(outcomes) {
                let Choice::Partition(expected) = partitioner.choose(record.key.as_deref(), 17) else {
                    panic!("every one has a key");
                };
                assert_eq!(outcome.expect("acknowledged").partition, expected, "{partitioner:?}");
            }
        }
    });
}

#[test]
fn a_producer_that_is_dropped_abandons_and_says_that_it_does_not_know() {
    with_broker("a_producer_that_is_dropped_abandons", 60, async |world| {
        let topic = world.topic(1).await;
        let config = ProducerConfig { linger: Duration::from_secs(60), ..ProducerConfig::default() };
        let producer = world.transport.producer(config).await.expect("a producer");
        let delivery = producer.send_all(vec![numbered(&topic, 0, 0)]).await;
        drop(producer);
        let outcome = delivery.await.pop().expect("one").expect_err("it was abandoned");
        assert_eq!(outcome.kind, ErrorKind::UnknownOutcome, "{outcome}");
        let marks = world.transport.admin().watermarks(vec![TopicPartition::new(topic, 0)]).await.expect("watermarks");
        assert_eq!(marks[0].end, 0);
        let _ = world.env.now();
    });
}
