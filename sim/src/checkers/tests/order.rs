//! Histories whose effects are out of order or too late, and near-misses.

use super::*;

/// A worker and an indexer which were both given three records of key a, and one of b.
fn given() -> (Story, At, At) {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.join("indexer-1", 2, "p_indexers");
    story.assigned("worker-1", 1, source(), 1, None);
    story.assigned("indexer-1", 2, dest(), 1, None);
    let records =
        [(0, "a", ticket(0, 7, 0)), (1, "a", ticket(1, 7, 0)), (2, "a", ticket(2, 7, 0)), (3, "b", ticket(3, 7, 0))];
    let at_worker = story.polled("worker-1", 1, source(), 1, &records);
    let at_indexer = story.polled("indexer-1", 2, dest(), 1, &records);
    (story, at_worker, at_indexer)
}

fn last(story: &Story) -> At {
    story.events.len() - 1
}

#[test]
fn a_later_offset_of_a_key_written_while_the_earlier_is_out_is_found() {
    let (mut story, _, given) = given();
    let first = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    let earlier = last(&story);
    story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
    let later = last(&story);
    story.answered("indexer-1", first, vec![WriteOutcome::Applied]);
    story.finds("write-overlap", &[given, earlier, later]);
}

#[test]
fn writes_of_other_keys_and_of_one_request_may_overlap() {
    let (mut story, ..) = given();
    story.bulk("indexer-1", vec![write("a", 0, 7, 0), write("a", 1, 7, 1)]);
    story.bulk("indexer-1", vec![write("b", 3, 7, 3)]);
    story.clean();
}

#[test]
fn an_id_in_another_index_is_another_document_and_has_no_order_with_the_first() {
    let to = |index: &str, sequence: u64| IndexWrite {
        index: Some(index.into()),
        ..write("a", sequence, 7, sequence as i64)
    };
    for (other, property) in [("right", None), ("left", Some("write-overlap"))] {
        let (mut story, ..) = given();
        story.bulk("indexer-1", vec![to("left", 0)]);
        story.bulk("indexer-1", vec![to(other, 1)]);
        let found: Vec<_> = story.check().into_iter().map(|one| one.property).collect();
        assert_eq!(found, Vec::from_iter(property), "{other}");
    }
    // Whichever goes first.
    let (mut story, ..) = given();
    let call = story.bulk("indexer-1", vec![to("left", 1)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    story.bulk("indexer-1", vec![to("right", 0)]);
    story.clean();
}

#[test]
fn an_earlier_offset_of_a_key_written_after_a_later_is_found() {
    let (mut story, _, given) = given();
    let first = story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
    let later = last(&story);
    story.answered("indexer-1", first, vec![WriteOutcome::Applied]);
    story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    let earlier = last(&story);
    story.finds("write-order", &[given, later, earlier]);
}

#[test]
fn an_earlier_offset_behind_a_later_in_one_request_is_found() {
    let (mut story, _, given) = given();
    story.bulk("indexer-1", vec![write("a", 1, 7, 1), write("a", 0, 7, 0)]);
    let bulk = last(&story);
    story.finds("write-order", &[given, bulk]);
}

#[test]
fn a_batch_sent_again_because_its_outcome_is_unknown_is_in_order() {
    let (mut story, ..) = given();
    let batch = vec![write("a", 0, 7, 0), write("a", 1, 7, 1)];
    let call = story.bulk("indexer-1", batch.clone());
    story.tell("indexer-1", What::BulkResolved { call, outcome: Ack::Unknown("NO_ANSWER".into()) });
    let call = story.bulk("indexer-1", batch);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied, WriteOutcome::Applied]);
    story.clean();
}

#[test]
fn a_throttled_write_made_again_behind_a_later_one_is_found() {
    let (mut story, _, given) = given();
    let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0), write("a", 1, 7, 1)]);
    let both = last(&story);
    story.answered("indexer-1", call, vec![WriteOutcome::Throttled, WriteOutcome::Applied]);
    story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    let again = last(&story);
    story.finds("write-order", &[given, both, again]);
}

#[test]
fn a_throttled_write_may_be_made_again_behind_an_older_version_that_came_a_second_time() {
    let (mut story, ..) = given();
    let newer = IndexWrite { version: Some(version(9)), ..write("a", 0, 7, 0) };
    let at = |number, offset| IndexWrite { version: Some(version(number)), ..write("a", 1, 7, offset) };
    let call = story.bulk("indexer-1", vec![newer.clone(), at(8, 1), at(9, 2)]);
    let outcomes = [WriteOutcome::Throttled, WriteOutcome::Duplicate, WriteOutcome::Applied];
    story.answered("indexer-1", call, outcomes.into());
    story.bulk("indexer-1", vec![newer]);
    assert!(story.check().iter().all(|found| found.checker != "order"), "{:?}", story.check());
}

#[test]
fn a_worker_that_hands_an_earlier_offset_of_a_key_over_later_is_found() {
    let (mut story, given, _) = given();
    story.produce("worker-1", 1, 7, "a");
    let later = last(&story);
    story.produce("worker-1", 0, 7, "a");
    let earlier = last(&story);
    story.finds("write-order", &[given, later, earlier]);
}

