//! A cooperative member: what stays with it is never given up, and never waits for others.

use std::time::Duration;

use seriatim_core::identity::Epoch;
use seriatim_core::transport::{Assignor, ErrorKind, Group, GroupConfig, Polled};
use seriatim_sim::checkers::{CheckOptions, check};
use seriatim_sim::{RunOutcome, World, run};

use crate::support::{Member, config, fill, numbers, world};
use crate::watch::{Event, Watch, spawn_source};

/// A wait for a record that is no pause: records come every 100 ms.
const NO_PAUSE: Duration = Duration::from_millis(600);

pub fn cooperative() -> GroupConfig {
    GroupConfig { assignors: vec![Assignor::CooperativeSticky], ..config() }
}

/// What a run gave, whose history must be without fault.
pub fn without_fault<T>(outcome: RunOutcome<T>) -> T {
    let recorder = outcome.recorder.clone().unwrap();
    let value = outcome.unwrap();
    assert_eq!(check(&recorder.events(), &CheckOptions::default()), []);
    value
}

/// Two members that share six partitions, each with its source of records.
async fn two(world: &World) -> (Watch, Watch) {
    world.create_topic("t", 6);
    spawn_source(world);
    let one = Watch::spawn(world, "one", cooperative());
    one.owns(world, 6).await;
    let two = Watch::spawn(world, "two", cooperative());
    two.owns(world, 3).await;
    one.owns(world, 3).await;
    world.sleep(Duration::from_secs(1)).await;
    (one, two)
}

#[test]
fn a_join_takes_only_what_moves_and_what_stays_keeps_its_epoch() {
    run(1, world(), |world| async move {
        world.create_topic("t", 4);
        fill(&world, 50).await;
        let mut first = Member::with(&world.node("one"), cooperative()).await;
        let owned = first.assigned().await;
        assert_eq!(numbers(&owned), [0, 1, 2, 3]);
        let mut second = Member::with(&world.node("two"), cooperative()).await;
        let (event, going, deadline) = first.revoking().await;
        let going: Vec<_> = going.into_iter().map(|(partition, epoch)| (partition.partition, epoch)).collect();
        assert_eq!(going, [(0, owned[0].epoch), (1, owned[1].epoch)]);
        assert!(deadline.since(world.now()) > Duration::from_secs(16));
        // The group is stable meanwhile. Nothing is delivered, of what stays neither; all is committed.
        fill(&world, 50).await;
        let since = world.now();
        while world.now().since(since) < Duration::from_secs(9) {
            assert_eq!(first.records().await, []);
            // The joiner is told that it has nothing yet.
            assert!(!matches!(second.poll().await, Polled::Assigned(new) if !new.is_empty()));
        }
        assert_eq!(world.group_state("g").unwrap().1, 2);
        for one in &owned {
            assert_eq!(first.commit(&one.partition, one.epoch, 10).await, Ok(()), "{:?}", one.partition);
        }
        first.group.release(event).await.unwrap();
        let (kept, moved) = (first.assigned().await, second.assigned().await);
        assert_eq!((numbers(&kept), numbers(&moved)), (vec![], vec![0, 1]));
        assert!(moved.iter().all(|one| one.start == 10));
        assert_eq!(first.assigned().await, [], "the second generation brings it nothing");
        assert_eq!(world.group_state("g").unwrap().1, 3, "a generation to release, one to take");
        for (one, outcome) in owned.iter().zip([Err(ErrorKind::Fenced), Err(ErrorKind::Fenced), Ok(()), Ok(())]) {
            assert_eq!(first.commit(&one.partition, one.epoch, 11).await, outcome, "{:?}", one.partition);
        }
        let records = first.records().await;
        assert!(records.iter().all(|record| owned[2].epoch <= record.position.epoch));
        assert_eq!(owned[3].epoch, Epoch(3));
    })
    .unwrap();
}

#[test]
fn a_joiner_and_a_slow_drain_stop_nobody_else() {
    without_fault(run(2, world(), |world| async move {
        let (one, two) = two(&world).await;
        two.lock().drain = Duration::from_secs(8);
        let (kept_by_one, kept_by_two) = (one.lock().owned.clone(), two.lock().owned.clone());
        one.lock().forget_gaps();
        two.lock().forget_gaps();
        let from = world.now();
        let three = Watch::spawn(&world, "three", cooperative());
        three.owns(&world, 2).await;
        world.sleep(Duration::from_secs(2)).await;
        for (watch, before) in [(&one, &kept_by_one), (&two, &kept_by_two)] {
            let seen = watch.lock();
            assert_eq!(seen.owned.len(), 2);
            assert!(seen.owned.iter().all(|(partition, epoch)| before.get(partition) == Some(epoch)));
            let revoked: Vec<_> = seen.since(from);
            assert!(matches!(&revoked[..], [Event::Revoking(one), Event::Released] if one.len() == 1), "{revoked:?}");
        }
        let (quick, slow) = (one.lock().longest_gap(), two.lock().longest_gap());
        assert!(quick < NO_PAUSE, "who had released was read on: {quick:?}");
        assert!(slow > Duration::from_secs(7), "who drains is read no further, whatever stays with it: {slow:?}");
        assert_eq!(one.lock().refused, []);
    }));
}

