//! An application that never hears that its partitions were lost, and goes on writing when it wakes up.

use std::time::Duration;

use seriatim_core::transport::{Group, Polled, Poller, TransportError};

use crate::drive::any::{AnyGroup, AnyPoller};
use crate::drive::{Place, Variant};

/// A pipeline without an ear for losses.
#[derive(Clone, Copy, Debug)]
pub struct Zombie;

impl Variant for Zombie {
    fn consumer(&self, _: &Place, inner: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        (AnyPoller::new(Deaf { inner, group: group.clone() }), group)
    }
}

struct Deaf {
    inner: AnyPoller,
    group: AnyGroup,
}

impl Poller for Deaf {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        match self.inner.poll(records_max, wait).await? {
            Polled::Lost { event, .. } => {
                self.group.release(event).await?;
                Ok(Polled::Records(Vec::new()))
            }
            polled => Ok(polled),
        }
    }
}
