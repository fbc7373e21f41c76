//! The idempotent producer: rdkafka's, with delivery reports as acknowledgements and a full queue as back-pressure.
//!
//! librdkafka keeps what was enqueued until the broker has acknowledged or refused it, retries for ever, and keeps each
//! partition's order through retries (`enable.idempotence`). What is added here:
//! - Order of calls: one call enqueues at a time, first polled first.
//! - A full queue makes the call wait for delivery reports; nothing spins, and nothing is given back.
//! - A record that names a partition which the producer does not know yet makes it ask the cluster once more before the
//!   record is refused: topics grow.
//! - After a fatal error each record says so, with the error that was the reason.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as RdHeader, Message, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, NoCustomPartitioner, Producer as _, ProducerContext, ThreadedProducer,
};
use seriatim_core::env::Env;
use seriatim_core::partitioner::Partitioner;
use seriatim_core::transport::{Appended, Delivery, ErrorKind, Outgoing, Producer, ProducerConfig, TransportError};
use tokio::sync::{Notify, oneshot};

use crate::client::{Complaints, detach, lock};
use crate::cluster::Cluster;
use crate::{NO_COST, client, error};

type Outcome = Result<Appended, TransportError>;

/// One `send_all`: its outcomes, and where they go when the last is known.
struct Call {
    number: u64,
    shared: Arc<Shared>,
    state: Mutex<CallState>,
}

struct CallState {
    outcomes: Vec<Option<Outcome>>,
    open: usize,
    done: Option<oneshot::Sender<Vec<Outcome>>>,
}

impl Call {
    /// Gives the record at `place` its outcome; the last resolves the call.
    fn settle(&self, place: usize, outcome: Outcome) {
        let mut state = lock(&self.state);
        if state.outcomes[place].replace(outcome).is_some() {
            return;
        }
        state.open -= 1;
        if state.open > 0 {
            return;
        }
        let outcomes = state.outcomes.drain(..).map(|outcome| outcome.expect("none is open")).collect();
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            // The caller may have lost interest.
            let _ = done.send(outcomes);
        }
        lock(&self.shared.open_calls).remove(&self.number);
        self.shared.settled.notify_waiters();
    }
}

/// What a delivery report comes back with.
struct Slot {
    call: Arc<Call>,
    place: u32,
}

/// What calls and delivery reports share.
#[derive(Default)]
struct Shared {
    open_calls: Mutex<BTreeSet<u64>>,
    /// A call was settled.
    settled: Notify,
    /// A call waits for room.
    starved: AtomicBool,
    /// There is room again.
    room: Notify,
    producer: OnceLock<Weak<Threaded>>,
    complaints: Complaints,
}

struct Context {
    shared: Arc<Shared>,
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.shared.complaints.note(&error, reason);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Slot>;

    fn delivery(&self, report: &DeliveryResult<'_>, slot: Box<Slot>) {
        let outcome = match report {
            Ok(message) => Ok(Appended { partition: message.partition(), offset: message.offset() }),
            Err((error, message)) => {
                let doing = || format!("producing to `{}`", message.topic());
                Err(self.shared.outcome_of(error, doing))
            }
        };
        slot.call.settle(slot.place as usize, outcome);
        if self.shared.starved.load(Ordering::Acquire) {
            self.shared.room.notify_one();
        }
    }
}

impl Shared {
    /// What `error` means to a record: the reason of a fatal error, where there is one.
    fn outcome_of(&self, error: &KafkaError, doing: impl Fn() -> String) -> TransportError {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        if error::kind(code) == ErrorKind::Fatal
            && let Some(producer) = self.producer.get().and_then(Weak::upgrade)
        {
            let fatal = self.fatal(&producer);
            // This is its own thread, which would wait for itself if this were the last handle.
            detach("kafka-close", move || drop(producer));
            if let Some(fatal) = fatal {
                return fatal;
            }
        }
        error::of_code(code, doing())
    }

    /// What made the producer useless, if it is. That a principal may not do something stays a refusal: a new producer
    /// would be told the same.
    fn fatal(&self, producer: &Threaded) -> Option<TransportError> {
        let (code, reason) = producer.client().fatal_error()?;
        let found = error::of_code(code, format!("producing: {reason}"));
        let kind = if found.kind == ErrorKind::Refused { ErrorKind::Refused } else { ErrorKind::Fatal };
        Some(TransportError { kind, ..found })
    }
}

/// A record on its way into librdkafka's queue.
type Ready<'a> = BaseRecord<'a, [u8], [u8], Box<Slot>>;

type Threaded = ThreadedProducer<Context, NoCustomPartitioner>;

