//! Topics that go, come back and are written by others, as producers and consumers meet them.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::time::Duration;

use bytes::Bytes;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{
    Admin, Assigned, ErrorKind, Group, GroupConfig, Header, NewTopic, Outgoing, Polled, Poller, Producer,
    ProducerConfig, Record, Transport, TransportError,
};
use seriatim_sim::history::{Ack, What};
use seriatim_sim::{SimPoller, World, WorldConfig, run};

fn config() -> WorldConfig {
    WorldConfig { metadata_max_age: Duration::from_secs(20), ..WorldConfig::default() }
}

fn record(topic: &str, value: &'static str) -> Outgoing {
    let value = Some(Bytes::from_static(value.as_bytes()));
    Outgoing { topic: topic.into(), partition: Some(0), key: None, value, headers: Vec::new() }
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn text(record: &Record) -> String {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
}

fn refused(outcome: Result<seriatim_core::transport::Appended, TransportError>) -> bool {
    let Err(error) = outcome else { return false };
    assert_eq!((error.kind, error.code), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"));
    true
}

#[test]
fn records_to_a_deleted_topic_are_refused_as_soon_as_metadata_say_so_and_others_go_on() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        world.create_topic("u", 1);
        let producer = world.node("p").transport().producer(ProducerConfig::default()).await.unwrap();
        let both = || vec![record("t", "a"), record("u", "a"), record("t", "b"), record("u", "b")];
        assert!(producer.send_all(both()).await.await.into_iter().all(|outcome| outcome.is_ok()));
        world.delete_topic("t");
        let since = world.now();
        let outcomes = producer.send_all(both()).await.await;
        assert!(world.now().since(since) < Duration::from_secs(1), "{:?}", world.now().since(since));
        assert_eq!(outcomes.into_iter().map(refused).collect::<Vec<_>>(), [true, false, true, false]);
        // Made anew, the same producer goes on in it.
        world.create_topic("t", 1);
        let outcomes = producer.send_all(both()).await.await;
        assert_eq!(outcomes.into_iter().map(refused).collect::<Vec<_>>(), [false; 4]);
        assert_eq!((world.log("t")[&at(0)].len(), world.log("u").len()), (2, 1));
    })
    .unwrap();
}

#[test]
fn a_topic_that_was_never_seen_may_come_for_a_while_before_records_to_it_are_refused() {
    run(1, config(), |world| async move {
        let producer = world.node("p").transport().producer(ProducerConfig::default()).await.unwrap();
        let (since, late) = (world.now(), producer.send_all(vec![record("t", "a")]).await);
        let nowhere = producer.send_all(vec![record("nowhere", "a")]).await;
        world.sleep(Duration::from_secs(25)).await;
        world.create_topic("t", 1);
        assert!(!refused(late.await.remove(0)));
        assert!(refused(nowhere.await.remove(0)));
        let waited = world.now().since(since);
        assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(31), "{waited:?}");
    })
    .unwrap();
}

#[test]
fn a_consumer_by_assignment_of_a_deleted_topic_is_told_and_of_one_made_anew_too() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        let node = world.node("n");
        for value in ["a", "b", "c"] {
            world.append(&at(0), None, Some(Bytes::from_static(value.as_bytes())), Vec::new());
        }
        let mut consumer = node.transport().assign("reader".into(), vec![(at(0), 0)]).await.unwrap();
        assert_eq!(consumer.poll(10, Duration::from_secs(1)).await.unwrap().len(), 3);
        let mut other = node.transport().assign("reader".into(), vec![(at(0), 3)]).await.unwrap();
        assert!(other.poll(10, Duration::from_secs(1)).await.unwrap().is_empty());
        world.delete_topic("t");
        let error = consumer.poll(10, Duration::from_secs(60)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"));
        world.create_topic("t", 1);
        let error = other.poll(10, Duration::from_secs(60)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Refused, "OFFSET_OUT_OF_RANGE"));
    })
    .unwrap();
}

