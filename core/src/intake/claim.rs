//! The claim on one record: the only way to a side effect on its behalf.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Cell;
use crate::identity::Position;

/// The right to have effects on behalf of one record. Clones are parts of it: the record is done when every part was
/// [`Claim::done`], and abandoned (to be delivered again to somebody) when one was dropped without.
#[derive(Debug)]
pub struct Claim {
    hold: Option<Arc<Hold>>,
    finished: bool,
}

#[derive(Debug)]
struct Hold {
    cell: Arc<Cell>,
    position: Position,
    bytes: usize,
    failed: AtomicBool,
}

impl Claim {
    pub(super) fn new(cell: Arc<Cell>, position: Position, bytes: usize) -> Self {
        let failed = AtomicBool::new(false);
        Claim { hold: Some(Arc::new(Hold { cell, position, bytes, failed })), finished: false }
    }

    /// A claim on something that nobody can take away and that needs no commit.
    pub const fn unfenced() -> Self {
        Claim { hold: None, finished: false }
    }

    /// Where the record lies, if it lies anywhere.
    pub fn position(&self) -> Option<&Position> {
        self.hold.as_deref().map(|hold| &hold.position)
    }

    /// Whether it makes sense to start or go on working on the record.
    pub fn is_active(&self) -> bool {
        self.hold.as_deref().is_none_or(|hold| {
            let state = hold.cell.lock();
            state.end.is_none() && state.custody.is_active(&hold.position)
        })
    }

    /// The fence before the first side effect, and before each repetition. False: there must be none.
    pub fn begin(&self) -> bool {
        let Some(hold) = self.hold.as_deref() else { return true };
        let mut state = hold.cell.lock();
        // At its end the consumer leaves the group, and others may own what it had.
        if state.end.is_some() {
            return false;
        }
        state.custody.begin(&hold.position)
    }

    /// Says that everything about this part is acknowledged.
    pub fn done(mut self) {
        self.finished = true;
        if let Some(hold) = self.hold.as_deref() {
            hold.cell.progressed.store(true, Ordering::Relaxed);
        }
    }
}

impl Clone for Claim {
    fn clone(&self) -> Self {
        Claim { hold: self.hold.clone(), finished: false }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let (false, Some(hold)) = (self.finished, &self.hold) {
            hold.failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.cell.settled(&self.position, self.bytes, !*self.failed.get_mut());
    }
}
