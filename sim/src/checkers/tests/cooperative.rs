//! Histories of groups that give partitions up one by one, of static members, and of topics that grow.

use super::*;

fn other() -> TopicPartition {
    TopicPartition::new("p_source", 1)
}

fn at(offset: i64) -> (i64, &'static str, Ticket) {
    (offset, "a", ticket(offset as u64, 0, 0))
}

/// A worker with two partitions; its second generation takes the second away, and the first stays as it is.
fn shrunk() -> (Story, At) {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.generation(1, "m1", "worker-1", &[source(), other()]);
    story.assigned("worker-1", 1, source(), 1, None);
    story.assigned("worker-1", 1, other(), 2, None);
    story.publish(0, "a");
    story.publish(1, "a");
    story.publish_to(1, 2, "b");
    story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.polled("worker-1", 1, other(), 2, &[(2, "b", ticket(2, 0, 0))]);
    for (sequence, attempt) in [(0, 7), (2, 8)] {
        story.event("worker-1", ticket(sequence, attempt, 0), LifecycleKind::Dropped);
    }
    story.generation(2, "m1", "worker-1", &[source()]);
    let revoked = story.revoking("worker-1", 1, other(), 2);
    (story, revoked)
}

/// A commit that the coordinator applied for `member`.
fn applied(story: &mut Story, node: &str, member: &str, partition: TopicPartition, offset: i64) -> At {
    let (group, member) = ("p_workers".into(), format!("{node}-{member}").into());
    story.tell("broker-1", What::OffsetsCommitted { group, member, partition, offset })
}

#[test]
fn a_retained_partition_goes_on_and_what_goes_is_committed_until_it_is_given_away() {
    let (mut story, _) = shrunk();
    story.polled("worker-1", 1, source(), 1, &[at(1)]);
    story.event("worker-1", ticket(1, 9, 0), LifecycleKind::Dropped);
    // Under a generation that no longer gives it to the member: nobody has it yet.
    applied(&mut story, "worker-1", "m1", other(), 3);
    story.release("worker-1", 1, 2);
    story.join("worker-2", 2, "p_workers");
    story.generation(3, "m1", "worker-1", &[source()]);
    story.generation(3, "m2", "worker-2", &[other()]);
    story.assigned_at("worker-2", 2, other(), 1, Some(3), 3);
    applied(&mut story, "worker-1", "m1", source(), 2);
    applied(&mut story, "worker-2", "m2", other(), 3);
    story.clean();
}

#[test]
fn a_commit_of_what_another_has_since_is_found() {
    let (mut story, _) = shrunk();
    let given = story.generation(3, "m2", "worker-2", &[other()]);
    let late = applied(&mut story, "worker-1", "m1", other(), 3);
    story.finds("commit-unowned", &[given, late]);
}

#[test]
fn a_poll_of_what_goes_is_found_and_one_of_what_stays_is_not() {
    let (mut story, revoked) = shrunk();
    story.polled("worker-1", 1, source(), 1, &[at(1)]);
    story.clean();
    let polled = story.polled("worker-1", 1, other(), 2, &[(3, "b", ticket(3, 0, 0))]);
    story.finds("poll-unowned", &[revoked, polled]);
}

#[test]
fn a_retained_partition_that_is_given_anew_is_found() {
    let (mut story, _) = shrunk();
    let first = story.events.iter().position(|event| matches!(event.what, What::Assigned { .. })).unwrap();
    let again = story.assigned("worker-1", 1, source(), 3, None);
    story.finds("epoch-start", &[first, again]);
}

/// A worker that has its partition; what comes after it on its node commits as another member.
fn replaced(node: &str) -> (Story, At, At) {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    let given = story.generation(1, "m1", "worker-1", &[source()]);
    story.assigned("worker-1", 1, source(), 1, None);
    story.publish(0, "a");
    story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped);
    story.tell("worker-1", What::Crashed);
    story.join(node, 2, "p_workers");
    story.assigned(node, 2, source(), 1, None);
    let committed = applied(&mut story, node, "m1-again", source(), 1);
    (story, given, committed)
}

#[test]
fn a_static_member_may_go_on_under_a_new_id_without_a_rebalance() {
    replaced("worker-1").0.clean();
}

#[test]
fn a_member_of_another_node_is_no_successor() {
    let (story, given, committed) = replaced("worker-2");
    story.finds("commit-unowned", &[given, committed]);
}

#[test]
fn a_partition_that_is_new_is_read_from_its_first_record() {
    for start in [0, 1] {
        let mut story = Story::default();
        story.join("worker-1", 1, "p_workers");
        story.publish_to(6, 0, "a");
        let assigned = story.assigned_at("worker-1", 1, TopicPartition::new("p_source", 6), 1, None, start);
        match start {
            0 => story.clean(),
            _ => story.finds("epoch-start", &[2, assigned]),
        }
    }
}

#[test]
fn a_key_that_moves_is_found_at_either_hop_and_by_run() {
    let mut story = Story::default();
    story.publish_to(0, 0, "a");
    let stamp = |run: u128, id: &str, partition| {
        let ticket = Ticket { run: RunId(run), ..ticket(0, 7, 0) };
        let key = Some(Bytes::copy_from_slice(id.as_bytes()));
        let stamp = Some(Stamp { ticket, version: version(0), is_parent: true, origin: None });
        let topic = "p_dest".into();
        Produced { topic, partition: Some(partition), key, stamp, size: 1, lifecycle: Vec::new() }
    };
    // Another hop, and another run, have partitions of their own.
    let calls = [stamp(1, "a", 3), stamp(2, "a", 4)].map(|one| story.produce_invoked("worker-1", vec![one]));
    let first = story.produce_resolved("worker-1", calls[0], vec![Ack::Ok((3, 0))]);
    story.produce_resolved("worker-1", calls[1], vec![Ack::Ok((4, 0))]);
    story.clean();
    let call = story.produce_invoked("worker-1", vec![stamp(1, "a", 4)]);
    let moved = story.produce_resolved("worker-1", call, vec![Ack::Ok((4, 1))]);
    story.finds("key-moved", &[first, moved]);
}

#[test]
fn a_cooperative_rebalance_is_counted_once_though_it_takes_two_generations() {
    let rebalances = |story: &Story| tolerated(&story.events, &HistoryIndex::new(&story.events, false)).rebalances;
    let (left, right) = (source(), TopicPartition::new("p_source", 1));
    let mut story = Story::default();
    story.generation(1, "a", "worker-1", &[left.clone(), right.clone()]);
    assert_eq!(rebalances(&story), 0, "it forms");
    // A second member comes; the first gives one up before it is given on.
    story.generation(2, "a", "worker-1", std::slice::from_ref(&left));
    story.generation(2, "b", "worker-2", &[]);
    assert_eq!(rebalances(&story), 1);
    story.generation(3, "a", "worker-1", std::slice::from_ref(&left));
    story.generation(3, "b", "worker-2", std::slice::from_ref(&right));
    assert_eq!(rebalances(&story), 1);
    // An eager one: all is given anew at once.
    story.generation(4, "a", "worker-1", std::slice::from_ref(&right));
    story.generation(4, "b", "worker-2", std::slice::from_ref(&left));
    assert_eq!(rebalances(&story), 2);
}
