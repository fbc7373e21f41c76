//! One run through both hops, with a redelivery, which every checker passes.

use super::*;

/// Two publishes of one id; the worker crashes after the first, and the second attempt is superseded by its own copy.
pub(crate) fn run() -> Story {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.join("indexer-1", 2, "p_indexers");
    story.gives("p_workers", "worker-1", source());
    story.gives("p_indexers", "indexer-1", dest());
    story.assigned("worker-1", 1, source(), 1, None);
    story.assigned("indexer-1", 2, dest(), 1, None);
    story.publish(0, "a");
    story.publish(1, "a");
    story.polled("worker-1", 1, source(), 1, &[(0, "a", ticket(0, 0, 0)), (1, "a", ticket(1, 0, 0))]);
    let first = story.produce("worker-1", 0, 7, "a");
    story.produced("worker-1", first, 0);
    story.tell("worker-1", What::Crashed);
    story.join("worker-2", 3, "p_workers");
    story.gives("p_workers", "worker-2", source());
    story.assigned("worker-2", 3, source(), 1, None);
    story.polled("worker-2", 3, source(), 1, &[(0, "a", ticket(0, 0, 0)), (1, "a", ticket(1, 0, 0))]);
    let again = story.produce("worker-2", 0, 8, "a");
    let second = story.produce("worker-2", 1, 9, "a");
    story.produced("worker-2", again, 1);
    story.produced("worker-2", second, 2);
    story.commit("worker-2", 3, source(), 1, 2);
    let copies = [(0, "a", ticket(0, 7, 0)), (1, "a", ticket(0, 8, 0)), (2, "a", ticket(1, 9, 0))];
    story.polled("indexer-1", 2, dest(), 1, &copies);
    let bulk = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.applied(write("a", 0, 7, 0));
    story.answered("indexer-1", bulk, vec![WriteOutcome::Applied]);
    let bulk = story.bulk("indexer-1", vec![write("a", 0, 8, 1), write("a", 1, 9, 2)]);
    story.applied(write("a", 1, 9, 2));
    story.answered("indexer-1", bulk, vec![WriteOutcome::Duplicate, WriteOutcome::Applied]);
    for (sequence, attempt) in [(0, 7), (0, 8), (1, 9)] {
        story.event("indexer-1", ticket(sequence, attempt, 0), LifecycleKind::Indexed);
    }
    story.commit("indexer-1", 2, dest(), 1, 3);
    story.complete(all_indexed(2));
    story
}

#[test]
fn a_run_with_a_crash_and_redelivery_is_clean() {
    let story = run();
    let expected = BTreeMap::from([("a".into(), body(1))]);
    let found = story.check_with(|options| {
        options.expect_completion = true;
        options.expected = Some(expected);
    });
    assert_eq!(found, []);
    let index = HistoryIndex::new(&story.events, false);
    let counts = tolerated(&story.events, &index);
    let due = Tolerated { redelivered: 2, duplicate_writes: 1, retried_publishes: 1, ..Tolerated::default() };
    assert_eq!(counts, due);
}

#[test]
fn a_broken_run_reports_each_property_a_bounded_number_of_times() {
    let mut story = run();
    for _ in 0..100 {
        story.polled("indexer-1", 2, dest(), 1, &[(0, "a", ticket(0, 7, 0))]);
    }
    let found = story.check();
    assert_eq!(found.len(), REPORTED_MAX);
    assert!(found.iter().all(|violation| violation.property == "nonmonotonic-poll"));
}
