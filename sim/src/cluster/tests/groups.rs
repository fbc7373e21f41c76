//! The classic group table of reference/kafka.md, and how rebalances go.

use super::*;

/// A group of `c-1`, who leads, and `c-2`, brought into `state`. Empty is g2, Completing g2, the others g1.
fn group_in(state: &str) -> Bench {
    let mut bench = Bench::new();
    let stages = ["New", "Stable", "PreparingRebalance", "CompletingRebalance", "Empty"];
    let wanted = stages.iter().position(|stage| *stage == state).expect("a stage");
    if wanted == 0 {
        return bench;
    }
    for id in ["c-1", "c-2"] {
        assert_eq!(bench.ask(join("")), format!("JoinGroup {id} g-1 leader=\"\" [] MEMBER_ID_REQUIRED"));
    }
    let joins = [bench.send(join("c-1")), bench.send(join("c-2"))];
    bench.pass(Duration::from_secs(6));
    assert_eq!(
        joins.map(|id| bench.answer(id)),
        ["JoinGroup c-1 g1 leader=\"c-1\" [c-1, c-2]", "JoinGroup c-2 g1 leader=\"c-1\" []"]
    );
    let follower = bench.send(sync("c-2", 1, &[]));
    assert_eq!(bench.answer(follower), "parked");
    assert_eq!(bench.ask(sync("c-1", 1, &[("c-1", 0), ("c-2", 1)])), "SyncGroup [t-0]");
    assert_eq!(bench.answer(follower), "SyncGroup [t-1]");
    if state == "Empty" {
        bench.ask(leave("c-1"));
        bench.ask(leave("c-2"));
    } else if wanted > 1 {
        bench.send(join("c-1"));
        if state == "CompletingRebalance" {
            bench.send(join("c-2"));
        }
    }
    bench
}

fn check(state: &str, request: Request, expect: &str) {
    let mut bench = group_in(state);
    let what = request.to_string();
    assert_eq!(bench.ask(request), expect, "{what} in {state}");
}

#[test]
fn each_state_is_reached() {
    for (state, expect) in [
        ("New", "none"),
        ("Stable", "Stable g1"),
        ("PreparingRebalance", "PreparingRebalance g1"),
        ("CompletingRebalance", "CompletingRebalance g2"),
        ("Empty", "Empty g2"),
    ] {
        assert_eq!(group_in(state).state(), expect);
    }
}

#[test]
fn joins_by_state() {
    check("New", join("x"), "JoinGroup x g-1 leader=\"\" [] UNKNOWN_MEMBER_ID");
    check("Empty", join("c-1"), "JoinGroup c-1 g-1 leader=\"\" [] UNKNOWN_MEMBER_ID");
    check("Empty", join(""), "JoinGroup c-3 g-1 leader=\"\" [] MEMBER_ID_REQUIRED");
    check("PreparingRebalance", join("c-1"), "parked");
    check("PreparingRebalance", join("c-2"), "JoinGroup c-2 g2 leader=\"c-1\" []");
    check("PreparingRebalance", join("x"), "JoinGroup x g-1 leader=\"\" [] UNKNOWN_MEMBER_ID");
    check("CompletingRebalance", join("c-1"), "JoinGroup c-1 g2 leader=\"c-1\" [c-1, c-2]");
    check("CompletingRebalance", join("c-2"), "JoinGroup c-2 g2 leader=\"c-1\" []");
    check("CompletingRebalance", Request::JoinGroup(join_with("c-2", &["range", "x"])), "parked");
    check("Stable", join("c-1"), "parked");
    check("Stable", join("c-2"), "JoinGroup c-2 g1 leader=\"c-1\" []");
    check("Stable", Request::JoinGroup(join_with("c-2", &["range", "x"])), "parked");
    let disjoint = Request::JoinGroup(join_with("", &["roundrobin"]));
    check("Stable", disjoint, "JoinGroup  g-1 leader=\"\" [] INCONSISTENT_GROUP_PROTOCOL");
    let hasty = JoinGroup { session_timeout: Duration::from_millis(5999), ..join_with("", &["range"]) };
    check("New", Request::JoinGroup(hasty), "JoinGroup  g-1 leader=\"\" [] INVALID_SESSION_TIMEOUT");
}

