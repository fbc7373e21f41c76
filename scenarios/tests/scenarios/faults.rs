//! Each fault alone, and what it did to the world: a fault that only counts itself would pass every campaign.

use scenarios::drive::{Correct, Simulated};
use scenarios::fault::{Action, Fault, FaultKind, Hop, Node, Trigger, Trouble};
use scenarios::plan::{Plan, Workload};
use scenarios::run::{Outcome, RunOptions, RunReport, run_fresh};
use scenarios::scenario::find;
use scenarios::workload::Generated;

/// A calm plan of two workers and an indexer over 300 records, and half a second between its first records and the
/// others, with `action` when work is in flight.
fn plan(action: Option<Action>) -> Plan {
    let mut plan = Plan::draw(find("distributed-calm").expect("listed"), 3);
    (plan.topology.workers, plan.topology.indexers) = (2, 1);
    (plan.topology.source_partitions, plan.topology.dest_partitions) = (4, 3);
    plan.pauses = vec![scenarios::plan::PublisherPause { after_records: 150, for_micros: 20_000_000 }];
    let knobs = &mut plan.pipeline;
    (knobs.max_pending, knobs.max_in_flight, knobs.poll_max, knobs.batch_size) = (300, 128, 50, 50);
    (knobs.session_timeout_ms, knobs.heartbeat_ms, knobs.poll_limit_ms) = (6_000, 2_000, 30_000);
    knobs.clients = scenarios::plan::Clients::default();
    let Workload::Generated(generated) = &mut plan.workload else { panic!("it is generated") };
    *generated = Generated { records: 300, ids: 20, slow_permille: 0, indexes: 0, ..generated.clone() };
    let trigger = Trigger::InFlight { at_least: 1, after_micros: 0 };
    plan.faults = action.into_iter().map(|action| Fault { trigger, action }).collect();
    plan
}

fn ran(plan: &Plan) -> RunReport {
    plan.validate().expect("valid");
    let options = RunOptions { trace: true, ..RunOptions::default() };
    let report = run_fresh(&Simulated(Correct), plan, &options);
    assert_eq!(report.outcome, Outcome::Pass, "{:?}", plan.faults);
    report
}

/// The run of [`plan`] with `action`, which struck once.
fn struck(action: Action) -> RunReport {
    let report = ran(&plan(Some(action)));
    let strikes = report.faults.get(&action.kind()).copied().unwrap_or_default();
    assert!(strikes.injected >= 1 && strikes.in_flight == strikes.injected, "{action}: {strikes:?}");
    report
}

/// Lines of the trace that hold all of `words`.
fn lines<'a>(report: &'a RunReport, words: &[&str]) -> Vec<&'a str> {
    report.trace.iter().map(String::as_str).filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

/// Seconds of a line of the trace.
fn seconds(line: &str) -> f64 {
    line.split('s').next().and_then(|text| text.trim().parse().ok()).expect("a line begins with its time")
}

#[test]
fn nothing_of_it_happens_in_a_calm_run() {
    let calm = ran(&plan(None));
    assert_eq!((calm.rebalances, calm.duplicates, calm.faults.len()), (0, 0, 0));
    for words in ["lost", "reset", "cut", "PartitionsAdded", "TopicDeleted", "duplicate: true"] {
        assert_eq!(lines(&calm, &[words]), [""; 0], "{words}");
    }
}

#[test]
fn growth_is_noticed_when_the_consumers_metadata_are_old_enough() {
    let grow = Action::Grow { topic: Hop::Source, add: 2 };
    let noticed_after = |age_ms| {
        let mut plan = plan(Some(grow));
        plan.pipeline.clients.consumer_metadata_ms = age_ms;
        let report = ran(&plan);
        let grown = seconds(lines(&report, &["PartitionsAdded"])[0]);
        let assigned = lines(&report, &["Assigned { group: \"p_workers\"", "p_source-5"]);
        (report.rebalances, assigned.first().map(|line| seconds(line) - grown))
    };
    assert_eq!(noticed_after(300_000), (0, None), "the run ends before");
    let (rebalances, after) = noticed_after(10_000);
    assert!(rebalances >= 1 && after.is_some_and(|after| (0.5..16.0).contains(&after)), "{rebalances} {after:?}");
    let sooner = noticed_after(1_000).1.expect("noticed");
    assert!(Some(sooner) < after, "{sooner} {after:?}");
}

#[test]
fn pinned_counts_hold_when_a_topic_grows() {
    let mut plan = plan(Some(Action::Grow { topic: Hop::Source, add: 4 }));
    plan.pipeline.clients.producer_metadata_ms = 1_000;
    let report = ran(&plan);
    for partition in 4..8 {
        assert_eq!(lines(&report, &["Appended", &format!("p_source-{partition},")]), [""; 0]);
    }
}

