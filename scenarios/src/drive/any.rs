//! The ports, erased: whatever implements one fits, and goes on as the same type.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use seriatim_core::env::{Env, Instant};
use seriatim_core::identity::TopicPartition;
use seriatim_core::messenger::{
    Emission, IndexerMessenger, MessengerError, MessengerFactory, Sides, Work, WorkerMessenger,
};
use seriatim_core::transport::{
    Commit, Delivery, Group, Outgoing, Polled, Poller, Producer, RebalanceId, TransportError,
};

use seriatim_ingest::env::TokioEnv;
use seriatim_sim::SimEnv;

use super::variant::Messengers;

macro_rules! opaque {
    ($($name:ident)*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        })*
    };
}

opaque! { AnyPoller AnyGroup AnyProducer AnyWorker AnyIndexer }

/// Either [`Env`]: that of a simulated process, or of a real one.
#[derive(Clone, Debug)]
pub enum AnyEnv {
    /// In a simulated world.
    Simulated(SimEnv),
    /// Under tokio.
    Real(TokioEnv),
}

impl Env for AnyEnv {
    fn now(&self) -> Instant {
        match self {
            AnyEnv::Simulated(env) => env.now(),
            AnyEnv::Real(env) => env.now(),
        }
    }

    fn wall_micros(&self) -> u64 {
        match self {
            AnyEnv::Simulated(env) => env.wall_micros(),
            AnyEnv::Real(env) => env.wall_micros(),
        }
    }

    fn random(&self) -> u64 {
        match self {
            AnyEnv::Simulated(env) => env.random(),
            AnyEnv::Real(env) => env.random(),
        }
    }

    async fn sleep(&self, duration: Duration) {
        match self {
            AnyEnv::Simulated(env) => env.sleep(duration).await,
            AnyEnv::Real(env) => env.sleep(duration).await,
        }
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        match self {
            AnyEnv::Simulated(env) => env.spawn(task),
            AnyEnv::Real(env) => env.spawn(task),
        }
    }

    async fn run_blocking<R: Send + 'static>(&self, cost: Duration, work: impl FnOnce() -> R + Send + 'static) -> R {
        match self {
            AnyEnv::Simulated(env) => env.run_blocking(cost, work).await,
            AnyEnv::Real(env) => env.run_blocking(cost, work).await,
        }
    }
}

/// Any [`Poller`].
pub struct AnyPoller(Box<dyn ErasedPoller>);

trait ErasedPoller: Send {
    fn poll(&mut self, records_max: usize, wait: Duration) -> BoxFuture<'_, Result<Polled, TransportError>>;
}

impl<P: Poller> ErasedPoller for P {
    fn poll(&mut self, records_max: usize, wait: Duration) -> BoxFuture<'_, Result<Polled, TransportError>> {
        Poller::poll(self, records_max, wait).boxed()
    }
}

impl AnyPoller {
    /// Erases `poller`.
    pub fn new(poller: impl Poller) -> Self {
        AnyPoller(Box::new(poller))
    }
}

impl Poller for AnyPoller {
    fn poll(
        &mut self,
        records_max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Polled, TransportError>> + Send {
        self.0.poll(records_max, wait)
    }
}

/// Any [`Group`].
#[derive(Clone)]
pub struct AnyGroup(Arc<dyn ErasedGroup>);

trait ErasedGroup: Send + Sync {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, Vec<Result<(), TransportError>>>;
    fn release(&self, event: RebalanceId) -> BoxFuture<'_, Result<(), TransportError>>;
    fn pause(&self, partitions: &[TopicPartition]);
    fn resume(&self, partitions: &[TopicPartition]);
    fn leave(&self) -> BoxFuture<'_, ()>;
}

impl<G: Group> ErasedGroup for G {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, Vec<Result<(), TransportError>>> {
        Group::commit(self, commits).boxed()
    }

    fn release(&self, event: RebalanceId) -> BoxFuture<'_, Result<(), TransportError>> {
        Group::release(self, event).boxed()
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        Group::pause(self, partitions);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        Group::resume(self, partitions);
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        Group::leave(self).boxed()
    }
}

impl AnyGroup {
    /// Erases `group`.
    pub fn new(group: impl Group) -> Self {
        AnyGroup(Arc::new(group))
    }
}

impl Group for AnyGroup {
    fn commit(&self, commits: Vec<Commit>) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send {
        self.0.commit(commits)
    }

    fn release(&self, event: RebalanceId) -> impl Future<Output = Result<(), TransportError>> + Send {
        self.0.release(event)
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        self.0.pause(partitions);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.0.resume(partitions);
    }

    fn leave(&self) -> impl Future<Output = ()> + Send {
        self.0.leave()
    }
}

/// Any [`Producer`].
#[derive(Clone)]
pub struct AnyProducer(Arc<dyn ErasedProducer>);

trait ErasedProducer: Send + Sync {
    fn send_all(&self, records: Vec<Outgoing>) -> BoxFuture<'_, Delivery>;
    fn flush(&self) -> BoxFuture<'_, ()>;
}

impl<P: Producer> ErasedProducer for P {
    fn send_all(&self, records: Vec<Outgoing>) -> BoxFuture<'_, Delivery> {
        Producer::send_all(self, records).boxed()
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        Producer::flush(self).boxed()
    }
}