#[test]
fn a_join_without_change_leaves_the_state_and_one_with_a_change_rebalances() {
    for (state, request, after) in [
        ("Stable", join("c-2"), "Stable g1"),
        ("Stable", join("c-1"), "PreparingRebalance g1"),
        ("CompletingRebalance", join("c-1"), "CompletingRebalance g2"),
        ("CompletingRebalance", Request::JoinGroup(join_with("c-2", &["range", "x"])), "PreparingRebalance g2"),
    ] {
        let mut bench = group_in(state);
        bench.send(request);
        assert_eq!(bench.state(), after);
    }
}

#[test]
fn syncs_by_state() {
    check("New", sync("c-1", 1, &[]), "SyncGroup [] UNKNOWN_MEMBER_ID");
    check("Empty", sync("c-1", 2, &[]), "SyncGroup [] UNKNOWN_MEMBER_ID");
    check("PreparingRebalance", sync("c-2", 1, &[]), "SyncGroup [] REBALANCE_IN_PROGRESS");
    check("CompletingRebalance", sync("c-2", 2, &[]), "parked");
    check("CompletingRebalance", sync("c-2", 1, &[]), "SyncGroup [] ILLEGAL_GENERATION");
    check("CompletingRebalance", sync("c-1", 2, &[("c-1", 1)]), "SyncGroup [t-1]");
    check("Stable", sync("c-2", 1, &[]), "SyncGroup [t-1]");
    check("Stable", sync("x", 1, &[]), "SyncGroup [] UNKNOWN_MEMBER_ID");
}

#[test]
fn heartbeats_by_state() {
    check("New", heartbeat("c-1", 1), "Heartbeat UNKNOWN_MEMBER_ID");
    check("Empty", heartbeat("c-1", 2), "Heartbeat UNKNOWN_MEMBER_ID");
    check("PreparingRebalance", heartbeat("c-2", 1), "Heartbeat REBALANCE_IN_PROGRESS");
    check("CompletingRebalance", heartbeat("c-2", 2), "Heartbeat NONE");
    check("CompletingRebalance", heartbeat("c-2", 1), "Heartbeat ILLEGAL_GENERATION");
    check("Stable", heartbeat("c-2", 1), "Heartbeat NONE");
    check("Stable", heartbeat("c-2", 2), "Heartbeat ILLEGAL_GENERATION");
    // The member is asked for before the generation.
    check("Stable", heartbeat("x", 7), "Heartbeat UNKNOWN_MEMBER_ID");
}

#[test]
fn leaves_by_state() {
    check("New", leave("c-1"), "LeaveGroup UNKNOWN_MEMBER_ID");
    check("Empty", leave("c-1"), "LeaveGroup UNKNOWN_MEMBER_ID");
    for (state, after) in [
        ("Stable", "PreparingRebalance g1"),
        ("PreparingRebalance", "CompletingRebalance g2"),
        ("CompletingRebalance", "PreparingRebalance g2"),
    ] {
        let mut bench = group_in(state);
        assert_eq!(bench.ask(leave("c-2")), "LeaveGroup NONE");
        assert_eq!(bench.state(), after, "leaving in {state}");
    }
}

#[test]
fn commits_by_state() {
    let refused = |error: &str| format!("OffsetCommit [t-0 {error}]");
    check("New", commit("c-1", 1, 5), &refused("GROUP_ID_NOT_FOUND"));
    check("New", commit("", -1, 5), &refused("NONE"));
    check("Empty", commit("c-1", 2, 5), &refused("UNKNOWN_MEMBER_ID"));
    check("Empty", commit("", -1, 5), &refused("NONE"));
    check("PreparingRebalance", commit("c-2", 1, 5), &refused("NONE"));
    check("PreparingRebalance", commit("c-2", 2, 5), &refused("ILLEGAL_GENERATION"));
    check("CompletingRebalance", commit("c-2", 1, 5), &refused("ILLEGAL_GENERATION"));
    check("CompletingRebalance", commit("c-2", 2, 5), &refused("REBALANCE_IN_PROGRESS"));
    check("CompletingRebalance", commit("", -1, 5), &refused("UNKNOWN_MEMBER_ID"));
    check("Stable", commit("c-2", 1, 5), &refused("NONE"));
    check("Stable", commit("c-2", 0, 5), &refused("ILLEGAL_GENERATION"));
    check("Stable", commit("c-2", 2, 5), &refused("ILLEGAL_GENERATION"));
    check("Stable", commit("x", 1, 5), &refused("UNKNOWN_MEMBER_ID"));
    check("Stable", commit("", -1, 5), &refused("UNKNOWN_MEMBER_ID"));
}

