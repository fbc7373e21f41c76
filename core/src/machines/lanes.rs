//! The lane scheduler: equal keys stay in one lane, in order, whatever the number of lanes.
//!
//! A lane is what one worker thread or indexer works through. Full means back-pressure: a refused item is handed back,
//! never lost. Which partition a key lies in is the business of [`crate::partitioner`]; lanes hash otherwise, or the
//! keys of one partition would crowd into few lanes.

use std::collections::VecDeque;

/// Queues of items, one a lane, bounded together.
#[derive(Debug)]
pub struct Lanes<T> {
    lanes: Vec<VecDeque<T>>,
    capacity: usize,
    len: usize,
}

/// An item that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> Lanes<T> {
    /// `lanes` lanes (at least one) that hold at most `capacity` items together.
    pub fn new(lanes: usize, capacity: usize) -> Self {
        Lanes { lanes: (0..lanes.max(1)).map(|_| VecDeque::new()).collect(), capacity, len: 0 }
    }

    /// The lane of `key`: for a number of lanes always the same, in any process and edition.
    pub fn lane_of(&self, key: &[u8]) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        // FNV-1a, finished as murmur3 does: few lanes take only a part of the bits.
        let mut hash = key
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        ((hash ^ (hash >> 33)) % self.lanes.len() as u64) as usize
    }

    /// Queues an item behind those of its key; gives the lane.
    pub fn push(&mut self, key: &[u8], item: T) -> Result<usize, Full<T>> {
        let lane = self.lane_of(key);
        self.push_to(lane, item)?;
        Ok(lane)
    }

    /// The same for an item whose lane is known to be [`Self::lane_of`] its key.
    pub fn push_to(&mut self, lane: usize, item: T) -> Result<(), Full<T>> {
        if self.is_full() {
            return Err(Full(item));
        }
        self.lanes[lane].push_back(item);
        self.len += 1;
        Ok(())
    }

    /// At most `max` items of `lane`, oldest first. There must be such a lane.
    pub fn take(&mut self, lane: usize, max: usize) -> Vec<T> {
        let queue = &mut self.lanes[lane];
        let taken = queue.drain(..max.min(queue.len())).collect::<Vec<_>>();
        self.len -= taken.len();
        taken
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Items that wait in `lane`. There must be such a lane.
    pub fn lane_len(&self, lane: usize) -> usize {
        self.lanes[lane].len()
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the next push is refused.
    pub fn is_full(&self) -> bool {
        self.len >= self.capacity
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8),
        Take(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..12u8).prop_map(Step::Push),
            4 => (0..5usize, 0..4usize).prop_map(|(lane, max)| Step::Take(lane, max)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The model is one list in order of arrival, and the lane that each key was first seen in.
        #[test]
        fn a_key_keeps_its_lane_and_its_order(
            count in 1..5usize, capacity in 0..20usize, steps in prop::collection::vec(step(), 0..80),
        ) {
            let mut lanes = Lanes::new(count, capacity);
            let mut waiting: Vec<(u8, usize)> = Vec::new();
            let mut homes: BTreeMap<u8, usize> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(key) => match lanes.push(&[key], (key, number)) {
                        Ok(lane) => {
                            prop_assert!(waiting.len() < capacity && lane < count);
                            prop_assert_eq!(*homes.entry(key).or_insert(lane), lane);
                            waiting.push((key, number));
                        }
                        Err(full) => prop_assert_eq!((full.0, waiting.len()), ((key, number), capacity)),
                    },
                    Step::Take(lane, max) => {
                        let lane = lane % count;
                        let mine = waiting.iter().copied().filter(|(key, _)| homes[key] == lane);
                        let expected = mine.take(max).collect::<Vec<_>>();
                        waiting.retain(|item| !expected.contains(item));
                        prop_assert_eq!(lanes.take(lane, max), expected);
                    }
                }
                prop_assert_eq!(lanes.len(), waiting.len());
                prop_assert_eq!((0..count).map(|lane| lanes.lane_len(lane)).sum::<usize>(), waiting.len());
            }
        }
    }

    #[test]
    fn lanes_are_fixed_and_even_within_a_partition() {
        let lanes = Lanes::<()>::new(4, 0);
        let keys = (0..12_000).map(|number| format!("doc-{number}"));
        let mut counts = [0; 4];
        for key in keys.filter(|key| crate::partitioner::partition(key.as_bytes(), 4) == 1) {
            counts[lanes.lane_of(key.as_bytes())] += 1;
        }
        assert!(counts.iter().all(|count| (600..900).contains(count)), "{counts:?}");
        assert_eq!(["doc-1", "doc-2", "kafka", ""].map(|key| lanes.lane_of(key.as_bytes())), [2, 1, 0, 2]);
    }
}
