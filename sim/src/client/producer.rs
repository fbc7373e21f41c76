//! The idempotent producer: partitions, batches, pipelines, and retries for ever in order.
//!
//! One task sends; [`SimProducer`] only enqueues. Order in a partition rests on three rules: records are enqueued in
//! the order of the calls, a batch keeps its sequence for life, and a partition with something to repeat sends nothing
//! newer until all that it has out is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::partitioner;
use seriatim_core::transport::{Appended, Delivery, ErrorKind, Outgoing, Producer, ProducerConfig, TransportError};
use tokio::sync::{Notify, oneshot};

use super::{Client, TRIES_MAX, broker_error, error_kind};
use crate::cluster::protocol::{
    BATCH_OVERHEAD_BYTES, BrokerId, ErrorCode, ProducePartition, ProducerId, Record, Request, Response,
};
use crate::env::wall_micros;
use crate::executor::lock;
use crate::network::{NetworkError, RoundTrip};

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
                core.client.host.spawn(run(core.clone()));
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

/// A produce request on its way.
struct Flight {
    broker: BrokerId,
    batches: Vec<Batch>,
    trip: RoundTrip,
}

impl Future for Flight {
    type Output = (BrokerId, Vec<Batch>, Result<Response, NetworkError>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.trip).poll(cx));
        Poll::Ready((self.broker, std::mem::take(&mut self.batches), answer))
    }
}