#[test]
fn an_empty_group_waits_and_waits_again_while_members_come() {
    let first = |bench: &mut Bench| {
        bench.ask(join(""));
        bench.send(join("c-1"))
    };
    let mut alone = Bench::new();
    let id = first(&mut alone);
    alone.pass(Duration::from_secs(600));
    assert_eq!(alone.answered_at(id), Some(Duration::from_millis(3_003)));

    let mut joined = Bench::new();
    let id = first(&mut joined);
    joined.ask(join(""));
    joined.send(join("c-2"));
    joined.pass(Duration::from_secs(600));
    assert_eq!(joined.answered_at(id), Some(Duration::from_millis(6_003)));
}

#[test]
fn the_initial_delay_is_extended_no_further_than_the_rebalance_timeout() {
    let short = |member: &str| {
        Request::JoinGroup(JoinGroup { rebalance_timeout: Duration::from_secs(8), ..join_with(member, &["range"]) })
    };
    let mut bench = Bench::new();
    bench.ask(short(""));
    let id = bench.send(short("c-1"));
    for number in 2..20 {
        bench.ask(short(""));
        bench.send(short(&format!("c-{number}")));
        bench.pass(Duration::from_millis(998));
    }
    assert_eq!(bench.answered_at(id), Some(Duration::from_millis(8_003)));
}

#[test]
fn who_does_not_rejoin_is_removed_at_the_rebalance_timeout() {
    let mut bench = group_in("Stable");
    let leader = bench.send(join("c-1"));
    for _ in 0..14 {
        assert_eq!(bench.ask(heartbeat("c-2", 1)), "Heartbeat REBALANCE_IN_PROGRESS");
        bench.pass(Duration::from_secs(4));
    }
    assert_eq!(bench.answer(leader), "parked");
    bench.pass(Duration::from_secs(4));
    assert_eq!(bench.answer(leader), "JoinGroup c-1 g2 leader=\"c-1\" [c-1]");
    assert_eq!(bench.ask(heartbeat("c-2", 1)), "Heartbeat UNKNOWN_MEMBER_ID");
}

#[test]
fn who_does_not_sync_is_removed_at_the_rebalance_timeout() {
    let mut bench = group_in("CompletingRebalance");
    let follower = bench.send(sync("c-2", 2, &[]));
    for _ in 0..15 {
        assert_eq!(bench.ask(heartbeat("c-1", 2)), "Heartbeat NONE");
        bench.pass(Duration::from_millis(3_999));
    }
    assert_eq!(bench.answer(follower), "SyncGroup [] REBALANCE_IN_PROGRESS");
    assert_eq!(bench.ask(heartbeat("c-1", 2)), "Heartbeat UNKNOWN_MEMBER_ID");
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g3 leader=\"c-2\" [c-2]");
}

#[test]
fn a_silent_member_expires_after_its_session_and_not_before() {
    let mut bench = group_in("Stable");
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.ask(heartbeat("c-1", 1)), "Heartbeat NONE");
    assert_eq!(bench.state(), "Stable g1");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.state(), "PreparingRebalance g1");
    assert_eq!(bench.ask(commit("c-2", 1, 5)), "OffsetCommit [t-0 UNKNOWN_MEMBER_ID]");
}

#[test]
fn a_commit_keeps_a_session_alive() {
    let mut bench = group_in("Stable");
    for _ in 0..5 {
        bench.pass(Duration::from_secs(8));
        bench.ask(commit("c-1", 1, 5));
        bench.ask(commit("c-2", 1, 5));
    }
    assert_eq!(bench.state(), "Stable g1");
}

