//! Runs: a map from numbers to small values, kept as intervals of equal values.
//!
//! Dense numbers cost nothing: the ledger keeps completed sequences and terminal ordinals in it.

use std::collections::BTreeMap;

/// A map from `u64` to `V`, stored as the longest runs of consecutive numbers with one value. Values never change once
/// set.
#[derive(Clone, Debug)]
pub struct Runs<V> {
    /// First number, last number and their value, as long as there are no others: most records have one output.
    only: Option<(u64, u64, V)>,
    /// First number → last number and their value; empty while there is `only`.
    runs: BTreeMap<u64, (u64, V)>,
    len: u64,
}

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Runs { only: None, runs: BTreeMap::new(), len: 0 }
    }
}

impl<V: Copy + Eq> Runs<V> {
    /// The value of `number`.
    pub fn get(&self, number: u64) -> Option<V> {
        if let Some((first, last, value)) = self.only {
            return (first <= number && number <= last).then_some(value);
        }
        let (_, (last, value)) = self.runs.range(..=number).next_back()?;
        (number <= *last).then_some(*value)
    }

    /// Sets `number`'s value, unless it has one: then gives that back.
    pub fn insert(&mut self, number: u64, value: V) -> Option<V> {
        if let Some(old) = self.get(number) {
            return Some(old);
        }
        self.len += 1;
        if self.len == 1 {
            self.only = Some((number, number, value));
            return None;
        }
        if let Some((first, last, only)) = self.only.take() {
            if only == value && last.checked_add(1) == Some(number) {
                self.only = Some((first, number, value));
                return None;
            }
            self.runs.insert(first, (last, only));
        }
        let mut last = number;
        if let Some(above) = number.checked_add(1)
            && let Some(&(above_last, above_value)) = self.runs.get(&above)
            && above_value == value
        {
            self.runs.remove(&above);
            last = above_last;
        }
        match self.runs.range_mut(..number).next_back() {
            Some((_, below)) if below.0 + 1 == number && below.1 == value => below.0 = last,
            _ => {
                self.runs.insert(number, (last, value));
            }
        }
        None
    }

    /// Removes every number from `end` on, and says how many had values.
    pub fn truncate(&mut self, end: u64) -> u64 {
        let before = self.len;
        if let Some((first, last, value)) = self.only.take() {
            if end > first {
                self.only = Some((first, last.min(end - 1), value));
            }
            self.len = self.only.map_or(0, |(first, last, _)| last - first + 1);
            return before - self.len;
        }
        for (first, (last, _)) in self.runs.split_off(&end) {
            self.len -= last - first + 1;
        }
        if let Some((_, below)) = self.runs.range_mut(..end).next_back()
            && below.0 >= end
        {
            self.len -= below.0 - end + 1;
            below.0 = end - 1;
        }
        before - self.len
    }

    /// How many numbers have values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The runs in order: first number, last number, value.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, V)> + '_ {
        let runs = self.runs.iter().map(|(first, (last, value))| (*first, *last, *value));
        self.only.into_iter().chain(runs)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn runs_are_a_map_in_the_fewest_intervals(
            inserts in prop::collection::vec((0u64..40, 0u8..2), 0..80), end in prop::option::of(0u64..45),
        ) {
            let (mut runs, mut model) = (Runs::default(), BTreeMap::new());
            for (number, value) in inserts {
                prop_assert_eq!(runs.insert(number, value), model.get(&number).copied());
                model.entry(number).or_insert(value);
            }
            if let Some(end) = end {
                prop_assert_eq!(runs.truncate(end), model.split_off(&end).len() as u64);
            }
            prop_assert_eq!(runs.len(), model.len() as u64);
            prop_assert!((0..45).all(|number| runs.get(number) == model.get(&number).copied()));
            let listed: Vec<_> = runs.iter().collect();
            let apart = |pair: &[(u64, u64, u8)]| pair[0].1 + 1 < pair[1].0 || pair[0].2 != pair[1].2;
            prop_assert!(listed.windows(2).all(apart), "{:?}", listed);
        }
    }
}
