//! Events: what became of a document, told to whoever counts.
//!
//! Two wire forms. In the documented one every event is a record of its own whose value is the JSON that other tools
//! read and write ([`Event::to_json`]), and what it has no room for travels in a header ([`Event::to_header`]). In the
//! batched one a record carries many events, one a line, with everything in the JSON ([`encode_batch`]).
//!
//! An event speaks of a *ticket*; the document id is there for people, and never decides anything.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use compact_str::CompactString;

use crate::document::write_string;
use crate::identity::{RunId, Ticket};

mod own;
mod read;
mod report;

#[cfg(test)]
mod tests;

pub use read::{EventError, decode_batch};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A stage made a child, which is now to be counted too.
    Create = 1,
    /// It is in the index, or lost to a later version of itself.
    Finish = 2,
    /// It will not be in the index.
    Fail = 3,
    /// A stage dropped it.
    Drop = 4,
}

impl EventKind {
    /// The documented name.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Create => "CREATE",
            EventKind::Finish => "FINISH",
            EventKind::Fail => "FAIL",
            EventKind::Drop => "DROP",
        }
    }

    /// Whether it ends its document.
    pub const fn is_terminal(self) -> bool {
        !matches!(self, EventKind::Create)
    }
}

/// The record that an event's document was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPosition {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Key, when there is one.
    pub key: Option<CompactString>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which output of which attempt at which publish.
    pub ticket: Ticket,
    /// Whether that is the last output of its attempt, so that `ticket.ordinal + 1` outputs were given.
    pub is_parent: bool,
    /// The document's id.
    pub document_id: CompactString,
    /// For people: the cause of a failure.
    pub message: Option<CompactString>,
    /// A `Finish` whose write lost to a higher version.
    pub superseded: bool,
    /// The outcome was reported before, by an attempt that may have decided otherwise.
    pub unsettled: bool,
    /// The parent's event only: [`FamilyDigest`] of its attempt; 0 elsewhere.
    pub digest: u64,
    /// When, microseconds since the Unix epoch by the sender's wall clock. Orders nothing.
    pub instant_micros: u64,
    /// Where the document was read from, when it was a record.
    pub position: Option<EventPosition>,
}

/// A digest of what one attempt gave: FNV-1a, 64 bits, over ordinal, kind and id of every output. Every attempt of one
/// record should come to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyDigest(u64);

impl Default for FamilyDigest {
    fn default() -> Self {
        FamilyDigest(0xcbf2_9ce4_8422_2325)
    }
}

