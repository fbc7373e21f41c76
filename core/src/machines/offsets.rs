//! The offset tracker: what may be committed, for each partition that a consumer owns.
//!
//! Only the contiguous low-water mark of done records is ever committable: never past a gap, never backwards, never
//! under an epoch that is not current. Offsets of a partition rise but are not dense (compaction and transaction
//! markers leave holes), so "contiguous" is judged by what was taken, not by counting.
//!
//! Memory follows [`OffsetTracker::held`], which a poller must bound by pausing: one slow record keeps every later
//! done one of its partition here.

use std::collections::{BTreeMap, VecDeque};

use crate::identity::{Epoch, TopicPartition};

/// Low-water marks of the partitions of one group consumer, fenced by epoch.
#[derive(Debug, Default)]
pub struct OffsetTracker {
    partitions: BTreeMap<TopicPartition, Partition>,
}

#[derive(Debug)]
struct Partition {
    epoch: Epoch,
    /// Taken and not below the low-water mark, offsets rising; the first is never done.
    window: VecDeque<Taken>,
    in_flight: usize,
    /// One past the last taken offset; the start offset before the first.
    next: i64,
    /// What the group is known to have committed, or the start offset.
    committed: i64,
}

#[derive(Debug)]
struct Taken {
    offset: i64,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Out,
    Done,
    /// Nobody works on it any more, and it is not done.
    Abandoned,
}

impl Partition {
    fn low_water(&self) -> i64 {
        self.window.front().map_or(self.next, |first| first.offset)
    }

    fn index_of(&self, offset: i64) -> Option<usize> {
        // Without holes the answer is a subtraction.
        let guess = usize::try_from(offset.checked_sub(self.window.front()?.offset)?).ok()?;
        if self.window.get(guess).is_some_and(|taken| taken.offset == offset) {
            return Some(guess);
        }
        self.window.binary_search_by_key(&offset, |taken| taken.offset).ok()
    }
}

impl OffsetTracker {
    /// A tracker that owns nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a new ownership of `partition`, reading from `start`. What an older epoch still had is forgotten.
    /// False, and no change, when an equal or newer epoch is current.
    pub fn assign(&mut self, partition: TopicPartition, epoch: Epoch, start: i64) -> bool {
        if self.partitions.get(&partition).is_some_and(|held| held.epoch >= epoch) {
            return false;
        }
        let fresh = Partition { epoch, window: VecDeque::new(), in_flight: 0, next: start, committed: start };
        self.partitions.insert(partition, fresh);
        true
    }

