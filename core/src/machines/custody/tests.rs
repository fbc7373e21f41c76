//! Custody against a model that keeps every record by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// What the model knows of one ownership.
#[derive(Debug, Default)]
struct Owned {
    epoch: u64,
    /// When it began to drain: the highest offset that had begun.
    draining: Option<Option<i64>>,
    next: i64,
    start: i64,
    committed: Option<i64>,
    barred: bool,
    /// Somebody dropped a record that could have been finished.
    given_up: bool,
    taken: BTreeMap<i64, Fate>,
    /// What had an effect, whatever became of it.
    begun: BTreeSet<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Out,
    Done,
    Abandoned,
}

impl Owned {
    fn low_water(&self) -> i64 {
        let undone = self.taken.iter().find(|(_, fate)| **fate != Fate::Done).map(|(offset, _)| *offset);
        undone.or(self.taken.keys().next_back().map(|last| last + 1)).unwrap_or(self.start)
    }

    fn highest_begun(&self) -> Option<i64> {
        self.begun.last().copied()
    }

    /// Whether the record at `offset` may have effects: in a drain only what lies at or below one that has begun.
    fn admits(&self, offset: i64) -> bool {
        self.draining.is_none_or(|highest| highest.is_some_and(|highest| offset <= highest))
    }

    /// What a drain has to wait for.
    fn unresolved(&self) -> usize {
        let open = self.taken.iter().filter(|(offset, fate)| **fate == Fate::Out && self.admits(**offset));
        if self.draining.is_some() { open.count() } else { 0 }
    }

    /// Whether somebody dropped a record that had to be finished.
    fn was_given_up(&self) -> bool {
        let highest = self.highest_begun().unwrap_or(i64::MIN);
        self.taken.range(..=highest).any(|(_, fate)| *fate == Fate::Abandoned)
    }

    /// Whether the next owner would have effects again that this one had.
    fn replays(&self) -> bool {
        self.highest_begun().is_some_and(|highest| highest >= self.committed.unwrap_or(self.start))
    }
}

#[derive(Clone, Debug)]
enum Op {
    Assign { partition: i32, start: i64 },
    Revoke { partitions: BTreeSet<i32>, drain_millis: u64 },
    Lose { partitions: BTreeSet<i32> },
    Take { partition: i32, skip: i64 },
    Begin { pick: usize },
    Settle { pick: usize, done: bool },
    Pass { millis: u64 },
    Step { answer: Answer },
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Ok,
    Retriable,
    Fenced,
}

fn op() -> impl Strategy<Value = Op> {
    let partitions = || prop::collection::btree_set(0..3i32, 1..3);
    let answer = prop_oneof![4 => Just(Answer::Ok), 1 => Just(Answer::Retriable), 1 => Just(Answer::Fenced)];
    prop_oneof![
        2 => (0..3i32, 0..5i64).prop_map(|(partition, start)| Op::Assign { partition, start }),
        1 => (partitions(), 1..2_000u64)
            .prop_map(|(partitions, drain_millis)| Op::Revoke { partitions, drain_millis }),
        1 => partitions().prop_map(|partitions| Op::Lose { partitions }),
        6 => (0..3i32, 0..2i64).prop_map(|(partition, skip)| Op::Take { partition, skip }),
        4 => any::<usize>().prop_map(|pick| Op::Begin { pick }),
        5 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(pick, done)| Op::Settle { pick, done }),
        2 => (0..1_500u64).prop_map(|millis| Op::Pass { millis }),
        4 => answer.prop_map(|answer| Op::Step { answer }),
    ]
}

/// Partitions with the epochs under which they are owned, as the model writes them and as the port does.
type Ours = Vec<(i32, u64)>;
type Wire = Vec<(TopicPartition, Epoch)>;

/// The model beside the machine.
struct Pair {
    custody: Custody,
    now: Instant,
    owned: BTreeMap<i32, Owned>,
    /// Positions that somebody holds, with their fate of old epochs too.
    positions: Vec<(Position, bool)>,
    /// Events not released: partitions with epochs, and the deadline of a drain.
    events: BTreeMap<u64, (Ours, Option<Instant>)>,
    /// Ownerships that ended with effects above the last commit, for a reason.
    uncovered: u64,
    next_event: u64,
    next_epoch: u64,
}

