//! Histories that end too early, never, or with the wrong count, and near-misses.

use super::*;

/// Two publishes without Kafka.
fn two() -> Story {
    let mut story = Story::default();
    story.publish_only(0, "a");
    story.publish_only(1, "b");
    story
}

/// The first of them finished, and the index says so too.
fn half() -> Story {
    let mut story = two();
    finish(&mut story, "a", 0);
    story
}

/// The first of them finished, as far as its indexer was told.
fn half_answered() -> Story {
    let mut story = two();
    answer(&mut story, "a", 0);
    story
}

fn finish(story: &mut Story, id: &str, sequence: u64) -> At {
    story.applied(IndexWrite { position: None, ..write(id, sequence, 7, 0) });
    answer(story, id, sequence)
}

fn answer(story: &mut Story, id: &str, sequence: u64) -> At {
    let call = story.bulk("local", vec![IndexWrite { position: None, ..write(id, sequence, 7, 0) }]);
    let answered = story.answered("local", call, vec![WriteOutcome::Applied]);
    sent(story, sequence, LifecycleKind::Indexed);
    answered
}

fn sent(story: &mut Story, sequence: u64, kind: LifecycleKind) -> At {
    let events = vec![Lifecycle { ticket: ticket(sequence, 7, 0), kind, is_parent: true, digest: 0 }];
    story.tell("local", What::LifecycleSent { events })
}

#[test]
fn a_completion_before_a_publish_is_finished_is_found() {
    let mut story = half_answered();
    let complete = story.complete(all_indexed(2));
    let answered = answer(&mut story, "b", 1);
    story.finds("completed-early", &[2, complete, answered]);
}

#[test]
fn a_record_that_is_counted_before_one_attempt_at_it_is_whole_is_found() {
    let mut story = Story::default();
    story.publish_only(0, "a");
    let end = |attempt, ordinal, is_parent| What::LifecycleSent {
        events: vec![Lifecycle {
            ticket: ticket(0, attempt, ordinal),
            kind: LifecycleKind::Dropped,
            is_parent,
            digest: 0,
        }],
    };
    story.tell("local", end(7, 0, false));
    story.tell("local", end(8, 1, true));
    let counted = story.tell("publisher", What::RecordCounted { run: RUN, sequence: 0 });
    let closed = story.tell("local", end(8, 0, false));
    let indexed = RunSummary { published: 1, children: 1, dropped: 2, ..RunSummary::default() };
    story.complete(indexed);
    story.finds("counted-early", &[0, counted, closed]);
}

#[test]
fn a_record_that_is_counted_once_one_attempt_is_whole_is_clean() {
    let mut story = half();
    story.tell("publisher", What::RecordCounted { run: RUN, sequence: 0 });
    finish(&mut story, "b", 1);
    story.tell("publisher", What::RecordCounted { run: RUN, sequence: 1 });
    story.complete(all_indexed(2));
    story.clean();
}

/// Two publishes of one id in one request: this answer to the first, and the index too busy for the second.
fn throttled_behind(first: WriteOutcome) -> Story {
    let mut story = Story::default();
    story.publish_only(0, "a");
    story.publish_only(1, "a");
    let writes = [0, 1].map(|sequence| IndexWrite { position: None, ..write("a", sequence, 7, 0) });
    let call = story.bulk("local", writes.into());
    story.answered("local", call, vec![first, WriteOutcome::Throttled]);
    for sequence in [0, 1] {
        sent(&mut story, sequence, LifecycleKind::Superseded);
    }
    story.complete(RunSummary { published: 2, superseded: 2, ..RunSummary::default() });
    story
}

#[test]
fn a_throttled_write_is_superseded_by_what_the_index_says_that_it_has_and_by_nothing_less() {
    throttled_behind(WriteOutcome::Superseded(version(9))).clean();
    let early = throttled_behind(WriteOutcome::Applied).check();
    assert!(early.iter().any(|found| found.property == "completed-early"), "{early:?}");
}