    /// Notes that the record at `offset` was taken; in the order of delivery. False, and no change, when `epoch` is not
    /// current, or when delivery went back within the epoch: its log was cut, its offsets mean other records
    /// now, and the caller must give this ownership up as lost instead of passing the record over.
    pub fn taken(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> bool {
        let Some(held) = self.current(partition, epoch) else { return false };
        if offset < held.next {
            return false;
        }
        held.window.push_back(Taken { offset, fate: Fate::Out });
        held.in_flight += 1;
        held.next = offset + 1;
        true
    }

    /// Notes that the record at `offset` is done. False, and no change, when `epoch` is not current, or when no such
    /// record is in flight.
    pub fn done(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> bool {
        let Some(held) = self.settle(partition, epoch, offset, Fate::Done) else { return false };
        while held.window.front().is_some_and(|first| first.fate == Fate::Done) {
            held.window.pop_front();
        }
        true
    }

    /// Notes that the record at `offset` will not be done under `epoch`: the mark stays below it, and nobody need wait
    /// for it. False, and no change, when `epoch` is not current, or when no such record is in flight.
    pub fn abandoned(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> bool {
        self.settle(partition, epoch, offset, Fate::Abandoned).is_some()
    }

    fn settle(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64, fate: Fate) -> Option<&mut Partition> {
        let held = self.current(partition, epoch)?;
        let index = held.index_of(offset)?;
        let taken = held.window.get_mut(index).filter(|taken| taken.fate == Fate::Out)?;
        taken.fate = fate;
        held.in_flight -= 1;
        Some(held)
    }

    /// The next offset to commit of `partition`, when it is above what was committed: the lowest offset that is taken
    /// and not done, or one past the last taken when all are done.
    pub fn low_water(&self, partition: &TopicPartition) -> Option<(Epoch, i64)> {
        let held = self.partitions.get(partition)?;
        let low_water = held.low_water();
        (low_water > held.committed).then_some((held.epoch, low_water))
    }

    /// What the group is known to have committed of `partition`, or the start offset; `None` when it is not owned.
    pub fn covered(&self, partition: &TopicPartition) -> Option<i64> {
        self.partitions.get(partition).map(|held| held.committed)
    }

    /// Every partition with something to commit, in order.
    pub fn committable(&self) -> Vec<(TopicPartition, Epoch, i64)> {
        let marks = self.partitions.iter().map(|(partition, held)| (partition, held, held.low_water()));
        let above = marks.filter(|(_, held, low_water)| *low_water > held.committed);
        above.map(|(partition, held, low_water)| (partition.clone(), held.epoch, low_water)).collect()
    }

    /// Notes that a commit of `offset` succeeded. False, and no change, when `epoch` is not current.
    pub fn committed(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> bool {
        let Some(held) = self.current(partition, epoch) else { return false };
        held.committed = held.committed.max(offset);
        true
    }

    /// Notes that the group was read to have committed `offset`. When that is below what this owner committed, an old
    /// owner's late commit came between, and the low-water mark becomes committable again. False, and no change, when
    /// `epoch` is not current.
    pub fn read_committed(&mut self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> bool {
        let Some(held) = self.current(partition, epoch) else { return false };
        held.committed = held.committed.min(offset);
        true
    }

    /// Ends an ownership. False, and no change, when `epoch` is not current.
    pub fn remove(&mut self, partition: &TopicPartition, epoch: Epoch) -> bool {
        let current = self.current(partition, epoch).is_some();
        if current {
            self.partitions.remove(partition);
        }
        current
    }

    /// The current epoch of `partition`, when it is owned.
    pub fn epoch(&self, partition: &TopicPartition) -> Option<Epoch> {
        self.partitions.get(partition).map(|held| held.epoch)
    }

    /// Records of `partition` that are taken, and neither done nor abandoned.
    pub fn in_flight(&self, partition: &TopicPartition) -> usize {
        self.partitions.get(partition).map_or(0, |held| held.in_flight)
    }

    /// The same of those below `offset`. It looks at each that is remembered.
    pub fn in_flight_below(&self, partition: &TopicPartition, offset: i64) -> usize {
        let Some(held) = self.partitions.get(partition) else { return 0 };
        let below = held.window.iter().take_while(|taken| taken.offset < offset);
        below.filter(|taken| taken.fate == Fate::Out).count()
    }

    /// Records that are taken, and neither done nor abandoned.
    pub fn in_flight_total(&self) -> usize {
        self.partitions.values().map(|held| held.in_flight).sum()
    }

    /// Records of `partition` that are remembered: those not done, and the done ones behind the first of them.
    pub fn held(&self, partition: &TopicPartition) -> usize {
        self.partitions.get(partition).map_or(0, |held| held.window.len())
    }

    fn current(&mut self, partition: &TopicPartition, epoch: Epoch) -> Option<&mut Partition> {
        self.partitions.get_mut(partition).filter(|held| held.epoch == epoch)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new("source", number)
    }

    #[test]
    fn a_gap_holds_the_mark_and_a_hole_does_not() {
        let (mut tracker, tp, epoch) = (OffsetTracker::new(), partition(0), Epoch(1));
        assert!(tracker.assign(tp.clone(), epoch, 10));
        assert_eq!(tracker.low_water(&tp), None, "nothing to commit at the start");
        for offset in [12, 13, 20] {
            assert!(tracker.taken(&tp, epoch, offset));
        }
        assert_eq!(tracker.low_water(&tp), Some((epoch, 12)), "compacted offsets are nobody's");
        assert!(tracker.done(&tp, epoch, 13));
        assert_eq!((tracker.low_water(&tp), tracker.held(&tp)), (Some((epoch, 12)), 3));
        assert!(tracker.done(&tp, epoch, 12));
        assert_eq!(tracker.low_water(&tp), Some((epoch, 20)));
        assert!(tracker.done(&tp, epoch, 20));
        assert_eq!(tracker.committable(), vec![(tp.clone(), epoch, 21)]);
        assert!(tracker.committed(&tp, epoch, 21));
        assert_eq!(tracker.low_water(&tp), None);
        assert!(tracker.read_committed(&tp, epoch, 13), "an old owner's commit landed late");
        assert_eq!(tracker.low_water(&tp), Some((epoch, 21)));
    }

    #[test]
    fn an_old_epoch_changes_nothing() {
        let (mut tracker, tp) = (OffsetTracker::new(), partition(0));
        tracker.assign(tp.clone(), Epoch(1), 0);
        tracker.taken(&tp, Epoch(1), 0);
        assert!(tracker.assign(tp.clone(), Epoch(2), 0));
        tracker.taken(&tp, Epoch(2), 0);
        assert!(!tracker.done(&tp, Epoch(1), 0) && !tracker.committed(&tp, Epoch(1), 1));
        assert!(!tracker.remove(&tp, Epoch(1)) && !tracker.assign(tp.clone(), Epoch(1), 0));
        assert_eq!(tracker.in_flight(&tp), 1);
        assert!(tracker.done(&tp, Epoch(2), 0) && !tracker.done(&tp, Epoch(2), 0));
    }

    #[test]
    fn a_delivery_that_goes_back_is_refused() {
        let (mut tracker, tp) = (OffsetTracker::new(), partition(0));
        tracker.assign(tp.clone(), Epoch(1), 5);
        assert!(!tracker.taken(&tp, Epoch(1), 4) && tracker.taken(&tp, Epoch(1), 7));
        assert!(!tracker.taken(&tp, Epoch(1), 7) && !tracker.taken(&tp, Epoch(1), 6));
        assert!(tracker.done(&tp, Epoch(1), 7) && !tracker.taken(&tp, Epoch(1), 7));
        assert_eq!(tracker.low_water(&tp), Some((Epoch(1), 8)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Assign { start: i64 },
        Taken { skip: i64, stale: bool },
        Done { pick: usize, stale: bool },
        Abandoned { pick: usize, stale: bool },
        Commit { stale: bool },
        Remove { stale: bool },
    }

    fn step() -> impl Strategy<Value = (i32, Step)> {
        let stale = || prop::bool::weighted(0.1);
        let step = prop_oneof![
            1 => (0..5i64).prop_map(|start| Step::Assign { start }),
            8 => (0..3i64, stale()).prop_map(|(skip, stale)| Step::Taken { skip, stale }),
            8 => (0..8usize, stale()).prop_map(|(pick, stale)| Step::Done { pick, stale }),
            1 => (0..8usize, stale()).prop_map(|(pick, stale)| Step::Abandoned { pick, stale }),
            3 => stale().prop_map(|stale| Step::Commit { stale }),
            1 => stale().prop_map(|stale| Step::Remove { stale }),
        ];
        (0..2, step)
    }

    /// Everything taken, done and abandoned; the mark is computed from scratch.
    #[derive(Default)]
    struct Model {
        start: i64,
        committed: i64,
        taken: BTreeSet<i64>,
        done: BTreeSet<i64>,
        abandoned: BTreeSet<i64>,
    }

    impl Model {
        fn in_flight(&self) -> Vec<i64> {
            self.taken
                .iter()
                .filter(|offset| !self.done.contains(offset) && !self.abandoned.contains(offset))
                .copied()
                .collect()
        }

        fn low_water(&self) -> i64 {
            let end = self.taken.last().map_or(self.start, |last| last + 1);
            self.taken.difference(&self.done).next().copied().unwrap_or(end)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn the_mark_is_the_lowest_offset_not_done(steps in prop::collection::vec(step(), 0..120)) {
            let mut tracker = OffsetTracker::new();
            let mut models: BTreeMap<i32, (Epoch, Model)> = BTreeMap::new();
            let mut epochs = 0;
            for (number, step) in steps {
                let tp = partition(number);
                let old = Epoch(models.get(&number).map_or(0, |(epoch, _)| epoch.0 - 1));
                let epoch_of = |stale: bool, current: Epoch| if stale { old } else { current };
                match (step, models.get_mut(&number)) {
                    (Step::Assign { start }, _) => {
                        epochs += 2;
                        prop_assert!(tracker.assign(tp, Epoch(epochs), start));
                        models.insert(number, (Epoch(epochs), Model { start, committed: start, ..Model::default() }));
                    }
                    (Step::Taken { skip, stale }, Some((epoch, model))) => {
                        let offset = model.taken.last().map_or(model.start, |last| last + 1) + skip;
                        prop_assert_eq!(tracker.taken(&tp, epoch_of(stale, *epoch), offset), !stale);
                        if !stale {
                            model.taken.insert(offset);
                        }
                    }
                    (Step::Done { pick, stale }, Some((epoch, model))) => {
                        let offset = model.in_flight().get(pick).copied().unwrap_or(pick as i64);
                        let fresh = !stale && model.in_flight().contains(&offset);
                        prop_assert_eq!(tracker.done(&tp, epoch_of(stale, *epoch), offset), fresh);
                        if fresh {
                            model.done.insert(offset);
                        }
                    }
                    (Step::Abandoned { pick, stale }, Some((epoch, model))) => {
                        let offset = model.in_flight().get(pick).copied().unwrap_or(pick as i64);
                        let fresh = !stale && model.in_flight().contains(&offset);
                        prop_assert_eq!(tracker.abandoned(&tp, epoch_of(stale, *epoch), offset), fresh);
                        if fresh {
                            model.abandoned.insert(offset);
                        }
                    }
                    (Step::Commit { stale }, Some((epoch, model))) => {
                        let mark = model.low_water();
                        tracker.committed(&tp, epoch_of(stale, *epoch), mark);
                        if !stale {
                            model.committed = mark;
                        }
                    }
                    (Step::Remove { stale }, Some((epoch, _))) => {
                        prop_assert_eq!(tracker.remove(&tp, epoch_of(stale, *epoch)), !stale);
                        if !stale {
                            models.remove(&number);
                        }
                    }
                    (_, None) => {
                        prop_assert!(!tracker.taken(&tp, Epoch(1), 0) && !tracker.done(&tp, Epoch(1), 0));
                    }
                }
                let mut committable = Vec::new();
                for (number, (epoch, model)) in &models {
                    let tp = partition(*number);
                    let expected = (model.low_water() > model.committed).then_some((*epoch, model.low_water()));
                    prop_assert_eq!(tracker.low_water(&tp), expected);
                    prop_assert_eq!(tracker.in_flight(&tp), model.in_flight().len());
                    for below in 0..20 {
                        let expected = model.in_flight().iter().filter(|offset| **offset < below).count();
                        prop_assert_eq!(tracker.in_flight_below(&tp, below), expected);
                    }
                    committable.extend(expected.map(|(epoch, offset)| (tp.clone(), epoch, offset)));
                }
                prop_assert_eq!(tracker.committable(), committable);
                let total: usize = models.values().map(|(_, model)| model.in_flight().len()).sum();
                prop_assert_eq!(tracker.in_flight_total(), total);
            }
        }
    }
}
