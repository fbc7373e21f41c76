//! Counts the ownerships whose effects the next owner has again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ownerships of partitions that ended with effects that no commit covers, as [`Custody::take_uncovered`] says, counted
/// over all intakes that share it. Without versions, order per key holds over the moves of partitions while all members
/// of a group count none and none of them crashes.
///
/// [`Custody::take_uncovered`]: crate::machines::custody::Custody::take_uncovered
#[derive(Clone, Debug, Default)]
pub struct Uncovered(Arc<AtomicU64>);

impl Uncovered {
    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}
