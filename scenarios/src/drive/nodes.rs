//! The processes of a run, and what each does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::connector::Connector;
use seriatim_core::index::Backend;
use seriatim_core::messenger::MessengerFactory;
use seriatim_core::messenger::hybrid::{HybridConfig, HybridMessengers};
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers, Topics};
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::runner::{self, ConnectorSummary, LocalOptions, RunError, RunOptions};
use seriatim_core::stop::Stop;
use seriatim_sim::history::What;
use seriatim_sim::recorded::{RecordedBackend, RecordedTransport, decode_lifecycle};
use seriatim_sim::{Node, SimEnv, World};

use super::any::{AlteredMessengers, AnyEnv};
use super::config::{self, Member, indexer_config, publisher_config, run_summary, worker_config};
use super::operations::Operations;
use super::recorded::{RecordedLedger, RecordedMessengers};
use super::variant::{Altered, NodeTransport, Part, Place, Seam, Variant};
use super::{PIPELINE, SharedProgress, lock, stages};
use crate::fault::Role;
use crate::plan::{Mode, Plan, Topology};
use crate::workload::Op;

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
    trouble: stages::Trouble,
}

impl Cast {
    pub(super) fn new(
        world: &World,
        plan: &Plan,
        operations: Arc<Vec<Op>>,
        progress: SharedProgress,
        variant: Arc<dyn Variant>,
        trouble: stages::Trouble,
    ) -> Self {
        let topics = Topics::of(PIPELINE);
        let inner = Inner { plan: plan.clone(), operations, progress, variant, topics, trouble };
        Cast { world: world.clone(), inner: Arc::new(inner) }
    }

    /// Creates the topics and starts every process.
    pub(super) async fn start(&self) {
        let Inner { plan, topics, .. } = &*self.inner;
        if plan.topology.mode == Mode::Local {
            let inner = self.inner.clone();
            return self.world.spawn(PROCESS, move |node| inner.clone().process(node));
        }
        self.world.create_topic(&topics.source, plan.topology.source_partitions);
        self.world.create_topic(&topics.fail, plan.topology.source_partitions);
        if plan.topology.mode == Mode::Distributed {
            self.world.create_topic(&topics.dest, plan.topology.dest_partitions);
        }
        // They are made before a run, and known to all.
        self.world.sleep(Duration::from_millis(plan.brokers.metadata_lag_ms.into())).await;
        if plan.topology.mode == Mode::Hybrid {
            (0..plan.topology.pairs).for_each(|number| self.spawn(Role::Pair, number));
        } else {
            (0..plan.topology.workers).for_each(|number| self.spawn(Role::Worker, number));
            (0..plan.topology.indexers).for_each(|number| self.spawn(Role::Indexer, number));
        }
        let inner = self.inner.clone();
        self.world.spawn(PUBLISHER, move |node| inner.clone().publisher(node));
    }

    /// Starts one more worker or indexer.
    pub(super) fn spawn(&self, role: Role, number: u32) {
        let (inner, name) = (self.inner.clone(), role.node(number).to_string());
        match role {
            Role::Worker => self.world.spawn(&name, move |node| inner.clone().worker(node, number)),
            Role::Indexer => self.world.spawn(&name, move |node| inner.clone().indexer(node, number)),
            Role::Pair => self.world.spawn(&name, move |node| inner.clone().pairs(node, number)),
        }
    }

    /// The node whose end is the end of the run.
    pub(super) fn main_node(&self) -> &'static str {
        match self.inner.plan.topology.mode {
            Mode::Local => PROCESS,
            Mode::Distributed | Mode::Hybrid => PUBLISHER,
        }
    }

    /// Consumer groups and the topics that they read.
    pub(super) fn groups(&self) -> Vec<(String, Arc<str>)> {
        let topics = &self.inner.topics;
        match self.inner.plan.topology.mode {
            Mode::Local => vec![],
            Mode::Hybrid => vec![(topics.worker_group(), topics.source.clone())],
            Mode::Distributed => {
                vec![(topics.worker_group(), topics.source.clone()), (topics.indexer_group(), topics.dest.clone())]
            }
        }
    }

    /// The topic of dead letters.
    pub(super) fn dead_letters(&self) -> Arc<str> {
        self.inner.topics.fail.clone()
    }
}

/// How the names of the topics of events begin.
pub(super) fn event_topics() -> String {
    format!("{PIPELINE}_event_")
}

impl Inner {
    async fn process(self: Arc<Self>, node: Node) {
        let env = node.env();
        let knobs = &self.plan.pipeline;
        let (workers, indexers) = (self.plan.topology.workers as usize, self.plan.topology.indexers as usize);
        let config =
            LocalConfig { workers, indexers, lane_records_max: knobs.max_in_flight as usize, ..LocalConfig::default() };
        let at = Place { part: Part::Process, env: AnyEnv::Simulated(env.clone()) };
        let messengers = LocalMessengers::new(env.clone(), &config);
        let messengers = RecordedMessengers::new(messengers, node.recorder(), true);
        let messengers = AlteredMessengers::new(messengers, self.variant.messengers(&at));
        let options = LocalOptions {
            workers,
            indexers,
            worker: worker_config(knobs),
            indexer: indexer_config(&self.plan.pipeline, self.plan.has_indexes()),
            run: self.run_options(&node),
        };
        let pipeline = self.pipeline(&env);
        let backend = self.backend(&at, &node);
        let mut connectors = [self.connector(&env)];
        let ended = runner::run_together(&env, &messengers, pipeline, backend, &mut connectors, &options).await;
        self.ended(&node, ended);
    }

