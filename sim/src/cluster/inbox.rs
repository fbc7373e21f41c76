//! Requests from their submission to the taking of their answers.
//!
//! A slot holds one request: queued, parked, or answered. Slots are used again, so that memory follows what is
//! outstanding; an id carries its sequence, so that a stale id finds nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use seriatim_core::env::Instant;

use super::protocol::{BrokerId, ConnectionId, Request, Response};

/// A submitted request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    sequence: u64,
    slot: u32,
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.sequence)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.sequence)
    }
}

#[derive(Debug)]
enum Stage {
    Free,
    Queued(BrokerId, Request),
    Parked,
    Answered(Instant, Response),
}

#[derive(Debug)]
struct Slot {
    sequence: u64,
    forgotten: bool,
    stage: Stage,
}

/// Key of a queued request: time, then connection, then sequence.
type Due = Reverse<(Instant, ConnectionId, RequestId)>;

#[derive(Debug, Default)]
pub(super) struct Inbox {
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: BinaryHeap<Due>,
    sequence: u64,
    answered: Vec<RequestId>,
}

impl Inbox {
    pub(super) fn push(&mut self, at: Instant, from: ConnectionId, to: BrokerId, request: Request) -> RequestId {
        let (sequence, stage) = (self.sequence, Stage::Queued(to, request));
        self.sequence += 1;
        let fresh = Slot { sequence, forgotten: false, stage };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = fresh;
                slot
            }
            None => {
                self.slots.push(fresh);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests are outstanding")
            }
        };
        let id = RequestId { sequence, slot };
        self.queue.push(Reverse((at, from, id)));
        id
    }

    /// Arrival of the next request.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next request. It counts as parked until it is answered.
    pub(super) fn pop(&mut self) -> Option<(RequestId, BrokerId, Request)> {
        let Reverse((_, _, id)) = self.queue.pop()?;
        match std::mem::replace(&mut self.slots[id.slot as usize].stage, Stage::Parked) {
            Stage::Queued(to, request) => Some((id, to, request)),
            other => unreachable!("a queued request was {other:?}"),
        }
    }

    pub(super) fn answer(&mut self, id: RequestId, at: Instant, response: Response) {
        let slot = &mut self.slots[id.slot as usize];
        debug_assert!(slot.sequence == id.sequence && matches!(slot.stage, Stage::Parked), "{id} is answered once");
        if slot.forgotten {
            self.release(id);
        } else {
            slot.stage = Stage::Answered(at, response);
            self.answered.push(id);
        }
    }

    pub(super) fn take(&mut self, id: RequestId) -> Option<(Instant, Response)> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.sequence != id.sequence || !matches!(slot.stage, Stage::Answered(..)) {
            return None;
        }
        match std::mem::replace(&mut slot.stage, Stage::Free) {
            Stage::Answered(at, response) => {
                self.free.push(id.slot);
                Some((at, response))
            }
            _ => None,
        }
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|slot| slot.sequence == id.sequence) else {
            return;
        };
        match slot.stage {
            Stage::Free => {}
            Stage::Answered(..) => self.release(id),
            Stage::Queued(..) | Stage::Parked => slot.forgotten = true,
        }
    }

    /// Gives a parked request up: it is never answered.
    pub(super) fn abandon(&mut self, id: RequestId) {
        debug_assert!(matches!(self.slots[id.slot as usize].stage, Stage::Parked), "{id} is parked");
        self.release(id);
    }

    fn release(&mut self, id: RequestId) {
        self.slots[id.slot as usize].stage = Stage::Free;
        self.free.push(id.slot);
    }

    pub(super) fn drain_answered(&mut self) -> std::vec::Drain<'_, RequestId> {
        self.answered.drain(..)
    }

    /// Requests that are queued, parked or answered and not taken.
    pub(super) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