#[test]
fn without_versions_a_throttled_write_is_superseded_by_a_later_publish_wherever_it_stands_in_the_request() {
    for (taken, throttled, late) in [(1, 0, false), (0, 1, true)] {
        let mut story = Story::default();
        story.publish_only(0, "a");
        story.publish_only(1, "a");
        let unversioned = |sequence| IndexWrite { position: None, version: None, ..write("a", sequence, 7, 0) };
        let call = story.bulk("local", vec![unversioned(taken), unversioned(throttled)]);
        story.answered("local", call, vec![WriteOutcome::Applied, WriteOutcome::Throttled]);
        sent(&mut story, taken, LifecycleKind::Indexed);
        sent(&mut story, throttled, LifecycleKind::Superseded);
        story.complete(RunSummary { published: 2, indexed: 1, superseded: 1, ..RunSummary::default() });
        let found = story.check_with(|options| options.versions_on = false);
        assert_eq!(found.iter().any(|one| one.property == "completed-early"), late, "{found:?}");
    }
}

#[test]
fn a_completion_after_every_answer_is_clean() {
    let mut story = half();
    finish(&mut story, "b", 1);
    story.complete(all_indexed(2));
    story.clean();
}

#[test]
fn a_completion_with_a_child_pending_is_found() {
    let mut story = half_answered();
    // The parent is in the index, and says that there was a child before it.
    let parent = IndexWrite { ticket: ticket(1, 7, 1), position: None, ..write("b", 1, 7, 0) };
    let call = story.bulk("local", vec![parent]);
    story.answered("local", call, vec![WriteOutcome::Applied]);
    let events = vec![Lifecycle { ticket: ticket(1, 7, 1), kind: LifecycleKind::Indexed, is_parent: true, digest: 0 }];
    story.tell("local", What::LifecycleSent { events });
    let complete = story.complete(RunSummary { children: 1, indexed: 3, ..all_indexed(2) });
    let child = IndexWrite { position: None, ..write("child", 1, 7, 0) };
    let call = story.bulk("local", vec![child]);
    let answered = story.answered("local", call, vec![WriteOutcome::Applied]);
    story.finds("completed-early", &[2, complete, answered]);
}

/// A failure of the second publish that its worker told.
fn failure_told(story: &mut Story) -> Call {
    let lifecycle =
        vec![Lifecycle { ticket: ticket(1, 7, 0), kind: LifecycleKind::Failed, is_parent: true, digest: 0 }];
    let (topic, stamp) = ("p_event_1".into(), None);
    let record = Produced { topic, partition: Some(0), key: None, stamp, size: 1, lifecycle };
    story.produce_invoked("worker-0", vec![record])
}

#[test]
fn an_event_may_be_read_before_its_sender_hears_that_it_was_appended() {
    let one_failed = RunSummary { indexed: 1, failed: 1, ..all_indexed(2) };
    let mut story = half();
    failure_told(&mut story);
    story.tell("worker-0", What::Crashed);
    story.complete(one_failed);
    // The record is given out again, and fails again.
    story.event("worker-1", ticket(1, 8, 0), LifecycleKind::Failed);
    story.clean();
    // Nor need its sender have heard before the publisher does.
    let mut story = half();
    let call = failure_told(&mut story);
    story.complete(one_failed);
    story.produce_resolved("worker-0", call, vec![Ack::Ok((0, 0))]);
    story.clean();
    // Not before it was sent, though.
    let mut story = half_answered();
    let complete = story.complete(one_failed);
    failure_told(&mut story);
    let again = story.event("worker-1", ticket(1, 8, 0), LifecycleKind::Failed);
    story.finds("completed-early", &[2, complete, again]);
}

