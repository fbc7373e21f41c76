//! The idempotent producer: partitions, batches, pipelines, and retries for ever in order.
//!
//! One task sends; [`SimProducer`] only enqueues. Order in a partition rests on three rules: records are enqueued in
//! the order of the calls, a batch keeps its sequence for life, and a partition with something to repeat sends nothing
//! newer until all that it has out is answered.

mod sender;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::partitioner;
use seriatim_core::transport::{Appended, Delivery, ErrorKind, Outgoing, Producer, ProducerConfig, TransportError};
use tokio::sync::{Notify, oneshot};

use super::{Client, TRIES_MAX, broker_error};
use crate::cluster::protocol::{BATCH_OVERHEAD_BYTES, BrokerId, ErrorCode, ProducerId, Record, Request, Response};
use crate::env::wall_micros;
use crate::executor::lock;
use crate::history::What;

/// `max.in.flight.requests.per.connection`: what an idempotent producer may have out.
const IN_FLIGHT_MAX: usize = 5;
/// `batch.num.messages`.
const BATCH_RECORDS_MAX: usize = 10_000;
/// Tries of a batch for a topic that does not exist.
const UNKNOWN_TOPIC_TRIES_MAX: u32 = 30;

type Outcome = Result<Appended, TransportError>;

/// A record in the queue of its partition.
#[derive(Debug)]
struct Pending {
    record: Record,
    bytes: usize,
    owner: Owner,
}

/// Which record of which `send_all` this is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    call: u64,
    place: usize,
}

/// Records that were given a sequence and are sent together until they are answered.
#[derive(Debug)]
struct Batch {
    partition: TopicPartition,
    base_sequence: i32,
    records: Arc<[Record]>,
    owners: Vec<Owner>,
    tries: u32,
}

#[derive(Debug, Default)]
struct Lane {
    next_sequence: i32,
    queue: VecDeque<Pending>,
    /// To be sent again, by sequence.
    retry: VecDeque<Batch>,
    /// Base sequences of what is out.
    out: BTreeSet<i32>,
    /// Base sequences from the oldest open batch on, answered or not. The broker knows a resend by its last five
    /// batches only, so there are never more.
    window: VecDeque<i32>,
    not_before: Instant,
}

/// One `send_all`.
#[derive(Debug)]
struct Call {
    outcomes: Vec<Option<Outcome>>,
    open: usize,
    done: oneshot::Sender<Vec<Outcome>>,
}

#[derive(Debug)]
struct State {
    closed: bool,
    fatal: Option<TransportError>,
    lanes: BTreeMap<TopicPartition, Lane>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Records enqueued and not answered.
    held: usize,
    /// The history knows that callers had to wait; once is enough.
    told_full: bool,
    /// When the oldest record that waits for company has waited enough.
    linger_until: Option<Instant>,
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
                return Ok(SimProducer { _last: Arc::new(Last(core.clone())), core });
            }
        }
        let context = format!("asking for a producer id, {TRIES_MAX} times");
        Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context))
    }
}

impl Core {
    fn new(client: Client, config: ProducerConfig, id: ProducerId) -> Self {
        let state = State {
            closed: false,
            fatal: None,
            lanes: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            held: 0,
            told_full: false,
            linger_until: None,
            flushing: 0,
            in_flight: BTreeMap::new(),
        };
        Core {
            client,
            config,
            id,
            state: Mutex::new(state),
            gate: tokio::sync::Mutex::new(()),
            for_sender: Notify::new(),
            answered: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Bytes that a record or a batch may take: the client's limit and the broker's.
    fn batch_bytes_max(&self) -> usize {
        self.client.host.shared.config.cluster.message_max_bytes - BATCH_OVERHEAD_BYTES
    }

    /// The partition of a record without one: by its key, or any one that is the same for the whole call.
    async fn place(&self, record: &Outgoing, any: u64) -> Result<TopicPartition, TransportError> {
        let count = self.client.partitions_of(&record.topic, UNKNOWN_TOPIC_TRIES_MAX as usize).await?;
        let number = match (record.partition, &record.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partitioner::partition(key, count),
            (None, None) => i32::try_from(any % u64::from(count.max(1))).unwrap_or(0),
        };
        if number < 0 || number.unsigned_abs() >= count {
            let context = format!("producing to partition {number} of `{}`, which has {count}", record.topic);
            return Err(broker_error(ErrorCode::UnknownTopicOrPartition, context));
        }
        Ok(TopicPartition { topic: record.topic.clone(), partition: number })
    }

    /// Writes into the history that callers have to wait.
    fn tell_full(&self, held: usize) {
        let life = &self.client.host.life;
        let what = What::FaultInjected { kind: "full-queue".into(), target: life.node.clone(), in_flight: held as u64 };
        self.client.host.shared.lock().recorder.record(&life.node, life.incarnation, what);
    }

    /// Enqueues one record, waiting while the producer is full.
    async fn enqueue(&self, record: Outgoing, any: u64, owner: Owner) {
        let placed = self.place(&record, any).await;
        let pending = Pending {
            bytes: 0,
            owner,
            record: Record {
                key: record.key,
                value: record.value,
                headers: record.headers,
                timestamp_millis: (wall_micros(&self.client.host, self.client.host.now()) / 1_000) as i64,
            },
        };
        let bytes = pending.record.bytes_max();
        let partition = match placed {
            Ok(_) if bytes > self.config.record_bytes_max.min(self.batch_bytes_max()) => {
                let context = format!("producing a record of {bytes} bytes to `{}`", record.topic);
                return self.lock().settle(owner, Err(broker_error(ErrorCode::MessageTooLarge, context)));
            }
            Ok(partition) => partition,
            Err(error) => return self.lock().settle(owner, Err(error)),
        };
        loop {
            let room = self.answered.notified();
            {
                let mut state = self.lock();
                if let Some(error) = state.fatal.clone() {
                    return state.settle(owner, Err(error));
                }
                if state.held < self.config.queue_records_max.max(1) {
                    state.held += 1;
                    let linger_until = self.client.host.now() + self.config.linger;
                    if state.linger_until.is_none() {
                        state.linger_until = Some(linger_until);
                        self.for_sender.notify_one();
                    }
                    state.lanes.entry(partition).or_default().queue.push_back(Pending { bytes, ..pending });
                    return;
                }
                if !std::mem::replace(&mut state.told_full, true) {
                    self.tell_full(state.held);
                }
            }
            room.await;
        }
    }
}

impl State {
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

    /// The producer is of no use any more: everything open fails.
    fn fail(&mut self, error: TransportError) {
        self.fatal = Some(error.clone());
        self.lanes.clear();
        self.held = 0;
        for (_, call) in std::mem::take(&mut self.calls) {
            let outcomes = call.outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(error.clone())));
            let _ = call.done.send(outcomes.collect());
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
        let call = {
            let mut state = core.lock();
            let call = state.next_call;
            state.next_call += 1;
            let outcomes = records.iter().map(|_| None).collect();
            state.calls.insert(call, Call { outcomes, open: records.len(), done });
            call
        };
        let any = if records.iter().any(|record| record.partition.is_none() && record.key.is_none()) {
            lock(&core.client.host.life.random).next_u64()
        } else {
            0
        };
        for (place, record) in records.into_iter().enumerate() {
            core.enqueue(record, any, Owner { call, place }).await;
        }
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
