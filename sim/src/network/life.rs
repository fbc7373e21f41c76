//! What a process is to the network: one life of it, and the link that its lives share.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::executor::TaskGroup;
use crate::rng::Stream;

/// One life of a process, from its start to its crash or end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) node: Arc<str>,
    pub(crate) incarnation: u32,
    pub(crate) group: TaskGroup,
    pub(crate) link: Arc<Link>,
    pub(crate) random: Mutex<Stream>,
    /// Ownership epochs given so far: two consumers of one process never give the same.
    epochs: AtomicU64,
    dead: AtomicBool,
    stopping: AtomicBool,
    stop: Notify,
}

impl Life {
    pub(crate) fn new(node: Arc<str>, incarnation: u32, group: TaskGroup, link: Arc<Link>, random: Stream) -> Self {
        let (dead, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        Life {
            node,
            incarnation,
            group,
            link,
            random: Mutex::new(random),
            epochs: AtomicU64::new(0),
            dead,
            stopping,
            stop: Notify::new(),
        }
    }

    pub(crate) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.stop.notify_waiters();
    }

    pub(crate) async fn stopping(&self) {
        let notified = self.stop.notified();
        if !self.is_stopping() {
            notified.await;
        }
    }
}

/// A node's connection to the rest of the world, over all its lives, and its clock.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) cut_out: AtomicBool,
    pub(crate) cut_in: AtomicBool,
    /// Added to each direction, microseconds.
    pub(crate) extra_micros: AtomicU64,
    /// Answers still to be lost on their way back.
    pub(crate) lose_answers: AtomicU64,
    /// Rises when every connection of the node is reset.
    pub(crate) resets: AtomicU64,
    /// Wall clock ahead of true time, microseconds.
    pub(crate) wall_offset_micros: AtomicI64,
    /// Wall clock's drift, millionths.
    pub(crate) wall_drift_ppm: AtomicI64,
}