impl AnyProducer {
    /// Erases `producer`.
    pub fn new(producer: impl Producer) -> Self {
        AnyProducer(Arc::new(producer))
    }
}

impl Producer for AnyProducer {
    fn send_all(&self, records: Vec<Outgoing>) -> impl Future<Output = Delivery> + Send {
        self.0.send_all(records)
    }

    fn flush(&self) -> impl Future<Output = ()> + Send {
        self.0.flush()
    }
}

/// Any [`WorkerMessenger`].
pub struct AnyWorker(Box<dyn ErasedWorker>);

/// What both messengers' polls give.
type Taken = Result<Option<Vec<Work>>, MessengerError>;

trait ErasedWorker: Send {
    fn poll(&mut self, records_max: usize) -> BoxFuture<'_, Taken>;
    fn send(&mut self, emissions: Vec<Emission>) -> BoxFuture<'_, Result<(), MessengerError>>;
    fn drain(&mut self);
    fn close(&mut self) -> BoxFuture<'_, ()>;
}

impl<M: WorkerMessenger> ErasedWorker for M {
    fn poll(&mut self, records_max: usize) -> BoxFuture<'_, Taken> {
        WorkerMessenger::poll(self, records_max).boxed()
    }

    fn send(&mut self, emissions: Vec<Emission>) -> BoxFuture<'_, Result<(), MessengerError>> {
        WorkerMessenger::send(self, emissions).boxed()
    }

    fn drain(&mut self) {
        WorkerMessenger::drain(self);
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        WorkerMessenger::close(self).boxed()
    }
}

impl AnyWorker {
    /// Erases `worker`.
    pub fn new(worker: impl WorkerMessenger) -> Self {
        AnyWorker(Box::new(worker))
    }
}

impl WorkerMessenger for AnyWorker {
    fn poll(&mut self, records_max: usize) -> impl Future<Output = Taken> + Send {
        self.0.poll(records_max)
    }

    fn send(&mut self, emissions: Vec<Emission>) -> impl Future<Output = Result<(), MessengerError>> + Send {
        self.0.send(emissions)
    }

    fn drain(&mut self) {
        self.0.drain();
    }

    fn close(&mut self) -> impl Future<Output = ()> + Send {
        self.0.close()
    }
}

/// Any [`IndexerMessenger`].
pub struct AnyIndexer(Box<dyn ErasedIndexer>);

trait ErasedIndexer: Send {
    fn poll(&mut self, records_max: usize) -> BoxFuture<'_, Taken>;
    fn complete(&mut self, outcomes: Vec<Emission>) -> BoxFuture<'_, Result<(), MessengerError>>;
    fn drain(&mut self);
    fn close(&mut self) -> BoxFuture<'_, ()>;
}

impl<M: IndexerMessenger> ErasedIndexer for M {
    fn poll(&mut self, records_max: usize) -> BoxFuture<'_, Taken> {
        IndexerMessenger::poll(self, records_max).boxed()
    }

    fn complete(&mut self, outcomes: Vec<Emission>) -> BoxFuture<'_, Result<(), MessengerError>> {
        IndexerMessenger::complete(self, outcomes).boxed()
    }

    fn drain(&mut self) {
        IndexerMessenger::drain(self);
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        IndexerMessenger::close(self).boxed()
    }
}

impl AnyIndexer {
    /// Erases `indexer`.
    pub fn new(indexer: impl IndexerMessenger) -> Self {
        AnyIndexer(Box::new(indexer))
    }
}

impl IndexerMessenger for AnyIndexer {
    fn poll(&mut self, records_max: usize) -> impl Future<Output = Taken> + Send {
        self.0.poll(records_max)
    }

    fn complete(&mut self, outcomes: Vec<Emission>) -> impl Future<Output = Result<(), MessengerError>> + Send {
        self.0.complete(outcomes)
    }

    fn drain(&mut self) {
        self.0.drain();
    }

    fn close(&mut self) -> impl Future<Output = ()> + Send {
        self.0.close()
    }
}

/// A factory whose messengers went through the hands of a variant.
#[derive(Clone)]
pub(crate) struct AlteredMessengers<F> {
    inner: F,
    alter: Arc<dyn Messengers>,
}

impl<F> AlteredMessengers<F> {
    pub(crate) fn new(inner: F, alter: Box<dyn Messengers>) -> Self {
        AlteredMessengers { inner, alter: alter.into() }
    }
}

impl<F: MessengerFactory> MessengerFactory for AlteredMessengers<F> {
    type Worker = AnyWorker;
    type Indexer = AnyIndexer;
    type Publisher = F::Publisher;

    fn late_events(&self) -> u64 {
        self.inner.late_events()
    }

    fn sides(&self) -> Sides {
        self.inner.sides()
    }

    async fn worker(&self) -> Result<AnyWorker, MessengerError> {
        Ok(self.alter.worker(AnyWorker::new(self.inner.worker().await?)))
    }

    async fn indexer(&self) -> Result<AnyIndexer, MessengerError> {
        Ok(self.alter.indexer(AnyIndexer::new(self.inner.indexer().await?)))
    }

    fn publisher(&self) -> impl Future<Output = Result<F::Publisher, MessengerError>> + Send {
        self.inner.publisher()
    }
}