struct Inner {
    /// `None` only while it is dropped.
    producer: Option<Arc<Threaded>>,
    shared: Arc<Shared>,
    /// Order of `send_all` calls, and the number of the next one.
    gate: tokio::sync::Mutex<u64>,
    request_limit: Duration,
    record_bytes_max: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let producer = self.producer.take();
        // Abandons what is unacknowledged: librdkafka purges it, and each record's outcome is unknown.
        detach("kafka-close", move || drop(producer));
    }
}

/// An idempotent producer. Clones share it.
#[derive(Clone)]
pub struct KafkaProducer<E> {
    env: E,
    inner: Arc<Inner>,
}

impl<E> std::fmt::Debug for KafkaProducer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaProducer").finish_non_exhaustive()
    }
}

/// librdkafka's name of a partitioner.
const fn partitioner_name(partitioner: Partitioner) -> &'static str {
    match partitioner {
        Partitioner::ConsistentRandom => "consistent_random",
        Partitioner::Consistent => "consistent",
        Partitioner::Murmur2Random => "murmur2_random",
        Partitioner::Murmur2 => "murmur2",
        Partitioner::Random => "random",
    }
}

impl<E: Env> KafkaProducer<E> {
    pub(crate) async fn open(env: E, cluster: &Cluster, config: ProducerConfig) -> Result<Self, TransportError> {
        let request_limit = cluster.settings.request_limit;
        let mut properties = cluster.settings.producer(&config.client_id);
        let mut set = |name: &str, value: u128| {
            properties.set(name, value.to_string());
        };
        set("linger.ms", config.linger.as_millis());
        set("batch.num.messages", config.batch_records_max.max(1) as u128);
        set("batch.size", config.batch_bytes_max.max(1) as u128);
        set("queue.buffering.max.messages", config.queue_records_max.max(1) as u128);
        // A record that is larger than the queue would wait for ever.
        let bytes = config.queue_bytes_max.max(config.record_bytes_max);
        set("queue.buffering.max.kbytes", bytes.div_ceil(1024).clamp(1, i32::MAX as usize) as u128);
        set("message.max.bytes", config.record_bytes_max.max(1_000) as u128);
        set("sticky.partitioning.linger.ms", config.sticky_linger.as_millis());
        set("topic.metadata.propagation.max.ms", config.topic_propagation_max.as_millis());
        if let Some(age) = config.metadata_max_age {
            set("topic.metadata.refresh.interval.ms", age.as_millis().max(10));
        }
        properties.set("partitioner", partitioner_name(config.partitioner));
        let shared = Arc::<Shared>::default();
        let context = Context { shared: shared.clone() };
        let make = move || Threaded::from_config_and_context(&properties, context);
        let made = env.run_blocking(NO_COST, make).await;
        let producer = made.map_err(|error| error::of(&error, "making a producer"))?;
        let producer = Arc::new(producer);
        // Nobody else sets it.
        let _ = shared.producer.set(Arc::downgrade(&producer));
        let gate = tokio::sync::Mutex::new(0);
        let record_bytes_max = config.record_bytes_max;
        let inner = Inner { producer: Some(producer), shared, gate, request_limit, record_bytes_max };
        Ok(KafkaProducer { env, inner: Arc::new(inner) })
    }

    fn producer(&self) -> &Arc<Threaded> {
        self.inner.producer.as_ref().expect("taken only when the last handle is dropped")
    }

    /// Enqueues what is left of a call, in order, waiting while the producer is full.
    async fn enqueue(&self, call: &mut Enqueuing, records: Vec<Outgoing>) {
        let shared = &self.inner.shared;
        let mut asked_again = BTreeSet::new();
        for record in &records {
            let mut pending = match call.prepare(record, self.inner.record_bytes_max) {
                Ok(pending) => pending,
                Err(error) => {
                    call.settle(Err(error));
                    continue;
                }
            };
            loop {
                let (code, back) = match self.producer().send(pending) {
                    Ok(()) => break,
                    Err((error, back)) => (error.rdkafka_error_code(), back),
                };
                pending = back;
                match code {
                    Some(RDKafkaErrorCode::QueueFull) => {
                        shared.starved.store(true, Ordering::Release);
                        // A report that came between has left its permit.
                        self.wait_for_room().await;
                        shared.starved.store(false, Ordering::Release);
                    }
                    Some(RDKafkaErrorCode::UnknownPartition) if asked_again.insert(record.topic.clone()) => {
                        self.ask_again(&record.topic).await;
                    }
                    code => {
                        let code = code.unwrap_or(RDKafkaErrorCode::InvalidArgument);
                        let doing = || producing(record);
                        let error = match shared.fatal(self.producer()) {
                            Some(fatal) if error::kind(code) == ErrorKind::Fatal => fatal,
                            _ => error::of_code(code, doing()),
                        };
                        call.call.settle(call.next, Err(error));
                        break;
                    }
                }
            }
            call.next += 1;
        }
    }

