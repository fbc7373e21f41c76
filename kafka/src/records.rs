//! Records out of librdkafka's messages: one copy, and few allocations.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use seriatim_core::identity::{Epoch, Position, TopicPartition};
use seriatim_core::transport::{Header, Record};

/// Bytes that share an allocation: what is kept of a small record keeps no more than this alive.
const CHUNK_BYTES: usize = 16 << 10;
/// Larger parts of a record have an allocation of their own.
const SHARED_BYTES_MAX: usize = 4 << 10;
/// Names of headers that are remembered, so that each is not allocated anew.
const NAMES_MAX: usize = 16;

/// Copies messages.
#[derive(Debug, Default)]
pub(crate) struct Copier {
    chunk: BytesMut,
    names: Vec<Arc<str>>,
}

impl Copier {
    /// The record in `message`, which was read from `partition` under `epoch`.
    pub(crate) fn record(&mut self, partition: &TopicPartition, epoch: Epoch, message: &BorrowedMessage<'_>) -> Record {
        Record {
            position: Position { partition: partition.clone(), offset: message.offset(), epoch },
            key: message.key().map(|key| self.bytes(key)),
            value: message.payload().map(|value| self.bytes(value)),
            headers: self.headers(message),
            timestamp_millis: message.timestamp().to_millis().unwrap_or(-1),
        }
    }

    fn bytes(&mut self, part: &[u8]) -> Bytes {
        if part.is_empty() {
            return Bytes::new();
        }
        if part.len() > SHARED_BYTES_MAX {
            return Bytes::copy_from_slice(part);
        }
        if self.chunk.capacity() - self.chunk.len() < part.len() {
            self.chunk = BytesMut::with_capacity(CHUNK_BYTES);
        }
        self.chunk.extend_from_slice(part);
        self.chunk.split().freeze()
    }

    fn headers(&mut self, message: &BorrowedMessage<'_>) -> Vec<Header> {
        let Some(headers) = message.headers() else { return Vec::new() };
        let count = headers.count();
        let mut copied = Vec::with_capacity(count);
        for place in 0..count {
            // The wrapper panics at a name that is no UTF-8, which Kafka forbids and no broker checks.
            let found = catch_unwind(AssertUnwindSafe(|| headers.try_get(place)));
            let (name, value) = match &found {
                Ok(Some(header)) => (header.key, header.value.unwrap_or_default()),
                Ok(None) => continue,
                Err(_) => ("\u{fffd}", &[][..]),
            };
            copied.push(Header { name: self.name(name), value: self.bytes(value) });
        }
        copied
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| &***known == name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        if self.names.len() < NAMES_MAX {
            self.names.push(new.clone());
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_chunks_and_stay_as_they_were() {
        let mut copier = Copier::default();
        let parts: Vec<Vec<u8>> = (0..1_000_usize).map(|size| vec![size as u8; size * 7 % 6_000]).collect();
        let copied: Vec<_> = parts.iter().map(|part| copier.bytes(part)).collect();
        assert!(copied.iter().zip(&parts).all(|(copied, part)| copied[..] == part[..]));
    }

    #[test]
    fn names_are_remembered_up_to_a_bound() {
        let mut copier = Copier::default();
        let first = copier.name("seriatim");
        assert!(Arc::ptr_eq(&first, &copier.name("seriatim")));
        for number in 0..1_000 {
            assert_eq!(&*copier.name(&number.to_string()), number.to_string());
        }
        assert!(copier.names.len() <= NAMES_MAX);
    }
}
