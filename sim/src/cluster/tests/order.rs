//! What is answered, and when, does not depend on how the cluster is driven.

use proptest::prelude::*;

use super::*;

type Submission = (u64, u64, Request);

fn member() -> impl Strategy<Value = String> {
    prop_oneof![1 => Just(String::new()), 4 => (1..7_u32).prop_map(|number| format!("c-{number}"))]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => (0..20_i32, 1..4_usize).prop_map(|(sequence, count)| produce(Some((1, 0)), sequence, count)),
        1 => (1..4_usize).prop_map(|count| produce(None, -1, count)),
        4 => (0..12_i64, 0..3_000_u64).prop_map(|(offset, wait)| fetch(offset, wait)),
        6 => member().prop_map(|member| join(&member)),
        1 => member().prop_map(|member| Request::JoinGroup(join_with(&member, &["x", "range"]))),
        6 => (member(), 0..6_i32).prop_map(|(member, generation)| sync(&member, generation, &[("c-1", 0), ("c-2", 1)])),
        4 => (member(), 0..6_i32).prop_map(|(member, generation)| heartbeat(&member, generation)),
        1 => member().prop_map(|member| leave(&member)),
        3 => (member(), -1..6_i32, 0..50_i64)
            .prop_map(|(member, generation, offset)| commit(&member, generation, offset)),
        1 => Just(committed()),
        1 => Just(Request::CreatePartitions { topics: vec![("t".into(), 3)] }),
        1 => Just(Request::DeleteRecords { partitions: vec![(tp(0), 2)] }),
    ]
}

/// Time in steps of 250 ms, so that arrivals and timers meet.
fn submission() -> impl Strategy<Value = Submission> {
    (4..160_u64, 0..4_u64, request()).prop_map(|(step, connection, request)| (step * 250_000, connection, request))
}

/// Everything that can be seen of a run: answers with their times, the audit, the final state.
#[derive(Debug, PartialEq)]
struct Seen {
    answers: Vec<Option<(Instant, Response)>>,
    order: Vec<usize>,
    audits: Vec<(Instant, Audit)>,
    end: String,
}

const HORIZON: u64 = 100_000_000;

fn new_cluster() -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig::default());
    let topic = CreateTopic { name: "t".into(), partitions: 2, replication: 1 };
    cluster.submit(Instant::from_micros(1), ConnectionId(0), BROKER, Request::CreateTopics { topics: vec![topic] });
    cluster
}

fn submit(cluster: &mut Cluster, submission: &Submission) -> RequestId {
    let (at, connection, request) = submission;
    cluster.submit(Instant::from_micros(*at), ConnectionId(*connection), BROKER, request.clone())
}

fn see(cluster: &mut Cluster, ids: &[RequestId], order: Vec<RequestId>) -> Seen {
    let place = |id: &RequestId| ids.iter().position(|known| known == id);
    Seen {
        answers: ids.iter().map(|id| cluster.take_response(*id)).collect(),
        order: order.iter().filter_map(place).collect(),
        audits: cluster.drain_audit().collect(),
        end: format!(
            "{:?} {:?} {:?}",
            cluster.group_state("g"),
            cluster.watermarks(&tp(0)),
            cluster.committed("g", &tp(0))
        ),
    }
}

/// All submitted before, connection by connection; time moves once.
fn at_once(submissions: &[Submission]) -> Seen {
    let mut cluster = new_cluster();
    let mut ids = vec![None; submissions.len()];
    for connection in (0..4).rev() {
        for (place, submission) in submissions.iter().enumerate().filter(|(_, one)| one.1 == connection) {
            ids[place] = Some(submit(&mut cluster, submission));
        }
    }
    cluster.advance(Instant::from_micros(HORIZON));
    let ids: Vec<RequestId> = ids.into_iter().flatten().collect();
    let order = cluster.drain_answered().collect();
    see(&mut cluster, &ids, order)
}

/// Submitted in the order of time, each just before an `advance` that reaches it; `steps` says to where.
fn step_by_step(submissions: &[Submission], steps: &[u64]) -> Seen {
    let mut cluster = new_cluster();
    let (mut ids, mut order) = (Vec::new(), Vec::new());
    for step in steps.iter().chain([&HORIZON]) {
        let due = submissions[ids.len()..].iter().take_while(|(at, ..)| at <= step);
        let due: Vec<RequestId> = due.map(|submission| submit(&mut cluster, submission)).collect();
        ids.extend(due);
        cluster.advance(Instant::from_micros(*step));
        order.extend(cluster.drain_answered());
    }
    see(&mut cluster, &ids, order)
}

/// Submitted in the order of time; time moves only by the cluster's own deadlines.
fn by_deadlines(submissions: &[Submission]) -> Seen {
    let mut cluster = new_cluster();
    let ids: Vec<RequestId> = submissions.iter().map(|submission| submit(&mut cluster, submission)).collect();
    let mut order = Vec::new();
    while let Some(next) = cluster.next_deadline().filter(|next| next.as_micros() <= HORIZON) {
        cluster.advance(next);
        order.extend(cluster.drain_answered());
        assert!(cluster.next_deadline() > Some(next), "what was due is applied");
    }
    see(&mut cluster, &ids, order)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_run_does_not_depend_on_who_advances_it(
        mut submissions in prop::collection::vec(submission(), 0..120),
        mut steps in prop::collection::vec(0..50_000_000_u64, 0..60),
    ) {
        submissions.sort_by_key(|(at, ..)| *at);
        steps.sort_unstable();
        let whole = at_once(&submissions);
        prop_assert_eq!(&step_by_step(&submissions, &steps), &whole);
        prop_assert_eq!(&by_deadlines(&submissions), &whole);
    }
}

#[test]
fn requests_of_one_instant_are_applied_by_connection_then_sequence_before_timers() {
    let mut cluster = new_cluster();
    let at = Instant::from_micros(500_001);
    let early = cluster.submit(Instant::from_micros(1), ConnectionId(9), BROKER, fetch(0, 500));
    let ids: Vec<RequestId> =
        [7, 5, 5].map(|connection| cluster.submit(at, ConnectionId(connection), BROKER, produce(None, -1, 1))).into();
    cluster.advance(at);
    let offsets: Vec<String> =
        ids.iter().filter_map(|id| cluster.take_response(*id)).map(|(_, response)| response.to_string()).collect();
    assert_eq!(offsets, ["Produce [t-0@2]", "Produce [t-0@0]", "Produce [t-0@1]"]);
    let (answered, response) = cluster.take_response(early).expect("it has waited long enough");
    assert_eq!((answered, response.to_string()), (at, "Fetch [t-0 0..1]".into()));
}

#[test]
fn a_request_for_the_past_is_applied_now() {
    let mut bench = Bench::new();
    bench.pass(Duration::from_secs(5));
    let now = bench.now;
    let id = bench.cluster.submit(Instant::from_micros(1), ConnectionId(0), BROKER, Request::InitProducerId);
    assert_eq!(bench.cluster.next_deadline(), Some(now));
    bench.cluster.advance(Instant::from_micros(2));
    assert_eq!(bench.cluster.take_response(id).map(|(at, _)| at), Some(now));
}
