//! How often groups were rebalanced.
//!
//! A group's first generation is how it forms, and each later one a rebalance; but for the second half of a cooperative
//! one. What a member is to give up, nobody is given in the first half, and its next owner in the second.

use std::collections::{BTreeMap, BTreeSet};

use seriatim_core::identity::TopicPartition;

use crate::history::{Event, What};

/// A group's generation, and what lies with its members.
struct Generation<'a> {
    number: i32,
    given: BTreeSet<&'a TopicPartition>,
    /// Given in this generation or in one before.
    known: BTreeSet<&'a TopicPartition>,
}

pub(super) fn count(events: &[Event]) -> u64 {
    let mut groups: BTreeMap<&str, Generation<'_>> = BTreeMap::new();
    let mut rebalances = 0;
    for event in events {
        let What::GroupAssigned { group, generation, partitions, .. } = &event.what else { continue };
        let forming = || Generation { number: *generation, given: BTreeSet::new(), known: BTreeSet::new() };
        let current = groups.entry(group).or_insert_with(forming);
        if current.number != *generation {
            rebalances += u64::from(current.given.len() == current.known.len());
            current.number = *generation;
            current.given.clear();
        }
        current.given.extend(partitions);
        current.known.extend(partitions);
    }
    rebalances
}
