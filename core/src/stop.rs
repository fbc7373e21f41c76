//! Asking a component to end cleanly.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A request to stop, shared by whoever asks and whoever obeys.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    inner: Arc<(AtomicBool, Notify)>,
}

impl Stop {
    /// Nobody asked yet.
    pub fn new() -> Self {
        Stop::default()
    }

    /// Asks everybody who holds a clone to stop.
    pub fn request(&self) {
        self.inner.0.store(true, Ordering::Release);
        self.inner.1.notify_waiters();
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        self.inner.0.load(Ordering::Acquire)
    }

    /// Completes when somebody asked.
    pub async fn requested(&self) {
        let mut asked = pin!(self.inner.1.notified());
        asked.as_mut().enable();
        if !self.is_requested() {
            asked.await;
        }
    }
}