#[test]
fn a_cut_loses_what_goes_its_way_and_nothing_else() {
    let node = Node::Worker(0);
    let lost = |out, into| {
        let report = struck(Action::CutLink { node, out, into, for_micros: 3_000_000 });
        let requests = lines(&report, &["worker-0", "-> ", "(lost: the link is cut)"]).len();
        let answers = lines(&report, &["worker-0", "<- (lost)"]).len();
        let others = lines(&report, &["lost"]).len() - requests - answers;
        assert_eq!(others, 0, "another node lost something");
        (requests > 0, answers > 0)
    };
    assert!(lost(true, false).0);
    assert_eq!(lost(false, true), (false, true));
    assert!(lost(true, true).0);
}

#[test]
fn answers_into_an_open_way_arrive_while_the_way_out_is_cut() {
    // What was asked for before the cut is answered through it.
    let report = struck(Action::CutLink { node: Node::Worker(0), out: true, into: false, for_micros: 3_000_000 });
    let cut_at = seconds(lines(&report, &["worker-0", "link cut"])[0]);
    let arrived = lines(&report, &["worker-0", "<- "]).into_iter().filter(|line| {
        let at = seconds(line);
        at > cut_at && at < cut_at + 3.0
    });
    assert!(arrived.count() > 0);
    assert_eq!(lines(&report, &["<- (lost)"]), [""; 0]);
}

#[test]
fn a_cut_longer_than_a_session_costs_the_partitions() {
    let cut = Action::CutLink { node: Node::Worker(0), out: true, into: true, for_micros: 15_000_000 };
    assert!(struck(cut).rebalances >= 1);
}

#[test]
fn a_slow_link_and_a_slow_topic_of_events_make_answers_late() {
    let longest = |report: &RunReport, node: &str, request: &str| {
        // One connection answers in order, so the n-th answer is to the n-th request.
        let sent = lines(report, &[node, "-> ", request]);
        let back = lines(report, &[node, "<- ", request]);
        sent.iter().zip(&back).map(|(sent, back)| seconds(back) - seconds(sent)).fold(0.0, f64::max)
    };
    let calm = ran(&plan(None));
    let window = (1_500_000, 5_000_000);
    let slow = struck(Action::SlowLink { node: Node::Worker(0), extra_micros: window.0, for_micros: window.1 });
    assert!(longest(&calm, "worker-0", "Heartbeat") < 0.1);
    assert!(longest(&slow, "worker-0", "Heartbeat") > 1.4);
    let events = struck(Action::SlowEvents { extra_micros: window.0, for_micros: window.1 });
    assert!(longest(&events, "worker-0", "Heartbeat") < 0.1, "only requests that touch the topic are slow");
    assert!(longest(&events, "indexer-0", "Produce") > 1.4);
}

#[test]
fn a_reset_costs_the_answers_under_way() {
    let report = struck(Action::Reset { node: Node::Indexer(0) });
    assert_eq!(lines(&report, &["indexer-0", "connections reset"]).len(), 1);
    // Its polls are under way at any time, and the answer to the one that was lost is never taken.
    let fetches = |way: &str| lines(&report, &["indexer-0", way, "Fetch"]).len();
    assert!(fetches("-> ") > fetches("<- "), "{} {}", fetches("-> "), fetches("<- "));
}

#[test]
fn so_many_answers_are_lost_as_the_plan_says_and_their_requests_were_applied() {
    let report = struck(Action::LoseAnswers { node: Node::Publisher, count: 3 });
    assert_eq!(lines(&report, &["publisher", "<- (lost)"]).len(), 3);
    assert_eq!(lines(&report, &["(lost)"]).len(), 3);
}

#[test]
fn a_pause_beyond_the_session_throws_the_member_out_and_a_shorter_one_does_not() {
    let node = Node::Worker(0);
    assert!(struck(Action::Pause { node, for_micros: 12_000_000 }).rebalances >= 1);
    let mut plan = plan(Some(Action::Pause { node, for_micros: 18_000_000 }));
    (plan.pipeline.session_timeout_ms, plan.pipeline.poll_limit_ms) = (45_000, 12_000);
    // It froze inside a poll, and whoever polls is not late for the next.
    assert_eq!(ran(&plan).rebalances, 0);
}

/// Versions in the order in which the index took them.
fn versions(report: &RunReport) -> Vec<u64> {
    let number = |line: &&str| {
        let (_, rest) = line.split_once("Version(")?;
        rest.split(')').next()?.parse::<u64>().ok()
    };
    lines(report, &[" index ", "Applied"]).iter().filter_map(number).collect()
}

