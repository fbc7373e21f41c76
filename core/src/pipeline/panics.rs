//! Panics of stages, caught: a panic must not unwind a worker, in a simulation least of all.
//!
//! The panic hook belongs to the process, so catching leaves it alone and a panic still prints what it always prints. A
//! process or a test that expects panics calls [`quiet_stage_panics`] once: then those of stages print nothing, and
//! their place is part of the message instead.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::Poll;

thread_local! {
    static IN_STAGE: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whether this thread is running a stage right now.
pub fn is_in_stage() -> bool {
    IN_STAGE.get()
}

/// Wraps the process's panic hook, once, so that a panic of a stage prints nothing: it is reported as the failure of
/// its document. All other panics go on to the hook that was there.
pub fn quiet_stage_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let other = take_hook();
        set_hook(Box::new(move |panic| {
            if is_in_stage() {
                PLACE.set(panic.location().map(ToString::to_string));
            } else {
                other(panic);
            }
        }));
    });
}

/// Runs `call`; the message of its panic if it panics.
pub(super) fn catch<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    let outer = IN_STAGE.replace(true);
    // Whatever the call has left half done is given up by the caller.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    IN_STAGE.set(outer);
    outcome.map_err(|payload| {
        let message = match payload.downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic without a message".into()),
        };
        // The payload's own `Drop` may panic.
        std::mem::forget(payload);
        match PLACE.take() {
            Some(place) => format!("{message} (at {place})"),
            None => message,
        }
    })
}

/// `future`'s output, or the message of its panic.
pub(super) async fn catch_future<F: Future + Unpin>(future: &mut F) -> Result<F::Output, String> {
    std::future::poll_fn(|cx| match catch(|| Pin::new(&mut *future).poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(message) => Poll::Ready(Err(message)),
    })
    .await
}