    async fn wait_for_room(&self) {
        // A report may have come before the flag was set: look again after a while in any case.
        self.env.timeout(Duration::from_millis(20), self.inner.shared.room.notified()).await;
    }

    /// Makes the producer ask for a topic's partitions anew.
    async fn ask_again(&self, topic: &Arc<str>) {
        let (producer, topic, limit) = (self.producer().clone(), topic.clone(), self.inner.request_limit);
        let ask = move || client::partition_count(producer.client(), &topic, limit);
        // A failure shows as a partition that is still unknown.
        let _ = self.env.run_blocking(NO_COST, ask).await;
    }
}

fn producing(record: &Outgoing) -> String {
    match record.partition {
        Some(partition) => format!("producing to `{}`, partition {partition}", record.topic),
        None => format!("producing to `{}`", record.topic),
    }
}

/// Bytes of a record's key, value and headers.
fn bytes(record: &Outgoing) -> usize {
    let of = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
    let headers: usize = record.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
    of(&record.key) + of(&record.value) + headers
}

/// A `send_all` in progress: what it did not come to, when it is dropped, was never sent.
struct Enqueuing {
    call: Arc<Call>,
    next: usize,
    records: usize,
}

impl Enqueuing {
    fn prepare<'a>(
        &self,
        record: &'a Outgoing,
        bytes_max: usize,
    ) -> Result<Ready<'a>, TransportError> {
        client::check_topic(&record.topic, "producing")?;
        let bytes = bytes(record);
        if bytes > bytes_max {
            let doing = format!("producing a record of {bytes} bytes to `{}`", record.topic);
            return Err(error::of_code(RDKafkaErrorCode::MessageSizeTooLarge, doing));
        }
        let slot = Box::new(Slot { call: self.call.clone(), place: self.next as u32 });
        let mut to = BaseRecord::with_opaque_to(&record.topic, slot);
        if let Some(partition) = record.partition {
            if partition < 0 {
                return Err(error::of_code(RDKafkaErrorCode::UnknownPartition, producing(record)));
            }
            to = to.partition(partition);
        }
        // librdkafka takes a null pointer for no key and no value, and an empty slice has none of its own.
        to.key = record.key.as_deref();
        to.payload = record.value.as_deref();
        if !record.headers.is_empty() {
            let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
            for header in &record.headers {
                headers = headers.insert(RdHeader { key: &header.name, value: Some(&*header.value) });
            }
            to = to.headers(headers);
        }
        Ok(to)
    }

    /// Gives the next record an outcome without sending it.
    fn settle(&mut self, outcome: Outcome) {
        self.call.settle(self.next, outcome);
        self.next += 1;
    }
}

impl Drop for Enqueuing {
    fn drop(&mut self) {
        for place in self.next..self.records {
            let error = TransportError::new(ErrorKind::Retriable, "CANCELLED", "enqueuing a record");
            self.call.settle(place, Err(error));
        }
    }
}

impl<E: Env> Producer for KafkaProducer<E> {
    async fn send_all(&self, records: Vec<Outgoing>) -> Delivery {
        let (done, delivery) = Delivery::new(records.len());
        if records.is_empty() {
            let _ = done.send(Vec::new());
            return delivery;
        }
        let shared = &self.inner.shared;
        let mut gate = self.inner.gate.lock().await;
        let number = *gate;
        *gate += 1;
        lock(&shared.open_calls).insert(number);
        let outcomes = records.iter().map(|_| None).collect();
        let state = Mutex::new(CallState { outcomes, open: records.len(), done: Some(done) });
        let call = Arc::new(Call { number, shared: shared.clone(), state });
        let mut enqueuing = Enqueuing { call, next: 0, records: records.len() };
        if let Some(error) = shared.fatal(self.producer()) {
            while enqueuing.next < enqueuing.records {
                enqueuing.settle(Err(error.clone()));
            }
            return delivery;
        }
        self.enqueue(&mut enqueuing, records).await;
        delivery
    }

    async fn flush(&self) {
        let before = *self.inner.gate.lock().await;
        loop {
            let settled = self.inner.shared.settled.notified();
            if lock(&self.inner.shared.open_calls).first().is_none_or(|oldest| *oldest >= before) {
                return;
            }
            settled.await;
        }
    }
}
