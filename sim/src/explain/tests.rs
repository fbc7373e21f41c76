//! What a person reads of a failure.

use super::*;
use crate::checkers::tests::{Story, dest, source, ticket, whole, write};
use crate::history::{LifecycleKind, WriteOutcome};

#[test]
fn a_failure_says_what_where_and_shows_its_witness() {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.assigned("worker-1", 1, source(), 1, None);
    for (sequence, id) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        story.publish(sequence as u64, id);
    }
    let records: Vec<_> = (0..5).map(|offset| (offset, "k", ticket(offset as u64, 0, 0))).collect();
    story.polled("worker-1", 1, source(), 1, &records);
    story.lost("worker-1", 1, source(), 1);
    story.join("indexer-1", 2, "p_indexers");
    story.assigned("indexer-1", 2, dest(), 1, None);
    story.polled("indexer-1", 2, dest(), 1, &[(0, "a", ticket(0, 7, 0)), (1, "a", ticket(1, 7, 0))]);
    story.bulk("indexer-1", vec![write("a", 0, 7, 0), write("x", 8, 7, 8), write("y", 9, 7, 9)]);
    story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
    story.commit("worker-1", 1, source(), 1, 2);
    let blocks: Vec<_> = story.check().iter().map(|violation| block(&story.events, violation)).collect();
    insta::assert_snapshot!(blocks.join("\n"));
}

#[test]
fn a_trace_is_one_aligned_line_an_event() {
    let mut story = whole::run();
    story.lost("worker-2", 3, source(), 1);
    story.revoking("indexer-1", 2, dest(), 1);
    story.release("indexer-1", 2, 1);
    story.event("worker-2", ticket(4, 0xfeed, 1), LifecycleKind::Dropped);
    let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Throttled]);
    story.tell("indexer-1", What::BulkResolved { call, outcome: Ack::Unknown("NO_ANSWER".into()) });
    story.tell("broker-1", What::LogStartMoved { partition: source(), start: 3 });
    let (kind, target) = ("crash".into(), "worker-2".into());
    story.tell("world", What::FaultInjected { kind, target, in_flight: 4 });
    story.tell("world", What::Healed);
    story.tell("worker-2", What::Stopped);
    story.events.last_mut().unwrap().incarnation = 1;
    let events: Vec<_> = story.events.iter().enumerate().collect();
    insta::assert_snapshot!(trace(&events));
}
