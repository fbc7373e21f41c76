//! Random streams: one seed, one ChaCha stream a concern, so that a draw more in one moves no other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// What a stream is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// What is published, and how long things take.
    Workload,
    /// The order in which tasks run.
    Schedule,
    /// Latencies.
    Network,
    /// Which faults, and when.
    Faults,
    /// What programs themselves draw, as attempt nonces: one stream for each life of each node.
    Env {
        /// Number of the life, in order of birth over the whole world.
        life: u64,
    },
}

/// A random stream.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of `seed` for `concern`.
    pub fn new(seed: u64, concern: Concern) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Below 100 is left to whoever draws plans from the same seed: equal streams give equal numbers.
        rng.set_stream(match concern {
            Concern::Workload => 101,
            Concern::Schedule => 102,
            Concern::Network => 103,
            Concern::Faults => 104,
            Concern::Env { life } => (1 << 32) + life,
        });
        Stream(rng)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from `low` to `high`, both included; `low` when the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low).saturating_add(1);
        // Multiply and shift: the bias is below 2^-32 for every span that a simulation asks for.
        low + ((u128::from(self.0.next_u64()) * u128::from(span)) >> 64) as u64
    }

    /// True once in `n` draws on average; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.between(1, n) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_are_independent_and_repeat() {
        let draw = |seed, concern| {
            let mut stream = Stream::new(seed, concern);
            [stream.next_u64(), stream.next_u64()]
        };
        assert_eq!(draw(1, Concern::Network), draw(1, Concern::Network));
        assert_ne!(draw(1, Concern::Network), draw(1, Concern::Faults));
        assert_ne!(draw(1, Concern::Network), draw(2, Concern::Network));
        assert_ne!(draw(1, Concern::Env { life: 0 }), draw(1, Concern::Env { life: 1 }));
    }

    #[test]
    fn between_reaches_both_ends_and_nothing_else() {
        let mut stream = Stream::new(3, Concern::Workload);
        let drawn: std::collections::BTreeSet<_> = (0..1_000).map(|_| stream.between(4, 7)).collect();
        assert_eq!(drawn, std::collections::BTreeSet::from([4, 5, 6, 7]));
        assert_eq!(stream.between(9, 9), 9);
        assert_eq!(stream.between(9, 2), 9);
    }
}
