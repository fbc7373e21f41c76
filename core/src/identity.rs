//! The three identities, and the header they travel in.
//!
//! A [`Position`] says where a record lies and is what commits speak of. A [`Ticket`] says which publish, which attempt
//! at it and which output of that attempt is meant, and is what completion counts. A [`Version`] orders index writes.
//! None of them is the document id: ids repeat.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// A topic and one of its partitions.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Number of the partition, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// `partition` of `topic`.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        TopicPartition { topic: topic.into(), partition }
    }
}

impl Ord for TopicPartition {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most share one name, and this is the key of most maps.
        let topics = match Arc::ptr_eq(&self.topic, &other.topic) {
            true => Ordering::Equal,
            false => self.topic.cmp(&other.topic),
        };
        topics.then(self.partition.cmp(&other.partition))
    }
}

impl PartialOrd for TopicPartition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.topic)?;
        f.write_str("-")?;
        fmt::Display::fmt(&self.partition, f)
    }
}

/// One ownership of one partition by one group member: given at assignment, kept while the partition is retained, new
/// when it comes back. Epochs of one consumer rise. No two ownerships in one process have the same: a process may hold
/// several consumers, and hand a partition from one to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Where a record lies, and under which ownership it was read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Position {
    /// The partition it was read from.
    pub partition: TopicPartition,
    /// Its offset there.
    pub offset: i64,
    /// The ownership under which it was read.
    pub epoch: Epoch,
}

/// One execution of one connector into one pipeline.
///
/// Aligned as a pair of words: nearly every value of this system holds one, and allocators and records alike pay for
/// an alignment of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(Rust, packed(8))]
pub struct RunId(pub u128);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", { self.0 })
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 96)
    }
}

impl std::str::FromStr for RunId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(RunId)
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which publish of which run, which attempt at processing it, and which output of that attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ticket {
    /// The run.
    pub run: RunId,
    /// Number of the publish within the run, dense from 0.
    pub sequence: u64,
    /// Nonce of the attempt, drawn by the worker that took the record. 0 on the source topic.
    pub attempt: u64,
    /// Number of the output within the attempt, from 0; children first, the parent last.
    pub ordinal: u32,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}/{:04x}.{}", self.run, self.sequence, self.attempt & 0xffff, self.ordinal)
    }
}

/// Order of index writes of one id: `hlc << 10 | k`, where `hlc` is the publisher's hybrid logical clock in
/// microseconds and `k` numbers the outputs of one attempt that share an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub i64);

impl Version {
    /// How many outputs of one attempt may share an id.
    pub const MAX_OUTPUTS_PER_ID: u32 = 1 << 10;

    /// The version of the first output of the publish stamped `hlc` microseconds.
    pub const fn from_hlc(hlc: u64) -> Self {
        Version((hlc << 10) as i64)
    }

    /// The publish's clock reading, microseconds.
    pub const fn hlc(self) -> u64 {
        (self.0 as u64) >> 10
    }

    /// The version of the `k`-th output with the same id; `None` when there are too many.
    pub const fn output(self, k: u32) -> Option<Self> {
        if k < Self::MAX_OUTPUTS_PER_ID { Some(Version(self.0 & !0x3ff | k as i64)) } else { None }
    }
}

/// What travels with a document beside its JSON: in a record header on Kafka, beside the value in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Envelope {
    /// Identity for completion.
    pub ticket: Ticket,
    /// Identity for index writes.
    pub version: Version,
    /// Whether this is the last output of its attempt, so that `ticket.ordinal + 1` outputs were given.
    pub is_parent: bool,
    /// Number of partitions of the source topic, pinned for the run. 0 where there is no topic.
    pub source_partitions: u32,
    /// Number of partitions of the destination topic, pinned for the run. 0 where there is no topic.
    pub dest_partitions: u32,
    /// Partition of the source topic that the document came from; −1 where there is none.
    pub origin_partition: i32,
    /// Offset there; −1 where there is none.
    pub origin_offset: i64,
    /// Digest of the ordinals, ids and kinds that the attempt gave; only on the parent, 0 elsewhere.
    pub digest: u64,
}

