//! The only clock here: waiting for what another process does.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "other processes keep the real time")]

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(25);

/// Looks until there is something to be seen, or `limit` has passed.
pub(crate) fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if began.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(STEP);
    }
}
