//! What happened in a run, as a time-ordered list of events, and the [`Recorder`] that takes them down.
//!
//! Wrappers around the ports write most events ([`recorded`](crate::recorded)); the world writes what brokers and the
//! index applied, and the faults. A call is written when it is invoked and again when it is resolved, both under one
//! number ([`Call`]). Checkers read nothing else.
//!
//! Rules: an event holds ids, keys, sizes and hashes, never a document's body. Recording never awaits and never draws
//! randomness, so that a recorded run and an unrecorded one are the same run. A node that crashed records nothing more:
//! what its destructors do is not part of the history.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use seriatim_core::env::Instant;

mod event;

pub use event::{
    Ack, AssignedPartition, Call, CommittedOffset, Delivered, Event, IndexWrite, Lifecycle, LifecycleKind, Produced,
    RunSummary, Stamp, What, WriteKind, WriteOutcome, document_key,
};

/// Hash of a body, stable across processes and machines: FNV-1a, 64 bits.
pub fn body_hash(body: &[u8]) -> u64 {
    body.iter().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The rolling hash of a history. FNV-1a's step over words, so that it costs little; integers of every width are taken
/// as 64 bits, which keeps it the same on every machine of one byte order. Never for what an adversary chooses.
#[derive(Clone, Copy, Debug)]
pub struct RollingHash(u64);

impl Default for RollingHash {
    fn default() -> Self {
        RollingHash(FNV_OFFSET)
    }
}

impl RollingHash {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(FNV_PRIME);
    }
}

impl Hasher for RollingHash {
    fn finish(&self) -> u64 {
        // Spreads the last words over all bits.
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.word(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
        self.word(bytes.len() as u64);
    }

    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }
    fn write_u128(&mut self, n: u128) {
        self.word(n as u64);
        self.word((n >> 64) as u64);
    }
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
    fn write_i32(&mut self, n: i32) {
        self.word(n as u64);
    }
    fn write_i64(&mut self, n: i64) {
        self.word(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

/// How much a [`Recorder`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// Every event, and the hash.
    #[default]
    Events,
    /// The hash only.
    Hash,
    /// Nothing.
    Nothing,
}

struct Taken {
    events: Vec<Event>,
    hash: RollingHash,
    count: u64,
    dead: BTreeSet<(Arc<str>, u32)>,
    sink: Option<Box<dyn Write + Send>>,
    sink_error: Option<io::Error>,
    /// Who waits for the next event.
    waiter: Option<Waker>,
}

struct Shared {
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
    keep: Keep,
    calls: AtomicU64,
    taken: Mutex<Taken>,
}

/// Takes a history down. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("events", &self.count()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that stamps events by `clock`.
    pub fn new(keep: Keep, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        let taken = Taken {
            events: Vec::new(),
            hash: RollingHash::default(),
            count: 0,
            dead: BTreeSet::new(),
            sink: None,
            sink_error: None,
            waiter: None,
        };
        Recorder {
            shared: Arc::new(Shared {
                clock: Box::new(clock),
                keep,
                calls: AtomicU64::new(1),
                taken: Mutex::new(taken),
            }),
        }
    }

    /// Also writes every event to `sink` as a line of JSON before `record` returns: what a real process does, so that
    /// its history survives it.
    pub fn with_sink(self, sink: Box<dyn Write + Send>) -> Self {
        self.taken().sink = Some(sink);
        self
    }

    /// Numbers calls from `first` on: what processes need whose histories are put together.
    pub fn numbered_from(self, first: Call) -> Self {
        self.shared.calls.store(first, Ordering::Relaxed);
        self
    }

    /// A fresh number, for a call, a producer or a consumer. Never 0.
    pub fn call(&self) -> Call {
        self.shared.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes an event of `node` down. [`What::Crashed`] silences that incarnation from then on.
    pub fn record(&self, node: &Arc<str>, incarnation: u32, what: What) {
        if self.shared.keep == Keep::Nothing {
            return;
        }
        let at = (self.shared.clock)();
        let mut taken = self.taken();
        if !taken.dead.is_empty() && taken.dead.contains(&(node.clone(), incarnation)) {
            return;
        }
        if what == What::Crashed {
            taken.dead.insert((node.clone(), incarnation));
        }
        let event = Event { at, node: node.clone(), incarnation, what };
        event.hash(&mut taken.hash);
        taken.count += 1;
        if let Some(sink) = &mut taken.sink
            && let Err(error) = write_line(&event, sink)
        {
            taken.sink_error.get_or_insert(error);
        }
        if self.shared.keep == Keep::Events {
            taken.events.push(event);
        }
        let waiter = taken.waiter.take();
        drop(taken);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Completes when more than `count` events were taken. One task may wait at a time.
    pub async fn more_than(&self, count: u64) {
        std::future::poll_fn(|cx| {
            let mut taken = self.taken();
            if taken.count > count {
                return Poll::Ready(());
            }
            taken.waiter = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The recorder as one life of one node uses it.
    pub fn node(&self, name: impl Into<Arc<str>>, incarnation: u32) -> NodeRecorder {
        NodeRecorder { recorder: self.clone(), node: name.into(), incarnation }
    }

    /// Events taken so far.
    pub fn count(&self) -> u64 {
        self.taken().count
    }

    /// Hash over every event so far, in order: equal for two runs exactly when their histories are.
    pub fn hash(&self) -> u64 {
        self.taken().hash.finish()
    }

    /// A copy of the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.taken().events.clone()
    }

    /// The events so far, which the recorder then no longer has.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.taken().events)
    }

    /// Runs `read` over the events so far, without a copy. `read` must not record.
    pub fn with_events<R>(&self, read: impl FnOnce(&[Event]) -> R) -> R {
        read(&self.taken().events)
    }

    /// The first error of the sink, if it had one: the written history is then not whole.
    pub fn take_sink_error(&self) -> Option<io::Error> {
        self.taken().sink_error.take()
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // A panic while recording leaves at worst one event out; the history must survive to explain the panic.
        self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Recorder`] in the hands of one life of one node.
#[derive(Clone, Debug)]
pub struct NodeRecorder {
    recorder: Recorder,
    node: Arc<str>,
    incarnation: u32,
}

impl NodeRecorder {
    /// Takes `what` down as an event of this node.
    pub fn record(&self, what: What) {
        self.recorder.record(&self.node, self.incarnation, what);
    }

    /// A fresh number.
    pub fn call(&self) -> Call {
        self.recorder.call()
    }

    /// Name of the node.
    pub fn name(&self) -> &Arc<str> {
        &self.node
    }

    /// Which life of it.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }
}

fn write_line(event: &Event, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Writes a history as lines of JSON.
pub fn write_jsonl(events: &[Event], out: &mut impl Write) -> io::Result<()> {
    events.iter().try_for_each(|event| write_line(event, out))
}

/// Reads a history from lines of JSON, and puts histories of several processes into the order of time.
pub fn read_jsonl(input: impl BufRead) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        let event: Event = serde_json::from_str(&line).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("line {} of the history: {error}", number + 1))
        })?;
        events.push(event);
    }
    events.sort_by_key(|event| event.at);
    Ok(events)
}

#[cfg(test)]
#[path = "history/tests.rs"]
mod tests;
