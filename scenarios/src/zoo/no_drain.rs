//! Revocations that are given back at once: nothing drains, nothing is told, and what was taken goes on.

use std::time::Duration;

use seriatim_core::transport::{Group, Polled, Poller, TransportError};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// A pipeline that does not drain.
#[derive(Clone, Copy, Debug)]
pub struct Undrained;

impl Variant for Undrained {
    fn consumer(&self, _: &Place, poller: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        (AnyPoller::new(NoDrain::new(poller, &group)), group)
    }
}

/// A poller that releases a revocation before the application hears of it, which it never does.
#[derive(Debug)]
pub struct NoDrain {
    inner: AnyPoller,
    group: AnyGroup,
}

impl NoDrain {
    /// `inner` of a consumer whose other half is `group`.
    pub fn new(inner: AnyPoller, group: &AnyGroup) -> Self {
        NoDrain { inner, group: group.clone() }
    }
}

impl Poller for NoDrain {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        match self.inner.poll(records_max, wait).await? {
            Polled::Revoking { event, .. } => {
                self.group.release(event).await?;
                Ok(Polled::Records(Vec::new()))
            }
            polled => Ok(polled),
        }
    }
}