#[test]
fn outputs_of_two_attempts_do_not_make_a_whole_one() {
    let mut story = half_answered();
    for (attempt, ordinal) in [(7, 0), (8, 1)] {
        let one = IndexWrite { ticket: ticket(1, attempt, ordinal), position: None, ..write("b", 1, 7, 0) };
        let call = story.bulk("local", vec![one]);
        story.answered("local", call, vec![WriteOutcome::Applied]);
        let (kind, is_parent) = (LifecycleKind::Created, true);
        let events = vec![Lifecycle { ticket: ticket(1, attempt, 1), kind, is_parent, digest: 0 }];
        story.tell("local", What::LifecycleSent { events });
    }
    let complete = story.complete(RunSummary { children: 1, indexed: 3, ..all_indexed(2) });
    let found = story.check();
    let names: Vec<_> = found.iter().map(|one| (one.property, &one.witness[..])).collect();
    assert_eq!(names, [("sink-unseen", &[2, 3][..]), ("completed-early", &[2, complete][..])]);
}

#[test]
fn a_completion_before_the_last_publish_is_acknowledged_is_found() {
    let mut story = half_answered();
    answer(&mut story, "b", 1);
    let complete = story.complete(all_indexed(2));
    let acked = story.publish_only(2, "c");
    answer(&mut story, "c", 2);
    story.finds("completed-early", &[complete, acked - 1, acked]);
}

#[test]
fn a_completion_without_the_acknowledgement_of_a_publish_that_was_finished_is_found() {
    let mut story = half_answered();
    answer(&mut story, "b", 1);
    let acked = story.publish_only(2, "c");
    story.events.remove(acked);
    answer(&mut story, "c", 2);
    let complete = story.complete(all_indexed(2));
    story.finds("completed-early", &[acked - 1, complete]);
}

#[test]
fn a_run_that_is_never_declared_complete_says_what_is_pending() {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.assigned("worker-1", 1, source(), 1, None);
    story.publish(0, "a");
    let invoked = story.events.len() - 2;
    let polled = story.polled("worker-1", 1, source(), 1, &[(0, "a", ticket(0, 0, 0))]);
    let violations = story.check_with(|options| options.expect_completion = true);
    found(&violations, "completed-never", &[invoked, polled]);
    let words = "run abcdef01 was never declared complete: 1 of 1 publishes are pending; \
                 a (#0): worker-1 holds p_source-0@0";
    assert_eq!(violations[0].words, words);
}

#[test]
fn a_run_whose_output_waits_says_where() {
    let mut story = Story::default();
    story.publish(0, "a");
    let call = story.produce("worker-1", 0, 7, "a");
    story.produced("worker-1", call, 4);
    let violations = story.check_with(|options| options.expect_completion = true);
    assert!(
        violations[0].words.ends_with("a (#0): output 0 of 1 is not terminal, p_dest-0@4 was never read"),
        "{}",
        violations[0].words
    );
}

#[test]
fn a_run_whose_publisher_crashed_need_not_complete() {
    let mut story = half();
    story.tell("publisher", What::Crashed);
    assert_eq!(story.check_with(|options| options.expect_completion = true), []);
}

#[test]
fn a_write_that_a_reader_sees_after_completion_is_found() {
    let mut story = half();
    finish(&mut story, "b", 1);
    let complete = story.complete(all_indexed(2));
    let late = IndexWrite { version: Some(Version::from_hlc(9)), ..write("zombie", 1, 6, 0) };
    let at = story.applied(late);
    story.finds("write-after-completion", &[complete, at]);
}

#[test]
fn a_late_write_that_changes_nothing_is_clean() {
    let mut story = half();
    finish(&mut story, "b", 1);
    story.complete(all_indexed(2));
    let write = Box::new(write("b", 1, 6, 0));
    story.tell("index", What::IndexApplied { sender: None, write, changed: false });
    story.clean();
}

