//! Ctrl-C: a campaign that is asked to end counts what it has, and says so. Asked twice, the process ends at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Listens from now on. Without it Ctrl-C ends the process at once, and so it does when this fails.
pub fn listen() {
    let asked = ASKED.get_or_init(Arc::default);
    // In this order: the second time, the flag that the first set is seen before it is set again.
    let _ = flag::register_conditional_shutdown(SIGINT, crate::run::Exit::Interrupted as i32, asked.clone())
        .and_then(|_| flag::register(SIGINT, asked.clone()));
}

/// Whether somebody asked for the end.
pub fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}
