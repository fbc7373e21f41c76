//! What goes wrong at the search index: windows of trouble, and the refusals that documents ask for.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::index::{Action as WriteAction, IndexOp};
use seriatim_sim::{IndexFault, RequestFault, World};

use super::struck::Struck;
use crate::draws::{Draws, Stream};
use crate::fault::{FaultKind, Trouble};
use crate::workload::marks;

/// The troubles of one run's index. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Troubles(Arc<Mutex<Windows>>);

#[derive(Debug)]
struct Windows {
    open: Vec<Window>,
    draws: Draws,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) trouble: Trouble,
    pub(super) permille: u32,
    pub(super) until: Instant,
    /// Records in flight when it opened.
    pub(super) in_flight: u64,
}

impl Troubles {
    /// Puts them behind every bulk request of `world`. A window strikes when it troubles a request.
    pub(super) fn hook(world: &World, seed: u64, struck: Struck) -> Self {
        let windows = Windows { open: Vec::new(), draws: Draws::new(seed, Stream::Index) };
        let troubles = Troubles(Arc::new(Mutex::new(windows)));
        let (own, clock) = (troubles.clone(), world.clone());
        world.on_index(Some(Box::new(move |_, ops| {
            let refused: Vec<usize> =
                ops.iter().enumerate().filter(|(_, op)| asks_to_be_refused(op)).map(|(place, _)| place).collect();
            let mut fault = IndexFault { refused, ..IndexFault::default() };
            let trouble = own.lock().draw(clock.now(), ops.len(), &mut fault);
            let refuses = (!fault.refused.is_empty()).then_some((FaultKind::IndexReject, ops.len() as u64));
            for (kind, in_flight) in trouble.into_iter().chain(refuses) {
                struck.note(kind, "index", in_flight.max(1));
            }
            fault
        })));
        troubles
    }

    fn lock(&self) -> MutexGuard<'_, Windows> {
        self.0.lock().expect("no code panics while it holds the troubles")
    }

    pub(super) fn open(&self, window: Window) {
        self.lock().open.push(window);
    }

    /// Closes the windows that are over. Whether none is left.
    pub(super) fn close_due(&self, now: Instant) -> bool {
        let mut windows = self.lock();
        windows.open.retain(|window| now < window.until);
        windows.open.is_empty()
    }

    /// When the next window is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.lock().open.iter().map(|window| window.until).min()
    }

    pub(super) fn close_all(&self) {
        self.lock().open.clear();
    }
}

/// Whether the document carries [`marks::REJECT`], which `mark` is the text of.
/// Whether the document of a write says that the index refuses it.
pub(crate) fn asks_to_be_refused(op: &IndexOp) -> bool {
    const MARK: &str = "\"reject\":true";
    debug_assert!(MARK.contains(marks::REJECT));
    match &op.action {
        WriteAction::Upsert(body) => std::str::from_utf8(body).is_ok_and(|body| body.contains(MARK)),
        WriteAction::Delete => false,
    }
}

impl Windows {
    /// Troubles one request, if a window is open and the coin falls so.
    fn draw(&mut self, now: Instant, items: usize, fault: &mut IndexFault) -> Option<(FaultKind, u64)> {
        self.open.retain(|window| now < window.until);
        let Windows { open, draws } = self;
        let window = open.iter().find(|window| draws.chance(window.permille))?;
        let in_flight = window.in_flight;
        let kind = match window.trouble {
            Trouble::TimeoutBefore => {
                fault.request = RequestFault::SilentBeforeApplying;
                FaultKind::IndexTimeoutBefore
            }
            Trouble::TimeoutAfter => {
                fault.request = RequestFault::SilentAfterApplying;
                FaultKind::IndexTimeoutAfter
            }
            Trouble::Unavailable => {
                fault.request = RequestFault::Unavailable;
                FaultKind::IndexUnavailable
            }
            Trouble::Slow => {
                fault.request = RequestFault::Delay(Duration::from_micros(draws.between(500_000, 15_000_000)));
                FaultKind::IndexSlow
            }
            Trouble::Throttle => {
                fault.throttled = (0..items).filter(|_| draws.chance(500)).collect();
                FaultKind::IndexThrottle
            }
        };
        Some((kind, in_flight))
    }
}
