//! Hybrid mode: records come from Kafka, and go from workers to indexers in memory.
//!
//! One [`HybridMessengers`] makes one *pair* after another: workers and indexers of one process that share one group
//! membership. A pair lives and dies whole, because what is queued in it belongs to its membership: when its intake
//! fails, or one of its halves goes without closing, every half gets an error, and the first to ask for a messenger
//! then begins the next pair. The component that comes back never sees what the dead pair had queued.
//!
//! # Offsets
//! There is no queue of offsets from the indexers to the workers: the claim is that feedback. The claim that a worker
//! hands over is split into parts, one for each document put on the queue in memory and one for the events and dead
//! letters, if any. A part is done when what it stands for is acknowledged: an outcome in the index and its event, or
//! the events and dead letters themselves. A record is done when all parts of it are, so that the low-water mark that
//! custody commits never passes a record with a child that waits in a batch, and a trailing run of dropped documents
//! yields its offsets too.
//!
//! # Order
//! Records of one partition reach the workers' lanes in order, for whoever takes them from the intake files them before
//! the next can. Equal keys stay in one lane, hence with one worker, which finishes them in order and puts them on the
//! queue in order; there equal document ids stay in one lane, hence with one indexer. So the writes of one published id
//! follow each other with any number of workers and indexers. Children and overridden ids have no queue order across
//! keys, for their parents may be with different workers: they rely on versions.
//!
//! # Rebalances and ends
//! Handing over begins a record ([`Claim::begin`](crate::intake::Claim::begin)). On `Revoking` what has begun is
//! finished, queued or not, and so is what waits below it for a slower worker; what waits above it is abandoned. On
//! `Lost` parts that are queued fail at the indexer's fence and change nothing. A full queue makes workers wait while
//! polling goes on; they stop waiting when the membership ends. When a half drains, so does the pair: workers get what
//! their lanes hold, and no more; the last worker to close ends the queue, which the indexers empty, and leaves the
//! group when all that has begun is committed, within the intake's close limit. An indexer that closes before its queue
//! has ended abandons its lane.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::sync::Mutex;

use super::kafka::{KafkaConfig, KafkaPublisher, Outbox, work};
use super::lane_queue::{LaneQueue, Queued};
use super::{Emission, IndexerMessenger, MessengerError, MessengerFactory, Payload, Sides, Work, WorkerMessenger};
use crate::env::Env;
use crate::intake::{FailureHandle, Intake, IntakeEnd};
use crate::transport::{ErrorKind, Transport, TransportError};

/// How a pair works.
#[derive(Clone, Debug)]
pub struct HybridConfig {
    /// Topics, consumption (of `worker`; `indexer` is not used) and production.
    pub kafka: KafkaConfig,
    /// Workers, each with a lane of its own.
    pub workers: usize,
    /// Indexers, each with a lane of its own.
    pub indexers: usize,
    /// Documents that may wait for the indexers, for each of their lanes. A drain has to index them all.
    pub lane_records_max: usize,
    /// Bytes of documents that may wait for the indexers.
    pub queue_bytes_max: usize,
}

impl HybridConfig {
    /// The defaults for the pipeline called `pipeline`: one worker and one indexer.
    pub fn new(pipeline: &str) -> Self {
        let kafka = KafkaConfig::new(pipeline);
        HybridConfig { kafka, workers: 1, indexers: 1, lane_records_max: 1_024, queue_bytes_max: 64 << 20 }
    }
}

/// Makes the messengers of one pair, and of the next when that has ended. Clones share the pair.
#[derive(Debug)]
pub struct HybridMessengers<E: Env, T: Transport> {
    env: E,
    transport: T,
    config: Arc<HybridConfig>,
    current: Arc<Mutex<Weak<Pair<E, T>>>>,
    late_events: Arc<AtomicU64>,
}

impl<E: Env, T: Transport> Clone for HybridMessengers<E, T> {
    fn clone(&self) -> Self {
        HybridMessengers {
            env: self.env.clone(),
            transport: self.transport.clone(),
            config: self.config.clone(),
            current: self.current.clone(),
            late_events: self.late_events.clone(),
        }
    }
}

impl<E: Env, T: Transport> HybridMessengers<E, T> {
    /// Messengers of one pair over `transport`. The pair joins the group with its first worker or indexer.
    pub fn new(env: E, transport: T, config: HybridConfig) -> Self {
        HybridMessengers {
            env,
            transport,
            config: Arc::new(config),
            current: Arc::default(),
            late_events: Arc::default(),
        }
    }

