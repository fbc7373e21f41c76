//! The processes of a run, and what each does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, select};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::index::Backend;
use seriatim_core::indexer::{DeletionMarker, IndexerConfig};
use seriatim_core::machines::batcher::BatchLimits;
use seriatim_core::machines::custody::CustodyConfig;
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers, Topics};
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::publisher::{Publisher, PublisherConfig};
use seriatim_core::runner::{self, ConnectorSummary, LocalOptions, RunError, RunOptions};
use seriatim_core::stop::Stop;
use seriatim_core::worker::WorkerConfig;
use seriatim_sim::history::{RunSummary, What};
use seriatim_sim::recorded::{RecordedBackend, RecordedTransport, decode_lifecycle};
use seriatim_sim::{Node, SimEnv, World};

use super::any::AlteredMessengers;
use super::recorded::RecordedMessengers;
use super::variant::{Altered, NodeTransport, Part, Place, Seam, Variant};
use super::{PIPELINE, SharedProgress, lock, stages};
use crate::fault::{self, Role};
use crate::plan::{Knobs, Mode, Plan, PublisherPause};
use crate::workload::{Op, OpKind, marks};

/// The node that holds the publisher.
const PUBLISHER: &str = "publisher";
/// The only node of local mode.
const PROCESS: &str = "process";

/// The processes of one run.
#[derive(Clone)]
pub(super) struct Cast {
    world: World,
    inner: Arc<Inner>,
}

struct Inner {
    plan: Plan,
    operations: Arc<Vec<Op>>,
    progress: SharedProgress,
    variant: Arc<dyn Variant>,
    topics: Topics,
}

impl Cast {
    pub(super) fn new(
        world: &World,
        plan: &Plan,
        operations: Arc<Vec<Op>>,
        progress: SharedProgress,
        variant: Arc<dyn Variant>,
    ) -> Self {
        let topics = Topics::of(PIPELINE);
        let inner = Inner { plan: plan.clone(), operations, progress, variant, topics };
        Cast { world: world.clone(), inner: Arc::new(inner) }
    }

    /// Creates the topics and starts every process.
    pub(super) fn start(&self) {
        let Inner { plan, topics, .. } = &*self.inner;
        if plan.topology.mode == Mode::Local {
            let inner = self.inner.clone();
            return self.world.spawn(PROCESS, move |node| inner.clone().process(node));
        }
        self.world.create_topic(&topics.source, plan.topology.source_partitions);
        self.world.create_topic(&topics.dest, plan.topology.dest_partitions);
        self.world.create_topic(&topics.fail, 1);
        for number in 0..plan.topology.workers {
            self.spawn(Role::Worker, number);
        }
        for number in 0..plan.topology.indexers {
            self.spawn(Role::Indexer, number);
        }
        let inner = self.inner.clone();
        self.world.spawn(PUBLISHER, move |node| inner.clone().publisher(node));
    }

    /// Starts one more worker or indexer.
    pub(super) fn spawn(&self, role: Role, number: u32) {
        let inner = self.inner.clone();
        match role {
            Role::Worker => {
                let name = fault::Node::Worker(number).to_string();
                self.world.spawn(&name, move |node| inner.clone().worker(node));
            }
            Role::Indexer => {
                let name = fault::Node::Indexer(number).to_string();
                self.world.spawn(&name, move |node| inner.clone().indexer(node));
            }
        }
    }

    /// The node whose end is the end of the run.
    pub(super) fn main_node(&self) -> &'static str {
        match self.inner.plan.topology.mode {
            Mode::Local => PROCESS,
            Mode::Distributed => PUBLISHER,
        }
    }

    /// Consumer groups and the topics that they read.
    pub(super) fn groups(&self) -> [(String, Arc<str>); 2] {
        groups(&self.inner.topics)
    }
}

/// Consumer groups and the topics that they read.
pub(super) fn groups(topics: &Topics) -> [(String, Arc<str>); 2] {
    [(topics.worker_group(), topics.source.clone()), (topics.indexer_group(), topics.dest.clone())]
}

