//! Histories whose polls skip, go back or start wrong, and near-misses.

use super::*;

fn reading() -> Story {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.assigned("worker-1", 1, source(), 1, None);
    for sequence in 0..4 {
        story.publish(sequence, "a");
    }
    story
}

fn at(offset: i64) -> (i64, &'static str, Ticket) {
    (offset, "a", ticket(offset as u64, 0, 0))
}

#[test]
fn an_offset_that_comes_again_in_one_epoch_is_found() {
    let mut story = reading();
    let before = story.polled("worker-1", 1, source(), 1, &[at(0), at(1)]);
    let again = story.polled("worker-1", 1, source(), 1, &[at(1), at(2)]);
    story.finds("nonmonotonic-poll", &[before, again]);
}

#[test]
fn an_offset_that_comes_again_in_a_new_epoch_is_redelivery() {
    let mut story = reading();
    story.polled("worker-1", 1, source(), 1, &[at(0), at(1)]);
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    story.assigned("worker-1", 1, source(), 2, None);
    story.polled("worker-1", 1, source(), 2, &[at(0), at(1)]);
    story.clean();
}

#[test]
fn a_jump_over_a_record_that_exists_is_found() {
    let mut story = reading();
    let before = story.polled("worker-1", 1, source(), 1, &[at(0)]);
    let jump = story.polled("worker-1", 1, source(), 1, &[at(2)]);
    let appended = story.events.iter().position(
        |event| matches!(&event.what, What::ProduceResolved { outcomes, .. } if outcomes == &[Ack::Ok((0, 1))]),
    );
    story.finds("poll-skip", &[appended.unwrap(), before, jump]);
}

#[test]
fn a_hole_in_the_log_is_no_skip() {
    let mut story = reading();
    story.polled("worker-1", 1, source(), 1, &[at(0), at(1), at(2), at(3)]);
    // A transaction marker lies at 4.
    story.polled("worker-1", 1, source(), 1, &[at(5)]);
    story.clean();
}

#[test]
fn what_retention_took_is_no_skip() {
    let mut story = reading();
    story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.tell("broker-1", What::LogStartMoved { partition: source(), start: 2 });
    story.polled("worker-1", 1, source(), 1, &[at(2)]);
    story.clean();
}

#[test]
fn a_record_after_its_partition_was_revoked_is_found() {
    let mut story = reading();
    let revoked = story.revoking("worker-1", 1, source(), 1);
    let polled = story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.finds("poll-unowned", &[revoked, polled]);
}

#[test]
fn a_record_under_an_epoch_that_was_never_given_is_found() {
    let mut story = reading();
    let polled = story.polled("worker-1", 1, source(), 3, &[at(0)]);
    story.finds("poll-unowned", &[polled]);
}

#[test]
fn an_epoch_that_starts_beside_its_committed_offset_is_found() {
    let mut story = reading();
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    let assigned = story.assigned_at("worker-1", 1, source(), 2, Some(2), 3);
    story.finds("epoch-start", &[assigned]);
}

#[test]
fn an_epoch_that_starts_behind_the_first_record_without_a_commit_is_found() {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.publish(0, "a");
    let appended = 2;
    let assigned = story.assigned_at("worker-1", 1, source(), 1, None, 1);
    story.finds("epoch-start", &[appended, assigned]);
}

#[test]
fn an_epoch_may_start_at_a_log_start_above_its_committed_offset() {
    let mut story = reading();
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    story.tell("broker-1", What::LogStartMoved { partition: source(), start: 3 });
    story.assigned_at("worker-1", 1, source(), 2, Some(2), 3);
    story.clean();
}

/// A second worker is assigned after the first committed 1, and read `committed`.
fn taken_over(committed: i64) -> (Story, At, At) {
    let mut story = reading();
    story.gives("p_workers", "worker-1", source());
    story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped);
    story.commit("worker-1", 1, source(), 1, 0);
    let last = story.commit("worker-1", 1, source(), 1, 1);
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    story.join("worker-2", 2, "p_workers");
    story.gives("p_workers", "worker-2", source());
    let assigned = story.assigned("worker-2", 2, source(), 1, Some(committed));
    (story, last, assigned)
}

#[test]
fn an_owner_that_read_an_old_committed_offset_is_found() {
    let (story, last, assigned) = taken_over(0);
    story.finds("epoch-start", &[last, assigned]);
}

#[test]
fn an_owner_that_read_what_the_coordinator_applied_is_clean() {
    taken_over(1).0.clean();
}

#[test]
fn what_the_coordinator_gives_after_an_owner_has_begun_says_nothing_of_what_it_read() {
    // A member gives its partition back and gets it again by an assignment that the coordinator made before. It sleeps
    // between its reading and its beginning, while another has the partition and commits; later it is given it again.
    let mut story = reading();
    story.gives("p_workers", "worker-1", source());
    story.join("worker-2", 2, "p_workers");
    story.gives("p_workers", "worker-2", source());
    story.assigned_at("worker-2", 2, source(), 1, None, 0);
    story.revoking("worker-2", 2, source(), 1);
    story.release("worker-2", 2, 1);
    story.gives("p_workers", "worker-3", source());
    story.offset_committed("worker-3", source(), 1);
    let asleep = story.assigned_at("worker-2", 2, source(), 2, None, 0);
    story.gives("p_workers", "worker-2", source());
    let found = story.check();
    assert!(found.iter().all(|one| one.property != "epoch-start" || !one.witness.contains(&asleep)), "{found:?}");
}

/// A worker hears late of what it was given, after a third member had it, committed and lost it; it read `committed`.
fn slept(committed: Option<i64>) -> (Story, At) {
    let mut story = reading();
    story.polled("worker-1", 1, source(), 1, &[at(0)]);
    story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped);
    story.commit("worker-1", 1, source(), 1, 0);
    story.revoking("worker-1", 1, source(), 1);
    story.release("worker-1", 1, 1);
    story.join("worker-2", 2, "p_workers");
    story.gives("p_workers", "worker-2", source());
    // Of the third nothing else is heard.
    story.gives("p_workers", "worker-3", source());
    story.offset_committed("worker-3", source(), 1);
    let assigned = match committed {
        Some(committed) => story.assigned("worker-2", 2, source(), 1, Some(committed)),
        None => story.assigned_at("worker-2", 2, source(), 1, None, 0),
    };
    (story, assigned)
}

#[test]
fn a_sleeper_may_have_read_what_was_committed_when_it_was_given_the_partition_and_nothing_older() {
    slept(Some(0)).0.clean();
    slept(Some(1)).0.clean();
    let (story, assigned) = slept(None);
    let found = story.check();
    let late = found.iter().find(|one| one.property == "epoch-start").expect("nothing committed is older than that");
    assert!(late.witness.contains(&assigned), "{late:?}");
}