#[test]
fn versions_follow_the_publishers_clock_forward_and_never_back() {
    const HOUR: i64 = 3_600_000_000;
    let spread = |ahead_micros| {
        let report = struck(Action::Clock { node: Node::Publisher, ahead_micros, drift_ppm: 0 });
        let taken = versions(&report);
        let (least, most) = (taken.iter().min().expect("some"), taken.iter().max().expect("some"));
        (most >> 10) - (least >> 10)
    };
    // Twenty seconds lie between the first half and the second.
    assert!(spread(HOUR) >= HOUR as u64);
    assert!(spread(-HOUR) < 1_000_000, "the clock waits where it was");
    assert!((19_000_000..60_000_000).contains(&spread(1)));
}

#[test]
fn poison_on_either_topic_is_dead_lettered_and_passed() {
    for topic in [Hop::Source, Hop::Dest] {
        let report = struck(Action::Poison { topic, count: 4 });
        let dead: usize = lines(&report, &["Appended", "p_fail-0"]).len();
        assert!(dead >= 1, "{}", topic.name());
        assert!(report.summary[0].starts_with("operations: 300 published, 300 complete"), "{:?}", report.summary);
    }
}

#[test]
fn a_deleted_topic_of_events_ends_the_run_with_a_failure_that_names_it() {
    let report = struck(Action::DeleteEvents);
    let said = report.summary.last().expect("a summary");
    assert!(said.starts_with("failed: connector `operations`") && said.contains("p_event_"), "{said}");
    assert!(said.contains("UNKNOWN_TOPIC_OR_PARTITION"), "{said}");
}

#[test]
fn every_trouble_of_the_index_is_felt() {
    for trouble in
        [Trouble::Throttle, Trouble::Unavailable, Trouble::TimeoutBefore, Trouble::TimeoutAfter, Trouble::Slow]
    {
        let report = struck(Action::Index { trouble, permille: 1_000, for_micros: 1_000_000 });
        let (throttled, taken) = (lines(&report, &[" index ", "Throttled"]), lines(&report, &[" index ", "Duplicate"]));
        assert_eq!(!throttled.is_empty(), trouble == Trouble::Throttle, "{trouble:?}");
        // What was applied without an answer is sent again and found there.
        assert!(trouble != Trouble::TimeoutAfter || !taken.is_empty());
    }
}

/// The calm plan with some of its documents marked.
fn marked(mark: impl FnOnce(&mut Generated)) -> Plan {
    let mut plan = plan(None);
    let Workload::Generated(generated) = &mut plan.workload else { panic!("it is generated") };
    mark(generated);
    plan
}

#[test]
fn stages_that_fail_and_panic_fail_their_document_only() {
    let report = ran(&marked(|generated| (generated.fail_permille, generated.panic_permille) = (100, 100)));
    let of = |kind| report.faults.get(&kind).map_or(0, |strikes| strikes.injected);
    let (errors, panics) = (of(FaultKind::StageError), of(FaultKind::StagePanic));
    assert!(errors > 5 && panics > 5, "{errors} {panics}");
    assert!(report.summary[0].contains(&format!(", {} failed", errors + panics)), "{:?}", report.summary);
}

#[test]
fn a_stage_that_is_stuck_costs_its_worker_the_partitions_once_polls_stop() {
    let stuck = |processing_limit_ms| {
        let mut plan = marked(|generated| (generated.stuck_permille, generated.stuck_ms_max) = (20, 60_000));
        (plan.pipeline.processing_limit_ms, plan.pipeline.poll_limit_ms) = (processing_limit_ms, 12_000);
        let report = ran(&plan);
        assert!(report.faults.contains_key(&FaultKind::StageStuck));
        report.rebalances
    };
    assert!(stuck(2_000) >= 1);
    assert_eq!(stuck(600_000), 0, "polls go on however long a stage takes");
}

#[test]
fn a_tiny_queue_makes_callers_wait() {
    let mut plan = plan(None);
    plan.pipeline.clients.queue_records_max = 2;
    assert!(ran(&plan).faults.get(&FaultKind::FullQueue).is_some_and(|strikes| strikes.least == 2));
}

#[test]
fn static_members_come_back_without_a_rebalance() {
    let crash = Action::Crash { node: Node::Worker(0), restart_after_micros: Some(500_000) };
    let mut plan = plan(Some(crash));
    plan.pipeline.session_timeout_ms = 10_000;
    plan.pipeline.clients.static_members = true;
    let keeps = ran(&plan).rebalances;
    plan.pipeline.clients.static_members = false;
    let moves = ran(&plan).rebalances;
    assert!(keeps < moves, "{keeps} {moves}");
}
