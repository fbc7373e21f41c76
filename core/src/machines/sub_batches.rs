//! Sub-batches: one batch in the making for each key, as for each index that is written to.
//!
//! Each has limits of its own, and items of one key keep their order. The number that is open is bounded: for a new key
//! too many, the one that would be due first makes room. Of what is due the oldest goes first, so that no key waits
//! behind one that is always full.

use std::collections::BTreeMap;

use super::batcher::{BatchLimits, Batcher};
use crate::env::Instant;

/// Batches in the making, by key.
#[derive(Debug)]
pub struct SubBatches<K, T> {
    limits: BatchLimits,
    open_max: usize,
    /// None is empty.
    open: BTreeMap<K, Batcher<T>>,
}

impl<K: Ord + Clone, T> SubBatches<K, T> {
    /// None yet; at most `open_max` (at least one) at a time, each within `limits`.
    pub fn new(limits: BatchLimits, open_max: usize) -> Self {
        SubBatches { limits, open_max: open_max.max(1), open: BTreeMap::new() }
    }

    /// Adds an item behind those of its key; gives the batches that have to go now, in order: at most one of another
    /// key, to make room, and one of this key that is full. What stays may itself be due: ask [`Self::due`] after it.
    pub fn push(&mut self, key: K, item: T, bytes: usize, now: Instant) -> Vec<Vec<T>> {
        let mut batches = Vec::new();
        if !self.open.contains_key(&key) && self.open.len() >= self.open_max {
            batches.extend(self.first_due().and_then(|first| self.open.remove(&first)).map(|mut first| first.take()));
        }
        let batcher = self.open.entry(key.clone()).or_insert_with(|| Batcher::new(self.limits));
        batches.extend(batcher.push(item, bytes, now));
        if batcher.is_empty() {
            self.open.remove(&key);
        }
        batches
    }

    /// The oldest batch that is due, if any is.
    pub fn due(&mut self, now: Instant) -> Option<Vec<T>> {
        let first = self.first_due()?;
        let batch = self.open.get_mut(&first)?.due(now)?;
        self.open.remove(&first);
        Some(batch)
    }

    /// When [`Self::due`] gives a batch; `None` while nothing waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.open.values().filter_map(Batcher::deadline).min()
    }

    /// A batch that waits, due or not, the oldest first; `None` when nothing does.
    pub fn take(&mut self) -> Option<Vec<T>> {
        let first = self.first_due()?;
        self.open.remove(&first).map(|mut batcher| batcher.take())
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.open.values().map(Batcher::len).sum()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Batches in the making.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn first_due(&self) -> Option<K> {
        let deadlines = self.open.iter().filter_map(|(key, batcher)| Some((batcher.deadline()?, key)));
        deadlines.min().map(|(_, key)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const AGE: Duration = Duration::from_micros(10);

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8, usize),
        Due,
        Take,
    }

    fn step() -> impl Strategy<Value = (u64, Step)> {
        let step = prop_oneof![
            8 => (0..5u8, 0..30usize).prop_map(|(key, bytes)| Step::Push(key, bytes)),
            3 => Just(Step::Due),
            1 => Just(Step::Take),
        ];
        (0..6u64, step)
    }

    /// One item that waits.
    #[derive(Clone, Copy, Debug)]
    struct Waiting {
        number: usize,
        key: u8,
        bytes: usize,
        arrival: Instant,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The model is a list of what waits, in order of arrival.
        #[test]
        fn keys_keep_their_order_and_none_waits_behind_another(
            items_max in 1..4usize, bytes_max in 1..60usize, open_max in 1..4usize,
            steps in prop::collection::vec(step(), 0..80),
        ) {
            let mut batches = SubBatches::new(BatchLimits { items_max, bytes_max, age_max: AGE }, open_max);
            let mut model: Vec<Waiting> = Vec::new();
            let mut now = Instant::default();
            for (number, (passed, step)) in steps.into_iter().enumerate() {
                now = now + Duration::from_micros(passed);
                let is_due = matches!(step, Step::Due);
                let gone = match step {
                    Step::Push(key, bytes) => {
                        let known = model.iter().any(|waiting| waiting.key == key);
                        let gone = batches.push(key, (number, key), bytes, now);
                        let others = gone.iter().filter(|batch| batch[0].1 != key).count();
                        prop_assert!(others == 0 || !known, "only a new key makes others go");
                        model.push(Waiting { number, key, bytes, arrival: now });
                        gone
                    }
                    Step::Due => std::iter::from_fn(|| batches.due(now)).collect(),
                    Step::Take => batches.take().into_iter().collect(),
                };
                for batch in &gone {
                    let key = batch.first().expect("no batch is empty").1;
                    let mine = model.iter().filter(|waiting| waiting.key == key).take(batch.len());
                    let expected: Vec<_> = mine.map(|waiting| (waiting.number, waiting.key)).collect();
                    prop_assert_eq!(batch, &expected, "one key, in order, nothing lost");
                    let is_gone = |waiting: &Waiting| batch.iter().any(|(number, _)| *number == waiting.number);
                    let bytes: usize = model.iter().filter(|one| is_gone(one)).map(|one| one.bytes).sum();
                    prop_assert!(batch.len() <= items_max && (bytes <= bytes_max || batch.len() == 1));
                    model.retain(|waiting| !is_gone(waiting));
                }
                let old = model.iter().find(|waiting| now.since(waiting.arrival) >= AGE);
                prop_assert!(!is_due || old.is_none(), "{old:?} is due and stays");
                let mut keys: Vec<_> = model.iter().map(|waiting| waiting.key).collect();
                keys.sort_unstable();
                keys.dedup();
                prop_assert!(keys.len() <= open_max);
                prop_assert_eq!((batches.open(), batches.len()), (keys.len(), model.len()));
                prop_assert_eq!(batches.is_empty(), model.is_empty());
                let of_key = |key: &u8| {
                    let mine: Vec<_> = model.iter().filter(|waiting| waiting.key == *key).collect();
                    let full = mine.len() >= items_max || mine.iter().map(|one| one.bytes).sum::<usize>() >= bytes_max;
                    if full { mine[0].arrival } else { mine[0].arrival + AGE }
                };
                prop_assert_eq!(batches.deadline(), keys.iter().map(of_key).min());
            }
        }
    }
}