#[test]
fn a_parked_member_does_not_expire() {
    let mut bench = group_in("Stable");
    let leader = bench.send(join("c-1"));
    for _ in 0..8 {
        bench.ask(heartbeat("c-2", 1));
        bench.pass(Duration::from_secs(5));
    }
    assert_eq!(bench.answer(leader), "parked");
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g2 leader=\"c-1\" []");
    assert_eq!(bench.answer(leader), "JoinGroup c-1 g2 leader=\"c-1\" [c-1, c-2]");
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.state(), "Empty g3", "both expired, since their sessions run again");
}

#[test]
fn a_session_begins_anew_when_a_parked_sync_is_answered() {
    let mut bench = group_in("CompletingRebalance");
    bench.send(sync("c-2", 2, &[]));
    bench.pass(Duration::from_secs(5));
    bench.ask(heartbeat("c-1", 2));
    bench.pass(Duration::from_secs(4));
    bench.ask(sync("c-1", 2, &[]));
    bench.pass(Duration::from_millis(9_999));
    assert_eq!(bench.state(), "Stable g2");
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.state(), "Empty g3", "both sessions began with that answer");
}

#[test]
fn a_new_member_is_dropped_when_its_first_join_takes_five_minutes() {
    let slow = |member: &str| {
        let rebalance_timeout = Duration::from_secs(1_000);
        Request::JoinGroup(JoinGroup { rebalance_timeout, ..join_with(member, &["range"]) })
    };
    let mut bench = Bench::new();
    bench.ask(slow(""));
    bench.send(slow("c-1"));
    bench.pass(Duration::from_secs(4));
    bench.ask(sync("c-1", 1, &[]));
    bench.ask(slow(""));
    let newcomer = bench.send(slow("c-2"));
    for _ in 0..75 {
        bench.ask(heartbeat("c-1", 1));
        bench.pass(Duration::from_millis(3_998));
    }
    bench.pass(Duration::from_millis(74));
    assert_eq!(bench.answer(newcomer), "parked");
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.answer(newcomer), "JoinGroup c-2 g-1 leader=\"\" [] UNKNOWN_MEMBER_ID");
}

#[test]
fn an_id_that_is_not_used_holds_a_rebalance_up_for_one_session_timeout() {
    let mut bench = group_in("Stable");
    bench.ask(join(""));
    let joins = [bench.send(join("c-1")), bench.send(join("c-2"))];
    bench.pass(Duration::from_secs(9));
    assert_eq!(joins.map(|id| bench.answer(id)), ["parked", "parked"]);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.answer(joins[1]), "JoinGroup c-2 g2 leader=\"c-1\" []");
    assert_eq!(bench.ask(join("c-3")), "JoinGroup c-3 g-1 leader=\"\" [] UNKNOWN_MEMBER_ID");
}

#[test]
fn the_leader_stays_unless_it_is_absent() {
    let mut bench = group_in("Stable");
    bench.ask(join(""));
    bench.send(join("c-3"));
    let second = bench.send(join("c-2"));
    assert_eq!(bench.ask(join("c-1")), "JoinGroup c-1 g2 leader=\"c-1\" [c-1, c-2, c-3]");
    assert_eq!(bench.answer(second), "JoinGroup c-2 g2 leader=\"c-1\" []");
    bench.ask(leave("c-1"));
    bench.send(join("c-3"));
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g3 leader=\"c-2\" [c-2, c-3]");
}

#[test]
fn the_protocol_is_voted_for_among_those_that_all_support() {
    let mut bench = Bench::new();
    let wishes: [&[&str]; 3] = [&["x", "range", "sticky"], &["sticky", "range"], &["sticky", "range", "x"]];
    let mut ids = Vec::new();
    for (number, wish) in wishes.iter().enumerate() {
        bench.ask(Request::JoinGroup(join_with("", wish)));
        ids.push(bench.send(Request::JoinGroup(join_with(&format!("c-{}", number + 1), wish))));
    }
    bench.pass(Duration::from_secs(9));
    for id in ids {
        match bench.cluster.take_response(id) {
            Some((_, Response::JoinGroup(joined))) => assert_eq!(&*joined.protocol, "sticky"),
            other => panic!("{other:?}"),
        }
    }
}

