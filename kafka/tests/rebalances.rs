//! Rebalances against a real broker: what an application is told, what it may do until it releases, and each of the
//! hazards of giving partitions back later than librdkafka's callback.

mod common;

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::*;

use common::*;

const COOPERATIVE: [Assignor; 1] = [Assignor::CooperativeSticky];

fn cooperative(topic: &Arc<str>) -> GroupConfig {
    GroupConfig { assignors: COOPERATIVE.to_vec(), ..group(topic) }
}

fn revoking(polled: &Polled) -> (RebalanceId, Vec<(TopicPartition, Epoch)>, seriatim_core::env::Instant) {
    let Polled::Revoking { event, partitions, deadline } = polled else { panic!("a revocation, not {polled:?}") };
    (*event, partitions.clone(), *deadline)
}

fn lost(polled: &Polled) -> (RebalanceId, Vec<(TopicPartition, Epoch)>) {
    let Polled::Lost { event, partitions } = polled else { panic!("a loss, not {polled:?}") };
    (*event, partitions.clone())
}

fn is_revoking(polled: &Polled) -> bool {
    matches!(polled, Polled::Revoking { .. })
}

/// The first member of a new group, owning `partitions`, and the second one, which has just come.
async fn first_and_second(world: &World, config: &GroupConfig, partitions: usize) -> (Consumer, Background) {
    let mut first = world.join(config.clone()).await;
    first.until_assigned(partitions).await;
    let second = Background::start(world.join(config.clone()).await);
    (first, second)
}

#[test]
fn an_eager_member_drains_commits_and_releases_before_another_reads() {
    with_broker("an_eager_member_drains_commits_and_releases_before_another_reads", 60, async |world| {
        let topic = world.topic(2).await;
        world.fill(&topic, 0, 0, 100).await;
        world.fill(&topic, 1, 100, 100).await;
        let config = group(&topic);
        let (mut first, second) = first_and_second(&world, &config, 2).await;
        let epochs = [first.epoch(0), first.epoch(1)];
        let polled = first.until(20, is_revoking).await;
        let (event, partitions, _) = revoking(&polled);
        assert_eq!(partitions.len(), 2, "an eager member gives everything up");
        let done = first.records.iter().filter(|record| record.position.partition.partition == 0).count() as i64;
        // A drain may take its time, as long as polling goes on: longer than the session here.
        for _ in 0..35 {
            assert_eq!(first.poll().await, Polled::Records(Vec::new()), "nothing comes until the release");
        }
        assert_eq!(second.assigned(), 0, "nobody else has anything yet");
        let commit = |partition, offset| Commit {
            partition: TopicPartition::new(topic.clone(), partition),
            epoch: epochs[partition as usize],
            offset,
            metadata: "drained".into(),
        };
        assert_eq!(first.group.commit(vec![commit(0, done)]).await, [Ok(())]);
        first.group.release(event).await.expect("released");
        let late = first.group.commit(vec![commit(0, 1), commit(1, 1)]).await;
        for result in late {
            let error = result.expect_err("its epoch is over");
            assert_eq!((error.kind, error.code), (ErrorKind::Fenced, "STALE_EPOCH"));
        }
        assert_eq!(world.committed(&config.group, &topic, 2).await, [Some(done), None]);
        first.until_assigned(1).await;
        second.until_assigned(1, 10).await;
        assert!(!epochs.contains(&first.assigned[0].epoch), "an ownership that comes back is a new one");
        let unknown = first.group.release(event).await.expect_err("it is released already");
        assert_eq!((unknown.kind, unknown.code), (ErrorKind::Refused, "UNKNOWN_REBALANCE_EVENT"));
        second.stop().await;
    });
}

