//! The idempotent producer: partitions, batches, pipelines, and retries for ever in order.
//!
//! [`SimProducer`] only enqueues. One task sends ([`sender`]), one asks for metadata ([`metadata`]). Order in a
//! partition rests on the rules of its [`lane`]. Beside them, as in librdkafka:
//! - The number of partitions is the one that the producer knows. Growth is noticed when its metadata has its age, or
//!   when it is asked for anew because a broker did not know a partition or its leader.
//! - A record of a topic that is not known yet waits, and is given its partition when it is; those that name their
//!   partition go first then. A named partition beyond the known ones makes the producer ask again before it refuses.
//! - A topic is taken for absent when it was known and metadata say that it is gone, or when it never was and its time
//!   to appear is over. What waits for it is refused then; a later record makes the producer ask again.

mod lane;
mod metadata;
mod sender;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Appended, Delivery, ErrorKind, Outgoing, Producer, ProducerConfig, TransportError};
use tokio::sync::{Notify, oneshot};

use self::lane::{Lane, Owner, Pending};
use self::metadata::{Place, Topic};
use super::{Client, TRIES_MAX, broker_error};
use crate::cluster::protocol::{BrokerId, ErrorCode, ProducerId, Record, Request, Response};
use crate::env::wall_micros;
use crate::executor::lock;
use crate::history::What;

type Outcome = Result<Appended, TransportError>;

/// One `send_all`.
#[derive(Debug)]
struct Call {
    outcomes: Vec<Option<Outcome>>,
    open: usize,
    done: oneshot::Sender<Vec<Outcome>>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    fatal: Option<TransportError>,
    lanes: BTreeMap<TopicPartition, Lane>,
    topics: BTreeMap<Arc<str>, Topic>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Records enqueued and not answered, and their bytes.
    held: usize,
    /// The history knows that callers had to wait; once is enough.
    told_full: bool,
    held_bytes: usize,
    /// Somebody waits for everything: no lingering.
    flushing: usize,
    in_flight: BTreeMap<BrokerId, usize>,
}

#[derive(Debug)]
struct Core {
    client: Client,
    config: ProducerConfig,
    id: ProducerId,
    state: Mutex<State>,
    /// Order of `send_all` calls.
    gate: tokio::sync::Mutex<()>,
    for_sender: Notify,
    for_metadata: Notify,
    /// Something was answered: there is room, or a flush may be over.
    answered: Notify,
}

/// A simulated idempotent producer. Clones share it.
#[derive(Clone, Debug)]
pub struct SimProducer {
    core: Arc<Core>,
    _last: Arc<Last>,
}

/// Closes the producer when its last handle goes.
#[derive(Debug)]
struct Last(Arc<Core>);

impl Drop for Last {
    fn drop(&mut self) {
        if !self.0.client.host.is_dead() {
            self.0.lock().closed = true;
            self.0.for_sender.notify_one();
            self.0.for_metadata.notify_one();
        }
    }
}

impl SimProducer {
    pub(super) async fn open(client: Client, config: ProducerConfig) -> Result<Self, TransportError> {
        for attempt in 0..TRIES_MAX {
            if attempt > 0 {
                client.back_off().await;
            }
            if let Ok(Response::InitProducerId { producer }) = client.ask_any(Request::InitProducerId).await {
                let core = Arc::new(Core::new(client, config, producer));
                core.client.host.spawn(sender::run(core.clone()));
                core.client.host.spawn(metadata::run(core.clone()));
                return Ok(SimProducer { _last: Arc::new(Last(core.clone())), core });
            }
        }
        let context = format!("asking for a producer id, {TRIES_MAX} times");
        Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context))
    }
}

/// How far the enqueuing of one record came.
enum Step {
    Done,
    /// The producer is full. The record is given back.
    Full(Outgoing),
}

