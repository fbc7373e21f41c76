//! Growth without pinning: the producer places every record by how many partitions its metadata shows just then.

use seriatim_core::transport::{Delivery, Outgoing, Producer};

use crate::drive::any::AnyProducer;
use crate::drive::{Place, Variant};

/// A pipeline that leaves partitions to its producers.
#[derive(Clone, Copy, Debug)]
pub struct Unpinned;

impl Variant for Unpinned {
    fn producer(&self, _: &Place, inner: AnyProducer) -> AnyProducer {
        AnyProducer::new(Placing { inner })
    }
}

#[derive(Clone)]
struct Placing {
    inner: AnyProducer,
}

impl Producer for Placing {
    async fn send_all(&self, mut records: Vec<Outgoing>) -> Delivery {
        for record in records.iter_mut().filter(|record| record.key.is_some()) {
            record.partition = None;
        }
        self.inner.send_all(records).await
    }

    async fn flush(&self) {
        self.inner.flush().await;
    }
}