/// What a member reads and is assigned in so many seconds, sorted; it releases what is revoked.
async fn read(world: &World, poller: &mut SimPoller, group: &impl Group, seconds: u64) -> Vec<String> {
    let (mut read, end) = (Vec::new(), world.now() + Duration::from_secs(seconds));
    while world.now() < end {
        match poller.poll(100, Duration::from_millis(500)).await.unwrap() {
            Polled::Records(records) => read.extend(records.iter().map(text)),
            Polled::Assigned(new) => read.extend(new.iter().map(|new| format!("{} at {}", new.partition, new.start))),
            Polled::Revoking { event, .. } | Polled::Lost { event, .. } => group.release(event).await.unwrap(),
        }
    }
    read.sort();
    read
}

#[test]
fn a_group_goes_on_when_one_of_its_topics_is_deleted_and_reads_it_anew_when_it_is_made_anew() {
    run(1, config(), |world| async move {
        world.create_topic("t", 1);
        world.create_topic("u", 1);
        let group = GroupConfig::new("g", vec!["t".into(), "u".into()]);
        let (mut poller, group) = world.node("n").transport().join(group).await.unwrap();
        let put = |topic: &str, value: &'static str| {
            let value = Some(Bytes::from_static(value.as_bytes()));
            world.append(&TopicPartition::new(topic, 0), None, value, Vec::new());
        };
        put("t", "t0");
        put("u", "u0");
        assert_eq!(read(&world, &mut poller, &group, 10).await, ["t-0 at 0", "t0", "u-0 at 0", "u0"]);
        world.delete_topic("t");
        put("u", "u1");
        // Noticed when the metadata have their age: the group rebalances over what is left.
        assert_eq!(read(&world, &mut poller, &group, 40).await, ["u-0 at 0", "u0", "u1", "u1"]);
        world.create_topic("t", 1);
        put("t", "t1");
        assert_eq!(
            read(&world, &mut poller, &group, 40).await,
            ["t-0 at 0", "t1", "u-0 at 0", "u0", "u1"],
            "nothing was committed, and the new topic starts at its beginning"
        );
    })
    .unwrap();
}

#[test]
fn a_foreign_record_lies_raw_in_the_log_and_in_the_history() {
    run(1, config(), |world| async move {
        world.create_topic("t", 2);
        let header = Header { name: "h".into(), value: Bytes::from_static(b"\xff") };
        assert_eq!(world.append(&at(1), Some(Bytes::from_static(b"k")), None, vec![header.clone()]), 0);
        assert_eq!(world.append(&at(1), None, Some(Bytes::from_static(b"{")), Vec::new()), 1);
        let log = world.log("t").remove(&at(1)).unwrap();
        assert_eq!((log[0].1.key.as_deref(), &log[0].1.value), (Some(&b"k"[..]), &None));
        assert_eq!((&log[0].1.headers, log[1].1.value.as_deref()), (&vec![header], Some(&b"{"[..])));
        let events = world.recorder().events();
        let of_foreign: Vec<_> =
            events.iter().filter(|event| &*event.node == "foreign").map(|event| &event.what).collect();
        let [What::ProduceInvoked { records, .. }, What::ProduceResolved { outcomes, .. }, ..] = of_foreign[..] else {
            panic!("{of_foreign:?}");
        };
        assert_eq!((records.len(), records[0].partition, &records[0].stamp), (1, Some(1), &None));
        assert_eq!(outcomes[..], [Ack::Ok((1, 0))]);
    })
    .unwrap();
}

#[test]
fn the_admin_client_sees_growth_deletion_and_a_topic_made_anew_at_once() {
    run(1, config(), |world| async move {
        let admin = world.node("n").transport().admin();
        let topic = NewTopic { name: "t".into(), partitions: 3, replication: 1 };
        let count = || async { admin.partition_counts(vec!["t".into()]).await.remove(0).map_err(|error| error.code) };
        assert_eq!(count().await, Err("UNKNOWN_TOPIC_OR_PARTITION"));
        admin.create_topics(vec![topic.clone()]).await.remove(0).unwrap();
        assert_eq!(count().await, Ok(3));
        admin.grow("t", 5).await.unwrap();
        assert_eq!(count().await, Ok(5));
        admin.delete_topic("t").await.unwrap();
        assert_eq!(count().await, Err("UNKNOWN_TOPIC_OR_PARTITION"));
        admin.create_topics(vec![topic]).await.remove(0).unwrap();
        assert_eq!(count().await, Ok(3));
    })
    .unwrap();
}
