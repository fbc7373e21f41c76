//! The retry policy: exponential back-off with a cap and jitter.
//!
//! It draws nothing itself: the random number is an argument.

use std::time::Duration;

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Longest wait after the first failure.
    pub base: Duration,
    /// Longest wait at all.
    pub cap: Duration,
    /// Attempts after which to give up; `None` never does.
    pub attempts_max: Option<u32>,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Try again after this long.
    After(Duration),
    /// Do not.
    GiveUp,
}

impl RetryPolicy {
    /// A policy that never gives up.
    pub const fn unlimited(base: Duration, cap: Duration) -> Self {
        RetryPolicy { base, cap, attempts_max: None }
    }

    /// What to do after failed attempt number `attempt`, from 1. The wait doubles with each attempt up to the cap; its
    /// upper half is spread by `random`, so that those who failed together do not come back together.
    pub fn next(&self, attempt: u32, random: u64) -> Retry {
        if self.attempts_max.is_some_and(|max| attempt >= max) {
            return Retry::GiveUp;
        }
        let factor = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.base.saturating_mul(factor).min(self.cap);
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let spread = u128::from(nanos / 2) * u128::from(random) / u128::from(u64::MAX);
        Retry::After(Duration::from_nanos(nanos - spread as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The model doubles step by step.
        #[test]
        fn waits_double_up_to_the_cap(
            base in 1..5_000u64, cap in 1..100_000u64, attempts_max in prop::option::of(1..50u32),
            attempt in prop_oneof![1..50u32, Just(u32::MAX)], random: u64,
        ) {
            let (base, cap) = (Duration::from_micros(base), Duration::from_micros(cap));
            let mut longest = base;
            for _ in 1..attempt.min(60) {
                longest = (longest * 2).min(cap);
            }
            let longest = longest.min(cap);
            match (RetryPolicy { base, cap, attempts_max }).next(attempt, random) {
                Retry::After(wait) => prop_assert!(longest / 2 <= wait && wait <= longest, "{wait:?} of {longest:?}"),
                Retry::GiveUp => prop_assert!(attempts_max.is_some()),
            }
            if let Some(max) = attempts_max {
                let next = (RetryPolicy { base, cap, attempts_max }).next(attempt, random);
                prop_assert_eq!(next == Retry::GiveUp, attempt >= max);
            }
        }
    }

    #[test]
    fn jitter_spans_the_upper_half() {
        let policy = RetryPolicy::unlimited(Duration::from_millis(100), Duration::from_secs(10));
        assert_eq!(policy.next(1, 0), Retry::After(Duration::from_millis(100)));
        assert_eq!(policy.next(3, u64::MAX), Retry::After(Duration::from_millis(200)));
        assert_eq!(policy.next(u32::MAX, 0), Retry::After(Duration::from_secs(10)));
    }
}
