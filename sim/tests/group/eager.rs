//! An eager member: it gives up everything before each rebalance.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use seriatim_core::identity::Epoch;
use seriatim_core::transport::{Commit, ErrorKind, Group, GroupConfig, OffsetReset, Polled, Poller};
use seriatim_sim::{Node, run};

use crate::support::{Member, config, fill, numbers, world};

#[test]
fn a_joiner_waits_for_the_release_and_an_old_epoch_is_fenced() {
    run(1, world(), |world| async move {
        world.create_topic("t", 2);
        fill(&world, 50).await;
        let mut first = Member::join(&world.node("one")).await;
        let owned = first.assigned().await;
        assert_eq!(numbers(&owned), [0, 1]);
        assert!(owned.iter().all(|assignment| assignment.start == 0 && assignment.committed.is_none()));
        assert_eq!(first.records().await.len(), 100);

        let mut second = Member::join(&world.node("two")).await;
        let (event, partitions, deadline) = first.revoking().await;
        assert_eq!(partitions.len(), 2);
        let left = deadline.since(world.now());
        assert!(left <= Duration::from_secs(18) && left > Duration::from_secs(16), "{left:?}");
        // Nothing is delivered, resumed or not; the session is kept alive past its time-out; commits are taken.
        fill(&world, 50).await;
        first.group.resume(&[partitions[0].0.clone()]);
        let since = world.now();
        while world.now().since(since) < Duration::from_secs(9) {
            assert_eq!(first.records().await, []);
        }
        for (partition, epoch) in &partitions {
            assert_eq!(first.commit(partition, *epoch, 40).await, Ok(()));
        }
        assert_eq!(world.committed("g", "t").values().map(|committed| committed.offset).collect::<Vec<_>>(), [40, 40]);
        first.group.release(event).await.unwrap();
        assert!(first.group.release(event).await.is_err(), "an event is released once");
        assert_eq!(first.commit(&partitions[0].0, partitions[0].1, 50).await, Err(ErrorKind::Fenced));

        let (kept, moved) = (first.assigned().await, second.assigned().await);
        let mut all = numbers(&kept);
        all.extend(numbers(&moved));
        all.sort();
        assert_eq!(all, [0, 1]);
        for assignment in kept.iter().chain(&moved) {
            assert_eq!((assignment.start, assignment.committed.as_ref().unwrap().metadata.as_str()), (40, "m"));
        }
        let old = partitions.iter().find(|(partition, _)| *partition == kept[0].partition).unwrap();
        assert!(kept[0].epoch > old.1);
        assert_eq!(first.commit(&old.0, old.1, 60).await, Err(ErrorKind::Fenced));
        assert_eq!(first.commit(&old.0, kept[0].epoch, 60).await, Ok(()));
        assert_eq!(second.records().await.first().map(|record| record.position.offset), Some(40));
    })
    .unwrap();
}

#[test]
fn a_commit_on_a_connection_that_ended_may_be_applied_after_later_ones() {
    run(1, world(), |world| async move {
        world.create_topic("t", 1);
        fill(&world, 10).await;
        let mut member = Member::join(&world.node("one")).await;
        let owned = member.assigned().await.remove(0);
        world.slow_link("one", Duration::from_millis(300));
        let reset = async {
            world.sleep(Duration::from_millis(1)).await;
            world.reset_connections("one");
            world.slow_link("one", Duration::ZERO);
        };
        let (late, ()) = join(pin!(member.commit(&owned.partition, owned.epoch, 5)), pin!(reset)).await;
        assert_eq!(late, Err(ErrorKind::UnknownOutcome));
        assert_eq!(member.commit(&owned.partition, owned.epoch, 7).await, Ok(()));
        let committed = || world.committed("g", "t")[&owned.partition].offset;
        assert_eq!(committed(), 7);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(committed(), 5);
    })
    .unwrap();
}

#[test]
fn a_killed_members_partitions_move_after_its_session() {
    run(2, world(), |world| async move {
        world.create_topic("t", 2);
        let mut first = Member::join(&world.node("one")).await;
        first.assigned().await;
        let mut second = Member::join(&world.node("two")).await;
        let (event, ..) = first.revoking().await;
        first.group.release(event).await.unwrap();
        assert_eq!((first.assigned().await.len(), second.assigned().await.len()), (1, 1));
        world.crash("two");
        let since = world.now();
        let (event, ..) = first.revoking().await;
        let noticed = world.now().since(since);
        assert!(noticed > Duration::from_secs(4) && noticed < Duration::from_secs(8), "{noticed:?}");
        first.group.release(event).await.unwrap();
        assert_eq!(numbers(&first.assigned().await), [0, 1]);
    })
    .unwrap();
}