impl Inner {
    async fn process(self: Arc<Self>, node: Node) {
        let env = node.env();
        let knobs = &self.plan.pipeline;
        let (workers, indexers) = (self.plan.topology.workers as usize, self.plan.topology.indexers as usize);
        let config =
            LocalConfig { workers, indexers, lane_records_max: knobs.max_in_flight as usize, ..LocalConfig::default() };
        let at = Place { part: Part::Process, env: env.clone() };
        let messengers = LocalMessengers::new(env.clone(), &config);
        let messengers = RecordedMessengers::new(messengers, node.recorder(), true);
        let messengers = AlteredMessengers::new(messengers, self.variant.messengers(&at));
        let options = LocalOptions {
            workers,
            indexers,
            worker: worker_config(knobs),
            indexer: indexer_config(knobs),
            run: self.run_options(),
        };
        let pipeline = Arc::new(self.variant.pipeline(stages::pipeline(env.clone())));
        let backend = self.backend(&at, &node);
        let mut connectors = [self.connector(&env)];
        let ended = runner::run_together(&env, &messengers, pipeline, backend, &mut connectors, &options).await;
        self.ended(&node, ended);
    }

    async fn publisher(self: Arc<Self>, node: Node) {
        let at = Place { part: Part::Publisher, env: node.env() };
        let messengers = RecordedMessengers::new(self.kafka(&at, &node), node.recorder(), false);
        let mut connectors = [self.connector(&at.env)];
        let ended = runner::publish(&at.env, &messengers, &mut connectors, &self.run_options()).await;
        self.ended(&node, ended);
    }

    async fn worker(self: Arc<Self>, node: Node) {
        let at = Place { part: Part::Worker, env: node.env() };
        let pipeline = Arc::new(self.variant.pipeline(stages::pipeline(at.env.clone())));
        let config = worker_config(&self.plan.pipeline);
        let messengers = AlteredMessengers::new(self.kafka(&at, &node), self.variant.messengers(&at));
        until_stopped(&node, |stop| runner::run_worker(at.env, messengers, pipeline, config, stop)).await;
    }

    async fn indexer(self: Arc<Self>, node: Node) {
        let at = Place { part: Part::Indexer, env: node.env() };
        let config = indexer_config(&self.plan.pipeline);
        let backend = self.backend(&at, &node);
        let messengers = AlteredMessengers::new(self.kafka(&at, &node), self.variant.messengers(&at));
        until_stopped(&node, |stop| runner::run_indexer(at.env, messengers, backend, config, stop)).await;
    }

    /// Messengers over Kafka: the client, the variant's hand behind the recorder, the recorder, the hand in front.
    fn kafka(&self, at: &Place, node: &Node) -> KafkaMessengers<SimEnv, NodeTransport> {
        let seam = Seam { variant: self.variant.clone(), at: at.clone(), drain: self.plan.pipeline.drain };
        let client = Altered::new(node.transport(), seam.clone());
        let recorded = RecordedTransport::new(client, node.recorder(), decode_lifecycle);
        KafkaMessengers::new(node.env(), Altered::new(recorded, seam), kafka_config(&self.plan.pipeline))
    }

    fn backend(&self, at: &Place, node: &Node) -> Arc<dyn Backend> {
        let index = self.variant.index(at, Arc::new(node.index()));
        self.variant.backend(at, Arc::new(RecordedBackend::new(index, node.recorder())))
    }

    fn connector(&self, env: &SimEnv) -> Box<dyn Connector> {
        Box::new(Operations {
            env: env.clone(),
            operations: self.operations.clone(),
            pauses: self.plan.pauses.clone(),
            progress: self.progress.clone(),
        })
    }

    fn run_options(&self) -> RunOptions {
        let variant = self.variant.clone();
        RunOptions {
            publisher: PublisherConfig {
                pending_records_max: u64::from(self.plan.pipeline.max_pending),
                ..PublisherConfig::default()
            },
            limit: None,
            ledger: Arc::new(move |run| variant.ledger(run)),
        }
    }