/// The sending task, until the last handle is dropped or the producer fails for good.
async fn run(core: Arc<Core>) {
    let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
    loop {
        let plan = {
            let mut state = core.lock();
            if state.closed || state.fatal.is_some() {
                return;
            }
            plan(&core, &mut state)
        };
        for (broker, batches) in plan.requests {
            flights.push(send(&core, broker, batches));
        }
        if !plan.unknown.is_empty() && core.client.refresh(plan.unknown).await.is_err() {
            core.client.back_off().await;
        }
        let woken = pin!(core.for_sender.notified());
        let executor = &core.client.host.shared.executor;
        let timer = async {
            match plan.wake {
                Some(at) => executor.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let answered = async {
            match flights.next().await {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        };
        let timer = pin!(timer);
        let waiting = select(woken, timer);
        if let futures_util::future::Either::Left(((broker, batches, answer), _)) =
            select(pin!(answered), waiting).await
        {
            receive(&core, broker, batches, answer);
        }
    }
}

#[derive(Default)]
struct Plan {
    requests: BTreeMap<BrokerId, Vec<Batch>>,
    /// Topics without a known leader.
    unknown: Vec<Arc<str>>,
    wake: Option<Instant>,
}

/// Takes what may be sent now: one batch a partition, at most [`IN_FLIGHT_MAX`] requests a broker.
fn plan(core: &Core, state: &mut State) -> Plan {
    let now = core.client.host.now();
    let mut plan = Plan::default();
    let lingering = state.flushing == 0 && state.linger_until.is_some_and(|until| now < until);
    if lingering {
        plan.wake = state.linger_until;
    } else {
        state.linger_until = None;
    }
    let mut more = false;
    for (partition, lane) in &mut state.lanes {
        let repeats = !lane.retry.is_empty();
        if !repeats && (lane.queue.is_empty() || lingering) || repeats && !lane.out.is_empty() {
            continue;
        }
        if now < lane.not_before {
            plan.wake = Some(plan.wake.map_or(lane.not_before, |wake| wake.min(lane.not_before)));
            continue;
        }
        let Some(leader) = core.client.leader(partition) else {
            lane.not_before = now + core.client.host.shared.config.retry_backoff;
            plan.wake = Some(plan.wake.map_or(lane.not_before, |wake| wake.min(lane.not_before)));
            plan.unknown.push(partition.topic.clone());
            continue;
        };
        if state.in_flight.get(&leader).is_some_and(|out| *out >= IN_FLIGHT_MAX) {
            continue;
        }
        let batch = match lane.retry.pop_front() {
            Some(batch) => batch,
            None => lane.batch(partition, core.batch_bytes_max()),
        };
        more |= !lane.queue.is_empty() && lane.retry.is_empty();
        lane.out.insert(batch.base_sequence);
        plan.requests.entry(leader).or_default().push(batch);
    }
    for broker in plan.requests.keys() {
        *state.in_flight.entry(*broker).or_default() += 1;
    }
    if more && !lingering {
        // The rest of a long queue follows at once, as far as the pipeline has room.
        state.linger_until = Some(now);
        if plan.requests.keys().any(|broker| state.in_flight[broker] < IN_FLIGHT_MAX) {
            plan.wake = Some(now);
        }
    }
    plan.unknown.dedup();
    plan
}

impl Lane {
    /// The next batch from the queue.
    fn batch(&mut self, partition: &TopicPartition, bytes_max: usize) -> Batch {
        let (mut records, mut owners, mut bytes) = (Vec::new(), Vec::new(), 0);
        while records.len() < BATCH_RECORDS_MAX
            && let Some(next) = self.queue.front()
            && (records.is_empty() || bytes + next.bytes <= bytes_max)
            && let Some(pending) = self.queue.pop_front()
        {
            bytes += pending.bytes;
            records.push(pending.record);
            owners.push(pending.owner);
        }
        let base_sequence = self.next_sequence;
        let count = i32::try_from(records.len()).expect("at most BATCH_RECORDS_MAX");
        self.next_sequence = if i32::MAX - count < base_sequence {
            // Past i32::MAX the sequence goes on at 0.
            count - (i32::MAX - base_sequence) - 1
        } else {
            base_sequence + count
        };
        Batch { partition: partition.clone(), base_sequence, records: records.into(), owners, tries: 0 }
    }
}

fn send(core: &Core, broker: BrokerId, batches: Vec<Batch>) -> Flight {
    let partitions = batches
        .iter()
        .map(|batch| ProducePartition {
            partition: batch.partition.clone(),
            producer: Some(core.id),
            base_sequence: batch.base_sequence,
            records: batch.records.clone(),
        })
        .collect();
    let trip = core.client.send(broker, Request::Produce { partitions }, core.client.request_timeout());
    Flight { broker, batches, trip }
}

/// Takes the answer of one request.
fn receive(core: &Core, broker: BrokerId, batches: Vec<Batch>, answer: Result<Response, NetworkError>) {
    let mut state = core.lock();
    if let Some(out) = state.in_flight.get_mut(&broker) {
        *out -= 1;
    }
    let results = match answer {
        Ok(Response::Produce { partitions }) => {
            partitions.into_iter().map(|produced| (Some(produced.error), produced.base_offset)).collect()
        }
        _ => vec![(None, -1); batches.len()],
    };
    for (mut batch, (error, base_offset)) in batches.into_iter().zip(results) {
        let Some(lane) = state.lanes.get_mut(&batch.partition) else { continue };
        lane.out.remove(&batch.base_sequence);
        batch.tries += 1;
        match verdict(&batch, lane, error) {
            Verdict::Appended => {
                for (owner, offset) in batch.owners.iter().zip(base_offset..) {
                    state.settle(*owner, Ok(Appended { partition: batch.partition.partition, offset }));
                }
                state.held -= batch.owners.len();
            }
            Verdict::Again => {
                lane.not_before = core.client.host.now() + core.client.host.shared.config.retry_backoff;
                let place = lane.retry.partition_point(|other| other.base_sequence < batch.base_sequence);
                // Its leader is looked up again before the next try.
                core.client.forget_topic(&batch.partition.topic);
                lane.retry.insert(place, batch);
            }
            Verdict::Refused(error) => {
                for owner in &batch.owners {
                    state.settle(*owner, Err(error.clone()));
                }
                state.held -= batch.owners.len();
            }
            Verdict::Fatal(error) => {
                state.fail(error);
                break;
            }
        }
    }
    drop(state);
    core.answered.notify_waiters();
}

enum Verdict {
    Appended,
    Again,
    Refused(TransportError),
    Fatal(TransportError),
}

/// What an answer, or none, means for a batch.
fn verdict(batch: &Batch, lane: &Lane, error: Option<ErrorCode>) -> Verdict {
    let context = || {
        format!("producing {} records to {}, sequence {}", batch.records.len(), batch.partition, batch.base_sequence)
    };
    // An earlier batch of the partition is open: this one only came before its time.
    let overtook = lane.out.first().is_some_and(|first| *first < batch.base_sequence)
        || lane.retry.front().is_some_and(|first| first.base_sequence < batch.base_sequence);
    match error {
        Some(ErrorCode::None) => Verdict::Appended,
        None => Verdict::Again,
        Some(ErrorCode::OutOfOrderSequenceNumber) if overtook => Verdict::Again,
        Some(code @ ErrorCode::UnknownTopicOrPartition) if batch.tries >= UNKNOWN_TOPIC_TRIES_MAX => {
            Verdict::Refused(broker_error(code, context()))
        }
        Some(ErrorCode::UnknownTopicOrPartition) => Verdict::Again,
        Some(code) if error_kind(code) == ErrorKind::Retriable => Verdict::Again,
        // A hole in the sequences cannot be mended by this producer.
        Some(code) => Verdict::Fatal(TransportError::new(ErrorKind::Fatal, code.name(), context())),
    }
}
