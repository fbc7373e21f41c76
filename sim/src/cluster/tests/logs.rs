//! Logs: idempotent producers, fetching and long polls, log starts, topics.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::log::{PartitionLog, sequence_after};
use super::*;

/// One producer's batches in order: (epoch, base sequence, records), and what each is answered.
fn check_batches(batches: &[((i16, i32, usize), &str)]) {
    let mut bench = Bench::new();
    for ((epoch, base_sequence, count), expect) in batches {
        let answer = bench.ask(produce(Some((1, *epoch)), *base_sequence, *count));
        assert_eq!(answer, format!("Produce [t-0@{expect}]"), "e{epoch} seq {base_sequence} × {count}");
    }
}

#[test]
fn a_resent_batch_gets_its_original_offset() {
    check_batches(&[((0, 0, 3), "0"), ((0, 3, 2), "3"), ((0, 0, 3), "0"), ((0, 3, 2), "3"), ((0, 5, 1), "5")]);
}

#[test]
fn a_gap_or_another_cut_of_the_same_sequences_is_out_of_order() {
    check_batches(&[
        ((0, 0, 3), "0"),
        ((0, 4, 1), "-1 OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ((0, 0, 2), "-1 OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ((0, 2, 2), "-1 OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ((0, 3, 1), "3"),
    ]);
}

#[test]
fn only_the_last_five_batches_are_known() {
    let mut batches: Vec<((i16, i32, usize), &str)> =
        vec![((0, 0, 1), "0"), ((0, 1, 1), "1"), ((0, 2, 1), "2"), ((0, 3, 1), "3"), ((0, 4, 1), "4")];
    batches.push(((0, 0, 1), "0"));
    batches.push(((0, 5, 1), "5"));
    batches.push(((0, 0, 1), "-1 OUT_OF_ORDER_SEQUENCE_NUMBER"));
    batches.push(((0, 1, 1), "1"));
    check_batches(&batches);
}

#[test]
fn a_new_epoch_starts_at_zero_and_an_old_one_is_fenced() {
    check_batches(&[
        ((0, 0, 2), "0"),
        ((1, 2, 1), "-1 OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ((1, 0, 1), "2"),
        ((0, 2, 1), "-1 INVALID_PRODUCER_EPOCH"),
        ((0, 0, 2), "-1 INVALID_PRODUCER_EPOCH"),
        ((1, 1, 1), "3"),
    ]);
    // What the old epoch sent is not taken for a resend of the new one.
    check_batches(&[((0, 0, 2), "0"), ((0, 2, 1), "2"), ((1, 0, 2), "3"), ((1, 2, 1), "5")]);
}

#[test]
fn an_unknown_producer_may_start_anywhere_and_sequences_wrap_to_zero() {
    check_batches(&[((0, i32::MAX - 1, 1), "0"), ((0, i32::MAX, 3), "1"), ((0, 2, 1), "4"), ((0, i32::MAX, 3), "1")]);
    assert_eq!(sequence_after(i32::MAX, 1), 0);
    assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
}

#[test]
fn producer_ids_are_never_given_twice() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(Request::InitProducerId), "InitProducerId p1e0");
    assert_eq!(bench.ask(Request::InitProducerId), "InitProducerId p2e0");
}

#[test]
fn what_a_broker_refuses_is_not_appended() {
    let mut bench = Bench::with(ClusterConfig { message_max_bytes: 200, ..Default::default() });
    let batch = |partition, text: &str| {
        let records = Arc::from([record(text)]);
        let batch = ProducePartition { partition, producer: None, base_sequence: -1, records };
        Request::Produce { partitions: vec![batch] }
    };
    assert_eq!(bench.ask(batch(tp(0), &"x".repeat(119))), "Produce [t-0@-1 MESSAGE_TOO_LARGE]");
    assert_eq!(bench.ask(batch(tp(7), "x")), "Produce [t-7@-1 UNKNOWN_TOPIC_OR_PARTITION]");
    assert_eq!(bench.ask(produce(None, -1, 0)), "Produce [t-0@-1 INVALID_REQUEST]");
    assert_eq!(bench.ask(batch(tp(0), &"x".repeat(118))), "Produce [t-0@0]");
}

#[test]
fn a_fetch_outside_the_log_is_refused_and_one_at_its_end_waits() {
    let mut bench = Bench::new();
    bench.ask(produce(None, -1, 5));
    let delete = |offset| Request::DeleteRecords { partitions: vec![(tp(0), offset)] };
    assert_eq!(bench.ask(delete(2)), "DeleteRecords [t-0=2]");
    assert_eq!(bench.ask(delete(1)), "DeleteRecords [t-0=2]");
    assert_eq!(bench.ask(delete(6)), "DeleteRecords [t-0=-1 OFFSET_OUT_OF_RANGE]");
    assert_eq!(bench.ask(fetch(1, 500)), "Fetch [t-0 nothing OFFSET_OUT_OF_RANGE]");
    assert_eq!(bench.ask(fetch(6, 500)), "Fetch [t-0 nothing OFFSET_OUT_OF_RANGE]");
    assert_eq!(bench.ask(fetch(2, 500)), "Fetch [t-0 2..5]");
    assert_eq!(bench.ask(fetch(4, 500)), "Fetch [t-0 4..5]");
    assert_eq!(bench.ask(fetch(5, 500)), "parked");
    assert_eq!(bench.ask(fetch(5, 0)), "Fetch [t-0 nothing]");
    assert_eq!(bench.ask(delete(-1)), "DeleteRecords [t-0=5]");
    let ends = vec![(tp(0), OffsetSpec::Earliest), (tp(0), OffsetSpec::Latest), (tp(1), OffsetSpec::Latest)];
    assert_eq!(bench.ask(Request::ListOffsets { partitions: ends }), "ListOffsets [t-0=5, t-0=5, t-1=0]");
}

#[test]
fn a_long_poll_ends_with_the_first_record_or_its_time() {
    let mut bench = Bench::new();
    let (first, second) = (bench.send(fetch(0, 500)), bench.send(fetch(0, 500)));
    bench.cluster.drain_answered();
    assert_eq!(bench.ask(produce(Some((1, 0)), 0, 3)), "Produce [t-0@0]");
    assert_eq!(bench.cluster.drain_answered().skip(1).collect::<Vec<_>>(), [first, second]);
    assert_eq!([first, second].map(|id| bench.answer(id)), ["Fetch [t-0 0..3]", "Fetch [t-0 0..3]"]);

    let check = Instant::default() + ClusterConfig::default().offsets_check_interval;
    assert_eq!(bench.cluster.next_deadline(), Some(check), "the time-outs of answered fetches are gone");
    let waiting = bench.send(fetch(3, 500));
    let began = bench.now;
    bench.ask(produce(Some((1, 0)), 0, 3));
    assert_eq!(bench.answer(waiting), "parked", "a duplicate is no record");
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.cluster.take_response(waiting).map(|(at, _)| at), Some(began + Duration::from_millis(500)));
}