    fn ended(&self, node: &Node, (summaries, outcome): (Vec<ConnectorSummary>, Result<(), RunError>)) {
        // A run that failed is not complete, however far it was counted.
        for summary in summaries.iter().filter(|_| outcome.is_ok()) {
            let ConnectorSummary { run, counts, .. } = summary;
            let sum =
                |of: fn(&seriatim_core::machines::ledger::Tally) -> u64| of(&counts.parents) + of(&counts.children);
            let run_summary = RunSummary {
                published: counts.published,
                children: counts.children.total(),
                indexed: sum(|tally| tally.indexed),
                superseded: sum(|tally| tally.superseded),
                dropped: sum(|tally| tally.dropped),
                failed: sum(|tally| tally.failed),
                ambiguous: counts.ambiguous_families,
                ..RunSummary::default()
            };
            node.recorder().record(What::RunComplete { run: *run, summary: run_summary });
        }
        let mut progress = lock(&self.progress);
        progress.summaries = summaries;
        progress.failure = outcome.err().map(|error| error.to_string());
    }
}

/// Runs a component until the world asks its node to end.
async fn until_stopped<R>(node: &Node, component: impl FnOnce(Stop) -> R)
where
    R: Future<Output = Result<(), seriatim_core::messenger::MessengerError>>,
{
    let stop = Stop::new();
    let mut running = std::pin::pin!(component(stop.clone()));
    {
        let asked = std::pin::pin!(node.stopping());
        if let futures_util::future::Either::Left(_) = select(running.as_mut(), asked).await {
            return;
        }
    }
    stop.request();
    // Whether it ended well is for the checkers to see.
    let _ = running.await;
}

fn worker_config(knobs: &Knobs) -> WorkerConfig {
    WorkerConfig { poll_records_max: knobs.poll_max as usize, ..WorkerConfig::default() }
}

fn indexer_config(knobs: &Knobs) -> IndexerConfig {
    IndexerConfig {
        batch: BatchLimits {
            items_max: knobs.batch_size as usize,
            age_max: Duration::from_micros(knobs.batch_age_micros),
            ..IndexerConfig::default().batch
        },
        versions: knobs.versions,
        deletion: Some(DeletionMarker { field: marks::OP.into(), value: OpKind::Delete.name().into() }),
        poll_records_max: knobs.poll_max as usize,
        ..IndexerConfig::default()
    }
}

fn kafka_config(knobs: &Knobs) -> KafkaConfig {
    let mut config = KafkaConfig::new(PIPELINE);
    for intake in [&mut config.worker, &mut config.indexer] {
        intake.group.session_timeout = Duration::from_millis(knobs.session_timeout_ms);
        intake.group.heartbeat_interval = Duration::from_millis(knobs.heartbeat_ms);
        intake.group.poll_limit = Duration::from_millis(knobs.poll_limit_ms);
        intake.custody = CustodyConfig { records_max: knobs.max_in_flight as usize, ..CustodyConfig::default() };
        intake.poll_records_max = knobs.poll_max as usize;
    }
    config
}

/// Publishes the operations of a run, with its pauses.
struct Operations {
    env: SimEnv,
    operations: Arc<Vec<Op>>,
    pauses: Vec<PublisherPause>,
    progress: SharedProgress,
}

impl Operations {
    async fn publish(&mut self, publisher: &Publisher) -> Result<(), ConnectorError> {
        lock(&self.progress).publisher = Some(publisher.clone());
        let mut pauses = self.pauses.iter().peekable();
        for (published, op) in (0u64..).zip(self.operations.iter()) {
            while let Some(pause) = pauses.next_if(|pause| pause.after_records <= published) {
                self.env.sleep(Duration::from_micros(pause.for_micros)).await;
            }
            let document = Document::parse(op.document().into());
            let document = document.map_err(|error| ConnectorError(format!("operation {published}: {error}")))?;
            publisher.publish(document).await.map_err(|error| ConnectorError(error.to_string()))?;
        }
        Ok(())
    }
}

impl Connector for Operations {
    fn name(&self) -> &str {
        "operations"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        self.publish(publisher).boxed()
    }
}
