//! What a consumer without epochs can do to a group: the commits that librdkafka sends as they were given.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::time::Duration;

use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Commit, ErrorKind, Group, GroupConfig, Polled, Poller, Transport};
use seriatim_sim::history::What;
use seriatim_sim::recorded::{RecordedGroup, RecordedTransport, no_lifecycle};
use seriatim_sim::{Node, SimGroup, UnfencedCommit, World, WorldConfig, run};

type Handle = RecordedGroup<SimGroup>;

fn config() -> GroupConfig {
    GroupConfig { heartbeat_interval: Duration::from_secs(1), ..GroupConfig::new("g", vec!["t".into()]) }
}

/// Joins and polls for ever, releasing whatever is revoked. What is assigned goes to the history.
async fn join(node: &Node) -> Handle {
    let transport = RecordedTransport::new(node.transport(), node.recorder(), no_lifecycle);
    let (mut poller, group) = transport.join(config()).await.unwrap();
    let (releasing, env) = (group.clone(), node.env());
    seriatim_core::env::Env::spawn(&env, async move {
        while let Ok(polled) = poller.poll(100, Duration::from_millis(500)).await {
            if let Polled::Revoking { event, .. } | Polled::Lost { event, .. } = polled {
                releasing.release(event).await.unwrap();
            }
        }
    });
    group
}

/// Who was assigned which partitions, in order, with their epochs.
fn assigned(world: &World) -> Vec<(String, Vec<(i32, Epoch)>)> {
    let events = world.recorder().events();
    let each = events.iter().filter_map(|event| match &event.what {
        What::Assigned { partitions, .. } => {
            let own = partitions.iter().map(|one| (one.partition.partition, one.epoch)).collect();
            Some((event.node.to_string(), own))
        }
        _ => None,
    });
    each.collect()
}

fn commit(partition: i32, epoch: Epoch, offset: i64) -> Vec<Commit> {
    vec![Commit { partition: TopicPartition::new("t", partition), epoch, offset, metadata: String::new() }]
}

fn committed(world: &World, partition: i32) -> i64 {
    world.committed("g", "t")[&TopicPartition::new("t", partition)].offset
}

#[test]
fn a_late_commit_without_a_fence_moves_the_offset_of_the_new_owner_back() {
    run(1, WorldConfig::default(), |world| async move {
        world.create_topic("t", 2);
        let a = join(&world.node("a")).await;
        world.sleep(Duration::from_secs(10)).await;
        let (_, first) = assigned(&world).remove(0);
        assert_eq!(first.len(), 2);
        let b = join(&world.node("b")).await;
        world.sleep(Duration::from_secs(10)).await;
        let (_, of_b) = assigned(&world).into_iter().rfind(|(node, _)| node == "b").unwrap();
        let (moved, new_epoch) = of_b[0];
        let old_epoch = first.iter().find(|(partition, _)| *partition == moved).unwrap().1;
        assert_eq!(b.commit(commit(moved, new_epoch, 40)).await, [Ok(())]);
        // With the fence it never leaves; without, the broker asks for the generation only, and that is current.
        assert_eq!(a.commit(commit(moved, old_epoch, 7)).await[0].as_ref().unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(committed(&world, moved), 40);
        assert_eq!(a.commit_unfenced(commit(moved, old_epoch, 7)).await, [Ok(())]);
        assert_eq!(committed(&world, moved), 7);
        let invoked = world.recorder().events().iter().any(|event| {
            matches!(&event.what, What::CommitInvoked { commits, .. }
                if &*event.node == "a" && commits[0].offset == 7 && commits[0].epoch == old_epoch)
        });
        assert!(invoked);
        // Once out of the group it can do nothing more.
        a.leave().await;
        world.sleep(Duration::from_secs(10)).await;
        let refused = a.commit_unfenced(commit(moved, old_epoch, 3)).await.remove(0).unwrap_err();
        assert_eq!((refused.kind, refused.code), (ErrorKind::Fenced, "UNKNOWN_MEMBER_ID"));
        assert_eq!(committed(&world, moved), 7);
    })
    .unwrap();
}
