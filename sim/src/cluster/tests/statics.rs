//! Static members.

use super::*;

fn static_join(member: &str) -> Request {
    Request::JoinGroup(JoinGroup { instance_id: Some("i".into()), ..join_with(member, &["range"]) })
}

fn static_heartbeat(member: &str) -> Request {
    let instance_id = Some("i".into());
    Request::Heartbeat { group: "g".into(), generation: 1, member_id: member.into(), instance_id }
}

/// A stable group of the static member `i-1` alone.
fn stable() -> Bench {
    let mut bench = Bench::new();
    let id = bench.send(static_join(""));
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.answer(id), "JoinGroup i-1 g1 leader=\"i-1\" [i-1]");
    assert_eq!(bench.ask(sync("i-1", 1, &[("i-1", 0)])), "SyncGroup [t-0]");
    bench
}

#[test]
fn a_static_member_that_comes_back_takes_its_place_without_a_rebalance() {
    let mut bench = stable();
    assert_eq!(bench.ask(static_join("")), "JoinGroup i-2 g1 leader=\"i-1\" []");
    assert_eq!(bench.state(), "Stable g1");
    assert_eq!(bench.ask(sync("i-2", 1, &[])), "SyncGroup [t-0]");
    assert_eq!(bench.ask(static_heartbeat("i-2")), "Heartbeat NONE");
}

#[test]
fn a_successor_is_told_of_as_owner_when_it_asks_for_its_assignment() {
    let mut bench = stable();
    bench.audits();
    let assigned = |bench: &mut Bench| -> Vec<String> {
        let audits = bench.audits().into_iter().filter(|audit| matches!(audit, Audit::Assigned { .. }));
        audits.map(|audit| format!("{audit:?}")).collect()
    };
    bench.ask(static_join(""));
    assert_eq!(assigned(&mut bench), [""; 0]);
    for told in [1, 0] {
        bench.ask(sync("i-2", 1, &[]));
        let told_now = assigned(&mut bench);
        assert_eq!(told_now.len(), told, "once: {told_now:?}");
        assert!(told_now.iter().all(|audit| audit.contains("i-2") && audit.contains("t-0")));
    }
}

#[test]
fn the_old_holder_of_an_instance_id_is_fenced() {
    let mut bench = stable();
    bench.ask(static_join(""));
    assert_eq!(bench.ask(static_heartbeat("i-1")), "Heartbeat FENCED_INSTANCE_ID");
    let mut late = commit("i-1", 1, 5);
    if let Request::OffsetCommit(commit) = &mut late {
        commit.instance_id = Some("i".into());
    }
    assert_eq!(bench.ask(late), "OffsetCommit [t-0 FENCED_INSTANCE_ID]");
    let mut unmapped = commit("i-2", 1, 5);
    if let Request::OffsetCommit(commit) = &mut unmapped {
        commit.instance_id = Some("j".into());
    }
    assert_eq!(bench.ask(unmapped), "OffsetCommit [t-0 UNKNOWN_MEMBER_ID]");
}

#[test]
fn the_session_of_a_successor_runs_by_itself() {
    let mut bench = stable();
    bench.pass(Duration::from_secs(9));
    bench.ask(static_join(""));
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.state(), "Stable g1", "the old session's end does not matter");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.state(), "Empty g2");
}

#[test]
fn a_static_member_that_comes_back_while_completing_rebalances() {
    let mut bench = Bench::new();
    bench.send(static_join(""));
    bench.pass(Duration::from_secs(3));
    assert_eq!(bench.state(), "CompletingRebalance g1");
    assert_eq!(bench.ask(static_join("")), "JoinGroup i-2 g2 leader=\"i-2\" [i-2]");
}

#[test]
fn a_rebalance_without_its_static_member_keeps_it_until_its_session_ends() {
    let mut bench = stable();
    bench.ask(join(""));
    let newcomer = bench.send(join("c-2"));
    for _ in 0..15 {
        bench.ask(static_heartbeat("i-1"));
        bench.pass(Duration::from_millis(3_999));
    }
    assert_eq!(bench.answer(newcomer), "JoinGroup c-2 g2 leader=\"c-2\" [i-1, c-2]");
    let rejoin = Request::JoinGroup(JoinGroup { instance_id: Some("i".into()), ..join_with("i-1", &["range", "x"]) });
    bench.send(rejoin);
    assert_eq!(bench.ask(join("c-2")), "JoinGroup c-2 g3 leader=\"c-2\" [i-1, c-2]", "it was absent once");
}