/// AK `ClassicGroup.supportsProtocols`: what a member supports counts until it says otherwise, for itself too.
#[test]
fn a_group_changes_its_protocol_when_the_last_member_supports_another() {
    let mut bench = group_in("Stable");
    let both = ["cooperative-sticky", "range"];
    let rejoin = |member: &str, names: &[&str]| Request::JoinGroup(join_with(member, names));
    let protocol = |bench: &mut Bench, id| match bench.cluster.take_response(id) {
        Some((_, Response::JoinGroup(joined))) => joined.protocol.to_string(),
        other => panic!("{other:?}"),
    };
    let expected = [
        // Both may do either from the second on, and both prefer the new one.
        (["range", "range"], "range"),
        (["both", "range"], "range"),
        (["both", "both"], "cooperative-sticky"),
        (["new", "both"], "cooperative-sticky"),
        (["new", "new"], "cooperative-sticky"),
    ];
    for (lists, chosen) in expected {
        let joins = [("c-1", lists[0]), ("c-2", lists[1])].map(|(member, list)| match list {
            "both" => bench.send(rejoin(member, &both)),
            "new" => bench.send(rejoin(member, &both[..1])),
            _ => bench.send(rejoin(member, &both[1..])),
        });
        for id in joins {
            assert_eq!(protocol(&mut bench, id), chosen, "{lists:?}");
        }
        let (_, generation) = bench.cluster.group_state("g").expect("there is a group");
        bench.ask(sync("c-1", generation, &[]));
        bench.ask(sync("c-2", generation, &[]));
    }
    let eager = rejoin("c-1", &both[1..]);
    assert_eq!(bench.ask(eager), "JoinGroup c-1 g-1 leader=\"\" [] INCONSISTENT_GROUP_PROTOCOL");
}

/// A cooperative member's claims are part of its metadata, so that its rejoin rebalances, follower or not.
#[test]
fn a_follower_that_owns_something_else_rebalances() {
    let mut bench = group_in("Stable");
    let mut join = join_with("c-2", &["range"]);
    join.protocols[0].subscription.owned = vec![tp(1)];
    bench.send(Request::JoinGroup(join.clone()));
    assert_eq!(bench.state(), "PreparingRebalance g1");
    bench.ask(Request::JoinGroup(join_with("c-1", &["range"])));
    bench.ask(sync("c-1", 2, &[("c-2", 1)]));
    assert_eq!(bench.ask(Request::JoinGroup(join.clone())), "JoinGroup c-2 g2 leader=\"c-1\" []");
    assert_eq!(bench.state(), "Stable g2");
    join.protocols[0].subscription.generation = 2;
    bench.send(Request::JoinGroup(join));
    assert_eq!(bench.state(), "PreparingRebalance g2");
}

#[test]
fn a_second_join_of_a_parked_member_replaces_the_first() {
    let mut bench = group_in("Stable");
    let outstanding = bench.cluster.outstanding();
    let first = bench.send(join("c-1"));
    let second = bench.send(join("c-1"));
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g2 leader=\"c-1\" []");
    assert_eq!(bench.answer(first), "parked");
    assert_eq!(bench.answer(second), "JoinGroup c-1 g2 leader=\"c-1\" [c-1, c-2]");
    assert_eq!(bench.cluster.outstanding(), outstanding, "nothing is kept for the first");
}

#[test]
fn a_forgotten_join_still_counts() {
    let mut bench = group_in("Stable");
    let outstanding = bench.cluster.outstanding();
    let dead = bench.send(join("c-1"));
    bench.cluster.forget(dead);
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g2 leader=\"c-1\" []");
    assert!(!bench.cluster.drain_answered().any(|id| id == dead));
    assert_eq!((bench.answer(dead), bench.cluster.outstanding()), ("parked".into(), outstanding));
}

#[test]
fn other_brokers_do_not_coordinate() {
    let mut cluster = Cluster::new(ClusterConfig { brokers: 3, ..ClusterConfig::default() });
    let coordinator = cluster.coordinator("g");
    let other = BrokerId((coordinator.0 + 1) % 3);
    let requests = [join(""), sync("c", 1, &[]), heartbeat("c", 1), leave("c"), committed()];
    for (step, request) in requests.into_iter().enumerate() {
        let at = Instant::from_micros(step as u64 + 1);
        let id = cluster.submit(at, ConnectionId(0), other, request);
        cluster.advance(at);
        let (_, response) = cluster.take_response(id).expect("refused at once");
        assert!(response.to_string().ends_with("NOT_COORDINATOR"), "{response}");
    }
}
