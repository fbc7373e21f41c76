//! [`SimEnv`]: the `Env` port of one life of one node.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use seriatim_core::env::{Env, Instant};

use crate::executor::lock;
use crate::network::Host;

/// Where every wall clock starts: 2025-11-30T21:00:00Z, microseconds since the Unix epoch.
pub(crate) const WALL_START_MICROS: i64 = 1_764_536_400_000_000;

/// The environment of a simulated process. Inert once the process is dead.
#[derive(Clone, Debug)]
pub struct SimEnv {
    pub(crate) host: Host,
}

/// A node's wall clock at true time `now`.
pub(crate) fn wall_micros(host: &Host, now: Instant) -> u64 {
    let link = &host.life.link;
    let elapsed = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let drift = elapsed / 1_000_000 * link.wall_drift_ppm.load(Ordering::Relaxed);
    let wall = WALL_START_MICROS + elapsed + drift + link.wall_offset_micros.load(Ordering::Relaxed);
    u64::try_from(wall).unwrap_or(0)
}

impl Env for SimEnv {
    fn now(&self) -> Instant {
        self.host.now()
    }

    fn wall_micros(&self) -> u64 {
        wall_micros(&self.host, self.host.now())
    }

    fn random(&self) -> u64 {
        lock(&self.host.life.random).next_u64()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        self.host.enter();
        self.host.sleep(duration)
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.host.spawn(task);
    }

    async fn run_blocking<R: Send + 'static>(&self, cost: Duration, work: impl FnOnce() -> R + Send + 'static) -> R {
        self.host.sleep(cost).await;
        work()
    }
}