#[test]
fn a_fetch_of_several_partitions_is_answered_whole() {
    let mut bench = Bench::new();
    let both = |wait| {
        let part = |partition| FetchPartition { partition: tp(partition), offset: 0, records_max: 3 };
        let max_wait = Duration::from_millis(wait);
        Request::Fetch { max_wait, records_max: 4, partitions: vec![part(0), part(1)] }
    };
    let waiting = bench.send(both(500));
    let batch = |partition| {
        let (partition, records) = (tp(partition), records(5));
        ProducePartition { partition, producer: None, base_sequence: -1, records }
    };
    bench.ask(Request::Produce { partitions: vec![batch(1), batch(0)] });
    assert_eq!(bench.answer(waiting), "Fetch [t-0 0..3, t-1 0..1]", "appends of one request are seen together");
    assert_eq!(bench.ask(both(0)), "Fetch [t-0 0..3, t-1 0..1]");
}

#[test]
fn a_forgotten_fetch_leaves_nothing_behind() {
    let mut bench = Bench::new();
    for _ in 0..100 {
        let id = bench.send(fetch(0, 50));
        bench.cluster.forget(id);
    }
    bench.pass(Duration::from_millis(50));
    assert_eq!(bench.cluster.outstanding(), 0);
}

#[test]
fn topics_are_created_grown_and_deleted() {
    let mut bench = Bench::new();
    let mut create = |name: &str, partitions, replication| {
        let topic = CreateTopic { name: name.into(), partitions, replication };
        bench.ask(Request::CreateTopics { topics: vec![topic] })
    };
    assert_eq!(create("t", 1, 1), "CreateTopics [t TOPIC_ALREADY_EXISTS]");
    assert_eq!(create("u", 0, 1), "CreateTopics [u INVALID_PARTITIONS]");
    assert_eq!(create("u", 1, 2), "CreateTopics [u INVALID_REPLICATION_FACTOR]");
    assert_eq!(create("a b", 1, 1), "CreateTopics [a b INVALID_TOPIC_EXCEPTION]");
    let mut grow = |name: &str, count| bench.ask(Request::CreatePartitions { topics: vec![(name.into(), count)] });
    assert_eq!(grow("t", 2), "CreatePartitions [t INVALID_PARTITIONS]");
    assert_eq!(grow("u", 2), "CreatePartitions [u UNKNOWN_TOPIC_OR_PARTITION]");
    assert_eq!(grow("t", 4), "CreatePartitions [t NONE]");
    let metadata = Request::Metadata { topics: Some(vec!["t".into(), "u".into()]) };
    assert_eq!(bench.ask(metadata), "Metadata 1 brokers [t×4, u×0 UNKNOWN_TOPIC_OR_PARTITION]");
    let waiting = bench.send(fetch(0, 500));
    let delete = || Request::DeleteTopics { topics: vec!["t".into()] };
    assert_eq!(bench.ask(delete()), "DeleteTopics [t NONE]");
    assert_eq!(bench.answer(waiting), "Fetch [t-0 nothing UNKNOWN_TOPIC_OR_PARTITION]");
    assert_eq!(bench.ask(delete()), "DeleteTopics [t UNKNOWN_TOPIC_OR_PARTITION]");
    assert_eq!(bench.ask(Request::Metadata { topics: None }), "Metadata 1 brokers []");
}

