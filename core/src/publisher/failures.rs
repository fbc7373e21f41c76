//! The first few failures of a run, with their causes. How many there are in all is the ledger's count.

use std::fmt;

use compact_str::CompactString;

use crate::event::{Event, EventKind};
use crate::identity::Ticket;

/// Failures that are kept.
const KEPT: usize = 5;
/// Bytes of an id or a cause that are kept.
const TEXT_BYTES_MAX: usize = 500;

/// A document that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its id.
    pub id: CompactString,
    /// Why, as its event says.
    pub cause: CompactString,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.id, self.cause)
    }
}

/// Keeps the first failures that are told.
#[derive(Debug, Default)]
pub(super) struct FirstFailures(Vec<(Ticket, Failure)>);

impl FirstFailures {
    /// Notes what an event says, if it tells of a failure. The same output may fail in several attempts: it is kept
    /// once.
    pub(super) fn observe(&mut self, event: &Event) {
        if event.kind != EventKind::Fail || self.0.len() >= KEPT {
            return;
        }
        let ticket = Ticket { attempt: 0, ..event.ticket };
        if self.0.iter().all(|(kept, _)| *kept != ticket) {
            let cause = event.cause().unwrap_or("no cause was given");
            self.0.push((ticket, Failure { id: cut(&event.document_id), cause: cut(cause) }));
        }
    }

    pub(super) fn list(&self) -> Vec<Failure> {
        self.0.iter().map(|(_, failure)| failure.clone()).collect()
    }
}

fn cut(text: &str) -> CompactString {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Envelope;

    fn failed(sequence: u64, attempt: u64, id: &str, cause: &str) -> Event {
        let ticket = Ticket { sequence, attempt, ..Ticket::default() };
        Event::failed(&Envelope { ticket, ..Envelope::default() }, id, cause, 0)
    }

    #[test]
    fn the_first_failures_are_kept_once_each_and_cut() {
        let mut first = FirstFailures::default();
        first.observe(&Event::finished(&Envelope::default(), "fine", 0));
        first.observe(&failed(1, 7, "a", "c"));
        first.observe(&failed(1, 8, "a", "c again"));
        first.observe(&failed(2, 7, "b", &"ü".repeat(1_000)));
        assert_eq!(first.list()[0].to_string(), "`a`: c");
        assert_eq!((first.list().len(), first.list()[1].cause.len()), (2, TEXT_BYTES_MAX));
        for sequence in 3..1_000 {
            first.observe(&failed(sequence, 0, "more", "c"));
        }
        assert_eq!(first.list().len(), KEPT);
    }
}
