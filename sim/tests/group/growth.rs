//! Topics that grow: each member notices at the age of its own metadata.

use std::time::Duration;

use bytes::Bytes;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{
    Assigned, Group, GroupConfig, OffsetReset, Outgoing, Producer, ProducerConfig, Transport,
};
use seriatim_sim::{World, WorldConfig, run};

use crate::cooperative::{cooperative, without_fault};
use crate::support::{Member, config, fill, numbers, world};
use crate::watch::{Event, Watch, spawn_source};

fn aged(seconds: u64, base: GroupConfig) -> GroupConfig {
    GroupConfig { metadata_max_age: Some(Duration::from_secs(seconds)), ..base }
}

#[test]
fn new_partitions_are_noticed_at_the_metadata_refresh() {
    let config_of_world = WorldConfig { metadata_max_age: Duration::from_secs(30), ..world() };
    run(11, config_of_world, |world| async move {
        world.create_topic("t", 1);
        let mut member = Member::join(&world.node("one")).await;
        assert_eq!(numbers(&member.assigned().await), [0]);
        world.grow_topic("t", 3);
        let since = world.now();
        let (event, ..) = member.revoking().await;
        let noticed = world.now().since(since);
        assert!(noticed > Duration::from_secs(20) && noticed < Duration::from_secs(32), "{noticed:?}");
        member.group.release(event).await.unwrap();
        assert_eq!(numbers(&member.assigned().await), [0, 1, 2]);
    })
    .unwrap();
}

#[test]
fn a_follower_that_notices_alone_gets_what_it_had_and_the_leader_hands_out_what_is_new() {
    run(12, world(), |world| async move {
        world.create_topic("t", 2);
        // The first to join leads. Neither is polled while the other is waited for.
        let patient = || GroupConfig { poll_limit: Duration::from_secs(200), ..config() };
        let mut leader = Member::with(&world.node("one"), aged(60, patient())).await;
        leader.assigned().await;
        let mut follower = Member::with(&world.node("two"), aged(10, patient())).await;
        let (event, ..) = leader.revoking().await;
        leader.group.release(event).await.unwrap();
        leader.assigned().await;
        let owned = follower.assigned().await;
        let generation = world.group_state("g");
        world.grow_topic("t", 4);
        let (event, ..) = follower.revoking().await;
        follower.group.release(event).await.unwrap();
        let again = follower.assigned().await;
        assert_eq!(numbers(&again), numbers(&owned), "all given up for nothing");
        assert!(again[0].epoch > owned[0].epoch);
        assert_eq!(world.group_state("g"), generation, "its old generation");
        assert_eq!(leader.records().await, []);
        let since = world.now();
        let (event, ..) = leader.revoking().await;
        assert!(world.now().since(since) > Duration::from_secs(30));
        leader.group.release(event).await.unwrap();
        let (event, ..) = follower.revoking().await;
        follower.group.release(event).await.unwrap();
        assert_eq!((leader.assigned().await.len(), follower.assigned().await.len()), (2, 2));
    })
    .unwrap();
}

/// What became of records that a producer wrote to a new partition before any consumer knew of it.
fn read_after_growth(reset: OffsetReset) -> usize {
    run(13, world(), move |world| async move {
        world.create_topic("t", 1);
        let config = GroupConfig { offset_reset: reset, ..aged(30, config()) };
        let mut member = Member::with(&world.node("one"), config).await;
        member.assigned().await;
        world.grow_topic("t", 2);
        fill(&world, 10).await;
        let (event, ..) = member.revoking().await;
        member.group.release(event).await.unwrap();
        let new = member.assigned().await;
        assert_eq!(new[1].start, if reset == OffsetReset::Earliest { 0 } else { 10 });
        let mut seen = 0;
        for _ in 0..4 {
            let records = member.records().await;
            seen += records.iter().filter(|record| record.position.partition.partition == 1).count();
        }
        seen
    })
    .unwrap()
}

#[test]
fn what_was_written_before_growth_was_noticed_is_read_from_earliest_and_lost_from_latest() {
    assert_eq!(read_after_growth(OffsetReset::Earliest), 10);
    // KAFKA-12261.
    assert_eq!(read_after_growth(OffsetReset::Latest), 0);
}

#[test]
fn growth_gives_to_cooperative_members_and_takes_from_none() {
    without_fault(run(14, world(), |world| async move {
        world.create_topic("t", 4);
        spawn_source(&world);
        let one = Watch::spawn(&world, "one", aged(20, cooperative()));
        let two = Watch::spawn(&world, "two", aged(30, cooperative()));
        one.owns(&world, 2).await;
        two.owns(&world, 2).await;
        world.sleep(Duration::from_secs(1)).await;
        let from = world.now();
        world.grow_topic("t", 6);
        one.owns(&world, 3).await;
        two.owns(&world, 3).await;
        let noticed = world.now().since(from);
        assert!(noticed > Duration::from_secs(10) && noticed < Duration::from_secs(25), "{noticed:?}");
        world.sleep(Duration::from_secs(40)).await;
        for watch in [&one, &two] {
            let seen = watch.lock();
            assert!(matches!(&seen.since(from)[..], [Event::Assigned(new)] if new.len() == 1), "{:?}", seen.events);
            assert!(seen.longest_gap() < Duration::from_millis(600), "{:?}", seen.gaps);
        }
    }));
}

async fn write(world: &World, partition: i32) {
    let producer = world.node("writer").transport().producer(ProducerConfig::default()).await.unwrap();
    let value = Some(Bytes::from_static(b"v"));
    let record = Outgoing { topic: "t".into(), partition: Some(partition), key: None, value, headers: Vec::new() };
    producer.send_all(vec![record]).await.await.remove(0).unwrap();
}

#[test]
fn a_consumer_by_assignment_reads_what_it_was_given_however_its_topic_grows() {
    let quick = WorldConfig { metadata_max_age: Duration::from_secs(1), ..world() };
    run(15, quick, |world| async move {
        world.create_topic("t", 1);
        let partition = TopicPartition::new("t", 0);
        let from = vec![(partition.clone(), 0)];
        let mut reader = world.node("one").transport().assign("reader".into(), from).await.unwrap();
        write(&world, 0).await;
        assert_eq!(reader.poll(10, Duration::from_secs(1)).await.unwrap().len(), 1);
        world.grow_topic("t", 3);
        world.sleep(Duration::from_secs(5)).await;
        write(&world, 2).await;
        write(&world, 0).await;
        let records = reader.poll(10, Duration::from_secs(2)).await.unwrap();
        assert_eq!(records.iter().map(|record| record.position.partition.partition).collect::<Vec<_>>(), [0]);
        assert_eq!(reader.poll(10, Duration::from_secs(2)).await.unwrap(), []);
        assert_eq!(reader.positions(), [(partition, 2)]);
    })
    .unwrap();
}
