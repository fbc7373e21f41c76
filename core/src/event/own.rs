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
    let mut line = Line { text: line, at: 0 };
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
    (line.rest() == b"}").then_some(())?;
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

/// A line, read up to some byte.
struct Line<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn skip(&mut self, text: &str) -> Option<()> {
        self.rest().starts_with(text.as_bytes()).then(|| self.at += text.len())
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        self.skip("\"")?;
        let length = self.rest().iter().position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'))?;
        let text = &self.text[self.at..self.at + length];
        self.at += length;
        self.skip("\"")?;
        Some(text)
    }

    /// The number that the digits from here on are, and how many they are.
    fn digits(&mut self) -> Option<(u64, usize)> {
        let (mut number, mut length) = (0u64, 0);
        for digit in self.rest().iter().map(|byte| byte.wrapping_sub(b'0')).take_while(|digit| *digit < 10) {
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
            length += 1;
        }
        self.at += length;
        (length > 0).then_some((number, length))
    }

    fn number(&mut self) -> Option<u64> {
        // JSON has no leading zeros.
        let leads_with_zero = self.rest().first() == Some(&b'0');
        self.digits().filter(|(_, length)| *length == 1 || !leads_with_zero).map(|(number, _)| number)
    }

    fn run(&mut self) -> Option<RunId> {
        let mut halves = [0u64; 2];
        for (half, digits) in halves.iter_mut().zip(self.rest().get(..32)?.chunks(16)) {
            for digit in digits {
                *half = *half << 4 | u64::from(char::from(*digit).to_digit(16)?);
            }
        }
        self.at += 32;
        Some(RunId(u128::from(halves[0]) << 64 | u128::from(halves[1])))
    }

    fn instant(&mut self) -> Option<u64> {
        let seconds = self.number()?;
        self.skip(".")?;
        let (nanos, _) = self.digits().filter(|(_, length)| *length == 9)?;
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
