//! The batcher: groups items into batches by count, bytes and the age of the oldest.
//!
//! Order is kept and no limit is passed, but for an item that is over the byte limit alone: it is a batch of its own.

use std::time::Duration;

use crate::env::Instant;

/// When a batch is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Items in a batch, at least 1.
    pub items_max: usize,
    /// Bytes in a batch.
    pub bytes_max: usize,
    /// How long the oldest item may wait.
    pub age_max: Duration,
}

/// One batch in the making.
#[derive(Debug)]
pub struct Batcher<T> {
    limits: BatchLimits,
    items: Vec<T>,
    /// Bytes and time of arrival of each item.
    sizes: Vec<(usize, Instant)>,
    bytes: usize,
}

impl<T> Batcher<T> {
    /// An empty batcher.
    pub fn new(limits: BatchLimits) -> Self {
        Batcher { limits, items: Vec::new(), sizes: Vec::new(), bytes: 0 }
    }

    /// Adds an item; gives a batch that is full, with this item or before it. What stays may itself be due at once:
    /// ask [`Self::due`] after it.
    pub fn push(&mut self, item: T, bytes: usize, now: Instant) -> Option<Vec<T>> {
        let before = if !self.is_empty() && self.bytes.saturating_add(bytes) > self.limits.bytes_max {
            Some(self.take())
        } else {
            None
        };
        self.items.push(item);
        self.sizes.push((bytes, now));
        self.bytes = self.bytes.saturating_add(bytes);
        match before {
            None if self.is_full() => Some(self.take()),
            before => before,
        }
    }

    /// The batch, when it is full or its oldest item has waited long enough.
    pub fn due(&mut self, now: Instant) -> Option<Vec<T>> {
        self.deadline().is_some_and(|deadline| deadline <= now).then(|| self.take())
    }

    /// When [`Self::due`] gives a batch; `None` while empty.
    pub fn deadline(&self) -> Option<Instant> {
        let (_, oldest) = *self.sizes.first()?;
        Some(if self.is_full() { oldest } else { oldest + self.limits.age_max })
    }

    /// Everything that waits, due or not; may be empty.
    pub fn take(&mut self) -> Vec<T> {
        self.sizes.clear();
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn is_full(&self) -> bool {
        self.items.len() >= self.limits.items_max || self.bytes >= self.limits.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGE: Duration = Duration::from_micros(10);

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Due,
        Take,
    }

    fn step() -> impl Strategy<Value = (u64, Step)> {
        let step = prop_oneof![
            8 => (0..30usize).prop_map(Step::Push),
            4 => Just(Step::Due),
            1 => Just(Step::Take),
        ];
        (0..6u64, step)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The model is a list of what waits: (number, bytes, arrival).
        #[test]
        fn batches_keep_order_and_limits(
            items_max in 1..5usize, bytes_max in 1..40usize, steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut batcher = Batcher::new(BatchLimits { items_max, bytes_max, age_max: AGE });
            let mut model: Vec<(usize, usize, Instant)> = Vec::new();
            let mut now = Instant::default();
            for (number, (passed, step)) in steps.into_iter().enumerate() {
                now = now + Duration::from_micros(passed);
                let batch = match step {
                    Step::Push(bytes) => {
                        let batch = batcher.push((number, bytes), bytes, now);
                        model.push((number, bytes, now));
                        batch
                    }
                    Step::Due => {
                        let old = model.first().is_some_and(|(_, _, arrival)| now.since(*arrival) >= AGE);
                        let batch = batcher.due(now);
                        prop_assert!(!old || batch.is_some(), "an old item must not wait");
                        batch
                    }
                    Step::Take => Some(batcher.take()),
                };
                if let Some(batch) = batch {
                    let expected = model.drain(..batch.len()).map(|(number, bytes, _)| (number, bytes));
                    prop_assert_eq!(&batch, &expected.collect::<Vec<_>>(), "in order, nothing lost");
                    let bytes: usize = batch.iter().map(|(_, bytes)| bytes).sum();
                    prop_assert!(batch.len() <= items_max && (bytes <= bytes_max || batch.len() == 1));
                }
                prop_assert_eq!(batcher.len(), model.len());
                let bytes: usize = model.iter().map(|(_, bytes, _)| bytes).sum();
                let full = model.len() >= items_max || bytes >= bytes_max;
                prop_assert!(!full || model.len() == 1, "only an item just pushed behind a batch may be full");
                let deadline = model.first().map(|(_, _, arrival)| if full { *arrival } else { *arrival + AGE });
                prop_assert_eq!(batcher.deadline(), deadline);
            }
        }
    }
}