#[test]
fn only_the_leader_serves_a_partition() {
    let mut bench = Bench::with(ClusterConfig { brokers: 3, ..Default::default() });
    assert_eq!(bench.cluster.leader(&tp(0)), Some(BrokerId(116 % 3)), "the hash of `t` is 116");
    assert_eq!(bench.cluster.leader(&tp(1)), Some(BrokerId((116 + 1) % 3)));
    assert_eq!(bench.ask(produce(None, -1, 1)), "Produce [t-0@-1 NOT_LEADER_OR_FOLLOWER]");
    assert_eq!(bench.ask(fetch(0, 500)), "Fetch [t-0 nothing NOT_LEADER_OR_FOLLOWER]");
    assert_eq!(
        bench.ask(Request::ListOffsets { partitions: vec![(tp(1), OffsetSpec::Latest)] }),
        "ListOffsets [t-1=0]"
    );
}

proptest! {
    /// However often and in whatever order at most five batches in flight arrive, the log has each once and in order.
    #[test]
    fn an_idempotent_log_is_the_sequence_once(
        sizes in prop::collection::vec(1..4_usize, 1..40),
        draws in prop::collection::vec(any::<u8>(), 400),
    ) {
        let mut log = PartitionLog::default();
        let producer = Some(ProducerId { id: 1, epoch: 0 });
        let mut unsent: VecDeque<(i32, i64, usize)> = VecDeque::new();
        let mut next = 0;
        for size in sizes {
            unsent.push_back((next, i64::from(next), size));
            next += size as i32;
        }
        // A broker that knows nothing of a producer takes any first batch, so the first goes alone.
        let (all, mut window) = (unsent.clone(), VecDeque::new());
        let (first, _, size) = unsent[0];
        log.append(producer, first, records(size), usize::MAX).expect("it is the first");
        for draw in draws {
            while window.len() < 5 && !unsent.is_empty() {
                window.extend(unsent.pop_front());
            }
            let Some(&(sequence, offset, size)) = window.get(usize::from(draw) % window.len().max(1)) else { break };
            if let Ok(append) = log.append(producer, sequence, records(size), usize::MAX) {
                prop_assert_eq!(append.base_offset, offset);
                // A producer forgets a batch once the answer arrives, which half of them do.
                if draw >= 128 && window.front().map(|front: &(i32, i64, usize)| front.0) == Some(sequence) {
                    window.pop_front();
                }
            }
        }
        let mut read = Vec::new();
        log.read(0, usize::MAX, &mut read).expect("0 is in the log");
        for (slice, (_, offset, size)) in read.iter().zip(&all) {
            prop_assert_eq!((slice.base_offset, slice.range.len()), (*offset, *size));
        }
    }

    /// A read gives exactly the kept records from its offset on, as many as asked for.
    #[test]
    fn a_read_is_a_window_of_the_log(
        sizes in prop::collection::vec(1..6_usize, 0..12),
        start in 0..40_i64,
        offset in 0..40_i64,
        max in 0..20_usize,
    ) {
        let mut log = PartitionLog::default();
        let mut end = 0;
        for size in sizes {
            log.append(None, -1, records(size), usize::MAX).expect("it fits");
            end += size as i64;
        }
        let start = if log.delete_before(start).is_ok() { start } else { 0 };
        let mut read = Vec::new();
        let outcome = log.read(offset, max, &mut read);
        let expect: Vec<i64> = (offset..end).take(max).collect();
        if offset < start || offset > end {
            prop_assert_eq!(outcome, Err(ErrorCode::OffsetOutOfRange));
        } else {
            prop_assert_eq!(outcome, Ok(expect.len()));
            let offsets: Vec<i64> = read.iter().flat_map(|slice| slice.iter().map(|(offset, _)| offset)).collect();
            prop_assert_eq!(offsets, expect);
        }
    }
}