impl FamilyDigest {
    /// Adds an output, in the order of ordinals.
    pub fn add(&mut self, ordinal: u32, id: &str, kind: EventKind) {
        let length = (id.len() as u64).to_be_bytes();
        let head = ordinal.to_be_bytes().into_iter().chain([kind as u8]).chain(length);
        for byte in head.chain(id.bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The digest; never 0.
    pub fn finish(self) -> u64 {
        self.0.max(1)
    }
}

impl Event {
    /// Name of the header that goes with [`Event::to_json`].
    pub const HEADER: &'static str = "seriatim-event";
    pub(crate) const EDITION: u8 = 1;
    pub(crate) const HEADER_LEN: usize = 1 + 16 + 8 + 8 + 4 + 1 + 8;
    const IS_PARENT: u8 = 1;
    const SUPERSEDED: u8 = 2;
    const UNSETTLED: u8 = 4;

    /// An event without message, marks or position.
    pub fn new(kind: EventKind, ticket: Ticket, document_id: impl Into<CompactString>, instant_micros: u64) -> Self {
        Event {
            kind,
            ticket,
            is_parent: false,
            document_id: document_id.into(),
            message: None,
            superseded: false,
            unsettled: false,
            digest: 0,
            instant_micros,
            position: None,
        }
    }

    /// The documented JSON, for a record of its own; null fields are left out.
    pub fn to_json(&self) -> Bytes {
        let mut out = Vec::with_capacity(256);
        self.write_documented(&mut out);
        out.push(b'}');
        out.into()
    }

    /// Value of the header [`Event::HEADER`]: ticket, marks and digest, which the documented JSON has no room for.
    pub fn to_header(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(Self::HEADER_LEN);
        out.put_u8(Self::EDITION);
        out.put_u128(self.ticket.run.0);
        out.put_u64(self.ticket.sequence);
        out.put_u64(self.ticket.attempt);
        out.put_u32(self.ticket.ordinal);
        let mark = |set: bool, bit: u8| if set { bit } else { 0 };
        out.put_u8(
            mark(self.is_parent, Self::IS_PARENT)
                | mark(self.superseded, Self::SUPERSEDED)
                | mark(self.unsettled, Self::UNSETTLED),
        );
        out.put_u64(self.digest);
        debug_assert_eq!(out.len(), Self::HEADER_LEN);
        out.freeze()
    }

    pub(crate) fn read_header(&mut self, value: &[u8]) -> Result<(), EventError> {
        let mut input = value;
        if input.len() != Self::HEADER_LEN {
            return Err(EventError::HeaderLength { length: input.len() });
        }
        let edition = input.get_u8();
        if edition != Self::EDITION {
            return Err(EventError::HeaderEdition { edition });
        }
        self.ticket.run = RunId(input.get_u128());
        self.ticket.sequence = input.get_u64();
        self.ticket.attempt = input.get_u64();
        self.ticket.ordinal = input.get_u32();
        let marks = input.get_u8();
        self.is_parent = marks & Self::IS_PARENT != 0;
        self.superseded = marks & Self::SUPERSEDED != 0;
        self.unsettled = marks & Self::UNSETTLED != 0;
        self.digest = input.get_u64();
        Ok(())
    }

    /// The documented members, without the closing brace.
    fn write_documented(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(self.kind.name().as_bytes());
        out.extend_from_slice(b"\",\"documentId\":");
        write_string(out, &self.document_id);
        if let Some(message) = &self.message {
            out.extend_from_slice(b",\"message\":");
            write_string(out, message);
        }
        out.extend_from_slice(b",\"runId\":\"");
        out.extend((0..32).rev().map(|place| b"0123456789abcdef"[(self.ticket.run.0 >> (4 * place)) as usize & 15]));
        out.extend_from_slice(b"\",\"instant\":");
        write_number(out, self.instant_micros / 1_000_000);
        out.push(b'.');
        let micros = self.instant_micros % 1_000_000;
        out.extend([100_000, 10_000, 1_000, 100, 10, 1].map(|unit| b'0' + (micros / unit % 10) as u8));
        // Nine digits after the point, as the documents' system writes them.
        out.extend_from_slice(b"000");
        let Some(position) = &self.position else { return };
        out.extend_from_slice(b",\"topic\":");
        write_string(out, &position.topic);
        out.extend_from_slice(b",\"partition\":");
        write_signed(out, position.partition.into());
        out.extend_from_slice(b",\"offset\":");
        write_signed(out, position.offset);
        if let Some(key) = &position.key {
            out.extend_from_slice(b",\"key\":");
            write_string(out, key);
        }
    }
}

/// Appends `number` in decimal. (The formatter of std costs several times as much.)
fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return out.extend_from_slice(&digits[first..]);
        }
    }
}

fn write_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    write_number(out, number.unsigned_abs());
}

/// Many events as the value of one record: a line of JSON for each, the documented members and then `ticket` (publish,
/// attempt, ordinal), `parent`, `superseded`, `unsettled` and `digest`, those that are false or 0 left out.
pub fn encode_batch(events: &[Event]) -> Bytes {
    let mut out = Vec::with_capacity(events.len() * 192);
    for event in events {
        event.write_documented(&mut out);
        let Ticket { sequence, attempt, ordinal, .. } = event.ticket;
        for (before, number) in [(",\"ticket\":[", sequence), (",", attempt), (",", ordinal.into())] {
            out.extend_from_slice(before.as_bytes());
            write_number(&mut out, number);
        }
        out.push(b']');
        if event.digest != 0 {
            out.extend_from_slice(b",\"digest\":");
            write_number(&mut out, event.digest);
        }
        let marks = [("parent", event.is_parent), ("superseded", event.superseded), ("unsettled", event.unsettled)];
        for (name, _) in marks.into_iter().filter(|&(_, set)| set) {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":true");
        }
        out.extend_from_slice(b"}\n");
    }
    out.into()
}
