//! The fence at the ends of an intake.

use super::*;
use crate::identity::Epoch;
use crate::testing::{Bench, Script, assigned};
use crate::transport::RebalanceId;

fn record(offset: i64) -> Record {
    let position = Position { partition: TopicPartition::new("t", 0), offset, epoch: Epoch(1) };
    Record { position, key: None, value: None, headers: Vec::new(), timestamp_millis: 0 }
}

fn intake(bench: &Bench, script: &Script) -> Intake<Bench> {
    let config = IntakeConfig::new(GroupConfig::new("g", vec!["t".into()]));
    bench.run(Duration::from_secs(1), Intake::start(bench.clone(), script, config)).unwrap().unwrap()
}

/// An intake whose partition has `records`.
fn reading(records: Vec<Record>) -> (Bench, Script, Intake<Bench>) {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    script.say([assigned(1), Polled::Records(records)]);
    let intake = intake(&bench, &script);
    (bench, script, intake)
}

fn claims(bench: &Bench, intake: &mut Intake<Bench>) -> Vec<Claim> {
    let taken = bench.run(Duration::from_secs(1), intake.next(10)).expect("records came").expect("no error");
    taken.expect("not closed").into_iter().map(|(_, claim)| claim).collect()
}

#[test]
fn nothing_begins_or_is_repeated_after_the_intake_failed() {
    let (bench, script, mut intake) = reading(vec![record(0), record(1)]);
    let claims = claims(&bench, &mut intake);
    assert!(claims[0].begin() && claims[0].begin() && claims[1].is_active());
    intake.failure_handle().fail(TransportError::new(ErrorKind::Fatal, "INVALID_PRODUCER_EPOCH", "test"));
    bench.pass(Duration::from_millis(10));
    assert!(script.lines().left, "the group may have another owner now");
    assert!(!claims[0].begin(), "a write is repeated after its owner left");
    assert!(!claims[1].is_active() && !claims[1].begin(), "a write begins after its owner left");
}

#[test]
fn delivery_that_goes_back_ends_the_intake() {
    let (bench, script, mut intake) = reading(vec![record(5)]);
    drop(claims(&bench, &mut intake));
    // The log was cut: what lies at 3 now is another record, and passing it over would lose it.
    script.say([Polled::Records(vec![record(3)])]);
    let next = bench.run(Duration::from_secs(2), intake.next(10)).expect("it must not wait for ever");
    assert!(next.is_err(), "{next:?}");
    bench.pass(Duration::from_millis(10));
    assert!(script.lines().left);
}