/// Hazard 1.
#[test]
fn a_cooperative_member_keeps_epochs_and_gets_nothing_of_what_stays_until_the_release() {
    with_broker("a_cooperative_member_keeps_epochs_and_gets_nothing_until_the_release", 60, async |world| {
        let topic = world.topic(4).await;
        for partition in 0..4 {
            world.fill(&topic, partition, 0, 50).await;
        }
        let (mut first, second) = first_and_second(&world, &cooperative(&topic), 4).await;
        let epochs: Vec<_> = (0..4).map(|partition| first.epoch(partition)).collect();
        let polled = first.until(20, is_revoking).await;
        let (event, going, _) = revoking(&polled);
        assert_eq!(going.len(), 2, "only what moves");
        let stays: Vec<_> = first.assigned.iter().map(|one| one.partition.clone()).collect();
        first.until_records(0).await;
        let before = first.records.len();
        for one in &stays {
            world.fill(&topic, one.partition, 50, 50).await;
        }
        first.group.resume(&stays);
        for _ in 0..8 {
            assert_eq!(first.poll().await, Polled::Records(Vec::new()), "everything waits until the release");
        }
        assert_eq!(first.records.len(), before);
        for one in &stays {
            assert_eq!(first.commit(&topic, one.partition, 50).await, Ok(()), "what stays is committed throughout");
        }
        first.group.release(event).await.expect("released");
        let of_stays = |records: &[Record], number: i32| {
            let of = records.iter().filter(|record| record.position.partition.partition == number);
            of.map(|record| (record.position.offset, record.position.epoch)).collect::<Vec<_>>()
        };
        let until = world.env.now() + Duration::from_secs(20);
        while stays.iter().any(|one| of_stays(&first.records, one.partition).len() < 100) {
            first.poll().await;
            assert!(world.env.now() < until, "{:?}", first.records.len());
        }
        for one in &stays {
            let expected: Vec<_> = (0..100).map(|offset| (offset, epochs[one.partition as usize])).collect();
            assert_eq!(of_stays(&first.records, one.partition), expected, "no gap, nothing twice, one epoch");
        }
        second.until_assigned(2, 20).await;
        second.stop().await;
    });
}

/// Hazard 2: the limit of an eager drain is the poll limit, and only a commit says so.
#[test]
fn an_eager_drain_past_the_poll_limit_is_a_loss_as_soon_as_a_commit_learns_it() {
    with_broker("an_eager_drain_past_the_poll_limit_is_a_loss", 60, async |world| {
        let topic = world.topic(2).await;
        let config = GroupConfig { poll_limit: Duration::from_secs(6), ..group(&topic) };
        let (mut first, second) = first_and_second(&world, &config, 2).await;
        let epochs = [first.epoch(0), first.epoch(1)];
        let polled = first.until(20, is_revoking).await;
        let (event, _, deadline) = revoking(&polled);
        let left = deadline.since(world.env.now());
        assert!((Duration::from_secs(3)..Duration::from_secs(6)).contains(&left), "the deadline is in {left:?}");
        second.until_assigned_while(2, &mut first).await;
        let commit = Commit {
            partition: TopicPartition::new(topic.clone(), 0),
            epoch: epochs[0],
            offset: 1,
            metadata: "late".into(),
        };
        let error = first.group.commit(vec![commit.clone()]).await.pop().expect("one").expect_err("thrown out");
        assert_eq!((error.kind, error.code), (ErrorKind::Fenced, "UNKNOWN_MEMBER_ID"));
        let polled = first.until(5, |polled| matches!(polled, Polled::Lost { .. })).await;
        let (loss, gone) = lost(&polled);
        assert_eq!(gone.len(), 2);
        let error = first.group.commit(vec![commit]).await.pop().expect("one").expect_err("lost");
        assert_eq!((error.kind, error.code), (ErrorKind::Fenced, "STALE_EPOCH"));
        first.group.release(event).await.expect("released");
        first.group.release(loss).await.expect("released");
        first.until_assigned(1).await;
        assert!(!epochs.contains(&first.assigned[0].epoch));
        second.until_assigned(1, 10).await;
        assert_eq!(world.committed(&config.group, &topic, 2).await, [None, None]);
        second.stop().await;
    });
}

/// Hazard 2, the other half.
#[test]
fn a_cooperative_drain_past_the_poll_limit_is_not_thrown_out_while_polling_goes_on() {
    with_broker("a_cooperative_drain_past_the_poll_limit_is_not_thrown_out", 60, async |world| {
        let topic = world.topic(2).await;
        let config = GroupConfig { poll_limit: Duration::from_secs(6), ..cooperative(&topic) };
        let (mut first, second) = first_and_second(&world, &config, 2).await;
        let epochs = [first.epoch(0), first.epoch(1)];
        let polled = first.until(20, is_revoking).await;
        let (event, going, _) = revoking(&polled);
        let until = world.env.now() + Duration::from_secs(9);
        while world.env.now() < until {
            assert_eq!(first.poll().await, Polled::Records(Vec::new()));
        }
        let (partition, epoch) = going[0].clone();
        assert!(epochs.contains(&epoch));
        let commit = Commit { partition, epoch, offset: 0, metadata: "late, and in time".into() };
        assert_eq!(first.group.commit(vec![commit]).await, [Ok(())]);
        first.group.release(event).await.expect("released");
        let first = Background::start(first);
        second.until_assigned(1, 20).await;
        first.stop().await;
        second.stop().await;
    });
}