    /// The pair that lives; a new one when there is none.
    async fn pair(&self) -> Result<Arc<Pair<E, T>>, MessengerError> {
        let mut current = self.current.lock().await;
        if let Some(pair) = current.upgrade().filter(|pair| pair.is_open()) {
            return Ok(pair);
        }
        let config = &self.config;
        let producer = self.transport.producer(config.kafka.producer.clone()).await?;
        let intake = Intake::start(self.env.clone(), &self.transport, config.kafka.worker.clone()).await?;
        let failure = intake.failure_handle();
        let (env, topics) = (self.env.clone(), config.kafka.topics.clone());
        let pair = Arc::new(Pair {
            env: self.env.clone(),
            end: intake.end(),
            outbox: Outbox::new(env, producer, topics, failure.clone(), self.late_events.clone()),
            failure,
            intake: Mutex::new(intake),
            // Bounded by the intake: what waits here is taken and not settled.
            source: LaneQueue::new(config.workers, usize::MAX, usize::MAX),
            dest: LaneQueue::new(config.indexers, config.lane_records_max, config.queue_bytes_max),
            close_limit: config.kafka.worker.close_limit + Duration::from_secs(1),
            workers_closed: AtomicUsize::new(0),
        });
        *current = Arc::downgrade(&pair);
        Ok(pair)
    }
}

impl<E: Env, T: Transport> MessengerFactory for HybridMessengers<E, T> {
    type Worker = HybridWorker<E, T>;
    type Indexer = HybridIndexer<E, T>;
    type Publisher = KafkaPublisher<E, T>;

    fn sides(&self) -> Sides {
        Sides { workers: self.config.workers.max(1), indexers: self.config.indexers.max(1) }
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        let pair = self.pair().await?;
        let lane = pair.source.join("lane of another worker")?;
        Ok(HybridWorker { pair, lane, closed: false })
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        let pair = self.pair().await?;
        let lane = pair.dest.join("lane of another indexer")?;
        Ok(HybridIndexer { pair, lane, closed: false, owed: false })
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        let config = Arc::new(self.config.kafka.clone());
        Ok(KafkaPublisher::new(self.env.clone(), self.transport.clone(), config, false))
    }

    fn late_events(&self) -> u64 {
        self.late_events.load(Ordering::Relaxed)
    }
}

/// A record on its way to a worker.
#[derive(Debug)]
struct Taken {
    key: Option<Bytes>,
    bytes: usize,
    work: Work,
}

impl Queued for Taken {
    fn key(&self) -> &[u8] {
        self.key.as_deref().unwrap_or_default()
    }

    fn weight(&self) -> usize {
        self.bytes
    }
}

/// What the halves of one pair share.
struct Pair<E: Env, T: Transport> {
    env: E,
    intake: Mutex<Intake<E>>,
    end: IntakeEnd,
    failure: FailureHandle,
    outbox: Outbox<E, T::Producer>,
    source: LaneQueue<Taken>,
    dest: LaneQueue<Work>,
    close_limit: Duration,
    workers_closed: AtomicUsize,
}

impl<E: Env, T: Transport> fmt::Debug for Pair<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pair = f.debug_struct("Pair");
        pair.field("source", &self.source).field("dest", &self.dest).field("end", &self.end.outcome());
        pair.finish_non_exhaustive()
    }
}

impl<E: Env, T: Transport> Pair<E, T> {
    fn drain(&self) {
        self.end.drain(self.env.now());
    }

    fn is_open(&self) -> bool {
        !self.end.is_draining() && self.end.outcome().is_none()
    }

    /// The error that ended the membership, if one did.
    fn outcome(&self) -> Result<(), MessengerError> {
        Ok(self.end.outcome().unwrap_or(Ok(()))?)
    }

    /// Takes records from the intake and files them into the workers' lanes. False at the end. Cancel-safe.
    async fn pull(&self, records_max: usize) -> Result<bool, MessengerError> {
        // Held until they are filed, so that those of one partition are filed in order.
        let mut intake = self.intake.lock().await;
        let Some(records) = intake.next(records_max).await? else { return Ok(false) };
        let taken = records.into_iter().map(|(record, claim)| {
            let (key, bytes) = (record.key.clone(), record.bytes());
            Taken { key, bytes, work: work(record, claim) }
        });
        self.source.push(taken).await;
        Ok(true)
    }

