//! Histories of pairs of worker and indexer: one consumer on the source topic, whose writes carry its positions.

use super::*;

const PAIR: &str = "pair-0";

/// A pair that was given two records of key a.
fn pair() -> (Story, At) {
    let mut story = Story::default();
    story.join(PAIR, 1, "p_workers");
    story.gives("p_workers", PAIR, source());
    story.assigned(PAIR, 1, source(), 1, None);
    story.publish(0, "a");
    story.publish(1, "a");
    let given = story.polled(PAIR, 1, source(), 1, &[(0, "a", ticket(0, 0, 0)), (1, "a", ticket(1, 0, 0))]);
    (story, given)
}

/// A write of an output of the attempt 7 at the publish `sequence`, which lies at that offset.
fn output(id: &str, sequence: u64, ordinal: u32) -> IndexWrite {
    let position = Some(Position { partition: source(), offset: sequence as i64, epoch: Epoch(1) });
    IndexWrite { ticket: ticket(sequence, 7, ordinal), position, ..write(id, sequence, 7, 0) }
}

fn written(story: &mut Story, write: IndexWrite) -> At {
    let call = story.bulk(PAIR, vec![write.clone()]);
    let sent = story.events.len() - 1;
    story.applied(write);
    story.answered(PAIR, call, vec![WriteOutcome::Applied]);
    sent
}

fn reported(story: &mut Story, ticket: Ticket, is_parent: bool) -> At {
    let call = story.event_sent(PAIR, ticket, LifecycleKind::Indexed, is_parent);
    story.produce_resolved(PAIR, call, vec![Ack::Ok((0, 0))])
}

/// The first record gave a child and itself, both are in the index, and the parent is reported.
fn family() -> Story {
    let (mut story, _) = pair();
    written(&mut story, output("child", 0, 0));
    written(&mut story, output("a", 0, 1));
    reported(&mut story, ticket(0, 7, 1), true);
    story
}

fn appended(story: &Story, offset: i64) -> At {
    let is_it = |event: &Event| match &event.what {
        What::ProduceResolved { outcomes, .. } => *outcomes == [Ack::Ok((0, offset))],
        _ => false,
    };
    story.events.iter().position(is_it).unwrap()
}

#[test]
fn a_pair_that_commits_before_a_childs_event_is_acknowledged_is_found() {
    let mut story = family();
    let call = story.event_sent(PAIR, ticket(0, 7, 0), LifecycleKind::Indexed, false);
    let commit = story.commit(PAIR, 1, source(), 1, 1);
    let acked = story.produce_resolved(PAIR, call, vec![Ack::Ok((0, 0))]);
    story.finds("commit-ahead", &[appended(&story, 0), commit, acked]);
    assert_eq!(story.check_with(|options| options.judge_events = false), []);
}

#[test]
fn a_pair_that_commits_before_a_childs_outcome_is_known_is_found() {
    let (mut story, _) = pair();
    written(&mut story, output("a", 0, 1));
    reported(&mut story, ticket(0, 7, 1), true);
    reported(&mut story, ticket(0, 7, 0), false);
    let commit = story.commit(PAIR, 1, source(), 1, 1);
    let call = story.bulk(PAIR, vec![output("child", 0, 0)]);
    story.applied(output("child", 0, 0));
    let answered = story.answered(PAIR, call, vec![WriteOutcome::Applied]);
    story.finds("commit-ahead", &[appended(&story, 0), commit, answered]);
}

#[test]
fn a_pair_that_commits_after_the_whole_family_is_clean() {
    let mut story = family();
    reported(&mut story, ticket(0, 7, 0), false);
    story.commit(PAIR, 1, source(), 1, 1);
    story.event(PAIR, ticket(1, 7, 0), LifecycleKind::Dropped);
    story.commit(PAIR, 1, source(), 1, 2);
    story.complete(RunSummary { published: 2, children: 1, indexed: 2, dropped: 1, ..RunSummary::default() });
    let whole = |options: &mut CheckOptions| {
        options.expect_completion = true;
        options.settled = true;
        options.expected = Some(BTreeMap::from([("a".into(), body(0)), ("child".into(), body(0))]));
    };
    assert_eq!(story.check_with(whole), []);
}

#[test]
fn two_attempts_of_pairs_do_not_make_a_whole_family() {
    let mut story = family();
    // Another attempt gives the child.
    let child = IndexWrite { ticket: ticket(0, 8, 0), ..output("child", 0, 0) };
    story.events.retain(|event| match &event.what {
        What::BulkInvoked { writes, .. } => writes[0].id != "child",
        _ => true,
    });
    let call = story.bulk(PAIR, vec![child]);
    story.answered(PAIR, call, vec![WriteOutcome::Applied]);
    reported(&mut story, ticket(0, 8, 0), false);
    story.commit(PAIR, 1, source(), 1, 1);
    assert!(story.check().iter().any(|one| one.property == "commit-ahead"));
}

#[test]
fn a_pair_without_judged_events_is_finished_by_its_writes() {
    let (mut story, _) = pair();
    written(&mut story, output("child", 0, 0));
    written(&mut story, output("a", 0, 1));
    story.commit(PAIR, 1, source(), 1, 1);
    let unjudged = |options: &mut CheckOptions| options.judge_events = false;
    assert_eq!(story.check_with(unjudged), []);
    let commit = story.commit(PAIR, 1, source(), 1, 2);
    let ahead: Vec<_> = story.check_with(unjudged).into_iter().filter(|one| one.property == "commit-ahead").collect();
    found(&ahead, "commit-ahead", &[appended(&story, 1), commit]);
}