/// Hazard 3: what is released in parts is released, by librdkafka's reckoning, as a whole.
#[test]
fn a_release_is_whole_so_that_nothing_of_it_is_read_by_two() {
    with_broker("a_release_is_whole_so_that_nothing_of_it_is_read_by_two", 60, async |world| {
        let topic = world.topic(4).await;
        let (mut first, second) = first_and_second(&world, &cooperative(&topic), 4).await;
        let polled = first.until(20, is_revoking).await;
        let (event, going, _) = revoking(&polled);
        assert_eq!(going.len(), 2);
        first.group.release(event).await.expect("released");
        let first_task = Background::start(first);
        second.until_assigned(2, 20).await;
        for partition in 0..4 {
            world.fill(&topic, partition, 0, 25).await;
        }
        for _ in 0..100 {
            if first_task.records().len() + second.records().len() >= 100 {
                break;
            }
            world.env.sleep(Duration::from_millis(50)).await;
        }
        world.env.sleep(Duration::from_secs(1)).await;
        assert_eq!((first_task.records().len(), second.records().len()), (50, 50), "each was read by one of them");
        for record in first_task.records() {
            assert!(going.iter().all(|(gone, _)| *gone != record.position.partition), "{record:?} was given up");
        }
        // What was given up comes back: librdkafka would refuse what it had never let go.
        second.stop().await;
        first_task.until_assigned(2, 20).await;
        for partition in 0..4 {
            world.fill(&topic, partition, 25, 25).await;
        }
        for _ in 0..100 {
            if first_task.records().iter().filter(|record| number(record) >= 25).count() >= 100 {
                break;
            }
            world.env.sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(first_task.records().iter().filter(|record| number(record) >= 25).count(), 100);
        let begun = world.env.now();
        first_task.stop().await;
        let took = world.env.now().since(begun);
        assert!(took < Duration::from_secs(5), "its goodbye took {took:?}");
    });
}

/// Hazard 4: librdkafka waits for a release that nobody will give any more.
#[test]
fn a_member_that_goes_with_a_revocation_unreleased_does_not_hang() {
    with_broker("a_member_that_goes_with_a_revocation_unreleased_does_not_hang", 120, async |world| {
        for assignors in [vec![Assignor::Range], COOPERATIVE.to_vec()] {
            for by_leaving in [true, false] {
                let topic = world.topic(2).await;
                let config = GroupConfig {
                    assignors: assignors.clone(),
                    session_timeout: Duration::from_secs(45),
                    poll_limit: Duration::from_secs(60),
                    ..group(&topic)
                };
                let (mut first, second) = first_and_second(&world, &config, 2).await;
                first.until(20, is_revoking).await;
                let begun = world.env.now();
                if by_leaving {
                    first.group.leave().await;
                    let took = world.env.now().since(begun);
                    assert!(took < Duration::from_secs(5), "leaving took {took:?} with {assignors:?}");
                } else {
                    drop(first.poller);
                    let took = world.env.now().since(begun);
                    assert!(took < Duration::from_millis(200), "dropping blocked for {took:?} with {assignors:?}");
                }
                // Long before the session would have ended.
                second.until_assigned(2, 8).await;
                second.stop().await;
            }
        }
    });
}

#[test]
fn a_member_that_goes_before_it_has_anything_does_not_hang() {
    with_broker("a_member_that_goes_before_it_has_anything_does_not_hang", 60, async |world| {
        let topic = world.topic(2).await;
        for polls in [0, 1, 3] {
            for config in [group(&topic), cooperative(&topic)] {
                let mut member = world.join(config).await;
                for _ in 0..polls {
                    let _ = member.poller.poll(1, Duration::from_millis(50)).await;
                }
                let begun = world.env.now();
                member.group.leave().await;
                let took = world.env.now().since(begun);
                assert!(took < Duration::from_secs(5), "leaving after {polls} polls took {took:?}");
            }
        }
    });
}

/// Hazard 5: an eager release of a cooperative member gives nothing back.
#[test]
fn a_cooperative_release_gives_back_what_was_revoked_and_nothing_else() {
    with_broker("a_cooperative_release_gives_back_what_was_revoked", 60, async |world| {
        let topic = world.topic(3).await;
        let (mut first, second) = first_and_second(&world, &cooperative(&topic), 3).await;
        let polled = first.until(20, is_revoking).await;
        let (event, going, _) = revoking(&polled);
        assert_eq!(first.group.release(event).await, Ok(()));
        let first = Background::start(first);
        second.until_assigned(going.len(), 20).await;
        world.env.sleep(Duration::from_secs(1)).await;
        let is_nothing = |polled: &Polled| match polled {
            Polled::Records(records) => records.is_empty(),
            Polled::Assigned(new) => new.is_empty(),
            _ => false,
        };
        assert!(first.log.lock().expect("log").iter().all(is_nothing), "what stays is not announced: {:?}", first.log);
        first.stop().await;
        second.stop().await;
    });
}

/// Hazard 6: others come while one drains.
#[test]
fn joins_that_overlap_a_drain_end_with_every_partition_owned_once() {
    with_broker("joins_that_overlap_a_drain_end_with_every_partition_owned_once", 120, async |world| {
        for config in [group, cooperative] {
            let topic = world.topic(6).await;
            let config = config(&topic);
            let (mut first, second) = first_and_second(&world, &config, 6).await;
            let polled = first.until(20, is_revoking).await;
            let (event, ..) = revoking(&polled);
            let third = Background::start(world.join(config.clone()).await);
            for _ in 0..10 {
                assert_eq!(first.poll().await, Polled::Records(Vec::new()), "one revocation at a time");
            }
            first.group.release(event).await.expect("released");
            let first = Background::start(first);
            second.until_assigned(2, 30).await;
            third.until_assigned(2, 30).await;
            for partition in 0..6 {
                world.fill(&topic, partition, 0, 10).await;
            }
            for _ in 0..100 {
                let read = [&first, &second, &third].map(|member| member.records().len());
                if read == [20, 20, 20] {
                    break;
                }
                world.env.sleep(Duration::from_millis(100)).await;
            }
            assert_eq!([&first, &second, &third].map(|member| member.records().len()), [20, 20, 20]);
            for member in [first, second, third] {
                member.stop().await;
            }
        }
    });
}

#[test]
fn a_member_that_does_not_poll_is_thrown_out_and_comes_back_when_it_does() {
    with_broker("a_member_that_does_not_poll_is_thrown_out", 120, async |world| {
        for config in [group, cooperative] {
            let topic = world.topic(2).await;
            let config = GroupConfig { poll_limit: Duration::from_secs(6), ..config(&topic) };
            let mut member = world.join(config.clone()).await;
            member.until_assigned(2).await;
            let epochs = [member.epoch(0), member.epoch(1)];
            let commit = member.commit_of(&topic, 0, 5);
            world.env.sleep(Duration::from_secs(8)).await;
            let error = member.group.commit(vec![commit.clone()]).await.pop().expect("one").expect_err("thrown out");
            assert_eq!(error.kind, ErrorKind::Fenced, "{error}");
            let polled = member.until(5, |polled| matches!(polled, Polled::Lost { .. })).await;
            let (event, gone) = lost(&polled);
            assert_eq!(gone.len(), 2);
            for _ in 0..10 {
                assert_eq!(member.poll().await, Polled::Records(Vec::new()), "nothing comes back before the release");
            }
            member.group.release(event).await.expect("released");
            member.until_assigned(2).await;
            assert!(member.assigned.iter().all(|new| !epochs.contains(&new.epoch)));
            assert_eq!(world.committed(&config.group, &topic, 1).await, [None]);
            assert_eq!(member.commit(&topic, 0, 7).await, Ok(()));
        }
    });
}

#[test]
fn of_two_static_members_with_one_id_the_older_is_fenced_for_good() {
    with_broker("of_two_static_members_with_one_id_the_older_is_fenced_for_good", 60, async |world| {
        let topic = world.topic(2).await;
        let config = GroupConfig { instance_id: Some("one".into()), ..group(&topic) };
        let mut old = world.join(config.clone()).await;
        old.until_assigned(2).await;
        let commit = old.commit_of(&topic, 0, 0);
        let mut new = world.join(config.clone()).await;
        new.until_assigned(2).await;
        let until = world.env.now() + Duration::from_secs(20);
        let error = loop {
            match old.poller.poll(1, WAIT).await {
                Err(error) => break error,
                Ok(_) => assert!(world.env.now() < until, "it was not told"),
            }
        };
        assert_eq!((error.kind, error.code), (ErrorKind::Fatal, "FENCED_INSTANCE_ID"));
        let error = old.group.commit(vec![commit]).await.pop().expect("one").expect_err("fenced");
        assert!(matches!(error.kind, ErrorKind::Fatal | ErrorKind::Fenced), "{error}");
        let again = old.poller.poll(1, WAIT).await.expect_err("for good");
        assert_eq!(again.code, "FENCED_INSTANCE_ID");
        drop(old);
        assert_eq!(new.commit(&topic, 0, 3).await, Ok(()));
        assert_eq!(world.committed(&config.group, &topic, 1).await, [Some(3)]);
    });
}

#[test]
fn a_static_member_that_comes_back_in_time_finds_its_partitions_without_a_rebalance() {
    with_broker("a_static_member_that_comes_back_in_time", 60, async |world| {
        let topic = world.topic(2).await;
        let of = |id: &str, config: &GroupConfig| GroupConfig { instance_id: Some(id.into()), ..config.clone() };
        let config = GroupConfig { session_timeout: Duration::from_secs(20), ..group(&topic) };
        let mut first = world.join(of("first", &config)).await;
        first.until_assigned(2).await;
        let second = Background::start(world.join(of("second", &config)).await);
        let polled = first.until(20, is_revoking).await;
        first.group.release(revoking(&polled).0).await.expect("released");
        first.until_assigned(1).await;
        second.until_assigned(1, 20).await;
        let before = second.log.lock().expect("log").iter().filter(|one| !matches!(one, Polled::Records(_))).count();
        let had = first.assigned[0].partition.clone();
        first.group.leave().await;
        let mut again = world.join(of("first", &config)).await;
        again.until_assigned(1).await;
        assert_eq!(again.assigned[0].partition, had);
        world.env.sleep(Duration::from_secs(2)).await;
        let after = second.log.lock().expect("log").iter().filter(|one| !matches!(one, Polled::Records(_))).count();
        assert_eq!(after, before, "the other noticed nothing");
        second.stop().await;
    });
}

#[test]
fn new_partitions_are_noticed_and_read_from_their_beginning() {
    with_broker("new_partitions_are_noticed_and_read_from_their_beginning", 60, async |world| {
        let topic = world.topic(2).await;
        let mut member = world.join(cooperative(&topic)).await;
        member.until_assigned(2).await;
        let epochs = [member.epoch(0), member.epoch(1)];
        // A producer that has known the topic with two partitions, and does not look again by itself.
        let producer = world.transport.producer(ProducerConfig::default()).await.expect("a producer");
        producer.send_all(vec![numbered(&topic, 0, 0)]).await.await[0].as_ref().expect("acknowledged");
        world.transport.admin().create_partitions(&topic, 4).await.expect("it grows");
        world.seen(&topic, 4).await;
        let sent = producer.send_all((1..11).map(|one| numbered(&topic, 3, one)).collect()).await.await;
        assert!(sent.iter().all(Result::is_ok), "a named partition beyond the known ones is asked for: {sent:?}");
        let absent = producer.send_all(vec![numbered(&topic, 4, 0)]).await.await.pop().expect("one");
        let error = absent.expect_err("there is none");
        assert_eq!((error.kind, error.code), (ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION"));
        let until = world.env.now() + Duration::from_secs(20);
        while member.records.len() < 11 {
            if let Polled::Revoking { event, .. } = member.poll().await {
                member.group.release(event).await.expect("released");
            }
            assert!(world.env.now() < until, "{:?}", member.assigned);
        }
        assert_eq!([member.epoch(0), member.epoch(1)], epochs, "what was there stays as it was");
    });
}

#[test]
fn a_poll_that_is_given_up_loses_nothing() {
    with_broker("a_poll_that_is_given_up_loses_nothing", 60, async |world| {
        let topic = world.topic(1).await;
        world.fill(&topic, 0, 0, 5_000).await;
        let mut member = world.join(group(&topic)).await;
        let until = world.env.now() + Duration::from_secs(30);
        let mut numbers = Vec::new();
        let mut given_up = 0;
        while numbers.len() < 5_000 {
            let polled = {
                let poll = std::pin::pin!(member.poller.poll(7, Duration::from_secs(1)));
                let give_up = std::pin::pin!(world.env.sleep(Duration::from_millis(1)));
                match futures_util::future::select(poll, give_up).await {
                    futures_util::future::Either::Left((polled, _)) => polled.expect("a poll"),
                    futures_util::future::Either::Right(_) => {
                        given_up += 1;
                        continue;
                    }
                }
            };
            if let Polled::Records(records) = polled {
                assert!(records.len() <= 7);
                numbers.extend(records.iter().map(number));
            }
            assert!(world.env.now() < until);
        }
        assert_eq!(numbers, (0..5_000).collect::<Vec<_>>());
        assert!(given_up > 10, "only {given_up} polls were given up");
    });
}

/// librdkafka rejoins when it sees that a topic has grown, and waits for no revocation: what was to be given back is
/// gone then, and is told as lost.
#[test]
fn growth_in_a_drain_is_a_loss_and_ends_with_every_partition_owned_once() {
    for assignor in [Assignor::Range, Assignor::CooperativeSticky] {
        with_broker("growth_in_a_drain_is_a_loss", 90, async |world| {
            let topic = world.topic(2).await;
            let config = GroupConfig { assignors: vec![assignor], ..group(&topic) };
            let (mut first, second) = first_and_second(&world, &config, 2).await;
            let polled = first.until(20, is_revoking).await;
            let (event, partitions, _) = revoking(&polled);
            world.transport.admin().create_partitions(&topic, 4).await.expect("it grows");
            let commit = |(partition, epoch): (TopicPartition, Epoch)| Commit {
                partition,
                epoch,
                offset: 0,
                metadata: String::new(),
            };
            let commits: Vec<_> = partitions.into_iter().map(commit).collect();
            // Until it is released, or lost, nobody else has it.
            let (mut released, until) = (vec![event], world.env.now() + Duration::from_secs(6));
            while world.env.now() < until && released.len() == 1 {
                match first.poll().await {
                    Polled::Lost { event, .. } => released.push(event),
                    Polled::Revoking { event, .. } => released.push(event),
                    Polled::Records(records) => assert_eq!(records, []),
                    other @ Polled::Assigned(_) => panic!("{assignor:?}: {other:?} before the release"),
                }
            }
            let lost = first.group.commit(commits).await.iter().all(Result::is_err);
            assert!(lost || second.assigned() == 0, "{assignor:?}: owned twice");
            for event in released {
                first.group.release(event).await.expect("released");
            }
            let until = world.env.now() + Duration::from_secs(30);
            while first.assigned.len() + second.assigned() < 4 || first.assigned.is_empty() {
                assert!(world.env.now() < until, "{assignor:?}: {:?} and {}, not 4", first.assigned, second.assigned());
                if let Polled::Revoking { event, .. } | Polled::Lost { event, .. } = first.poll().await {
                    first.group.release(event).await.expect("released");
                }
            }
            // Each is read, by one.
            for partition in 0..4 {
                world.fill(&topic, partition, partition as usize, 1).await;
            }
            let read = || second.records().iter().map(number).collect::<Vec<_>>();
            let until = world.env.now() + Duration::from_secs(20);
            while first.records.len() + read().len() < 4 {
                assert!(world.env.now() < until, "{assignor:?}: {:?} and {:?}", first.records, read());
                if let Polled::Revoking { event, .. } | Polled::Lost { event, .. } = first.poll().await {
                    first.group.release(event).await.expect("released");
                }
            }
            let mut all = read();
            all.extend(first.records.iter().map(number));
            all.sort();
            assert_eq!(all, [0, 1, 2, 3], "{assignor:?}");
            first.group.leave().await;
            second.stop().await;
        });
    }
}