fn topic(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

impl Pair {
    fn new() -> Self {
        Pair {
            custody: Custody::new(CustodyConfig::default()),
            now: Instant::default(),
            owned: BTreeMap::new(),
            positions: Vec::new(),
            events: BTreeMap::new(),
            uncovered: 0,
            next_event: 0,
            next_epoch: 0,
        }
    }

    fn current(&mut self, position: &Position) -> Option<&mut Owned> {
        let partition = position.partition.partition;
        self.owned.get_mut(&partition).filter(|owned| owned.epoch == position.epoch.0)
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Assign { partition, start } => self.assign(partition, start),
            Op::Revoke { partitions, drain_millis } => self.revoke(&partitions, drain_millis),
            Op::Lose { partitions } => self.lose(&partitions),
            Op::Take { partition, skip } => self.take(partition, skip)?,
            Op::Begin { pick } => self.begin(pick)?,
            Op::Settle { pick, done } => self.settle(pick, done),
            Op::Pass { millis } => self.now = self.now + Duration::from_millis(millis),
            Op::Step { answer } => {
                self.step(answer)?;
            }
        }
        Ok(())
    }

    fn assign(&mut self, partition: i32, start: i64) {
        if self.owned.contains_key(&partition) {
            return;
        }
        self.next_epoch += 1;
        let epoch = self.next_epoch;
        self.owned.insert(partition, Owned { epoch, next: start, start, ..Owned::default() });
        self.custody.assigned(&[Assignment {
            partition: topic(partition),
            epoch: Epoch(epoch),
            committed: None,
            start,
        }]);
    }

    fn leaving(&mut self, partitions: &BTreeSet<i32>) -> (RebalanceId, Ours, Wire) {
        self.next_event += 1;
        let ours: Ours =
            partitions.iter().filter_map(|one| self.owned.get(one).map(|owned| (*one, owned.epoch))).collect();
        let wire = ours.iter().map(|(one, epoch)| (topic(*one), Epoch(*epoch))).collect();
        (RebalanceId(self.next_event), ours, wire)
    }

    fn revoke(&mut self, partitions: &BTreeSet<i32>, drain_millis: u64) {
        let (event, ours, wire) = self.leaving(partitions);
        let deadline = self.now + Duration::from_millis(drain_millis);
        for (partition, _) in &ours {
            let owned = self.owned.get_mut(partition).expect("it is ours");
            owned.draining = owned.draining.or(Some(owned.highest_begun()));
        }
        self.events.insert(event.0, (ours, Some(deadline)));
        self.custody.revoking(event, wire, deadline);
    }

    fn lose(&mut self, partitions: &BTreeSet<i32>) {
        let (event, ours, wire) = self.leaving(partitions);
        for (partition, _) in &ours {
            let owned = self.owned.remove(partition).expect("it is ours");
            self.uncovered += u64::from(owned.replays());
        }
        self.events.insert(event.0, (ours, None));
        self.custody.lost(event, wire);
    }

    fn take(&mut self, partition: i32, skip: i64) -> Result<(), TestCaseError> {
        let Some(owned) = self.owned.get_mut(&partition) else { return Ok(()) };
        let offset = owned.next + skip;
        let position = Position { partition: topic(partition), offset, epoch: Epoch(owned.epoch) };
        let accepted = self.custody.taken(&position);
        prop_assert_eq!(accepted, owned.draining.is_none());
        if accepted {
            owned.next = offset + 1;
            owned.taken.insert(offset, Fate::Out);
            self.positions.push((position, false));
        }
        Ok(())
    }

    fn begin(&mut self, pick: usize) -> Result<(), TestCaseError> {
        if self.positions.is_empty() {
            return Ok(());
        }
        let index = pick % self.positions.len();
        let position = self.positions[index].0.clone();
        let is_active = self.custody.is_active(&position);
        let begins = self.custody.begin(&position);
        let expected = self.current(&position).is_some_and(|owned| owned.admits(position.offset));
        prop_assert_eq!((is_active, begins), (expected, expected), "begin of {:?}", position);
        if begins {
            self.positions[index].1 = true;
            let owned = self.current(&position).expect("it may begin, so it is ours");
            owned.begun.insert(position.offset);
        }
        Ok(())
    }

    fn settle(&mut self, pick: usize, done: bool) {
        if self.positions.is_empty() {
            return;
        }
        let (position, begun) = self.positions.swap_remove(pick % self.positions.len());
        // Nothing is done without having begun.
        let done = done && begun;
        self.custody.settled(&position, done);
        if let Some(owned) = self.current(&position) {
            owned.given_up |= !done && owned.admits(position.offset);
            owned.taken.insert(position.offset, if done { Fate::Done } else { Fate::Abandoned });
        }
    }

    fn step(&mut self, answer: Answer) -> Result<bool, TestCaseError> {
        match self.custody.step(self.now) {
            Step::Commit(commits) => self.commit(&commits, answer)?,
            Step::Release(event) => self.release(event)?,
            Step::Leave => prop_assert!(false, "nobody asked to leave"),
            Step::Wait(until) => {
                prop_assert!(until.is_none_or(|until| until > self.now), "waits for what has passed");
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn commit(&mut self, commits: &[Commit], answer: Answer) -> Result<(), TestCaseError> {
        prop_assert!(!commits.is_empty());
        for commit in commits {
            let owned = self.owned.get_mut(&commit.partition.partition);
            let owned = owned.filter(|owned| owned.epoch == commit.epoch.0);
            prop_assert!(owned.is_some(), "commit under an epoch that is not current: {:?}", commit);
            let owned = owned.expect("just asserted");
            prop_assert!(!owned.barred, "commit after it was refused for good");
            prop_assert_eq!(commit.offset, owned.low_water(), "not the low-water mark");
            prop_assert!(commit.offset > owned.committed.unwrap_or(owned.start), "commit of nothing new");
            prop_assert!(!commit.metadata.is_empty());
            match answer {
                Answer::Ok => owned.committed = Some(commit.offset),
                Answer::Fenced => owned.barred = true,
                Answer::Retriable => {}
            }
        }
        let result = match answer {
            Answer::Ok => Ok(()),
            Answer::Retriable => Err(TransportError::new(ErrorKind::Retriable, "REBALANCE_IN_PROGRESS", "test")),
            Answer::Fenced => Err(TransportError::new(ErrorKind::Fenced, "UNKNOWN_MEMBER_ID", "test")),
        };
        self.custody.committed(commits, &vec![result; commits.len()], self.now);
        Ok(())
    }

    fn release(&mut self, event: RebalanceId) -> Result<(), TestCaseError> {
        let released = self.events.remove(&event.0);
        prop_assert!(released.is_some(), "released twice or never announced: {:?}", event);
        let (partitions, deadline) = released.expect("just asserted");
        let in_time = deadline.is_some_and(|deadline| self.now < deadline);
        for (partition, epoch) in partitions {
            let Some(owned) = self.owned.get(&partition).filter(|owned| owned.epoch == epoch) else { continue };
            if in_time {
                let uncommitted = owned.low_water() > owned.committed.unwrap_or(owned.start);
                prop_assert!(!uncommitted || owned.barred, "released without the commit");
                prop_assert_eq!(owned.unresolved(), 0, "released with something unfinished");
                prop_assert!(owned.was_given_up() || owned.barred || !owned.replays(), "the next owner does it again");
            }
            let cut_short = !in_time || owned.given_up || owned.barred;
            self.uncovered += u64::from(cut_short && owned.replays());
            self.owned.remove(&partition);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn partitions_are_drained_committed_and_released_once(ops in prop::collection::vec(op(), 0..120)) {
        let mut pair = Pair::new();
        for op in ops {
            pair.apply(op)?;
            prop_assert_eq!(pair.custody.take_uncovered(), std::mem::take(&mut pair.uncovered));
            prop_assert_eq!(pair.custody.held(), pair.positions.len());
        }
        // Everything comes to its end once what is out is settled and the commits succeed.
        while !pair.positions.is_empty() {
            pair.settle(0, true);
        }
        for _ in 0..2_000 {
            pair.now = pair.now + Duration::from_millis(100);
            while pair.step(Answer::Ok)? {}
        }
        prop_assert!(pair.events.is_empty(), "not released: {:?}", pair.events);
        for (partition, owned) in &pair.owned {
            let done = owned.low_water() == owned.committed.unwrap_or(owned.start) || owned.barred;
            prop_assert!(done, "never committed: {} {:?}", partition, owned);
        }
    }
}

#[test]
fn a_closing_custody_drains_everything_and_leaves() {
    let mut custody = Custody::new(CustodyConfig::default());
    let new =
        |partition, epoch| Assignment { partition: topic(partition), epoch: Epoch(epoch), committed: None, start: 5 };
    custody.assigned(&[new(0, 1)]);
    let position = Position { partition: topic(0), offset: 5, epoch: Epoch(1) };
    assert!(custody.taken(&position) && custody.begin(&position));
    custody.close(Instant::from_micros(10_000_000));
    // What comes while closing drains too.
    custody.assigned(&[new(1, 2)]);
    assert!(!custody.taken(&Position { partition: topic(1), offset: 5, epoch: Epoch(2) }));
    assert_eq!(custody.step(Instant::default()), Step::Wait(Some(Instant::from_micros(10_000_000))));
    custody.settled(&position, true);
    let Step::Commit(commits) = custody.step(Instant::default()) else { panic!("a commit is due") };
    assert_eq!(commits[0].offset, 6);
    custody.committed(&commits, &[Ok(())], Instant::default());
    assert!(!custody.has_left());
    assert_eq!(custody.step(Instant::default()), Step::Leave);
    assert!(custody.has_left());
}
