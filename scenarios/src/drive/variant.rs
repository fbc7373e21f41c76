//! Where flawed pipelines put other implementations behind the ports.
//!
//! A [`Variant`] is asked wherever a process gets a port: every method has the right implementation as its default, so
//! that a flawed pipeline is the one or two ports with its mistake and nothing else. The ports come erased
//! ([`AnyPoller`] and its like), so that one build of the pipeline serves every variant; the right pipeline runs
//! through the same seams. `core` knows nothing of this.

use std::fmt;
use std::sync::Arc;

use seriatim_core::identity::{RunId, TopicPartition};
use seriatim_core::index::Backend;
use seriatim_core::machines::ledger::{Ledger, TicketLedger};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::transport::{GroupConfig, ProducerConfig, Transport, TransportError};
use seriatim_sim::recorded::RecordedTransport;
use seriatim_sim::{SimGroup, SimPoller, SimTransport, WorldConfig};

use super::any::{AnyEnv, AnyGroup, AnyIndexer, AnyPoller, AnyProducer, AnyWorker};
use crate::zoo::Deaf;

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Publishes, and counts what became of it.
    Publisher,
    /// Takes documents through the stages.
    Worker,
    /// Writes to the index.
    Indexer,
    /// Does both for the records that it takes, in hybrid mode.
    Pair,
    /// All of it, in local mode.
    Process,
}

/// Which process a port is for.
#[derive(Clone, Debug)]
pub struct Place {
    /// What it is.
    pub part: Part,
    /// Its environment.
    pub env: AnyEnv,
}

/// Other implementations of the ports. Whatever is not overridden is the right pipeline's.
///
/// *In front of* a recorder a mistake is the application's: the history shows what it made of what it was given.
/// *Behind* it a mistake is the client's or the index's: the history shows what the application was given.
pub trait Variant: Send + Sync + 'static {
    /// The world that it lives in.
    fn world(&self, config: WorldConfig) -> WorldConfig {
        config
    }

    /// A group consumer, behind the recorder. Of a simulated process only.
    fn client(&self, at: &Place, config: &GroupConfig, poller: SimPoller, group: SimGroup) -> (AnyPoller, AnyGroup) {
        let _ = (at, config);
        (AnyPoller::new(poller), AnyGroup::new(group))
    }

    /// A group consumer, in front of the recorder.
    fn consumer(&self, at: &Place, poller: AnyPoller, group: AnyGroup) -> (AnyPoller, AnyGroup) {
        let _ = at;
        (poller, group)
    }

    /// A producer, in front of the recorder.
    fn producer(&self, at: &Place, producer: AnyProducer) -> AnyProducer {
        let _ = at;
        producer
    }

    /// The index, behind the recorder.
    fn index(&self, at: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let _ = at;
        backend
    }

    /// The index, in front of the recorder.
    fn backend(&self, at: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let _ = at;
        backend
    }

    /// The messengers of one process.
    fn messengers(&self, at: &Place) -> Box<dyn Messengers> {
        let _ = at;
        Box::new(Unchanged)
    }

    /// The stages.
    fn pipeline(&self, spec: PipelineSpec) -> PipelineSpec {
        spec
    }

    /// The ledger of a run.
    fn ledger(&self, run: RunId) -> Box<dyn Ledger> {
        Box::new(TicketLedger::new(run))
    }
}

/// What becomes of the messengers of one process.
pub trait Messengers: Send + Sync {
    /// Of one more worker.
    fn worker(&self, worker: AnyWorker) -> AnyWorker {
        worker
    }

    /// Of one more indexer.
    fn indexer(&self, indexer: AnyIndexer) -> AnyIndexer {
        indexer
    }
}

struct Unchanged;

impl Messengers for Unchanged {}

/// The protocol as it is meant.
#[derive(Clone, Copy, Debug)]
pub struct Correct;

impl Variant for Correct {}

/// What one process asks of the variant for its transport.
#[derive(Clone)]
pub(crate) struct Seam {
    pub(crate) variant: Arc<dyn Variant>,
    pub(crate) at: Place,
    /// Whether a revocation waits for what is under way.
    pub(crate) drain: bool,
}

impl fmt::Debug for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seam").field(&self.at.part).finish()
    }
}

/// The client of a process, behind the recorder.
pub(super) type ClientTransport = Altered<SimTransport>;

/// The transport of a process, in front of it.
pub(super) type NodeTransport = Altered<RecordedTransport<ClientTransport>>;

/// A transport whose consumers and producers went through the hands of a variant.
#[derive(Clone, Debug)]
pub(crate) struct Altered<T> {
    inner: T,
    seam: Seam,
}

impl<T> Altered<T> {
    pub(crate) fn new(inner: T, seam: Seam) -> Self {
        Altered { inner, seam }
    }
}

/// Which of the variant's hands a transport goes through.
pub(crate) trait Alter: Transport {
    fn consumer(seam: &Seam, config: &GroupConfig, poller: Self::Poller, group: Self::Group) -> (AnyPoller, AnyGroup);

    fn altered(seam: &Seam, producer: Self::Producer) -> AnyProducer;
}

impl Alter for SimTransport {
    fn consumer(seam: &Seam, config: &GroupConfig, poller: SimPoller, group: SimGroup) -> (AnyPoller, AnyGroup) {
        seam.variant.client(&seam.at, config, poller, group)
    }

    fn altered(_: &Seam, producer: Self::Producer) -> AnyProducer {
        AnyProducer::new(producer)
    }
}

impl<T: Transport> Alter for RecordedTransport<T> {
    fn consumer(seam: &Seam, _: &GroupConfig, poller: Self::Poller, group: Self::Group) -> (AnyPoller, AnyGroup) {
        let (poller, group) = seam.variant.consumer(&seam.at, AnyPoller::new(poller), AnyGroup::new(group));
        let poller = if seam.drain { poller } else { Deaf::ToRevocations.poller(poller, &group) };
        (poller, group)
    }

    fn altered(seam: &Seam, producer: Self::Producer) -> AnyProducer {
        seam.variant.producer(&seam.at, AnyProducer::new(producer))
    }
}

impl<T: Alter> Transport for Altered<T> {
    type Producer = AnyProducer;
    type Poller = AnyPoller;
    type Group = AnyGroup;
    type Assigned = T::Assigned;
    type Admin = T::Admin;

    async fn producer(&self, config: ProducerConfig) -> Result<AnyProducer, TransportError> {
        Ok(T::altered(&self.seam, self.inner.producer(config).await?))
    }

    async fn join(&self, config: GroupConfig) -> Result<(AnyPoller, AnyGroup), TransportError> {
        let (poller, group) = self.inner.join(config.clone()).await?;
        Ok(T::consumer(&self.seam, &config, poller, group))
    }

    fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> impl Future<Output = Result<Self::Assigned, TransportError>> + Send {
        self.inner.assign(client_id, from)
    }

    fn admin(&self) -> Self::Admin {
        self.inner.admin()
    }
}
