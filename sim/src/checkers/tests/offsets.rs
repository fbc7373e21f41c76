//! Histories whose commits are ahead, go back or are not the owner's, and near-misses.

use super::*;

/// A worker that was given two records and has handed the first on.
fn worker() -> Story {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.assigned("worker-1", 1, source(), 1, None);
    story.publish(0, "a");
    story.publish(1, "b");
    story.polled("worker-1", 1, source(), 1, &[(0, "a", ticket(0, 0, 0)), (1, "b", ticket(1, 0, 0))]);
    let call = story.produce("worker-1", 0, 7, "a");
    story.produced("worker-1", call, 0);
    story
}

fn appended(story: &Story, topic: &str, offset: i64) -> At {
    let mut call = 0;
    for (at, event) in story.events.iter().enumerate() {
        match &event.what {
            What::ProduceInvoked { call: invoked, records, .. } if &*records[0].topic == topic => call = *invoked,
            What::ProduceResolved { call: resolved, outcomes }
                if *resolved == call && outcomes == &[Ack::Ok((0, offset))] =>
            {
                return at;
            }
            _ => {}
        }
    }
    panic!("{topic}@{offset} was never appended")
}

#[test]
fn a_commit_past_a_record_that_is_never_finished_is_found() {
    let mut story = worker();
    let commit = story.commit("worker-1", 1, source(), 1, 2);
    let found = story.check();
    assert!(found.iter().any(|one| one.property == "sink-lost-write"), "the record is lost, too");
    let ahead: Vec<Violation> = found.into_iter().filter(|one| one.property == "commit-ahead").collect();
    super::found(&ahead, "commit-ahead", &[appended(&story, "p_source", 1), commit]);
    assert_eq!((ahead[0].partition.clone(), &ahead[0].ids[..]), (Some(source()), &["b".into()][..]));
}

#[test]
fn a_commit_before_the_acknowledgement_that_finishes_a_record_is_found() {
    let mut story = worker();
    let call = story.produce("worker-1", 1, 7, "b");
    let commit = story.offset_committed("worker-1", source(), 2);
    let acked = story.produced("worker-1", call, 1);
    story.finds("commit-ahead", &[appended(&story, "p_source", 1), commit, acked]);
}

#[test]
fn a_commit_up_to_the_lowest_unfinished_record_is_clean() {
    let mut story = worker();
    story.commit("worker-1", 1, source(), 1, 1);
    let call = story.produce("worker-1", 1, 7, "b");
    story.produced("worker-1", call, 1);
    story.commit("worker-1", 1, source(), 1, 2);
    story.clean();
}

#[test]
fn a_family_is_finished_by_its_last_output_and_its_create_event() {
    let mut story = worker();
    let child = story.produce_output("worker-1", ticket(1, 7, 0), false, "child");
    story.produced("worker-1", child, 1);
    let parent = story.produce_output("worker-1", ticket(1, 7, 1), true, "b");
    story.produced("worker-1", parent, 2);
    let lifecycle =
        vec![Lifecycle { ticket: ticket(1, 7, 0), kind: LifecycleKind::Created, is_parent: false, digest: 0 }];
    let (topic, key, stamp) = ("p_event_abcd".into(), None, None);
    let record = Produced { topic, partition: Some(0), key, stamp, size: 10, lifecycle };
    let call = story.produce_invoked("worker-1", vec![record]);
    let commit = story.commit("worker-1", 1, source(), 1, 2);
    let acked = story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
    story.finds("commit-ahead", &[appended(&story, "p_source", 1), commit, acked]);
    assert_eq!(story.check_with(|options| options.judge_events = false), []);
}

#[test]
fn a_record_that_was_dropped_is_finished_by_its_event() {
    let mut story = worker();
    story.event("worker-1", ticket(1, 7, 0), LifecycleKind::Dropped);
    story.commit("worker-1", 1, source(), 1, 2);
    story.clean();
}

/// An indexer that was given the two records of the worker.
fn indexer() -> (Story, At) {
    let mut story = worker();
    let call = story.produce("worker-1", 1, 7, "b");
    story.produced("worker-1", call, 1);
    story.join("indexer-1", 2, "p_indexers");
    story.assigned("indexer-1", 2, dest(), 1, None);
    story.polled("indexer-1", 2, dest(), 1, &[(0, "a", ticket(0, 7, 0)), (1, "b", ticket(1, 7, 0))]);
    let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0), write("b", 1, 7, 1)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied, WriteOutcome::Throttled]);
    story.event("indexer-1", ticket(0, 7, 0), LifecycleKind::Indexed);
    let first = appended(&story, "p_dest", 1);
    (story, first)
}