#[test]
fn a_member_that_does_not_poll_leaves_at_the_limit_and_is_told_at_its_next_poll() {
    let outcome = run(3, world(), |world| async move {
        world.create_topic("t", 1);
        let mut first = Member::join(&world.node("one")).await;
        let owned = first.assigned().await;
        let mut second = Member::join(&world.node("two")).await;
        let (event, ..) = first.revoking().await;
        first.group.release(event).await.unwrap();
        let mine = first.assigned().await;
        let theirs = second.assigned().await;
        let (stuck, other) = if mine.is_empty() { (&mut second, &mut first) } else { (&mut first, &mut second) };
        let held = if mine.is_empty() { &theirs[0] } else { &mine[0] };
        assert!(owned[0].epoch < held.epoch || mine.is_empty());
        // Nobody polls the owner; the other one does.
        let since = world.now();
        let taken = loop {
            match other.poll().await {
                Polled::Assigned(assignments) if !assignments.is_empty() => break assignments,
                Polled::Revoking { event, .. } => other.group.release(event).await.unwrap(),
                _ => {}
            }
        };
        let after = world.now().since(since);
        assert!(after >= Duration::from_secs(19) && after < Duration::from_secs(23), "{after:?}");
        assert_eq!(stuck.commit(&held.partition, held.epoch, 1).await, Err(ErrorKind::Fenced));
        assert_eq!(other.commit(&taken[0].partition, taken[0].epoch, 0).await, Ok(()));
        let (event, partitions) = stuck.lost().await;
        assert_eq!(partitions, [(held.partition.clone(), held.epoch)]);
        // It rejoins only after the release.
        let before = world.group_state("g");
        stuck.poll().await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(world.group_state("g"), before);
        stuck.group.release(event).await.unwrap();
        for _ in 0..20 {
            stuck.poll().await;
            if let Polled::Revoking { event, .. } = other.poll().await {
                other.group.release(event).await.unwrap();
            }
        }
        assert!(world.group_state("g").unwrap().1 > before.unwrap().1);
    });
    outcome.unwrap();
}

#[test]
fn an_eviction_during_a_drain_is_a_loss_after_the_revocation_and_both_are_released() {
    run(4, world(), |world| async move {
        world.create_topic("t", 1);
        let mut first = Member::join(&world.node("one")).await;
        let owned = first.assigned().await.remove(0);
        let mut second = Member::join(&world.node("two")).await;
        let (revocation, ..) = first.revoking().await;
        // Drains for ever: the coordinator goes on without it at the rebalance time-out.
        let theirs = loop {
            assert_eq!(first.commit(&owned.partition, owned.epoch, 0).await, Ok(()));
            first.records().await;
            if let Polled::Assigned(assignments) = second.poll().await {
                break assignments;
            }
        };
        assert_eq!(theirs.len(), 1);
        assert_eq!(first.commit(&owned.partition, owned.epoch, 0).await, Err(ErrorKind::Fenced));
        let (loss, partitions) = first.lost().await;
        assert_eq!(partitions, [(owned.partition.clone(), owned.epoch)]);
        first.group.release(loss).await.unwrap();
        world.sleep(Duration::from_secs(3)).await;
        assert!(!world.trace().iter().any(|line| &*line.node == "two" && line.text.contains("REBALANCE_IN_PROGRESS")));
        first.group.release(revocation).await.unwrap();
        let since = world.now();
        let (event, ..) = second.revoking().await;
        assert!(world.now().since(since) < Duration::from_secs(3), "it rejoined once both were released");
        second.group.release(event).await.unwrap();
        first.assigned().await;
        second.assigned().await;
    })
    .unwrap();
}

#[test]
fn a_paused_process_loses_its_partitions_and_learns_it_when_it_wakes() {
    run(5, world(), |world| async move {
        world.create_topic("t", 1);
        let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        for name in ["one", "two"] {
            let log = log.clone();
            world.spawn(name, move |node: Node| {
                let log = log.clone();
                async move {
                    let mut member = Member::join(&node).await;
                    loop {
                        let event = member.event().await;
                        let what = match &event {
                            Polled::Assigned(assignments) => format!("assigned {}", assignments.len()),
                            Polled::Revoking { .. } => "revoking".into(),
                            _ => "lost".into(),
                        };
                        log.lock().unwrap().push((node.name().to_string(), what));
                        if let Polled::Revoking { event, .. } | Polled::Lost { event, .. } = event {
                            member.group.release(event).await.unwrap();
                        }
                    }
                }
            });
            world.sleep(Duration::from_secs(10)).await;
        }
        let owner = log.lock().unwrap().iter().rfind(|(_, what)| what == "assigned 1").unwrap().0.clone();
        let other = if owner == "one" { "two" } else { "one" };
        log.lock().unwrap().clear();
        world.pause(&owner);
        world.sleep(Duration::from_secs(12)).await;
        assert_eq!(*log.lock().unwrap(), [(other.to_owned(), "assigned 1".to_owned())]);
        world.resume(&owner);
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(log.lock().unwrap()[1], (owner, "lost".to_owned()));
    })
    .unwrap();
}

