//! The rules of a lane, one by one.

use super::*;

fn at() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn config() -> ProducerConfig {
    ProducerConfig { batch_records_max: 1, ..ProducerConfig::default() }
}

pub(in crate::client::producer) fn pending(place: usize) -> Pending {
    let record = Record { key: None, value: None, headers: Vec::new(), timestamp_millis: place as i64 };
    let owner = Owner { call: 0, place, bytes: 0 };
    Pending { record, bytes: 100, owner, enqueued: Instant::default() }
}

/// A lane with so many records in the queue.
pub(in crate::client::producer) fn lane(records: usize) -> Lane {
    let mut lane = Lane::default();
    for place in 0..records {
        lane.push(pending(place), &config());
    }
    lane
}

/// A lane whose partition knows the producer, with so many batches of one record out, and one record in the queue.
fn busy(out: usize) -> (Lane, Vec<Batch>) {
    let mut lane = lane(out + 1);
    lane.is_known = true;
    let batches = (0..out).map(|_| lane.take(&at(), &config())).collect();
    (lane, batches)
}

fn done(lane: &mut Lane, batch: &Batch) {
    lane.answered(batch);
    lane.appended();
}

fn fails(lane: &mut Lane, batch: Batch) {
    lane.answered(&batch);
    lane.again(batch);
}

fn stamps(batch: &Batch) -> Vec<i64> {
    batch.records.iter().map(|record| record.timestamp_millis).collect()
}

/// Sends everything that is left, one at a time: epoch, sequence and records of each batch.
fn rest(lane: &mut Lane, config: &ProducerConfig) -> Vec<(i16, i32, Vec<i64>)> {
    let mut sent = Vec::new();
    while lane.may_send(true) {
        let batch = lane.take(&at(), config);
        sent.push((batch.epoch, batch.base_sequence, stamps(&batch)));
        done(lane, &batch);
    }
    sent
}

#[test]
fn a_lane_is_full_when_the_broker_would_forget_its_oldest_open_batch() {
    let (mut lane, batches) = busy(IN_FLIGHT_MAX);
    assert!(!lane.may_send(true));
    // Answers of later batches make no room.
    done(&mut lane, &batches[1]);
    done(&mut lane, &batches[2]);
    assert!(!lane.may_send(true));
    done(&mut lane, &batches[0]);
    assert!(lane.may_send(true) && !lane.may_send(false));
    assert_eq!(lane.window, [3, 4]);
}

#[test]
fn a_partition_that_does_not_know_the_producer_gets_one_batch_at_a_time() {
    let mut lane = lane(3);
    let first = lane.take(&at(), &config());
    assert!(!lane.may_send(true));
    done(&mut lane, &first);
    let second = lane.take(&at(), &config());
    assert!(lane.may_send(true));
    fails(&mut lane, second);
    assert!(lane.may_send(true));
}

#[test]
fn what_is_repeated_waits_for_everything_out_and_new_batches_wait_for_it() {
    let (mut lane, batches) = busy(2);
    let [first, second] = <[Batch; 2]>::try_from(batches).unwrap();
    fails(&mut lane, first);
    assert!(!lane.may_send(true), "the second is out");
    done(&mut lane, &second);
    assert!(lane.may_send(false), "a repeat does not linger");
    assert_eq!(lane.window, [0, 1]);
    assert_eq!(rest(&mut lane, &config()), [(0, 0, vec![0]), (0, 2, vec![2])]);
}

#[test]
fn batches_are_bounded_by_records_and_by_bytes_and_ripen_with_age_or_when_full() {
    let by_records = ProducerConfig { batch_records_max: 3, ..ProducerConfig::default() };
    let mut counted = lane(7);
    assert_eq!(rest(&mut counted, &by_records).iter().map(|sent| sent.2.len()).collect::<Vec<_>>(), [3, 3, 1]);
    let by_bytes = ProducerConfig { batch_bytes_max: 300, ..ProducerConfig::default() };
    let mut weighed = lane(5);
    assert_eq!(rest(&mut weighed, &by_bytes).iter().map(|sent| sent.2.len()).collect::<Vec<_>>(), [2, 2, 1]);
    let linger = Duration::from_millis(5);
    let config = ProducerConfig { linger, ..by_records };
    let young = Instant::default() + Duration::from_millis(4);
    assert!(!lane(2).is_ripe(&config, young) && lane(3).is_ripe(&config, young));
    assert!(lane(2).is_ripe(&config, young + Duration::from_millis(1)));
}

#[test]
fn what_lies_behind_a_refused_record_takes_its_numbers_once_nothing_is_out() {
    let (mut lane, batches) = busy(4);
    let [first, large, third, fourth] = <[Batch; 4]>::try_from(batches).unwrap();
    fails(&mut lane, first);
    lane.answered(&large);
    let large = lane.split(large).unwrap_err();
    lane.refused(&large);
    fails(&mut lane, third);
    assert!(!lane.may_send(true), "the fourth is out");
    fails(&mut lane, fourth);
    let expected = [(0, 0, vec![0]), (0, 1, vec![2]), (0, 2, vec![3]), (0, 3, vec![4])];
    assert_eq!(rest(&mut lane, &config()), expected);
}

#[test]
fn a_batch_that_is_too_large_goes_in_halves_that_keep_its_sequences() {
    let config = ProducerConfig { batch_records_max: 5, ..ProducerConfig::default() };
    let mut lane = lane(6);
    let batch = lane.take(&at(), &config);
    lane.answered(&batch);
    lane.split(batch).unwrap();
    assert_eq!(lane.window, [0, 2]);
    assert_eq!(rest(&mut lane, &config), [(0, 0, vec![0, 1]), (0, 2, vec![2, 3, 4]), (0, 5, vec![5])]);
}

#[test]
fn a_bump_sends_everything_open_again_in_order_under_the_next_epoch() {
    let (mut lane, batches) = busy(3);
    let [first, second, third] = <[Batch; 3]>::try_from(batches).unwrap();
    lane.answered(&first);
    assert!(lane.bump(first));
    assert!(lane.overtook(&second));
    fails(&mut lane, third);
    assert!(!lane.may_send(true), "the second is out");
    fails(&mut lane, second);
    assert_eq!(lane.next_sequence, 3);
    let expected = [(1, 0, vec![0]), (1, 1, vec![1]), (1, 2, vec![2]), (1, 3, vec![3])];
    assert_eq!(rest(&mut lane, &config()), expected);
}

#[test]
fn sequences_go_on_at_zero_past_their_end() {
    assert_eq!((after(i32::MAX, 1), after(i32::MAX - 1, 1), after(i32::MAX - 2, 5)), (0, i32::MAX, 2));
}
