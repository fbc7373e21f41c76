//! Groups whose members do not support the same assignors.

use std::time::Duration;

use seriatim_core::transport::{Assignor, ErrorKind, Group, GroupConfig, Poller};
use seriatim_sim::{World, run};

use crate::cooperative::without_fault;
use crate::support::{Member, config, numbers, world};
use crate::watch::{Event, Watch, spawn_source};

fn with(assignors: &[Assignor]) -> GroupConfig {
    GroupConfig { assignors: assignors.to_vec(), ..config() }
}

#[test]
fn a_member_without_a_common_assignor_is_refused() {
    run(1, world(), |world| async move {
        world.create_topic("t", 2);
        let mut first = Member::with(&world.node("one"), with(&[Assignor::Range])).await;
        first.assigned().await;
        let mut other = Member::with(&world.node("two"), with(&[Assignor::CooperativeSticky])).await;
        let error = other.poller.poll(1, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!((error.kind, error.code), (ErrorKind::Refused, "INCONSISTENT_GROUP_PROTOCOL"));
        assert_eq!(first.records().await, [], "the group goes on as before");
        let none = world.node("three");
        let refused = seriatim_core::transport::Transport::join(&none.transport(), with(&[])).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Refused);
    })
    .unwrap();
}

#[test]
fn the_group_uses_what_all_support_and_most_prefer() {
    use Assignor::{Range, RoundRobin, Sticky};
    let placed = |lists: [&'static [Assignor]; 2]| {
        run(2, world(), move |world| async move {
            world.create_topic("t", 4);
            let mut first = Member::with(&world.node("one"), with(lists[0])).await;
            // It is the first to vote, however long its way is.
            world.sleep(Duration::from_millis(500)).await;
            let mut second = Member::with(&world.node("two"), with(lists[1])).await;
            let (one, two) = (numbers(&first.assigned().await), numbers(&second.assigned().await));
            if one.contains(&0) { [one, two] } else { [two, one] }
        })
        .unwrap()
    };
    assert_eq!(placed([&[Range, RoundRobin], &[RoundRobin, Range]]), [[0, 1], [2, 3]], "the first voted wins a tie");
    assert_eq!(placed([&[RoundRobin, Range], &[RoundRobin, Range]]), [[0, 2], [1, 3]]);
    assert_eq!(placed([&[RoundRobin, Range], &[Range]]), [[0, 1], [2, 3]], "one of them must do it");
    assert_eq!(placed([&[Sticky], &[Range, Sticky]]), [[0, 2], [1, 3]]);
}

async fn restart_with(world: &World, name: &str, assignors: &[Assignor]) -> Watch {
    world.crash(name);
    let watch = Watch::spawn(world, &format!("{name}'"), with(assignors));
    watch.owns(world, 2).await;
    world.sleep(Duration::from_secs(10)).await;
    watch
}

/// KIP-429's way from an eager group to a cooperative one: first every member with both, then every member with one.
#[test]
fn a_group_is_changed_from_eager_to_cooperative_member_by_member() {
    use Assignor::{CooperativeSticky, Range};
    without_fault(run(3, world(), |world| async move {
        world.create_topic("t", 4);
        spawn_source(&world);
        let old = [Watch::spawn(&world, "one", with(&[Range])), Watch::spawn(&world, "two", with(&[Range]))];
        old[0].owns(&world, 2).await;
        old[1].owns(&world, 2).await;
        let both = [CooperativeSticky, Range];
        let one = restart_with(&world, "one", &both).await;
        let two = restart_with(&world, "two", &both).await;
        let events = one.lock().events.clone();
        assert!(
            events.iter().any(|(_, event)| *event == Event::Revoking(one.lock().partitions())
                || matches!(event, Event::Revoking(all) if all.len() >= 2)),
            "still eager: {events:?}"
        );
        let one = restart_with(&world, "one'", &[CooperativeSticky]).await;
        let two_cooperative = restart_with(&world, "two'", &[CooperativeSticky]).await;
        drop(two);
        // From here on a joiner takes only what moves.
        let from = world.now();
        let three = Watch::spawn(&world, "three", with(&[CooperativeSticky]));
        three.owns(&world, 1).await;
        world.sleep(Duration::from_secs(3)).await;
        let mut left = 0;
        for watch in [&one, &two_cooperative] {
            let events = watch.lock().since(from);
            assert!(
                events.is_empty() || matches!(&events[..], [Event::Revoking(one), Event::Released] if one.len() == 1)
            );
            left += watch.lock().owned.len();
        }
        assert_eq!(left, 3);
    }));
}

#[test]
fn an_eager_sticky_member_gives_all_up_and_gets_the_same_again() {
    without_fault(run(4, world(), |world| async move {
        world.create_topic("t", 4);
        spawn_source(&world);
        let one = Watch::spawn(&world, "one", with(&[Assignor::Sticky]));
        one.owns(&world, 4).await;
        let two = Watch::spawn(&world, "two", with(&[Assignor::Sticky]));
        two.owns(&world, 2).await;
        one.owns(&world, 2).await;
        let kept = one.lock().owned.clone();
        let from = world.now();
        two.lock().leaves = true;
        one.owns(&world, 4).await;
        let events = one.lock().since(from);
        let all = Event::Assigned(vec![0, 1, 2, 3]);
        assert_eq!(events, [Event::Revoking(kept.keys().copied().collect()), Event::Released, all]);
        assert!(kept.iter().all(|(partition, epoch)| one.lock().owned[partition] > *epoch), "but in new ownerships");
        let other = Member::with(&world.node("three"), with(&[Assignor::Sticky])).await;
        other.group.leave().await;
    }));
}
