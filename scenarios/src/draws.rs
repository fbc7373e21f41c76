//! Random draws, one independent stream per concern.
//!
//! Everything here is a function of `(seed, stream)`: a draw added to one stream moves no other. The arithmetic is
//! spelt out rather than taken from `rand`'s distributions, so that a new edition of that crate changes no plan.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The concerns that draw, each with its own ChaCha stream. The numbers are part of what a seed means, and
/// below 100: the simulated world draws from higher ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Stream {
    /// Topology and knobs of the pipeline.
    Shape = 1,
    /// The operations.
    Workload = 2,
    /// Which faults, when.
    Faults = 3,
    /// The order in which ready tasks run.
    Schedule = 4,
    /// Latencies.
    Network = 5,
    /// Coins of the search index: which request of a troubled window is hit.
    Index = 6,
    /// The Kafka cluster.
    Brokers = 7,
}

/// One stream of draws.
#[derive(Clone, Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The stream `stream` of `seed`.
    pub fn new(seed: u64, stream: Stream) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream as u64);
        Draws(generator)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `permille` of a thousand draws.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1_000) < u64::from(permille)
    }

    /// One of `items`, which are not empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// One of `items` by weight; at least one weight is above zero.
    pub fn weighted<T: Copy>(&mut self, items: &[(T, u32)]) -> T {
        let total: u64 = items.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = self.below(total);
        for (item, weight) in items {
            let weight = u64::from(*weight);
            if left < weight {
                return *item;
            }
            left -= weight;
        }
        items[items.len() - 1].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_are_apart_and_repeatable() {
        let take = |seed, stream| {
            let mut draws = Draws::new(seed, stream);
            (0..4).map(|_| draws.number()).collect::<Vec<_>>()
        };
        assert_eq!(take(7, Stream::Faults), take(7, Stream::Faults));
        assert_ne!(take(7, Stream::Faults), take(7, Stream::Workload));
        assert_ne!(take(7, Stream::Faults), take(8, Stream::Faults));
    }

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut draws = Draws::new(1, Stream::Shape);
        let seen: Vec<u64> = (0..400).map(|_| draws.between(3, 7)).collect();
        assert_eq!((seen.iter().min(), seen.iter().max()), (Some(&3), Some(&7)));
        assert_eq!(draws.below(0), 0);
        assert!((0..400).all(|_| draws.weighted(&[('a', 0), ('b', 5)]) == 'b'));
    }
}
