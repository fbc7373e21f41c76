//! The acknowledgements of one call to a producer, to be awaited.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::{Appended, ErrorKind, TransportError};

/// The acknowledgements of one [`Producer::send_all`](super::Producer::send_all), one a record, in order. Resolves when
/// the last is known.
///
/// `ErrorKind::UnknownOutcome` for each record when the producer went away first.
pub struct Delivery {
    receiver: oneshot::Receiver<Vec<Result<Appended, TransportError>>>,
    records: usize,
    observer: Option<Observer>,
}

type Observer = Box<dyn FnOnce(&[Result<Appended, TransportError>]) + Send>;

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery").field("records", &self.records).finish_non_exhaustive()
    }
}

impl Delivery {
    /// A delivery of `records` records, and the end through which a transport resolves it.
    pub fn new(records: usize) -> (oneshot::Sender<Vec<Result<Appended, TransportError>>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Delivery { receiver, records, observer: None })
    }

    /// Shows the acknowledgements to `observer` before the caller gets them: for wrappers of a transport, which thus
    /// need no task of their own. Replaces an earlier observer.
    pub fn observed(mut self, observer: impl FnOnce(&[Result<Appended, TransportError>]) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }
}

impl Future for Delivery {
    type Output = Vec<Result<Appended, TransportError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let records = self.records;
        let polled = Pin::new(&mut self.receiver).poll(cx).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                let gone =
                    || TransportError::new(ErrorKind::UnknownOutcome, "PRODUCER_CLOSED", "awaiting acknowledgement");
                (0..records).map(|_| Err(gone())).collect()
            })
        });
        if let Poll::Ready(outcomes) = &polled
            && let Some(observer) = self.observer.take()
        {
            observer(outcomes);
        }
        polled
    }
}
