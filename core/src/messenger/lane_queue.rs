//! A bounded queue in memory with a lane for each consumer: what local and hybrid messengers are made of.
//!
//! Equal keys stay in one lane, in order. A full queue makes the sender wait; nothing is ever dropped to make room.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use super::{MessengerError, Outbound, Payload, Work};
use crate::machines::lanes::{Full, Lanes};

/// What can wait in a lane.
pub(super) trait Queued {
    /// Equal keys are consumed in order.
    fn key(&self) -> &[u8];

    /// Bytes that it holds.
    fn weight(&self) -> usize;
}

impl Queued for Outbound {
    fn key(&self) -> &[u8] {
        self.document.id().as_bytes()
    }

    fn weight(&self) -> usize {
        self.document.weight()
    }
}

impl Queued for Work {
    fn key(&self) -> &[u8] {
        match &self.payload {
            Payload::Document(document, _) => document.id().as_bytes(),
            Payload::Undecodable { key, .. } => key.as_bytes(),
        }
    }

    fn weight(&self) -> usize {
        match &self.payload {
            Payload::Document(document, _) => document.weight(),
            Payload::Undecodable { value, .. } => value.as_ref().map_or(0, |value| value.len()),
        }
    }
}

#[derive(Debug)]
struct State<T> {
    lanes: Lanes<T>,
    bytes: usize,
    /// Lanes that have a consumer: the first so many.
    consumers: usize,
    /// A consumer is gone: what comes into its lane would stay there.
    closed: bool,
    /// Nothing will be sent any more.
    ended: bool,
}

/// A bounded queue with lanes.
#[derive(Debug)]
pub(super) struct LaneQueue<T> {
    state: Mutex<State<T>>,
    bytes_max: usize,
    arrived: Vec<Notify>,
    room: Notify,
}

impl<T: Queued> LaneQueue<T> {
    /// A queue with `lanes` lanes (at least one), each with room for `lane_records_max` items, though one may use the
    /// room of another, and `bytes_max` bytes together. An item over that limit alone passes when nothing else waits.
    pub(super) fn new(lanes: usize, lane_records_max: usize, bytes_max: usize) -> Self {
        let lanes = lanes.max(1);
        let records_max = lanes.saturating_mul(lane_records_max.max(1));
        let state =
            State { lanes: Lanes::new(lanes, records_max), bytes: 0, consumers: 0, closed: false, ended: false };
        LaneQueue {
            state: Mutex::new(state),
            bytes_max: bytes_max.max(1),
            arrived: (0..lanes).map(|_| Notify::new()).collect(),
            room: Notify::new(),
        }
    }

    /// Number of lanes.
    pub(super) fn lanes(&self) -> usize {
        self.arrived.len()
    }

    /// The lane of one more consumer. When each has one already, `taken` is what is gone.
    pub(super) fn join(&self, taken: &'static str) -> Result<usize, MessengerError> {
        let mut state = self.lock();
        let lane = state.consumers;
        if lane == self.lanes() {
            return Err(MessengerError::Closed(taken));
        }
        state.consumers += 1;
        Ok(lane)
    }

    /// Consumers that joined, those that are gone included.
    pub(super) fn consumers(&self) -> usize {
        self.lock().consumers
    }

    /// The consumer of `lane` is gone: what waits there is abandoned, and senders are told.
    pub(super) fn close(&self, lane: usize) {
        let abandoned = {
            let mut state = self.lock();
            state.closed = true;
            state.take(lane, usize::MAX)
        };
        // Outside the lock: each may settle a record.
        drop(abandoned);
        self.room.notify_waiters();
    }

    /// Nothing will be sent any more: consumers that find their lane empty are told.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.arrived.iter().for_each(Notify::notify_one);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no code panics while it holds a queue")
    }

    /// Appends in order, waiting while the queue is full. False when a consumer is gone: the rest is dropped.
    pub(super) async fn push(&self, items: impl IntoIterator<Item = T, IntoIter: Send>) -> bool {
        let mut items = items.into_iter();
        let mut next = items.next();
        while next.is_some() {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            let mut touched = vec![false; self.arrived.len()];
            {
                let state = &mut *self.lock();
                if state.closed {
                    return false;
                }
                while let Some(item) = next.take_if(|_| state.bytes < self.bytes_max) {
                    match state.put(item) {
                        Ok(lane) => touched[lane] = true,
                        Err(item) => {
                            next = Some(item);
                            break;
                        }
                    }
                    next = items.next();
                }
            }
            for (lane, _) in touched.iter().enumerate().filter(|(_, touched)| **touched) {
                self.arrived[lane].notify_one();
            }
            if next.is_some() {
                room.await;
            }
        }
        true
    }

    /// At most `records_max` items of `lane`; waits for the first. None at all only after [`LaneQueue::end`].
    /// Cancel-safe.
    pub(super) async fn take(&self, lane: usize, records_max: usize) -> Vec<T> {
        loop {
            let (items, ended) = {
                let mut state = self.lock();
                (state.take(lane, records_max), state.ended)
            };
            if !items.is_empty() {
                self.room.notify_waiters();
            }
            if ended || !items.is_empty() {
                return items;
            }
            self.arrived[lane].notified().await;
        }
    }
}

impl<T: Queued> State<T> {
    fn put(&mut self, item: T) -> Result<usize, T> {
        let weight = item.weight();
        let lane = self.lanes.lane_of(item.key());
        self.lanes.push_to(lane, item).map_err(|Full(item)| item)?;
        self.bytes += weight;
        Ok(lane)
    }

    fn take(&mut self, lane: usize, records_max: usize) -> Vec<T> {
        let items = self.lanes.take(lane, records_max);
        self.bytes -= items.iter().map(Queued::weight).sum::<usize>();
        items
    }
}
