//! Reading events. Unknown properties are refused: they would be somebody's meaning, lost in silence.

use std::borrow::Cow;

use compact_str::CompactString;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Event, EventKind, EventPosition, own};
use crate::identity::{RunId, Ticket};

/// A record that is not an event, or not events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The value is not the JSON of an event.
    #[error("line {line} is not an event: {reason}")]
    NotAnEvent {
        /// Line of the batch, from 1; 1 for an event of its own.
        line: usize,
        /// What the reader stumbled over.
        reason: String,
    },
    /// A record of the documented form without the header.
    #[error("the event has no `{}` header: was it written by a Seriatim worker?", Event::HEADER)]
    NoHeader,
    /// The header has another length than this edition writes.
    #[error(
        "the `{}` header has {length} bytes instead of {}: written by another edition?",
        Event::HEADER,
        Event::HEADER_LEN
    )]
    HeaderLength {
        /// Bytes found.
        length: usize,
    },
    /// The header's first byte names an edition that this one cannot read.
    #[error("the `{}` header is of edition {edition}, this program reads edition {}", Event::HEADER, Event::EDITION)]
    HeaderEdition {
        /// Edition found.
        edition: u8,
    },
    /// The header speaks of another run than the JSON.
    #[error("the event's `runId` is {json}, its header says {header}")]
    RunsDiffer {
        /// Run in the JSON.
        json: RunId,
        /// Run in the header.
        header: RunId,
    },
}

/// Text that is borrowed where it has no escapes. (In an `Option`, serde borrows no plain `Cow`.)
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Documented<'a> {
    #[serde(rename = "type")]
    kind: EventKindName,
    #[serde(borrow)]
    document_id: Cow<'a, str>,
    #[serde(borrow)]
    message: Option<Text<'a>>,
    #[serde(borrow)]
    run_id: Option<Text<'a>>,
    #[serde(borrow)]
    instant: Option<&'a RawValue>,
    #[serde(borrow)]
    topic: Option<Text<'a>>,
    partition: Option<i32>,
    offset: Option<i64>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    /// Batched form only, from here on.
    ticket: Option<(u64, u64, u32)>,
    parent: Option<bool>,
    superseded: Option<bool>,
    unsettled: Option<bool>,
    digest: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum EventKindName {
    Create,
    Finish,
    Fail,
    Drop,
}

impl Event {
    /// Reads an event of the documented form. `header` is the value of the record's [`Event::HEADER`].
    pub fn from_json(json: &[u8], header: Option<&[u8]>) -> Result<Self, EventError> {
        let not_an_event = |reason: String| EventError::NotAnEvent { line: 1, reason };
        let read: Documented<'_> = serde_json::from_slice(json).map_err(|error| not_an_event(error.to_string()))?;
        let beyond = [
            ("ticket", read.ticket.is_some()),
            ("parent", read.parent.is_some()),
            ("superseded", read.superseded.is_some()),
            ("unsettled", read.unsettled.is_some()),
            ("digest", read.digest.is_some()),
        ];
        if let Some((name, _)) = beyond.into_iter().find(|&(_, present)| present) {
            return Err(not_an_event(format!("unknown field `{name}`")));
        }
        let mut event = read.into_event().map_err(not_an_event)?;
        let json = event.ticket.run;
        event.read_header(header.ok_or(EventError::NoHeader)?)?;
        if json != event.ticket.run {
            return Err(EventError::RunsDiffer { json, header: event.ticket.run });
        }
        Ok(event)
    }
}

/// Reads what [`super::encode_batch`] wrote.
pub fn decode_batch(value: &[u8]) -> Result<Vec<Event>, EventError> {
    let text = std::str::from_utf8(value).map_err(|error| {
        let line = value[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        EventError::NotAnEvent { line, reason: error.to_string() }
    })?;
    let mut events = Vec::new();
    for (at, line) in text.split('\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        if let Some(event) = own::read_line(line, events.last()) {
            events.push(event);
            continue;
        }
        let not_an_event = |reason: String| EventError::NotAnEvent { line: at + 1, reason };
        let read: Documented<'_> = serde_json::from_str(line).map_err(|error| not_an_event(error.to_string()))?;
        if read.ticket.is_none() {
            return Err(not_an_event("missing field `ticket`".into()));
        }
        events.push(read.into_event().map_err(not_an_event)?);
    }
    Ok(events)
}

impl Documented<'_> {
    fn into_event(self) -> Result<Event, String> {
        let Text(run) = self.run_id.ok_or("missing field `runId`")?;
        let run: RunId = run.parse().map_err(|_| format!("`runId` is {run:?}: it must be 32 hexadecimal digits"))?;
        let (sequence, attempt, ordinal) = self.ticket.unwrap_or_default();
        let instant = self.instant.ok_or("missing field `instant`")?.get();
        let position = match (self.topic, self.partition, self.offset, self.key) {
            (Some(topic), Some(partition), Some(offset), key) => {
                let key = key.map(|Text(key)| CompactString::from(key));
                Some(EventPosition { topic: topic.0.into(), partition, offset, key })
            }
            (None, None, None, None) => None,
            _ => return Err("`topic`, `partition` and `offset` go together, and `key` with them".into()),
        };
        Ok(Event {
            kind: match self.kind {
                EventKindName::Create => EventKind::Create,
                EventKindName::Finish => EventKind::Finish,
                EventKindName::Fail => EventKind::Fail,
                EventKindName::Drop => EventKind::Drop,
            },
            ticket: Ticket { run, sequence, attempt, ordinal },
            is_parent: self.parent.unwrap_or_default(),
            document_id: self.document_id.into(),
            message: self.message.map(|Text(message)| CompactString::from(message)),
            superseded: self.superseded.unwrap_or_default(),
            unsettled: self.unsettled.unwrap_or_default(),
            digest: self.digest.unwrap_or_default(),
            instant_micros: micros(instant)
                .ok_or_else(|| format!("`instant` is {instant}: it must be seconds since 1970, as 1764534000.5"))?,
            position,
        })
    }
}

/// Microseconds of a plain decimal number of seconds; what is finer is cut off.
fn micros(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = &fraction.as_bytes()[..fraction.len().min(6)];
    let micros = (0..6).fold(0, |sum, at| sum * 10 + digits.get(at).map_or(0, |digit| u64::from(digit - b'0')));
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}