/// What broker `to` says of the first partition, at `millis`.
fn heard(cluster: &mut Cluster, millis: u64, to: i32) -> String {
    let now = Instant::from_micros(millis * 1_000);
    let offsets = Request::ListOffsets { partitions: vec![(tp(0), OffsetSpec::Latest)] };
    let requests = [Request::Metadata { topics: Some(vec!["t".into()]) }, offsets];
    let ids = requests.map(|request| cluster.submit(now, ConnectionId(0), BrokerId(to), request));
    cluster.advance(now);
    ids.map(|id| cluster.take_response(id).expect("it is not parked").1.to_string()).join(", ")
}

#[test]
fn brokers_hear_of_a_new_topic_in_turn_and_answer_until_then_as_if_there_were_none() {
    let config = ClusterConfig { brokers: 3, metadata_lag: Duration::from_millis(900), ..ClusterConfig::default() };
    let mut cluster = Cluster::new(config);
    let topics = vec![CreateTopic { name: "t".into(), partitions: 1, replication: 1 }];
    cluster.submit(Instant::default(), ConnectionId(0), BROKER, Request::CreateTopics { topics });
    // The last of them leads it.
    let (unknown, known) = ("Metadata 3 brokers [t×0 UNKNOWN_TOPIC_OR_PARTITION]", "Metadata 3 brokers [t×1]");
    let (absent, other) =
        ("ListOffsets [t-0=-1 UNKNOWN_TOPIC_OR_PARTITION]", "ListOffsets [t-0=-1 NOT_LEADER_OR_FOLLOWER]");
    assert_eq!(heard(&mut cluster, 1, 0), format!("{known}, {other}"));
    assert_eq!(heard(&mut cluster, 299, 1), format!("{unknown}, {absent}"));
    assert_eq!(heard(&mut cluster, 300, 1), format!("{known}, {other}"));
    assert_eq!(heard(&mut cluster, 599, 2), format!("{unknown}, {absent}"));
    assert_eq!(heard(&mut cluster, 600, 2), format!("{known}, ListOffsets [t-0=0]"));
}
