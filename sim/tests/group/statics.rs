//! Static members: `group.instance.id`.

use std::time::Duration;

use seriatim_core::transport::{Assignor, ErrorKind, Group, GroupConfig, Poller};
use seriatim_sim::run;

use crate::cooperative::{cooperative, without_fault};
use crate::support::{Member, config, world};
use crate::watch::{Event, Watch, spawn_source};

fn named(instance: &str, base: GroupConfig) -> GroupConfig {
    GroupConfig { instance_id: Some(instance.into()), ..base }
}

#[test]
fn a_restart_within_the_session_keeps_the_partitions_without_a_rebalance() {
    for base in [config, cooperative] {
        // Either of the two may be the leader.
        for restarted in ["one", "two"] {
            without_fault(run(1, world(), move |world| async move {
                world.create_topic("t", 4);
                spawn_source(&world);
                let one = Watch::spawn(&world, "one", named("i-1", base()));
                let two = Watch::spawn(&world, "two", named("i-2", base()));
                one.owns(&world, 2).await;
                two.owns(&world, 2).await;
                world.sleep(Duration::from_secs(2)).await;
                let (back, other) = if restarted == "one" { (&one, &two) } else { (&two, &one) };
                let (generation, kept) = (world.group_state("g"), back.lock().partitions());
                let (from, before) = (world.now(), other.lock().owned.clone());
                world.crash(restarted);
                world.sleep(Duration::from_secs(2)).await;
                world.restart(restarted);
                world.sleep(Duration::from_secs(12)).await;
                assert_eq!(back.lock().since(from), [Event::Assigned(kept)]);
                assert_eq!(other.lock().since(from), []);
                assert_eq!(other.lock().owned, before);
                assert_eq!(world.group_state("g"), generation);
                assert!(back.lock().refused.is_empty() && other.lock().refused.is_empty());
                // The next rebalance finds everybody in place.
                let three = Watch::spawn(&world, "three", named("i-3", base()));
                three.owns(&world, 1).await;
                assert_eq!(
                    world.group_state("g").unwrap().1 - generation.unwrap().1,
                    if base().assignors[0] == Assignor::CooperativeSticky { 2 } else { 1 }
                );
            }));
        }
    }
}

#[test]
fn a_static_member_that_stays_away_is_given_up_after_its_session() {
    without_fault(run(2, world(), |world| async move {
        world.create_topic("t", 4);
        spawn_source(&world);
        let one = Watch::spawn(&world, "one", named("i-1", cooperative()));
        let two = Watch::spawn(&world, "two", named("i-2", cooperative()));
        one.owns(&world, 2).await;
        two.owns(&world, 2).await;
        let from = world.now();
        // Leaving is not said either: librdkafka's static members only stop.
        two.lock().leaves = true;
        one.owns(&world, 4).await;
        let after = world.now().since(from);
        assert!(after > Duration::from_secs(4) && after < Duration::from_secs(9), "{after:?}");
        assert!(!world.trace().iter().any(|line| line.text.contains("LeaveGroup")));
    }));
}

#[test]
fn of_two_with_one_instance_id_the_older_is_fenced_for_good() {
    run(3, world(), |world| async move {
        world.create_topic("t", 2);
        let mut old = Member::with(&world.node("one"), named("i", config())).await;
        let owned = old.assigned().await;
        let mut new = Member::with(&world.node("two"), named("i", config())).await;
        assert_eq!(new.assigned().await.len(), 2);
        assert_eq!(old.commit(&owned[0].partition, owned[0].epoch, 0).await, Err(ErrorKind::Fatal));
        let error = old.poller.poll(1, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Fatal, "FENCED_INSTANCE_ID"));
        assert_eq!(old.commit(&owned[0].partition, owned[0].epoch, 0).await, Err(ErrorKind::Fenced));
        assert_eq!(world.committed("g", "t").len(), 0);
    })
    .unwrap();
    // A heartbeat tells it too, when it commits nothing.
    run(4, world(), |world| async move {
        world.create_topic("t", 2);
        let mut old = Member::with(&world.node("one"), named("i", config())).await;
        old.assigned().await;
        let mut new = Member::with(&world.node("two"), named("i", config())).await;
        new.assigned().await;
        let since = world.now();
        let error = loop {
            if let Err(error) = old.poller.poll(1, Duration::from_millis(100)).await {
                break error;
            }
            assert!(world.now().since(since) < Duration::from_secs(2));
        };
        assert_eq!(error.code, "FENCED_INSTANCE_ID");
        assert_eq!(new.records().await, []);
    })
    .unwrap();
}

#[test]
fn a_static_member_past_the_poll_limit_goes_without_a_word() {
    run(5, world(), |world| async move {
        world.create_topic("t", 1);
        let mut member = Member::with(&world.node("one"), named("i", config())).await;
        let owned = member.assigned().await.remove(0);
        world.sleep(Duration::from_secs(22)).await;
        assert!(!world.trace().iter().any(|line| line.text.contains("LeaveGroup")));
        let (event, lost) = member.lost().await;
        assert_eq!(lost, [(owned.partition, owned.epoch)]);
        member.group.release(event).await.unwrap();
        assert!(member.assigned().await[0].epoch > owned.epoch);
    })
    .unwrap();
}
