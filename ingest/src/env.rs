//! The `Env` of a real process: tokio's clock and tasks, the operating system's randomness.
#![expect(clippy::disallowed_types, reason = "this is where the clocks of a real process come from")]

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::RngExt;
use seriatim_core::env::{Env, Instant};

/// Time, tasks and randomness of the running tokio runtime.
#[derive(Clone, Debug)]
pub struct TokioEnv {
    origin: Arc<std::time::Instant>,
}

impl TokioEnv {
    /// An environment whose time begins now. Its methods need a tokio runtime around them.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        TokioEnv { origin: Arc::new(std::time::Instant::now()) }
    }
}

impl Env for TokioEnv {
    fn now(&self) -> Instant {
        Instant::default() + self.origin.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        // Before 1970 the clock is wrong, and versions rest on their own monotony.
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }

    fn random(&self) -> u64 {
        rand::rng().random()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        tokio::spawn(task);
    }

    async fn run_blocking<R: Send + 'static>(&self, _cost: Duration, work: impl FnOnce() -> R + Send + 'static) -> R {
        match tokio::task::spawn_blocking(work).await {
            Ok(output) => output,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is going down: nobody will hear of it.
            Err(_) => std::future::pending().await,
        }
    }
}
