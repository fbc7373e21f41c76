//! Histories of poison records, of what is left at the end, of several indexes, and of local lanes.

use super::*;

/// A consumer that was given a record which nobody of this system wrote.
fn poisoned(node: &str, group: &str, place: TopicPartition) -> (Story, At) {
    let mut story = Story::default();
    story.join(node, 1, group);
    story.assigned(node, 1, place.clone(), 1, None);
    let given = story.polled_foreign(node, 1, place, 0, "poison");
    (story, given)
}

#[test]
fn a_poison_record_committed_past_without_a_dead_letter_has_vanished_at_either_hop() {
    for (node, group, place) in [("worker-1", "p_workers", source()), ("indexer-1", "p_indexers", dest())] {
        let (mut story, given) = poisoned(node, group, place.clone());
        let commit = story.commit(node, 1, place.clone(), 1, 1);
        story.finds("record-vanished", &[given, commit]);
        let (mut story, _) = poisoned(node, group, place.clone());
        let call = story.dead_letter(node, "poison", Ticket::default(), Some((0, 0)));
        story.produce_resolved(node, call, vec![Ack::Ok((0, 0))]);
        story.commit(node, 1, place, 1, 1);
        story.clean();
    }
}

#[test]
fn a_poison_record_committed_past_before_its_dead_letter_is_acknowledged_is_ahead() {
    let (mut story, given) = poisoned("worker-1", "p_workers", source());
    let call = story.dead_letter("worker-1", "poison", Ticket::default(), Some((0, 0)));
    let commit = story.commit("worker-1", 1, source(), 1, 1);
    let acked = story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
    story.finds("commit-ahead", &[given, commit, acked]);
}

#[test]
fn a_dead_letter_that_the_broker_refused_and_one_of_another_topic_do_not_count() {
    let (mut story, given) = poisoned("worker-1", "p_workers", source());
    let call = story.dead_letter("worker-1", "poison", Ticket::default(), Some((0, 0)));
    story.produce_resolved("worker-1", call, vec![Ack::Fail("MESSAGE_TOO_LARGE".into())]);
    // An indexer's letter, of the same place on its own topic.
    story.join("indexer-1", 2, "p_indexers");
    let call = story.dead_letter("indexer-1", "poison", Ticket::default(), Some((0, 0)));
    story.produce_resolved("indexer-1", call, vec![Ack::Ok((0, 0))]);
    let commit = story.commit("worker-1", 1, source(), 1, 1);
    story.finds("record-vanished", &[given, commit]);
}

#[test]
fn a_poison_record_that_is_not_committed_past_has_not_vanished() {
    let (mut story, _) = poisoned("worker-1", "p_workers", source());
    story.commit("worker-1", 1, source(), 1, 0);
    story.clean();
}

#[test]
fn what_a_settled_run_left_uncommitted_says_where_and_how_much() {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.assigned("worker-1", 1, source(), 1, None);
    for sequence in 0..3 {
        story.publish(sequence, "a");
    }
    let appended = 7;
    story.polled("worker-1", 1, source(), 1, &[0, 1, 2].map(|at| (at as i64, "a", ticket(at, 0, 0))));
    for sequence in 0..3 {
        story.event("worker-1", ticket(sequence, 7, 0), LifecycleKind::Dropped);
    }
    let commit = story.commit("worker-1", 1, source(), 1, 1);
    let settled = |options: &mut CheckOptions| options.settled = true;
    assert_eq!(story.check_with(settled), [], "it is not complete");
    story.complete(RunSummary { published: 3, dropped: 3, ..RunSummary::default() });
    let violations = story.check_with(settled);
    found(&violations, "lag-left", &[appended, commit]);
    let words = "the run is complete, but group p_workers has 1 committed on p_source-0, where 1 lies with 1 behind it";
    assert_eq!(violations[0].words, words);
    story.clean();
    story.commit("worker-1", 1, source(), 1, 3);
    assert_eq!(story.check_with(settled), []);
}

fn to(index: &str, sequence: u64) -> IndexWrite {
    IndexWrite { index: Some(index.into()), ..write("a", sequence, 7, 0) }
}

#[test]
fn an_id_is_one_within_its_index() {
    let mut story = Story::default();
    story.applied(to("left", 1));
    let right = story.applied(to("right", 0));
    let call = story.bulk("indexer-1", vec![to("left", 1), to("right", 0)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied; 2]);
    story.clean();
    let index = |right| {
        let both = BTreeMap::from([("left/a".into(), body(1)), ("right/a".into(), body(right))]);
        move |options: &mut CheckOptions| (options.actual, options.expected) = (Some(both.clone()), Some(both))
    };
    assert_eq!(story.check_with(index(0)), []);
    let both = story.check_with(index(1));
    assert_eq!(
        (both[0].property, &both[0].witness[..], &both[0].ids[..]),
        ("final-index", &[right][..], &["right/a".into()][..])
    );
    // Within one index the version goes back.
    story.applied(to("left", 0));
    assert!(story.check().iter().any(|one| one.property == "sink-nonmonotonic"));
}

/// Two publishes of a, which two lanes of one process write; the versions hide the order from a reader.
fn lanes(overlap: bool) -> (Story, [At; 2]) {
    let mut story = Story::default();
    story.publish_only(0, "a");
    story.publish_only(1, "a");
    let local = |sequence| IndexWrite { position: None, ..write("a", sequence, 7, 0) };
    let later = story.bulk("process", vec![local(1)]);
    let first = story.events.len() - 1;
    let answer = |story: &mut Story| {
        story.applied(local(1));
        story.answered("process", later, vec![WriteOutcome::Applied]);
    };
    if !overlap {
        answer(&mut story);
    }
    let earlier = story.bulk("process", vec![local(0)]);
    let second = story.events.len() - 1;
    if overlap {
        answer(&mut story);
    }
    story.answered("process", earlier, vec![WriteOutcome::Superseded(version(1))]);
    (story, [first, second])
}

#[test]
fn lanes_of_one_process_that_write_a_document_out_of_order_are_found_although_versions_hide_it() {
    for overlap in [true, false] {
        let (story, [first, second]) = lanes(overlap);
        let violations = story.check_with(|options| options.local_mode = true);
        found(&violations, "write-order", &[0, first, second]);
    }
}

#[test]
fn lanes_that_write_a_document_at_once_are_found_though_in_order() {
    let mut story = Story::default();
    story.publish_only(0, "a");
    story.publish_only(1, "a");
    let local = |sequence| IndexWrite { position: None, ..write("a", sequence, 7, 0) };
    story.bulk("process", vec![local(0)]);
    let first = story.events.len() - 1;
    story.bulk("process", vec![local(1)]);
    let violations = story.check_with(|options| options.local_mode = true);
    // The witness begins with the publish of the later write.
    found(&violations, "write-overlap", &[2, first, first + 1]);
}

#[test]
fn dead_letters_of_one_key_that_lie_in_two_partitions_are_found() {
    for partitions in [[0, 0], [0, 1]] {
        let mut story = Story::default();
        let acked = [0, 1].map(|sequence| {
            let call = story.dead_letter("worker-1", "a", ticket(sequence, 7, 0), Some((0, 0)));
            story.produce_resolved("worker-1", call, vec![Ack::Ok((partitions[sequence as usize], sequence as i64))])
        });
        match partitions {
            [0, 0] => story.clean(),
            _ => story.finds("key-moved", &acked),
        }
    }
}