    async fn publisher(self: Arc<Self>, node: Node) {
        let at = Place { part: Part::Publisher, env: AnyEnv::Simulated(node.env()) };
        let env = node.env();
        let (transport, config) = (self.transport(&at, &node), self.kafka_config(None));
        let mut connectors = [self.connector(&env)];
        let options = self.run_options(&node);
        let ended = if self.plan.topology.mode == Mode::Hybrid {
            let messengers = HybridMessengers::new(env.clone(), transport, self.hybrid_config(config));
            let messengers = RecordedMessengers::new(messengers, node.recorder(), false);
            runner::publish(&env, &messengers, &mut connectors, &options).await
        } else {
            let messengers = KafkaMessengers::new(env.clone(), transport, config);
            let messengers = RecordedMessengers::new(messengers, node.recorder(), false);
            runner::publish(&env, &messengers, &mut connectors, &options).await
        };
        self.ended(&node, ended);
    }

    async fn worker(self: Arc<Self>, node: Node, number: u32) {
        let at = Place { part: Part::Worker, env: AnyEnv::Simulated(node.env()) };
        let (pipeline, config) = (self.pipeline(&node.env()), worker_config(&self.plan.pipeline));
        let messengers = self.member(&at, &node, number);
        until_stopped(&node, |stop| runner::run_worker(node.env(), messengers, pipeline, config, stop)).await;
    }

    async fn indexer(self: Arc<Self>, node: Node, number: u32) {
        let at = Place { part: Part::Indexer, env: AnyEnv::Simulated(node.env()) };
        let (backend, config) =
            (self.backend(&at, &node), indexer_config(&self.plan.pipeline, self.plan.has_indexes()));
        let messengers = self.member(&at, &node, number);
        until_stopped(&node, |stop| runner::run_indexer(node.env(), messengers, backend, config, stop)).await;
    }

    async fn pairs(self: Arc<Self>, node: Node, number: u32) {
        let at = Place { part: Part::Pair, env: AnyEnv::Simulated(node.env()) };
        let count = self.plan.topology.pairs_per_node;
        let pair = |place: u32| {
            let member = Member { id: format!("{}.{place}", node.name()), number: number * count + place };
            let config = self.hybrid_config(self.kafka_config(Some(&member)));
            let messengers = HybridMessengers::new(node.env(), self.transport(&at, &node), config);
            AlteredMessengers::new(messengers, self.variant.messengers(&at))
        };
        let pairs: Vec<_> = (0..count).map(pair).collect();
        let (pipeline, backend) = (self.pipeline(&node.env()), self.backend(&at, &node));
        let (worker, indexer) =
            (worker_config(&self.plan.pipeline), indexer_config(&self.plan.pipeline, self.plan.has_indexes()));
        let env = node.env();
        until_stopped(&node, |stop| runner::run_pool(env, pairs, pipeline, backend, worker, indexer, stop)).await;
    }

    fn pipeline(&self, env: &SimEnv) -> Arc<PipelineSpec> {
        Arc::new(self.variant.pipeline(stages::pipeline(env.clone(), self.trouble.clone())))
    }

    /// Kafka: the client, the variant's hand behind the recorder, the recorder, the hand in front.
    fn transport(&self, at: &Place, node: &Node) -> NodeTransport {
        let seam = Seam { variant: self.variant.clone(), at: at.clone(), drain: self.plan.pipeline.drain };
        let client = Altered::new(node.transport(), seam.clone());
        Altered::new(RecordedTransport::new(client, node.recorder(), decode_lifecycle), seam)
    }

    /// The messengers of the number-th member of a group.
    fn member(&self, at: &Place, node: &Node, number: u32) -> impl MessengerFactory {
        let config = self.kafka_config(Some(&Member { id: node.name().to_string(), number }));
        let messengers = KafkaMessengers::new(node.env(), self.transport(at, node), config);
        AlteredMessengers::new(messengers, self.variant.messengers(at))
    }

    /// The clients of a process; of a member of a group, when it is one.
    fn kafka_config(&self, member: Option<&Member>) -> KafkaConfig {
        let mut config = config::kafka_config(PIPELINE, &self.plan.pipeline, member);
        for intake in [&mut config.worker, &mut config.indexer] {
            intake.uncovered = lock(&self.progress).uncovered.clone();
        }
        config
    }

    fn hybrid_config(&self, kafka: KafkaConfig) -> HybridConfig {
        let Topology { workers, indexers, .. } = self.plan.topology;
        config::hybrid_config(PIPELINE, &self.plan.pipeline, kafka, (workers as usize, indexers as usize))
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

    fn run_options(&self, node: &Node) -> RunOptions {
        let (variant, recorder) = (self.variant.clone(), node.recorder());
        RunOptions {
            publisher: publisher_config(&self.plan.pipeline),
            limit: None,
            ledger: Arc::new(move |run| Box::new(RecordedLedger::new(run, variant.ledger(run), recorder.clone()))),
        }
    }

    fn ended(&self, node: &Node, (summaries, outcome): (Vec<ConnectorSummary>, Result<(), RunError>)) {
        // A run that failed is not complete, however far it was counted.
        for summary in summaries.iter().filter(|_| outcome.is_ok()) {
            node.recorder().record(What::RunComplete { run: summary.run, summary: run_summary(summary) });
        }
        let mut progress = lock(&self.progress);
        progress.summaries = summaries;
        progress.failure = outcome.err().map(|error| error.to_string());
    }
}

/// Runs a component until the world asks its node to end.
async fn until_stopped<R, E>(node: &Node, component: impl FnOnce(Stop) -> R)
where
    R: Future<Output = Result<(), E>>,
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
