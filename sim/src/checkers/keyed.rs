//! The collections of the checkers. What each of them is walked in follows from the history alone, never from a hash
//! that a process draws.

use std::hash::BuildHasherDefault;
use std::ops::{Bound, RangeBounds};

use indexmap::IndexMap;

use crate::history::RollingHash;

/// A map that is asked far more often than it is walked; walked in the order of insertion.
pub type Keyed<K, V> = IndexMap<K, V, BuildHasherDefault<RollingHash>>;

/// Values by offset, in their order. A history tells of nearly all of them in that order.
#[derive(Clone, Debug)]
pub struct ByOffset<T>(Vec<(i64, T)>);

impl<T> Default for ByOffset<T> {
    fn default() -> Self {
        ByOffset(Vec::new())
    }
}

impl<T> ByOffset<T> {
    fn find(&self, offset: i64) -> Result<usize, usize> {
        match self.0.last() {
            Some((last, _)) if *last >= offset => self.0.binary_search_by_key(&offset, |(at, _)| *at),
            _ => Err(self.0.len()),
        }
    }

    /// The value at `offset`.
    pub fn get(&self, offset: i64) -> Option<&T> {
        self.find(offset).ok().map(|place| &self.0[place].1)
    }

    /// Sets the value at `offset`, in place of one that is there.
    pub fn set(&mut self, offset: i64, value: T) {
        match self.find(offset) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (offset, value)),
        }
    }

    /// Sets the value at `offset` unless there is one. Whether it did.
    pub fn set_first(&mut self, offset: i64, value: impl FnOnce() -> T) -> bool {
        let place = self.find(offset);
        if let Err(place) = place {
            self.0.insert(place, (offset, value()));
        }
        place.is_err()
    }

    /// What lies within `offsets`, in order.
    pub fn range(&self, offsets: impl RangeBounds<i64>) -> impl Iterator<Item = (i64, &T)> {
        let first = match offsets.start_bound() {
            Bound::Included(start) => self.0.partition_point(|(at, _)| at < start),
            Bound::Excluded(start) => self.0.partition_point(|(at, _)| at <= start),
            Bound::Unbounded => 0,
        };
        let within = self.0[first..].iter().take_while(move |(at, _)| offsets.contains(at));
        within.map(|(at, value)| (*at, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_by_offset_are_an_ordered_map(
            steps in prop::collection::vec((0..30i64, any::<bool>()), 0..60),
            from in 0..30i64,
            length in 0..30i64,
        ) {
            let (mut by_offset, mut model) = (ByOffset::default(), BTreeMap::new());
            for (number, (offset, first)) in steps.into_iter().enumerate() {
                if first {
                    prop_assert_eq!(by_offset.set_first(offset, || number), !model.contains_key(&offset));
                    model.entry(offset).or_insert(number);
                } else {
                    by_offset.set(offset, number);
                    model.insert(offset, number);
                }
                prop_assert_eq!(by_offset.get(from), model.get(&from));
            }
            let found: Vec<_> = by_offset.range(from..from + length).map(|(at, value)| (at, *value)).collect();
            let expected: Vec<_> = model.range(from..from + length).map(|(at, value)| (*at, *value)).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(by_offset.range(..).count(), model.len());
            prop_assert_eq!(by_offset.range(from..).count(), model.range(from..).count());
        }
    }
}
