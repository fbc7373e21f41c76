//! Events about a document that travels in an envelope.

use compact_str::format_compact;

use super::{Event, EventKind};
use crate::identity::Envelope;

/// How the message of a failure begins.
const FAILED: &str = "FAILED: ";

impl Event {
    /// A child was made.
    pub fn created(envelope: &Envelope, id: &str, instant_micros: u64) -> Self {
        Event { is_parent: false, digest: 0, ..about(EventKind::Create, envelope, id, instant_micros) }
    }

    /// The document is in the index.
    pub fn finished(envelope: &Envelope, id: &str, instant_micros: u64) -> Self {
        Event { message: Some("SUCCEEDED".into()), ..about(EventKind::Finish, envelope, id, instant_micros) }
    }

    /// The index had a higher version.
    pub fn superseded(envelope: &Envelope, id: &str, instant_micros: u64) -> Self {
        Event { superseded: true, ..Event::finished(envelope, id, instant_micros) }
    }

    /// A stage dropped the document.
    pub fn dropped(envelope: &Envelope, id: &str, instant_micros: u64) -> Self {
        about(EventKind::Drop, envelope, id, instant_micros)
    }

    /// The document failed.
    pub fn failed(envelope: &Envelope, id: &str, cause: &str, instant_micros: u64) -> Self {
        let message = Some(format_compact!("{FAILED}{cause}"));
        Event { message, ..about(EventKind::Fail, envelope, id, instant_micros) }
    }

    /// Why the document failed, if it did and a cause was given.
    pub fn cause(&self) -> Option<&str> {
        let message = self.message.as_deref().filter(|_| self.kind == EventKind::Fail)?;
        Some(message.strip_prefix(FAILED).unwrap_or(message))
    }
}

fn about(kind: EventKind, envelope: &Envelope, id: &str, instant_micros: u64) -> Event {
    Event {
        is_parent: envelope.is_parent,
        digest: envelope.digest,
        ..Event::new(kind, envelope.ticket, id, instant_micros)
    }
}
