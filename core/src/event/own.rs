//! The short way to read a line that [`encode_batch`](super::encode_batch) wrote: byte for byte, without a JSON reader.
//!
//! It knows nothing but that form, and gives up on the first byte that differs: then the line is read as JSON, which
//! alone decides what is an event and what is an error. Whatever is read here would be read the same way there.

use std::sync::Arc;

use compact_str::CompactString;

use super::{Event, EventKind, EventPosition};
use crate::identity::{RunId, Ticket};

/// The event that `line` is, if it is just as it is written here. `before` is the event before it, whose topic it may
/// share.
pub(super) fn read_line(line: &str, before: Option<&Event>) -> Option<Event> {
    let mut line = Line(line);
    line.skip("{\"type\":\"")?;
    let kind = *[EventKind::Create, EventKind::Finish, EventKind::Fail, EventKind::Drop]
        .iter()
        .find(|kind| line.skip(kind.name()).is_some())?;
    line.skip("\",\"documentId\":")?;
    let document_id = line.string()?;
    let message = line.skip(",\"message\":").map(|()| line.string());
    line.skip(",\"runId\":\"")?;
    let run = line.run()?;
    line.skip("\",\"instant\":")?;
    let instant_micros = line.instant()?;
    let position = line.skip(",\"topic\":").map(|()| line.position(before));
    line.skip(",\"ticket\":[")?;
    let sequence = line.number()?;
    line.skip(",")?;
    let attempt = line.number()?;
    line.skip(",")?;
    let ordinal = u32::try_from(line.number()?).ok()?;
    line.skip("]")?;
    let digest = line.skip(",\"digest\":").map(|()| line.number());
    let mut mark = |text| line.skip(text).is_some();
    let (is_parent, superseded) = (mark(",\"parent\":true"), mark(",\"superseded\":true"));
    let unsettled = mark(",\"unsettled\":true");
    (line.0 == "}").then_some(())?;
    Some(Event {
        is_parent,
        superseded,
        unsettled,
        message: optional(message)?.map(CompactString::new),
        digest: optional(digest)?.unwrap_or_default(),
        position: optional(position)?,
        ..Event::new(kind, Ticket { run, sequence, attempt, ordinal }, document_id, instant_micros)
    })
}

/// Absent is well, present and not understood is not.
fn optional<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(read) => read.map(Some),
    }
}

/// What is left of a line.
struct Line<'a>(&'a str);

impl<'a> Line<'a> {
    fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.strip_prefix('"')?;
        let end = text.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\')?;
        let (text, rest) = text.split_at(end);
        self.0 = rest.strip_prefix('"')?;
        Some(text)
    }

    fn digits(&mut self) -> &'a str {
        let end = self.0.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        digits
    }

    fn number(&mut self) -> Option<u64> {
        let digits = self.digits();
        // JSON has no leading zeros.
        if digits.len() > 1 && digits.starts_with('0') { None } else { digits.parse().ok() }
    }

    fn run(&mut self) -> Option<RunId> {
        let (digits, rest) = self.0.split_at_checked(32)?;
        self.0 = rest;
        let digits = digits.bytes().map(|byte| char::from(byte).to_digit(16));
        let mut halves = [0u64; 2];
        for (place, digit) in digits.enumerate() {
            halves[place / 16] = halves[place / 16] << 4 | u64::from(digit?);
        }
        Some(RunId(u128::from(halves[0]) << 64 | u128::from(halves[1])))
    }

    fn instant(&mut self) -> Option<u64> {
        let seconds = self.number()?;
        self.skip(".")?;
        let nanos = self.digits();
        let nanos = (nanos.len() == 9).then(|| nanos.parse::<u64>().ok())??;
        seconds.checked_mul(1_000_000)?.checked_add(nanos / 1_000)
    }

    fn position(&mut self, before: Option<&Event>) -> Option<EventPosition> {
        let topic = self.string()?;
        let known = before.and_then(|event| event.position.as_ref()).filter(|known| *known.topic == *topic);
        let topic = known.map_or_else(|| topic.into(), |known| Arc::clone(&known.topic));
        self.skip(",\"partition\":")?;
        let partition = i32::try_from(self.number()?).ok()?;
        self.skip(",\"offset\":")?;
        let offset = i64::try_from(self.number()?).ok()?;
        let key = self.skip(",\"key\":").map(|()| self.string());
        Some(EventPosition { topic, partition, offset, key: optional(key)?.map(CompactString::new) })
    }
}