#[test]
fn a_pair_that_writes_an_id_of_an_earlier_offset_later_is_found() {
    let (mut story, given) = pair();
    let later = written(&mut story, output("a", 1, 0));
    let call = story.bulk(PAIR, vec![output("a", 0, 0)]);
    let earlier = story.events.len() - 1;
    story.answered(PAIR, call, vec![WriteOutcome::Superseded(version(1))]);
    // The version hides it from a reader, and not from the checker.
    story.finds("write-order", &[given, later, earlier]);
}

#[test]
fn a_pair_that_writes_an_id_while_its_earlier_write_is_out_is_found() {
    let (mut story, given) = pair();
    story.bulk(PAIR, vec![output("a", 0, 0)]);
    let earlier = story.events.len() - 1;
    story.bulk(PAIR, vec![output("a", 1, 0)]);
    story.finds("write-overlap", &[given, earlier, earlier + 1]);
}

#[test]
fn other_ids_of_a_family_have_lanes_of_their_own() {
    let (mut story, _) = pair();
    story.bulk(PAIR, vec![output("child-of-1", 1, 0), output("a", 0, 1)]);
    story.bulk(PAIR, vec![output("child-of-0", 0, 0)]);
    let elsewhere = IndexWrite { index: Some("other".into()), ..output("a", 1, 1) };
    story.bulk(PAIR, vec![elsewhere]);
    story.clean();
}

#[test]
fn effects_of_a_pair_after_its_release_are_found() {
    for effect in ["write", "drop", "letter"] {
        let (mut story, _) = pair();
        story.revoking(PAIR, 1, source(), 1);
        let released = story.release(PAIR, 1, 1);
        let at = story.events.len();
        match effect {
            "write" => drop(story.bulk(PAIR, vec![output("a", 0, 0)])),
            "drop" => drop(story.event_sent(PAIR, ticket(0, 7, 0), LifecycleKind::Dropped, true)),
            _ => drop(story.dead_letter(PAIR, "a", ticket(0, 7, 0), Some((0, 0)))),
        }
        story.finds("effect-after-release", &[released, at]);
    }
}

#[test]
fn a_report_on_a_write_that_was_out_may_come_after_the_release() {
    let (mut story, _) = pair();
    let call = story.bulk(PAIR, vec![output("a", 0, 0)]);
    story.revoking(PAIR, 1, source(), 1);
    story.release(PAIR, 1, 1);
    story.answered(PAIR, call, vec![WriteOutcome::Rejected]);
    story.event(PAIR, ticket(0, 7, 0), LifecycleKind::Failed);
    story.dead_letter(PAIR, "a", ticket(0, 7, 0), Some((0, 0)));
    story.clean();
}

/// An output that indexer-1 was given.
fn given_to_an_indexer() -> Story {
    let mut story = Story::default();
    let call = story.produce("worker-1", 0, 7, "a");
    story.produced("worker-1", call, 0);
    story.join("indexer-1", 2, "p_indexers");
    story.assigned("indexer-1", 2, dest(), 1, None);
    story.polled("indexer-1", 2, dest(), 1, &[(0, "a", ticket(0, 7, 0))]);
    story
}

#[test]
fn an_indexer_that_gives_a_record_up_after_its_release_is_found() {
    for begun in [true, false] {
        let mut story = given_to_an_indexer();
        let call = begun.then(|| story.bulk("indexer-1", vec![write("a", 0, 7, 0)]));
        story.revoking("indexer-1", 2, dest(), 1);
        let released = story.release("indexer-1", 2, 1);
        if let Some(call) = call {
            story.answered("indexer-1", call, vec![WriteOutcome::Rejected]);
        }
        let at = story.events.len();
        story.event("indexer-1", ticket(0, 7, 0), LifecycleKind::Failed);
        match begun {
            true => story.clean(),
            false => story.finds("effect-after-release", &[released, at]),
        }
    }
}

/// The old owner's request is out when it loses the partition, and is answered after its successor's.
#[test]
fn a_report_on_a_write_that_a_successor_repeated_meanwhile_is_no_effect_after_the_release() {
    let mut story = given_to_an_indexer();
    let late = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.revoking("indexer-1", 2, dest(), 1);
    story.release("indexer-1", 2, 1);
    story.join("indexer-2", 3, "p_indexers");
    story.assigned("indexer-2", 3, dest(), 5, None);
    story.polled("indexer-2", 3, dest(), 5, &[(0, "a", ticket(0, 7, 0))]);
    let repeated = story.bulk("indexer-2", vec![write("a", 0, 7, 0)]);
    story.answered("indexer-2", repeated, vec![WriteOutcome::Rejected]);
    story.event("indexer-2", ticket(0, 7, 0), LifecycleKind::Failed);
    story.answered("indexer-1", late, vec![WriteOutcome::Rejected]);
    story.event("indexer-1", ticket(0, 7, 0), LifecycleKind::Failed);
    story.clean();
}

/// One consumer of the process gave the partition back; another one, which nobody told yet that it lost it, reports.
#[test]
fn of_two_consumers_in_one_process_the_one_that_has_the_partition_is_meant() {
    for told in [false, true] {
        let (mut story, _) = pair();
        story.join(PAIR, 2, "p_workers");
        story.assigned(PAIR, 2, source(), 2, None);
        story.polled(PAIR, 2, source(), 2, &[(0, "a", ticket(0, 0, 0))]);
        story.revoking(PAIR, 2, source(), 2);
        let released = story.release(PAIR, 2, 2);
        if told {
            story.lost(PAIR, 1, source(), 1);
            story.release(PAIR, 1, 1);
        }
        let at = story.events.len();
        story.event(PAIR, ticket(0, 7, 0), LifecycleKind::Failed);
        match told {
            false => story.clean(),
            true => story.finds("effect-after-release", &[released, at]),
        }
    }
}
