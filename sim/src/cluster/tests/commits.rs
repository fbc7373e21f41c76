//! Committed offsets: reference/kafka-observed.md, "Commits", and their expiry.

use super::super::audit::OffsetRemoval;
use super::*;

/// A stable group of `c-1`, who owns t-0, and `c-2`, who owns t-1.
fn stable() -> Bench {
    let mut bench = Bench::new();
    bench.ask(join(""));
    bench.ask(join(""));
    bench.send(join("c-1"));
    bench.send(join("c-2"));
    bench.pass(Duration::from_secs(6));
    bench.send(sync("c-2", 1, &[]));
    assert_eq!(bench.ask(sync("c-1", 1, &[("c-1", 0), ("c-2", 1)])), "SyncGroup [t-0]");
    bench
}

#[test]
fn a_late_commit_of_a_non_owner_succeeds_and_moves_the_offset_back() {
    let mut bench = stable();
    assert_eq!(bench.ask(commit("c-1", 1, 40)), "OffsetCommit [t-0 NONE]");
    assert_eq!(bench.ask(commit("c-2", 1, 7)), "OffsetCommit [t-0 NONE]");
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=7, t-1=-1]");
    let last = bench.audits().pop();
    assert!(
        matches!(
            &last,
            Some(Audit::OffsetCommitted { offset: 7, previous: 40, member, generation: 1, .. }) if &**member == "c-2"
        ),
        "{last:?}"
    );
}

#[test]
fn a_commit_past_the_end_of_the_log_succeeds() {
    let mut bench = stable();
    assert_eq!(bench.ask(commit("c-1", 1, 1_000_000)), "OffsetCommit [t-0 NONE]");
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=1000000, t-1=-1]");
}

#[test]
fn unknown_partitions_are_refused_one_by_one_and_first() {
    let mut bench = stable();
    assert_eq!(bench.ask(commit_to("c-1", 1, 9, 1, None)), "OffsetCommit [t-9 UNKNOWN_TOPIC_OR_PARTITION]");
    let mut mixed = commit("x", 1, 5);
    if let Request::OffsetCommit(commit) = &mut mixed {
        commit.partitions.push(CommitPartition { partition: tp(9), offset: 1, metadata: None });
    }
    assert_eq!(bench.ask(mixed), "OffsetCommit [t-0 UNKNOWN_MEMBER_ID, t-9 UNKNOWN_TOPIC_OR_PARTITION]");
    let mut fresh = Bench::new();
    assert_eq!(fresh.ask(commit_to("", -1, 9, 1, None)), "OffsetCommit [t-9 UNKNOWN_TOPIC_OR_PARTITION]");
    assert_eq!(fresh.state(), "none", "the coordinator never saw it");
}

#[test]
fn a_client_that_never_subscribed_commits_only_on_an_empty_group() {
    let mut bench = stable();
    assert_eq!(bench.ask(commit("", -1, 5)), "OffsetCommit [t-0 UNKNOWN_MEMBER_ID]");
    bench.ask(leave("c-1"));
    bench.ask(leave("c-2"));
    assert_eq!(bench.ask(commit("", -1, 5)), "OffsetCommit [t-0 NONE]");
}

#[test]
fn metadata_comes_back_up_to_its_limit_and_a_commit_without_clears_it() {
    let mut bench = stable();
    let mut metadata = |text: Option<&str>| {
        let answer = bench.ask(commit_to("c-1", 1, 0, 5, text));
        match bench.response(committed()) {
            Response::OffsetFetch { partitions, .. } => (answer, partitions[0].metadata.to_string()),
            other => panic!("{other}"),
        }
    };
    let (longest, too_long) = ("m".repeat(4_096), "m".repeat(4_097));
    let ok = || "OffsetCommit [t-0 NONE]".to_owned();
    assert_eq!(metadata(Some(&longest)), (ok(), longest.clone()));
    assert_eq!(metadata(Some(&too_long)), ("OffsetCommit [t-0 OFFSET_METADATA_TOO_LARGE]".into(), longest.clone()));
    assert_eq!(metadata(None), (ok(), String::new()));
}

#[test]
fn nothing_committed_is_minus_one_without_an_error() {
    assert_eq!(Bench::new().ask(committed()), "OffsetFetch [t-0=-1, t-1=-1]");
}

#[test]
fn offsets_expire_seven_days_after_their_group_became_empty() {
    let day = Duration::from_secs(24 * 3_600);
    let mut bench = stable();
    bench.ask(commit("c-1", 1, 5));
    for _ in 0..(8 * 24 * 3_600 / 9) {
        bench.ask(heartbeat("c-1", 1));
        bench.ask(heartbeat("c-2", 1));
        bench.pass(Duration::from_secs(9));
    }
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=5, t-1=-1]", "a group that reads the topic keeps them");
    bench.ask(leave("c-1"));
    bench.ask(leave("c-2"));
    bench.pass(7 * day - Duration::from_secs(1));
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=5, t-1=-1]");
    bench.pass(Duration::from_secs(601));
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=-1, t-1=-1]");
    assert_eq!(bench.state(), "none", "an empty group that keeps nothing is gone");
    assert!(
        bench.audits().iter().any(|audit| matches!(audit, Audit::OffsetRemoved { why: OffsetRemoval::Expired, .. }))
    );
}

#[test]
fn offsets_of_a_group_that_never_had_members_expire_by_their_commit() {
    let mut bench = Bench::with(ClusterConfig { offsets_retention: Duration::from_secs(1_000), ..Default::default() });
    bench.ask(commit("", -1, 5));
    bench.pass(Duration::from_secs(900));
    bench.ask(commit_to("", -1, 1, 6, None));
    bench.pass(Duration::from_secs(400));
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=-1, t-1=6]");
}

#[test]
fn a_stable_group_loses_only_offsets_of_topics_it_does_not_read() {
    let mut bench = Bench::with(ClusterConfig { offsets_retention: Duration::from_secs(100), ..Default::default() });
    let topic = CreateTopic { name: "u".into(), partitions: 1, replication: 1 };
    bench.ask(Request::CreateTopics { topics: vec![topic] });
    bench.ask(join(""));
    bench.send(join("c-1"));
    bench.pass(Duration::from_secs(3));
    bench.ask(sync("c-1", 1, &[]));
    let mut both = commit("c-1", 1, 5);
    if let Request::OffsetCommit(commit) = &mut both {
        let partition = TopicPartition::new("u", 0);
        commit.partitions.push(CommitPartition { partition, offset: 6, metadata: None });
    }
    bench.ask(both);
    for _ in 0..80 {
        bench.ask(heartbeat("c-1", 1));
        bench.pass(Duration::from_secs(9));
    }
    let partitions = vec![tp(0), TopicPartition::new("u", 0)];
    assert_eq!(bench.ask(Request::OffsetFetch { group: "g".into(), partitions }), "OffsetFetch [t-0=5, u-0=-1]");
}

#[test]
fn deleting_a_topic_removes_its_offsets() {
    let mut bench = stable();
    bench.ask(commit("c-1", 1, 5));
    assert_eq!(bench.ask(Request::DeleteTopics { topics: vec!["t".into()] }), "DeleteTopics [t NONE]");
    assert_eq!(bench.ask(committed()), "OffsetFetch [t-0=-1, t-1=-1]");
    assert_eq!(bench.ask(commit("c-1", 1, 5)), "OffsetCommit [t-0 UNKNOWN_TOPIC_OR_PARTITION]");
}