impl Core {
    fn new(client: Client, config: ProducerConfig, id: ProducerId) -> Self {
        Core {
            client,
            config,
            id,
            state: Mutex::default(),
            gate: tokio::sync::Mutex::new(()),
            for_sender: Notify::new(),
            for_metadata: Notify::new(),
            answered: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A partition out of `count`, from the process's own stream.
    fn draw(&self, count: u32) -> i32 {
        let drawn = lock(&self.client.host.life.random).next_u64() % u64::from(count.max(1));
        i32::try_from(drawn).unwrap_or(0)
    }

    /// Enqueues one record, unless the producer is full.
    fn enqueue(&self, state: &mut State, outgoing: Outgoing, (call, place): (u64, usize)) -> Step {
        let owner = Owner { call, place, bytes: bytes(&outgoing) };
        if let Some(error) = state.fatal.clone() {
            state.settle(owner, Err(error));
            return Step::Done;
        }
        let now = self.client.host.now();
        let is_full = state.held >= self.config.queue_records_max.max(1)
            || state.held_bytes.saturating_add(owner.bytes) > self.config.queue_bytes_max;
        if is_full && state.held > 0 {
            if !std::mem::replace(&mut state.told_full, true) {
                self.tell_full(state.held);
            }
            return Step::Full(outgoing);
        }
        let Outgoing { topic, partition, key, value, headers } = outgoing;
        let timestamp_millis = (wall_micros(&self.client.host, now) / 1_000) as i64;
        let record = Record { key, value, headers, timestamp_millis };
        let bytes = record.bytes_max();
        if bytes > self.config.record_bytes_max {
            let context = format!("producing a record of {bytes} bytes to `{topic}`");
            state.settle(owner, Err(broker_error(ErrorCode::MessageTooLarge, context)));
            return Step::Done;
        }
        state.held += 1;
        state.held_bytes += owner.bytes;
        let pending = Pending { record, bytes, owner, enqueued: now };
        let known = state.topics.entry(topic.clone()).or_insert_with(|| Topic::new(now));
        match known.place(self, &pending, partition) {
            Place::At(partition) => self.put(state, TopicPartition { topic, partition }, pending),
            Place::Wait => {
                known.unassigned.push_back((partition, pending));
                self.for_metadata.notify_one();
            }
        }
        Step::Done
    }

    /// Writes into the history that callers have to wait.
    fn tell_full(&self, held: usize) {
        let life = &self.client.host.life;
        let what = What::FaultInjected { kind: "full-queue".into(), target: life.node.clone(), in_flight: held as u64 };
        self.client.host.shared.lock().recorder.record(&life.node, life.incarnation, what);
    }

    /// Puts a record into the queue of its partition.
    fn put(&self, state: &mut State, partition: TopicPartition, pending: Pending) {
        let lane = state.lanes.entry(partition).or_default();
        let wakes = lane.push(pending, &self.config);
        if wakes {
            self.for_sender.notify_one();
        }
    }
}

/// What a record counts for in the queue's bound.
fn bytes(outgoing: &Outgoing) -> usize {
    let of = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
    let headers: usize = outgoing.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
    of(&outgoing.key) + of(&outgoing.value) + headers
}

impl State {
    fn is_over(&self) -> bool {
        self.closed || self.fatal.is_some()
    }

    /// Gives one record its outcome; the last of a call resolves it.
    fn settle(&mut self, owner: Owner, outcome: Outcome) {
        let Some(call) = self.calls.get_mut(&owner.call) else { return };
        if call.outcomes[owner.place].replace(outcome).is_none() {
            call.open -= 1;
        }
        if call.open == 0
            && let Some(call) = self.calls.remove(&owner.call)
        {
            let outcomes = call.outcomes.into_iter().map(|outcome| outcome.expect("none is open")).collect();
            // The caller may have lost interest.
            let _ = call.done.send(outcomes);
        }
    }

    /// Gives a record that was enqueued its outcome, and its room back.
    fn end(&mut self, owner: Owner, outcome: Outcome) {
        self.held -= 1;
        self.held_bytes -= owner.bytes;
        self.settle(owner, outcome);
    }

    /// The producer is of no use any more: everything open fails.
    fn fail(&mut self, error: TransportError) {
        self.fatal = Some(error.clone());
        self.lanes.clear();
        self.topics.clear();
        (self.held, self.held_bytes) = (0, 0);
        for (_, call) in std::mem::take(&mut self.calls) {
            let outcomes = call.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(error.clone())));
            let _ = call.done.send(outcomes.collect());
        }
    }
}

/// A `send_all` in progress: what it did not come to, when it is dropped, was never sent.
struct Enqueuing<'a> {
    core: &'a Core,
    call: u64,
    next: usize,
    records: usize,
}

impl Drop for Enqueuing<'_> {
    fn drop(&mut self) {
        if self.next == self.records {
            return;
        }
        let mut state = self.core.lock();
        for place in self.next..self.records {
            let error = TransportError::new(ErrorKind::Retriable, "CANCELLED", "enqueuing a record");
            state.settle(Owner { call: self.call, place, bytes: 0 }, Err(error));
        }
        drop(state);
        self.core.answered.notify_waiters();
    }
}

impl Enqueuing<'_> {
    /// Enqueues what is left, waiting while the producer is full.
    async fn run(&mut self, records: Vec<Outgoing>) {
        let mut records = records.into_iter();
        let mut next = records.next();
        while next.is_some() {
            let room = self.core.answered.notified();
            {
                let mut state = self.core.lock();
                while let Some(record) = next.take() {
                    match self.core.enqueue(&mut state, record, (self.call, self.next)) {
                        Step::Done => {
                            self.next += 1;
                            next = records.next();
                        }
                        Step::Full(record) => {
                            next = Some(record);
                            break;
                        }
                    }
                }
            }
            if next.is_some() {
                room.await;
            }
        }
    }
}

impl Producer for SimProducer {
    async fn send_all(&self, records: Vec<Outgoing>) -> Delivery {
        let core = &*self.core;
        let (done, delivery) = Delivery::new(records.len());
        if !core.client.host.enter() {
            std::future::pending::<()>().await;
        }
        if records.is_empty() {
            let _ = done.send(Vec::new());
            return delivery;
        }
        let gate = core.gate.lock().await;
        let mut enqueuing = {
            let mut state = core.lock();
            let call = state.next_call;
            state.next_call += 1;
            let outcomes = records.iter().map(|_| None).collect();
            state.calls.insert(call, Call { outcomes, open: records.len(), done });
            Enqueuing { core, call, next: 0, records: records.len() }
        };
        enqueuing.run(records).await;
        drop(enqueuing);
        drop(gate);
        delivery
    }

    async fn flush(&self) {
        let core = &*self.core;
        if !core.client.host.enter() {
            std::future::pending::<()>().await;
        }
        let before = {
            let mut state = core.lock();
            state.flushing += 1;
            state.next_call
        };
        let flushing = Flushing(core);
        core.for_sender.notify_one();
        loop {
            let answered = core.answered.notified();
            if core.lock().calls.keys().next().is_none_or(|oldest| *oldest >= before) {
                break;
            }
            answered.await;
        }
        drop(flushing);
    }
}

/// A flush in progress.
struct Flushing<'a>(&'a Core);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.lock().flushing -= 1;
    }
}