    /// A half is gone that did not close.
    fn broken(&self, half: &str) {
        let context = format!("one {half} of the pair ended without closing; the whole pair has to begin anew");
        self.failure.fail(TransportError::new(ErrorKind::Fatal, "PAIR_BROKEN", context));
    }

    /// Returns when the membership has ended, within a bound.
    async fn ended(&self) {
        self.env.timeout(self.close_limit, self.end.ended()).await;
    }
}

/// A worker's messenger: its lane of what the pair takes.
#[derive(Debug)]
pub struct HybridWorker<E: Env, T: Transport> {
    pair: Arc<Pair<E, T>>,
    lane: usize,
    closed: bool,
}

impl<E: Env, T: Transport> WorkerMessenger for HybridWorker<E, T> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let pair = &self.pair;
        loop {
            let taken = pin!(pair.source.take(self.lane, records_max));
            let pulled = pin!(pair.pull(records_max));
            match select(taken, pulled).await {
                Either::Left((taken, _)) if taken.is_empty() => return Ok(None),
                Either::Left((taken, _)) => return Ok(Some(taken.into_iter().map(|taken| taken.work).collect())),
                Either::Right((pulled, _)) => {
                    if !pulled? {
                        // All is filed that ever will be: what waits in the lanes is the rest.
                        pair.source.end();
                    }
                }
            }
        }
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        let (mut documents, mut reports) = (Vec::new(), Vec::new());
        for mut emission in emissions {
            for output in std::mem::take(&mut emission.outputs) {
                let payload = Payload::Document(output.document, output.envelope);
                documents.push(Work { payload, claim: emission.claim.clone() });
            }
            if emission.events.is_empty() && emission.dead_letters.is_empty() {
                emission.claim.done();
            } else {
                reports.push(emission);
            }
        }
        let pair = &self.pair;
        let sent = pin!(async {
            if !reports.is_empty() {
                pair.outbox.send(reports).await;
            }
            pair.dest.push(documents).await
        });
        match select(sent, pin!(pair.end.ended())).await {
            Either::Left((true, _)) => Ok(()),
            // What an indexer that closed would have indexed is abandoned: its next owner does.
            Either::Left((false, _)) if pair.end.is_draining() => Ok(()),
            Either::Left((false, _)) => Err(MessengerError::Closed("indexer")),
            Either::Right(_) => pair.outcome(),
        }
    }

    fn drain(&mut self) {
        self.pair.drain();
    }

    async fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let pair = &self.pair;
        pair.drain();
        let closed = pair.workers_closed.fetch_add(1, Ordering::AcqRel) + 1;
        if closed == pair.source.consumers() {
            pair.dest.end();
            pair.intake.lock().await.close().await;
        } else {
            pair.ended().await;
        }
    }
}

impl<E: Env, T: Transport> Drop for HybridWorker<E, T> {
    fn drop(&mut self) {
        if !self.closed {
            self.pair.broken("worker");
        }
    }
}

/// An indexer's messenger: its lane of what the pair's workers give.
#[derive(Debug)]
pub struct HybridIndexer<E: Env, T: Transport> {
    pair: Arc<Pair<E, T>>,
    lane: usize,
    closed: bool,
    /// Something was given since it last heard that a drain waits.
    owed: bool,
}

impl<E: Env, T: Transport> IndexerMessenger for HybridIndexer<E, T> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let (pair, owed) = (&self.pair, self.owed);
        let ended = pin!(pair.end.ended());
        let taken = pin!(pair.dest.take(self.lane, records_max));
        let awaited = pin!(async { if owed { pair.end.awaited().await } else { pending().await } });
        match select(ended, select(taken, awaited)).await {
            Either::Left(_) => pair.outcome().map(|()| None),
            Either::Right((Either::Left((taken, _)), _)) => {
                self.owed = true;
                Ok((!taken.is_empty()).then_some(taken))
            }
            Either::Right((Either::Right(_), _)) => {
                self.owed = false;
                Ok(Some(Vec::new()))
            }
        }
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.pair.outbox.send(outcomes).await;
        Ok(())
    }

    fn drain(&mut self) {
        self.pair.drain();
    }

    async fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.pair.drain();
        self.pair.dest.close(self.lane);
        self.pair.ended().await;
    }
}

impl<E: Env, T: Transport> Drop for HybridIndexer<E, T> {
    fn drop(&mut self) {
        if !self.closed {
            self.pair.broken("indexer");
        }
    }
}

#[cfg(test)]
mod tests;