#[test]
fn a_summary_that_does_not_add_up_is_found() {
    let wrong = [
        RunSummary { published: 3, indexed: 3, ..RunSummary::default() },
        RunSummary { indexed: 1, ..all_indexed(2) },
        RunSummary { indexed: 1, dropped: 1, ..all_indexed(2) },
        RunSummary { children: 1, indexed: 3, ..all_indexed(2) },
    ];
    for summary in wrong {
        let mut story = half();
        finish(&mut story, "b", 1);
        let complete = story.complete(summary);
        let violations = story.check();
        assert!(!violations.is_empty(), "{summary:?}");
        for violation in violations {
            assert_eq!((violation.property, &violation.witness[..]), ("summary-mismatch", &[complete][..]));
        }
    }
}

#[test]
fn a_summary_may_count_an_output_as_any_of_its_attempts_did() {
    for (dropped, indexed) in [(0, 2), (1, 1)] {
        let mut story = half();
        finish(&mut story, "b", 1);
        let events =
            vec![Lifecycle { ticket: ticket(1, 8, 0), kind: LifecycleKind::Dropped, is_parent: true, digest: 0 }];
        story.tell("local", What::LifecycleSent { events });
        story.complete(RunSummary { indexed, dropped, ..all_indexed(2) });
        story.clean();
    }
}

/// A publish whose write the index answered so, one answer after the other, and what the summary says of it.
fn answered_and_told(answers: &[WriteOutcome], indexed: u64, superseded: u64) -> (Story, At) {
    let mut story = Story::default();
    story.publish_only(0, "a");
    for answer in answers {
        let call = story.bulk("local", vec![IndexWrite { position: None, ..write("a", 0, 7, 0) }]);
        story.answered("local", call, vec![*answer]);
        sent(&mut story, 0, LifecycleKind::Indexed);
    }
    let complete = story.complete(RunSummary { published: 1, indexed, superseded, ..RunSummary::default() });
    (story, complete)
}

#[test]
fn superseded_is_what_the_index_said_so_of_and_indexed_the_rest() {
    let later = WriteOutcome::Superseded(version(9));
    for only in [WriteOutcome::Applied, WriteOutcome::Duplicate] {
        answered_and_told(&[only], 1, 0).0.clean();
        let (story, complete) = answered_and_told(&[only], 0, 1);
        let found = story.check();
        let places: Vec<_> = found.iter().map(|one| (one.property, &one.witness[..])).collect();
        assert_eq!(places, [("summary-mismatch", &[complete][..]); 2], "of indexed and of superseded: {found:?}");
    }
    answered_and_told(&[later], 0, 1).0.clean();
    assert_eq!(answered_and_told(&[later], 1, 0).0.check().len(), 2);
    // It came again when there was a later one: whichever was told first counts.
    for (indexed, superseded) in [(1, 0), (0, 1)] {
        answered_and_told(&[WriteOutcome::Applied, later], indexed, superseded).0.clean();
    }
}

/// The first attempt at the second publish was dropped, and a second one's write lands late; this is told of both.
fn dropped_and_written_late(ambiguous: u64, digests: [u64; 2]) -> (Story, At, At) {
    let mut story = half();
    for (attempt, digest) in [(7, digests[0]), (8, digests[1])] {
        let told = Lifecycle { ticket: ticket(1, attempt, 0), kind: LifecycleKind::Dropped, is_parent: true, digest };
        story.tell("local", What::LifecycleSent { events: vec![told] });
    }
    let complete = story.complete(RunSummary { indexed: 1, dropped: 1, ambiguous, ..all_indexed(2) });
    let late = story.applied(write("b", 1, 6, 0));
    (story, complete, late)
}

#[test]
fn a_late_write_is_excused_only_in_a_family_whose_attempts_differ_in_a_run_that_says_so() {
    dropped_and_written_late(1, [3, 4]).0.clean();
    for (ambiguous, digests) in [(0, [3, 4]), (1, [3, 3]), (1, [3, 0])] {
        let (story, complete, late) = dropped_and_written_late(ambiguous, digests);
        story.finds("write-after-completion", &[complete, late]);
    }
}