/// A header that is not an envelope.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvelopeError {
    /// The record has no such header: it was written by something else than a publisher or a worker of this system.
    #[error("the record has no `{}` header: was it written by a Seriatim publisher?", Envelope::HEADER)]
    Missing,
    /// The header has another length than this edition writes.
    #[error("the `{HEADER}` header has {length} bytes instead of {LEN}: written by another edition?", HEADER = Envelope::HEADER, LEN = Envelope::LEN)]
    Length {
        /// Bytes found.
        length: usize,
    },
    /// The header's first byte names an edition that this one cannot read.
    #[error("the `{HEADER}` header is of edition {edition}, this program reads edition {EDITION}", HEADER = Envelope::HEADER, EDITION = Envelope::EDITION)]
    Edition {
        /// Edition found.
        edition: u8,
    },
}

impl Envelope {
    /// Name of the record header.
    pub const HEADER: &'static str = "seriatim";
    const EDITION: u8 = 1;
    const LEN: usize = 1 + 16 + 8 + 8 + 4 + 8 + 1 + 4 + 4 + 4 + 8 + 8;

    /// The header's value.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(Self::LEN);
        out.put_u8(Self::EDITION);
        out.put_u128(self.ticket.run.0);
        out.put_u64(self.ticket.sequence);
        out.put_u64(self.ticket.attempt);
        out.put_u32(self.ticket.ordinal);
        out.put_i64(self.version.0);
        out.put_u8(u8::from(self.is_parent));
        out.put_u32(self.source_partitions);
        out.put_u32(self.dest_partitions);
        out.put_i32(self.origin_partition);
        out.put_i64(self.origin_offset);
        out.put_u64(self.digest);
        debug_assert_eq!(out.len(), Self::LEN);
        out.freeze()
    }

    /// Reads a header's value.
    pub fn decode(value: &[u8]) -> Result<Self, EnvelopeError> {
        use bytes::Buf;
        let mut input = value;
        if input.len() != Self::LEN {
            return Err(EnvelopeError::Length { length: input.len() });
        }
        let edition = input.get_u8();
        if edition != Self::EDITION {
            return Err(EnvelopeError::Edition { edition });
        }
        Ok(Envelope {
            ticket: Ticket {
                run: RunId(input.get_u128()),
                sequence: input.get_u64(),
                attempt: input.get_u64(),
                ordinal: input.get_u32(),
            },
            version: Version(input.get_i64()),
            is_parent: input.get_u8() != 0,
            source_partitions: input.get_u32(),
            dest_partitions: input.get_u32(),
            origin_partition: input.get_i32(),
            origin_offset: input.get_i64(),
            digest: input.get_u64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_survives_its_header() {
        let envelope = Envelope {
            ticket: Ticket { run: RunId(u128::MAX - 5), sequence: 7, attempt: u64::MAX, ordinal: 3 },
            version: Version::from_hlc(1_764_534_000_123_456).output(9).expect("9 is in range"),
            is_parent: true,
            source_partitions: 6,
            dest_partitions: 12,
            origin_partition: -1,
            origin_offset: i64::MAX,
            digest: 0x1234_5678_9abc_def0,
        };
        assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
        assert_eq!(Envelope::decode(b"x"), Err(EnvelopeError::Length { length: 1 }));
        let mut other = envelope.encode().to_vec();
        other[0] = 9;
        assert_eq!(Envelope::decode(&other), Err(EnvelopeError::Edition { edition: 9 }));
    }

    #[test]
    fn a_version_orders_by_clock_then_output() {
        let first = Version::from_hlc(1_764_534_000_123_456);
        assert_eq!(first.hlc(), 1_764_534_000_123_456);
        assert!(first < first.output(1).expect("in range"));
        assert!(first.output(1023).expect("in range") < Version::from_hlc(first.hlc() + 1));
        assert_eq!(first.output(1024), None);
    }
}
