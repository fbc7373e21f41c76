//! Histories whose index ends wrong, and near-misses.

use super::*;

#[test]
fn a_version_that_goes_back_in_the_index_is_found() {
    let mut story = Story::default();
    let newer = story.applied(write("a", 1, 7, 1));
    let older = story.applied(write("a", 0, 7, 0));
    let violations = story.check();
    let names: Vec<_> = violations.iter().map(|one| (one.property, &one.witness[..])).collect();
    let witness = &[newer, older][..];
    assert_eq!(names, [("sink-nonmonotonic", witness), ("final-index", witness)]);
}

#[test]
fn a_refused_older_write_is_clean() {
    let mut story = Story::default();
    story.applied(write("a", 1, 7, 1));
    let older = Box::new(write("a", 0, 7, 0));
    story.tell("index", What::IndexApplied { sender: None, write: older, changed: false });
    story.clean();
}

fn unversioned(order: [u64; 2]) -> (Story, At, At) {
    let mut story = Story::default();
    story.publish_only(0, "a");
    story.publish_only(1, "a");
    let [first, second] = order.map(|sequence| IndexWrite { version: None, ..write("a", sequence, 7, 0) });
    let (first, second) = (story.applied(first), story.applied(second));
    (story, first, second)
}

#[test]
fn without_versions_strict_order_finds_an_earlier_publish_applied_later() {
    let strict = |options: &mut CheckOptions| {
        options.versions_on = false;
        options.strict_order = true;
    };
    let (story, first, second) = unversioned([1, 0]);
    found(&story.check_with(strict), "sink-nonmonotonic", &[first, second]);
    assert_eq!(unversioned([0, 1]).0.check_with(strict), []);
    assert_eq!(story.check_with(|options| options.versions_on = false), [], "replay may rewind");
}

#[test]
fn an_acknowledged_write_that_the_index_has_not_is_found() {
    let mut story = Story::default();
    story.applied(write("a", 0, 7, 0));
    let call = story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
    let answered = story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    let lost = story.check().into_iter().find(|one| one.property == "sink-lost-write").unwrap();
    assert_eq!((&lost.witness[..], &lost.ids[..]), (&[answered][..], &["a".into()][..]));
}

#[test]
fn an_acknowledged_write_followed_by_a_newer_one_is_clean() {
    let mut story = Story::default();
    let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.applied(write("a", 0, 7, 0));
    story.applied(write("a", 1, 7, 1));
    story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    story.clean();
}

/// A publish that a worker handed on, and committed past; the indexers committed `indexers`.
fn handed_on(indexers: Option<i64>) -> (Story, At, At) {
    let mut story = Story::default();
    let acked = story.publish(0, "a");
    let call = story.produce("worker-1", 0, 7, "a");
    story.produced("worker-1", call, 0);
    let commit = story.offset_committed("worker-1", source(), 1);
    if let Some(offset) = indexers {
        story.offset_committed("indexer-1", dest(), offset);
    }
    (story, acked, commit)
}

#[test]
fn a_publish_that_both_hops_committed_past_without_an_end_is_lost() {
    let (story, acked, commit) = handed_on(Some(1));
    let lost: Vec<Violation> = story.check().into_iter().filter(|one| one.property != "commit-ahead").collect();
    found(&lost, "sink-lost-write", &[acked, commit]);
}

#[test]
fn a_publish_that_still_waits_at_the_second_hop_is_not_lost() {
    handed_on(None).0.clean();
    handed_on(Some(0)).0.clean();
}

#[test]
fn an_acknowledged_publish_that_never_ends_in_a_complete_run_is_unseen() {
    let mut story = Story::default();
    let acked = story.publish(0, "a");
    let complete = story.complete(all_indexed(1));
    let violations = story.check();
    let names: Vec<_> = violations.iter().map(|one| (one.property, &one.witness[..])).collect();
    let (unseen, early) = ([acked - 1, acked], [acked - 1, complete]);
    assert_eq!(names, [("sink-unseen", &unseen[..]), ("completed-early", &early[..])]);
}

#[test]
fn a_publish_that_was_refused_may_vanish() {
    let mut story = Story::default();
    story.publish(0, "a");
    let Some(Event { what: What::PublishResolved { outcome, .. }, .. }) = story.events.last_mut() else {
        panic!("a publish ends with its acknowledgement")
    };
    *outcome = Ack::Fail("REFUSED".into());
    story.complete(RunSummary::default());
    story.clean();
}

#[test]
fn a_reader_that_does_not_see_the_highest_version_is_found() {
    let mut story = Story::default();
    let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0), write("a", 1, 7, 1)]);
    let answered = story.answered("indexer-1", call, vec![WriteOutcome::Applied, WriteOutcome::Applied]);
    let actual = |sequence| BTreeMap::from([("a".into(), body(sequence))]);
    found(&story.check_with(|options| options.actual = Some(actual(0))), "final-index", &[answered]);
    found(&story.check_with(|options| options.actual = Some(BTreeMap::new())), "final-index", &[answered]);
    assert_eq!(story.check_with(|options| options.actual = Some(actual(1))), []);
}

#[test]
fn a_deleted_document_that_a_reader_sees_is_found() {
    let mut story = Story::default();
    story.applied(write("a", 0, 7, 0));
    let deleted = story.applied(IndexWrite { kind: WriteKind::Delete, body_hash: 0, ..write("a", 1, 7, 1) });
    story.clean();
    let actual = Some(BTreeMap::from([("a".into(), body(0))]));
    found(&story.check_with(|options| options.actual = actual), "final-index", &[deleted]);
}

#[test]
fn of_two_attempts_with_one_version_the_first_applied_stays() {
    let mut story = Story::default();
    story.applied(write("a", 0, 7, 0));
    let other = IndexWrite { body_hash: 1, ..write("a", 0, 8, 1) };
    let call = story.bulk("indexer-1", vec![other]);
    story.answered("indexer-1", call, vec![WriteOutcome::Duplicate]);
    story.clean();
}

#[test]
fn an_index_that_is_not_the_expected_one_is_found() {
    let mut story = Story::default();
    let applied = story.applied(write("a", 0, 7, 0));
    let expected = |id: &str, sequence| Some(BTreeMap::from([(id.into(), body(sequence))]));
    assert_eq!(story.check_with(|options| options.expected = expected("a", 0)), []);
    found(&story.check_with(|options| options.expected = expected("a", 1)), "final-index", &[applied]);
    let both = story.check_with(|options| options.expected = expected("b", 0));
    assert_eq!(both.iter().map(|one| &one.ids[0][..]).collect::<Vec<_>>(), ["a", "b"]);
}