#[test]
fn leaving_hands_over_at_once_and_closes_the_poller() {
    run(6, world(), |world| async move {
        world.create_topic("t", 1);
        let mut first = Member::join(&world.node("one")).await;
        first.assigned().await;
        let mut second = Member::join(&world.node("two")).await;
        world.sleep(Duration::from_millis(100)).await;
        first.group.leave().await;
        let since = world.now();
        assert_eq!(second.assigned().await.len(), 1);
        assert!(world.now().since(since) < Duration::from_secs(1));
        assert_eq!(first.poller.poll(1, Duration::ZERO).await.unwrap_err().code, "CONSUMER_CLOSED");
        assert_eq!(world.committed("g", "t"), BTreeMap::new());
    })
    .unwrap();
}

#[test]
fn dropped_handles_say_nothing_and_the_session_runs_out() {
    run(7, world(), |world| async move {
        world.create_topic("t", 1);
        let mut first = Member::join(&world.node("one")).await;
        first.assigned().await;
        drop(first);
        let since = world.now();
        let mut second = Member::join(&world.node("two")).await;
        second.assigned().await;
        assert!(world.now().since(since) > Duration::from_secs(5));
    })
    .unwrap();
}

#[test]
fn a_paused_partition_delivers_nothing_and_the_others_go_on() {
    run(8, world(), |world| async move {
        world.create_topic("t", 2);
        let mut member = Member::join(&world.node("one")).await;
        let owned = member.assigned().await;
        member.group.pause(&[owned[0].partition.clone()]);
        fill(&world, 10).await;
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.extend(member.records().await.iter().map(|record| record.position.partition.partition));
        }
        assert_eq!(seen, [1; 10]);
        member.group.resume(&[owned[0].partition.clone()]);
        let mut later = Vec::new();
        for _ in 0..3 {
            later.extend(member.records().await.iter().map(|record| record.position.partition.partition));
        }
        assert_eq!(later, [0; 10]);
    })
    .unwrap();
}

#[test]
fn prefetch_is_bounded_and_everything_arrives_in_order() {
    run(9, world(), |world| async move {
        world.create_topic("t", 1);
        fill(&world, 5_000).await;
        let config = GroupConfig { prefetch_records_max: 50, ..config() };
        let mut member = Member::with(&world.node("one"), config).await;
        member.assigned().await;
        let mut next = 0;
        while next < 5_000 {
            for record in member.records().await {
                assert_eq!(record.position.offset, next);
                next += 1;
            }
        }
    })
    .unwrap();
}

#[test]
fn reading_starts_where_the_reset_says_and_records_out_of_range_are_skipped() {
    run(10, world(), |world| async move {
        world.create_topic("t", 1);
        fill(&world, 10).await;
        let latest = GroupConfig { offset_reset: OffsetReset::Latest, ..config() };
        let mut member = Member::with(&world.node("one"), latest).await;
        assert_eq!(member.assigned().await[0].start, 10);
        let partition = &world.partitions("t")[0];
        // Committed past the end: fetching finds it out of range and resets to the end.
        let (_, group) = (&member.poller, &member.group);
        let epoch = Epoch(0);
        let commit = Commit { partition: partition.clone(), epoch, offset: 500, metadata: String::new() };
        group.commit(vec![commit]).await.remove(0).unwrap();
        group.leave().await;
        let mut again = Member::with(&world.node("two"), config()).await;
        assert_eq!(again.assigned().await[0].start, 500);
        assert_eq!(again.records().await.first().map(|record| record.position.offset), Some(0));
    })
    .unwrap();
}

#[test]
fn a_cut_link_costs_the_session_and_a_commit_of_unknown_outcome() {
    run(12, world(), |world| async move {
        world.create_topic("t", 1);
        fill(&world, 1).await;
        let mut member = Member::join(&world.node("one")).await;
        let owned = member.assigned().await.remove(0);
        // The answer is lost, the commit is not.
        world.cut_link("one", false, true);
        assert_eq!(member.commit(&owned.partition, owned.epoch, 1).await, Err(ErrorKind::UnknownOutcome));
        assert_eq!(world.committed("g", "t")[&owned.partition].offset, 1);
        let (event, partitions) = member.lost().await;
        assert_eq!(partitions, [(owned.partition.clone(), owned.epoch)]);
        world.cut_link("one", false, false);
        member.group.release(event).await.unwrap();
        assert_eq!(member.assigned().await[0].start, 1);
    })
    .unwrap();
}

#[test]
fn a_release_waits_for_a_commit_that_is_out() {
    run(13, world(), |world| async move {
        world.create_topic("t", 1);
        let mut member = Member::join(&world.node("one")).await;
        let owned = member.assigned().await.remove(0);
        let _second = Member::join(&world.node("two")).await;
        let (event, ..) = member.revoking().await;
        world.slow_link("one", Duration::from_millis(400));
        let group = member.group.clone();
        let commit = member.commit(&owned.partition, owned.epoch, 0);
        let release = async {
            world.sleep(Duration::from_millis(1)).await;
            group.release(event).await.unwrap();
            world.now()
        };
        let committed = async {
            let outcome = commit.await;
            (outcome, world.now())
        };
        let ((outcome, answered), released) = futures_util::future::join(committed, release).await;
        assert_eq!(outcome, Ok(()));
        assert!(released >= answered, "{released} {answered}");
    })
    .unwrap();
}