#[test]
fn a_leave_and_a_crash_give_to_the_others_and_take_from_none() {
    for crashes in [false, true] {
        without_fault(run(3, world(), |world| async move {
            let (one, two) = two(&world).await;
            let three = Watch::spawn(&world, "three", cooperative());
            three.owns(&world, 2).await;
            world.sleep(Duration::from_secs(2)).await;
            let before = [one.lock().owned.clone(), two.lock().owned.clone()];
            one.lock().forget_gaps();
            two.lock().forget_gaps();
            let from = world.now();
            if crashes {
                world.crash("three");
            } else {
                three.lock().leaves = true;
            }
            one.owns(&world, 3).await;
            two.owns(&world, 3).await;
            let took = world.now().since(from);
            assert_eq!(took > Duration::from_secs(4), crashes, "{took:?}");
            world.sleep(Duration::from_secs(2)).await;
            for (watch, before) in [&one, &two].into_iter().zip(&before) {
                let seen = watch.lock();
                assert!(before.iter().all(|(partition, epoch)| seen.owned.get(partition) == Some(epoch)));
                let events = seen.since(from);
                assert!(matches!(&events[..], [Event::Assigned(new)] if new.len() == 1), "{events:?}");
                assert!(seen.longest_gap() < NO_PAUSE, "{:?}", seen.gaps);
                assert_eq!(seen.refused, []);
            }
        }));
    }
}

#[test]
fn commits_go_on_through_every_phase_of_a_rebalance() {
    for seed in 0..8 {
        without_fault(run(seed, world(), |world| async move {
            world.create_topic("t", 6);
            spawn_source(&world);
            let one = Watch::spawn(&world, "one", cooperative());
            one.owns(&world, 6).await;
            world.slow_link("one", Duration::from_millis(30));
            for name in ["two", "three"] {
                Watch::spawn(&world, name, cooperative());
                world.sleep(Duration::from_secs(5)).await;
            }
            let seen = one.lock();
            assert!(seen.committed > 100 && seen.owned.len() == 2);
            assert_eq!(seen.refused, []);
            assert!(!seen.events.iter().any(|(_, event)| matches!(event, Event::Lost(_))), "{:?}", seen.events);
        }));
    }
}

#[test]
fn an_evicted_member_loses_all_and_comes_back_with_new_epochs() {
    for paused in [true, false] {
        without_fault(run(5, world(), |world| async move {
            let (one, two) = two(&world).await;
            let before = one.lock().owned.clone();
            if paused {
                world.pause("one");
                two.owns(&world, 6).await;
                world.resume("one");
            } else {
                one.lock().sleeps = Duration::from_secs(22);
                two.owns(&world, 6).await;
            }
            let from = world.now();
            world.sleep(Duration::from_secs(12)).await;
            one.owns(&world, 3).await;
            let events = one.lock().since(from);
            assert_eq!(events[0], Event::Lost(before.keys().copied().collect()));
            assert!(one.lock().owned.values().all(|epoch| before.values().all(|old| old < epoch)));
        }));
    }
}

#[test]
fn a_rebalance_that_comes_during_a_drain_waits_for_it_and_may_revoke_again() {
    without_fault(run(6, world(), |world| async move {
        world.create_topic("t", 6);
        spawn_source(&world);
        let one = Watch::spawn(&world, "one", cooperative());
        one.owns(&world, 6).await;
        one.lock().drain = Duration::from_secs(8);
        let from = world.now();
        let two = Watch::spawn(&world, "two", cooperative());
        world.sleep(Duration::from_secs(4)).await;
        let three = Watch::spawn(&world, "three", cooperative());
        two.owns(&world, 2).await;
        three.owns(&world, 2).await;
        one.owns(&world, 2).await;
        let events = one.lock().since(from);
        let sizes = |event: &Event| matches!(event, Event::Revoking(_) | Event::Released);
        assert!(events.iter().all(sizes) && events.len() == 4, "two revocations, each released: {events:?}");
    }));
}