#[test]
fn an_indexer_that_commits_past_an_unknown_outcome_is_found() {
    let (mut story, appended) = indexer();
    let event = story.event("indexer-1", ticket(1, 7, 0), LifecycleKind::Indexed);
    let commit = story.commit("indexer-1", 2, dest(), 1, 2);
    let call = story.bulk("indexer-1", vec![write("b", 1, 7, 1)]);
    let answered = story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    assert!(event < answered);
    story.finds("commit-ahead", &[appended, commit, answered]);
}

#[test]
fn an_indexer_that_commits_before_its_event_is_acknowledged_is_found() {
    let (mut story, appended) = indexer();
    let call = story.bulk("indexer-1", vec![write("b", 1, 7, 1)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    let commit = story.commit("indexer-1", 2, dest(), 1, 2);
    let event = story.event("indexer-1", ticket(1, 7, 0), LifecycleKind::Indexed);
    story.finds("commit-ahead", &[appended, commit, event]);
}

#[test]
fn an_indexer_that_commits_after_outcome_and_event_is_clean() {
    let (mut story, _) = indexer();
    story.commit("indexer-1", 2, dest(), 1, 1);
    let call = story.bulk("indexer-1", vec![write("b", 1, 7, 1)]);
    story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
    story.event("indexer-1", ticket(1, 7, 0), LifecycleKind::Indexed);
    story.commit("indexer-1", 2, dest(), 1, 2);
    story.clean();
}

#[test]
fn a_committed_offset_that_goes_back_is_found() {
    let mut story = worker();
    let before = story.commit("worker-1", 1, source(), 1, 1);
    let back = story.commit("worker-1", 1, source(), 1, 0);
    story.finds("commit-regression", &[before, back]);
}

#[test]
fn a_commit_that_was_never_answered_may_be_applied_after_a_later_one() {
    let told = |outcome: Ack<()>| {
        let mut story = worker();
        let call = story.produce("worker-1", 1, 7, "b");
        story.produced("worker-1", call, 1);
        let first = story.call();
        let commits = vec![CommittedOffset { partition: source(), epoch: Epoch(1), offset: 1, metadata: "".into() }];
        story.tell("worker-1", What::CommitInvoked { call: first, consumer: 1, commits });
        story.tell("worker-1", What::CommitResolved { call: first, outcomes: vec![outcome] });
        let second = story.commit("worker-1", 1, source(), 1, 2);
        let late = story.offset_committed("worker-1", source(), 1);
        (story, second, late)
    };
    let unknown = || Ack::Unknown("NETWORK_EXCEPTION".into());
    told(unknown()).0.clean();
    let (answered, second, late) = told(Ack::Ok(()));
    answered.finds("commit-regression", &[second, late]);
    // Asked for once more, it is the client's doing.
    let (mut again, ..) = told(unknown());
    again.commit("worker-1", 1, source(), 1, 2);
    again.clean();
    let before = again.events.len() - 2;
    let back = again.commit("worker-1", 1, source(), 1, 1);
    again.finds("commit-regression", &[before, back]);
}

#[test]
fn the_same_offset_again_and_a_fresh_start_after_expiry_are_clean() {
    let mut story = worker();
    story.commit("worker-1", 1, source(), 1, 1);
    story.commit("worker-1", 1, source(), 1, 1);
    story.tell("broker-1", What::OffsetsExpired { group: "p_workers".into(), partition: source() });
    story.commit("worker-1", 1, source(), 1, 0);
    story.clean();
}

#[test]
fn a_commit_of_a_member_whose_partition_was_given_to_another_is_found() {
    let mut story = worker();
    story.gives("p_workers", "worker-1", source());
    story.commit("worker-1", 1, source(), 1, 1);
    let given = story.gives("p_workers", "worker-2", source());
    let zombie = story.offset_committed("worker-1", source(), 1);
    story.finds("commit-unowned", &[given, zombie]);
}

#[test]
fn a_commit_of_the_new_owner_is_clean() {
    let mut story = worker();
    story.gives("p_workers", "worker-1", source());
    story.commit("worker-1", 1, source(), 1, 1);
    story.gives("p_workers", "worker-2", source());
    story.offset_committed("worker-2", source(), 1);
    story.clean();
}

#[test]
fn without_the_coordinator_a_commit_under_anothers_epoch_is_found() {
    let mut story = worker();
    story.join("worker-2", 2, "p_workers");
    let taken = story.assigned("worker-2", 2, source(), 1, None);
    let invoked = taken + 1;
    story.commit("worker-1", 1, source(), 1, 1);
    // A frozen process may hear of what it was once to have: until a commit of the second is taken, nobody knows.
    story.clean();
    story.commit("worker-2", 2, source(), 1, 1);
    story.finds("commit-unowned", &[taken, invoked]);
}

#[test]
fn without_the_coordinator_what_clients_were_told_is_judged() {
    let mut story = worker();
    story.commit("worker-1", 1, source(), 1, 1);
    story.commit("worker-1", 1, source(), 1, 0);
    story.events.retain(|event| !matches!(event.what, What::OffsetsCommitted { .. }));
    let found = story.check();
    assert_eq!(found.iter().map(|one| one.property).collect::<Vec<_>>(), ["commit-regression"]);
}

/// What a real cluster leaves in a history: nothing of its own.
fn by_clients(story: &mut Story) {
    story.events.retain(|event| !matches!(event.what, What::OffsetsCommitted { .. }));
}

fn properties(story: &Story) -> Vec<&'static str> {
    story.check_with(|options| options.settled = true).iter().map(|one| one.property).collect()
}

/// A history whose two records are through, and the last commit of which is asked for and never answered.
fn killed_while_committing() -> Story {
    let mut story = worker();
    let call = story.produce("worker-1", 1, 7, "b");
    story.produced("worker-1", call, 1);
    for (sequence, id) in [(0, "a"), (1, "b")] {
        let call = story.bulk("indexer-1", vec![write(id, sequence, 7, sequence as i64)]);
        story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
        story.event("indexer-1", ticket(sequence, 7, 0), LifecycleKind::Indexed);
    }
    story.complete(RunSummary { published: 2, indexed: 2, ..RunSummary::default() });
    story.commit("worker-1", 1, source(), 1, 1);
    story.commit("worker-1", 1, source(), 1, 2);
    by_clients(&mut story);
    assert!(matches!(story.events.pop().map(|event| event.what), Some(What::CommitResolved { .. })));
    story
}

#[test]
fn a_commit_that_was_never_answered_counts_when_a_later_owner_reads_it() {
    let mut story = killed_while_committing();
    assert_eq!(properties(&story), ["lag-left"], "nobody knows that it was applied");
    story.join("worker-2", 2, "p_workers");
    story.assigned("worker-2", 2, source(), 1, Some(2));
    assert_eq!(properties(&story), [] as [&str; 0]);
    // Another one's reading says nothing of it.
    let mut story = killed_while_committing();
    story.join("worker-2", 2, "p_workers");
    story.assigned("worker-2", 2, source(), 1, Some(1));
    assert_eq!(properties(&story), ["lag-left"]);
}

#[test]
fn an_answer_that_a_frozen_process_reads_late_is_no_regression() {
    let mut story = worker();
    let call = story.produce("worker-1", 1, 7, "b");
    story.produced("worker-1", call, 1);
    story.commit("worker-1", 1, source(), 1, 1);
    let late = story.events.pop().expect("its answer");
    story.join("worker-2", 2, "p_workers");
    story.assigned("worker-2", 2, source(), 1, Some(1));
    story.commit("worker-2", 2, source(), 1, 2);
    story.events.push(late);
    by_clients(&mut story);
    story.clean();
    // Asked for after its successor's, it is one, and another's too.
    story.commit("worker-1", 1, source(), 1, 1);
    by_clients(&mut story);
    assert_eq!(properties(&story), ["commit-regression", "commit-unowned"]);
}

#[test]
fn a_commit_that_is_asked_for_too_early_is_ahead_although_its_answer_comes_late() {
    let mut story = worker();
    let call = story.produce("worker-1", 1, 7, "b");
    story.commit("worker-1", 1, source(), 1, 2);
    let answer = story.events.pop().expect("its answer");
    story.produced("worker-1", call, 1);
    story.events.push(answer);
    by_clients(&mut story);
    assert_eq!(properties(&story), ["commit-ahead"]);
}