#[test]
fn parts_of_a_claim_begin_once_and_settle_together() {
    let (bench, script, mut intake) = reading(vec![record(0)]);
    let first = claims(&bench, &mut intake).remove(0);
    let second = first.clone();
    assert!(first.begin() && second.begin());
    first.done();
    bench.pass(Duration::from_secs(3));
    assert!(script.lines().commits.is_empty(), "half a record is no record");
    second.done();
    bench.pass(Duration::from_secs(3));
    assert_eq!(script.lines().commits.iter().map(|commit| commit.offset).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_commit_without_an_answer_holds_no_release_up() {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    script.lines().commits_hang = true;
    script.say([assigned(1), Polled::Records(vec![record(0), record(1)])]);
    let mut intake = intake(&bench, &script);
    let mut claims = claims(&bench, &mut intake);
    let first = claims.remove(0);
    assert!(first.begin());
    first.done();
    bench.pass(Duration::from_secs(3));
    assert_eq!(script.lines().commits.len(), 1, "it is out");
    let partitions = || vec![(TopicPartition::new("t", 0), Epoch(1))];
    let deadline = bench.now() + Duration::from_secs(2);
    script.say([Polled::Revoking { event: RebalanceId(1), partitions: partitions(), deadline }]);
    bench.pass(Duration::from_secs(3));
    assert_eq!(script.lines().released, [RebalanceId(1)], "its deadline has passed");

    let second = claims.remove(0);
    assert!(!second.begin());
    script.say([
        assigned(2),
        Polled::Records(vec![Record { position: Position { epoch: Epoch(2), ..record(1).position }, ..record(1) }]),
    ]);
    let third = self::claims(&bench, &mut intake).remove(0);
    assert!(third.begin());
    third.done();
    bench.pass(Duration::from_secs(2));
    script.say([Polled::Lost { event: RebalanceId(2), partitions: vec![(TopicPartition::new("t", 0), Epoch(2))] }]);
    bench.pass(Duration::from_secs(1));
    assert_eq!(script.lines().released, [RebalanceId(1), RebalanceId(2)], "nothing of it can be committed any more");
}

#[test]
fn a_commit_that_somebody_moved_back_is_made_again() {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    script.lines().group_has = 2;
    script.say([assigned(1), Polled::Records(vec![record(0), record(1)])]);
    let mut intake = intake(&bench, &script);
    for claim in claims(&bench, &mut intake) {
        assert!(claim.begin());
        claim.done();
    }
    let committed = || script.lines().commits.iter().map(|commit| commit.offset).collect::<Vec<_>>();
    bench.pass(Duration::from_secs(60));
    assert_eq!(committed(), [2], "what stands is left alone");
    script.lines().group_has = 1;
    bench.pass(Duration::from_secs(60));
    assert_eq!(committed()[..2], [2, 2], "a later run would wait for a lag that never clears");
}

#[test]
fn bytes_that_are_out_are_bounded_too() {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    let large = |offset| Record { value: Some(vec![0; 1_000].into()), ..record(offset) };
    script.say([assigned(1), Polled::Records(vec![large(0), large(1), large(2)])]);
    let mut config = IntakeConfig::new(GroupConfig::new("g", vec!["t".into()]));
    config.bytes_max = 2_500;
    let started = bench.run(Duration::from_secs(1), Intake::start(bench.clone(), &script, config));
    let mut intake = started.expect("in time").expect("no error");
    let mut claims = claims(&bench, &mut intake);
    bench.pass(Duration::from_secs(1));
    assert!(script.lines().paused, "3,000 bytes are out");
    claims.remove(0).done();
    bench.pass(Duration::from_secs(1));
    assert!(script.lines().paused, "not half of the room is free");
    claims.remove(0).done();
    bench.pass(Duration::from_secs(1));
    assert!(!script.lines().paused, "1,000 of 2,500 bytes are out");
}

fn revoking(bench: &Bench, event: u64, drain: Duration) -> Polled {
    let partitions = vec![(TopicPartition::new("t", 0), Epoch(1))];
    Polled::Revoking { event: RebalanceId(event), partitions, deadline: bench.now() + drain }
}

#[test]
fn an_intake_that_closes_gives_back_a_revocation_whose_drain_would_take_longer() {
    let (bench, script, mut intake) = reading(vec![record(0)]);
    let claim = claims(&bench, &mut intake).remove(0);
    assert!(claim.begin());
    script.say([revoking(&bench, 1, Duration::from_secs(300))]);
    bench.pass(Duration::from_secs(1));
    assert!(script.lines().released.is_empty(), "it drains");
    bench.run(Duration::from_secs(20), intake.close()).expect("within the close limit");
    bench.pass(Duration::from_secs(1));
    assert_eq!(script.lines().released, [RebalanceId(1)]);
    assert!(script.lines().left);
    drop(claim);
}

#[test]
fn an_intake_that_fails_or_is_dropped_gives_back_what_is_revoked_before_it_leaves() {
    for fails in [true, false] {
        let (bench, script, mut intake) = reading(vec![record(0)]);
        let claim = claims(&bench, &mut intake).remove(0);
        assert!(claim.begin());
        script.say([revoking(&bench, 1, Duration::from_secs(300))]);
        bench.pass(Duration::from_secs(1));
        if fails {
            intake.failure_handle().fail(TransportError::new(ErrorKind::Fatal, "INVALID_PRODUCER_EPOCH", "test"));
        } else {
            drop(intake);
        }
        bench.pass(Duration::from_secs(1));
        assert_eq!(script.lines().released, [RebalanceId(1)]);
        assert!(script.lines().left);
        drop(claim);
    }
}

#[test]
fn a_read_back_without_an_answer_holds_no_departure_up() {
    for departs in ["revoked", "lost", "closed"] {
        let bench = Bench::default();
        let script = Script::new(&bench, |_| Ok(()));
        script.lines().reads_hang = true;
        script.say([assigned(1)]);
        let mut intake = intake(&bench, &script);
        // It is read back every 30 s.
        bench.pass(Duration::from_secs(31));
        match departs {
            "revoked" => script.say([revoking(&bench, 1, Duration::from_secs(300))]),
            "lost" => {
                let partitions = vec![(TopicPartition::new("t", 0), Epoch(1))];
                script.say([Polled::Lost { event: RebalanceId(1), partitions }]);
            }
            _ => bench.run(Duration::from_secs(1), intake.close()).expect("nothing is out"),
        }
        bench.pass(Duration::from_secs(1));
        let lines = script.lines();
        assert_eq!((lines.released.len(), lines.left), if departs == "closed" { (0, true) } else { (1, false) });
    }
}

/// How many ownerships are counted as uncovered after `test`, which gets the claims on two records. The first has
/// begun.
fn uncovered(test: impl FnOnce(&Bench, &Script, Intake<Bench>, Claim, Claim)) -> u64 {
    let bench = Bench::default();
    let script = Script::new(&bench, |_| Ok(()));
    script.say([assigned(1), Polled::Records(vec![record(0), record(1)])]);
    let config = IntakeConfig::new(GroupConfig::new("g", vec!["t".into()]));
    let uncovered = config.uncovered.clone();
    let started = bench.run(Duration::from_secs(1), Intake::start(bench.clone(), &script, config));
    let mut intake = started.expect("in time").expect("no error");
    let mut claims = claims(&bench, &mut intake).into_iter();
    let (Some(first), Some(second)) = (claims.next(), claims.next()) else { panic!("two records") };
    assert!(first.begin());
    test(&bench, &script, intake, first, second);
    bench.pass(Duration::from_secs(30));
    uncovered.count()
}

#[test]
fn a_drain_whose_commit_covers_all_that_had_an_effect_is_not_counted() {
    let counted = uncovered(|bench, script, _intake, first, second| {
        script.say([revoking(bench, 1, Duration::from_secs(5))]);
        bench.pass(Duration::from_secs(1));
        first.done();
        bench.pass(Duration::from_secs(1));
        assert_eq!(script.lines().released.len(), 1);
        drop(second);
    });
    assert_eq!(counted, 0, "what had not begun was abandoned, and nobody has it again");
}

#[test]
fn effects_above_the_last_commit_are_counted_however_their_partition_goes() {
    let late = uncovered(|bench, script, _intake, first, second| {
        script.say([revoking(bench, 1, Duration::from_secs(5))]);
        bench.pass(Duration::from_secs(6));
        first.done();
        drop(second);
    });
    let unanswered = uncovered(|bench, script, _intake, first, second| {
        script.lines().commits_hang = true;
        script.say([revoking(bench, 1, Duration::from_secs(5))]);
        first.done();
        bench.pass(Duration::from_secs(6));
        drop(second);
    });
    let given_up = uncovered(|bench, script, _intake, first, second| {
        script.say([revoking(bench, 1, Duration::from_secs(5))]);
        bench.pass(Duration::from_secs(1));
        drop(first);
        bench.pass(Duration::from_secs(1));
        assert_eq!(script.lines().released.len(), 1, "nothing is left to wait for");
        drop(second);
    });
    let lost = uncovered(|bench, script, _intake, first, second| {
        script.say([Polled::Lost { event: RebalanceId(1), partitions: vec![(TopicPartition::new("t", 0), Epoch(1))] }]);
        bench.pass(Duration::from_secs(1));
        drop((first, second));
    });
    let failed = uncovered(|bench, _, intake, first, second| {
        intake.failure_handle().fail(TransportError::new(ErrorKind::Fatal, "PAIR_BROKEN", "test"));
        bench.pass(Duration::from_secs(1));
        drop((first, second));
    });
    let stopped = uncovered(|bench, _, mut intake, first, second| {
        drop(second);
        bench.run(Duration::from_secs(12), intake.close()).expect("within the close limit");
        drop(first);
    });
    let counts = [late, unanswered, given_up, lost, failed, stopped];
    assert_eq!(counts, [1; 6], "late, unanswered, given up, lost, failed, stopped");
}