#[test]
fn a_worker_may_hand_over_the_next_before_the_last_is_acknowledged() {
    let (mut story, ..) = given();
    story.produce_output("worker-1", ticket(0, 7, 0), false, "child");
    story.produce_output("worker-1", ticket(0, 7, 1), true, "a");
    story.produce("worker-1", 3, 7, "b");
    story.produce("worker-1", 1, 7, "a");
    story.clean();
}

#[test]
fn records_that_a_fatal_producer_lost_may_be_handed_over_again() {
    let (mut story, ..) = given();
    for _ in 0..2 {
        let calls = [story.produce("worker-1", 0, 7, "a"), story.produce("worker-1", 1, 7, "a")];
        for call in calls {
            story.produce_resolved("worker-1", call, vec![Ack::Unknown("PRODUCER_CLOSED".into())]);
        }
    }
    story.clean();
}

#[test]
fn redelivery_in_a_new_epoch_orders_anew() {
    let (mut story, ..) = given();
    let call = story.produce("worker-1", 2, 7, "a");
    story.produced("worker-1", call, 0);
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    story.assigned("worker-1", 1, source(), 2, None);
    story.polled("worker-1", 1, source(), 2, &[(0, "a", ticket(0, 8, 0))]);
    story.produce("worker-1", 0, 8, "a");
    story.clean();
}

#[test]
fn effects_after_a_release_are_found() {
    for effect in ["produce", "bulk", "commit"] {
        let (mut story, ..) = given();
        let (node, consumer, place) =
            if effect == "bulk" { ("indexer-1", 2, dest()) } else { ("worker-1", 1, source()) };
        story.revoking(node, consumer, place.clone(), 1);
        let released = story.release(node, consumer, 1);
        let at = last(&story) + 1;
        match effect {
            "produce" => drop(story.produce(node, 0, 7, "a")),
            "bulk" => drop(story.bulk(node, vec![write("a", 0, 7, 0)])),
            _ => drop(story.commit(node, consumer, place, 1, 0)),
        }
        story.finds("effect-after-release", &[released, at]);
    }
}

#[test]
fn effects_between_a_revocation_and_its_release_drain() {
    let (mut story, ..) = given();
    story.revoking("worker-1", 1, source(), 1);
    story.revoking("indexer-1", 2, dest(), 1);
    story.produce("worker-1", 0, 7, "a");
    story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.commit("worker-1", 1, source(), 1, 0);
    story.release("worker-1", 1, 1);
    story.release("indexer-1", 2, 1);
    story.clean();
}

#[test]
fn effects_that_start_after_a_loss_are_found_and_a_commit_that_the_fence_refused_is_none() {
    let (mut story, ..) = given();
    let lost = story.lost("indexer-1", 2, dest(), 1);
    // The grace passes.
    story.tell("world", What::Healed);
    refused_commit(&mut story, "STALE_EPOCH");
    story.clean();
    story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    let bulk = last(&story);
    story.finds("effect-after-release", &[lost, bulk]);
}

/// A commit under the first epoch of the indexer that is refused: its invocation.
fn refused_commit(story: &mut Story, code: &str) -> At {
    let call = story.call();
    let commits = vec![CommittedOffset { partition: dest(), epoch: Epoch(1), offset: 1, metadata: "".into() }];
    let invoked = story.tell("indexer-1", What::CommitInvoked { call, consumer: 2, commits });
    story.tell("indexer-1", What::CommitResolved { call, outcomes: vec![Ack::Fail(code.into())] });
    invoked
}

#[test]
fn a_commit_that_a_coordinator_refused_was_sent_and_is_an_effect() {
    for code in ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"] {
        let (mut story, ..) = given();
        story.revoking("indexer-1", 2, dest(), 1);
        let released = story.release("indexer-1", 2, 1);
        let commit = refused_commit(&mut story, code);
        story.finds("effect-after-release", &[released, commit]);
    }
}

#[test]
fn an_effect_within_the_grace_of_a_loss_is_clean() {
    let (mut story, ..) = given();
    story.lost("indexer-1", 2, dest(), 1);
    story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.clean();
}

fn local(writes: &[(&str, u64)]) -> (Story, Vec<At>) {
    let mut story = Story::default();
    for (sequence, id) in ["a", "a", "b"].into_iter().enumerate() {
        story.publish_only(sequence as u64, id);
    }
    let mut calls = Vec::new();
    for (id, sequence) in writes {
        let write = IndexWrite { position: None, ..write(id, *sequence, 7, 0) };
        let call = story.bulk("local", vec![write]);
        calls.push(last(&story));
        story.answered("local", call, vec![WriteOutcome::Applied]);
    }
    (story, calls)
}

#[test]
fn without_kafka_an_earlier_publish_written_later_is_found() {
    let (story, calls) = local(&[("a", 1), ("b", 2), ("a", 0)]);
    let violations = story.check_with(|options| options.local_mode = true);
    found(&violations, "write-order", &[0, calls[0], calls[2]]);
}

#[test]
fn without_kafka_order_is_by_id_and_children_have_none() {
    let (story, _) = local(&[("b", 2), ("child", 1), ("a", 0), ("child", 0), ("a", 1)]);
    assert_eq!(story.check_with(|options| options.local_mode = true), []);
}
