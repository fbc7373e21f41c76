//! Applications that do not hear of a rebalance: it is given back at once, nothing is told, and what was taken goes on.

use std::time::Duration;

use seriatim_core::transport::{Group, Polled, Poller, TransportError};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// A pipeline that does not hear of some rebalances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deaf {
    /// Of planned ones: it does not drain.
    ToRevocations,
    /// Of losses: it goes on writing when it wakes up, as a zombie.
    ToLosses,
}

impl Variant for Deaf {
    fn consumer(&self, _: &Place, poller: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        (self.poller(poller, &group), group)
    }
}

impl Deaf {
    /// `inner` of a consumer whose other half is `group`, made deaf.
    pub fn poller(self, inner: AnyPoller, group: &AnyGroup) -> AnyPoller {
        AnyPoller::new(DeafPoller { inner, group: group.clone(), to: self })
    }
}

/// A poller that releases what it is deaf to before the application hears of it, which it never does.
struct DeafPoller {
    inner: AnyPoller,
    group: AnyGroup,
    to: Deaf,
}

impl Poller for DeafPoller {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await?;
        let event = match (&polled, self.to) {
            (Polled::Revoking { event, .. }, Deaf::ToRevocations) | (Polled::Lost { event, .. }, Deaf::ToLosses) => {
                *event
            }
            _ => return Ok(polled),
        };
        self.group.release(event).await?;
        Ok(Polled::Records(Vec::new()))
    }
}
