//! The `Env` port: time, tasks, blocking work and randomness.
//!
//! Components never ask the operating system; the simulation answers from one seed, a real process from tokio.

use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};

/// Monotonic time of one environment: microseconds since an origin that means nothing elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Instant(u64);

impl Instant {
    /// The instant `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Instant(micros)
    }

    /// Microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it is later than `self`.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, rhs: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(rhs.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000, self.0 % 1_000_000 / 1_000)
    }
}

/// What a component may ask of the machine it runs on.
///
/// A handle of a process that was killed is inert: its futures never resolve and `spawn` does nothing.
pub trait Env: Clone + Send + Sync + 'static {
    /// Monotonic time.
    fn now(&self) -> Instant;

    /// Wall-clock time, microseconds since the Unix epoch. It may jump and differs between nodes.
    fn wall_micros(&self) -> u64;

    /// The next number of this environment's random stream.
    fn random(&self) -> u64;

    /// Completes `duration` from now. The resolution is a millisecond.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Runs `task` beside the caller until it ends or the process does.
    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F);

    /// Runs `work`, which may block, away from the tasks. The simulation charges `cost` of virtual time for it.
    fn run_blocking<R: Send + 'static>(
        &self,
        cost: Duration,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> impl Future<Output = R> + Send;

    /// `task`'s output, or `None` when `limit` passes first. `task` wins a tie.
    fn timeout<F: Future + Send>(&self, limit: Duration, task: F) -> impl Future<Output = Option<F::Output>> + Send
    where
        F::Output: Send,
    {
        async move {
            let (task, limit) = (pin!(task), pin!(self.sleep(limit)));
            match select(task, limit).await {
                Either::Left((output, _)) => Some(output),
                Either::Right(((), _)) => None,
            }
        }
    }
}
