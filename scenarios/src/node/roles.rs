//! What each role does: core's components, unchanged, over a transport and an index whose use is written down.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use seriatim_core::connector::Connector;
use seriatim_core::env::Env;
use seriatim_core::index::Backend;
use seriatim_core::messenger::MessengerFactory;
use seriatim_core::messenger::hybrid::HybridMessengers;
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers, Topics};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::runner::{self, RunOptions};
use seriatim_core::stop::Stop;
use seriatim_core::transport::{Admin, ErrorKind, Transport};
use seriatim_ingest::env::TokioEnv;
use seriatim_sim::history::{NodeRecorder, Recorder, What};
use seriatim_sim::recorded::{RecordedBackend, RecordedTransport, decode_lifecycle};

use super::history;
use super::index::RemoteIndex;
use super::settings::{Pipeline, Stages};
use crate::drive::any::{AlteredMessengers, AnyEnv};
use crate::drive::config::{self, Member, indexer_config, publisher_config, run_summary, worker_config};
use crate::drive::operations::Operations;
use crate::drive::recorded::{RecordedLedger, RecordedMessengers};
use crate::drive::struck::Struck;
use crate::drive::variant::{Altered, Seam};
use crate::drive::{Correct, Part, Place, SharedProgress, Variant, stages};
use crate::plan::{Knobs, PublisherPause};
use crate::workload::Op;
use crate::zoo::ANIMALS;

/// How long a process looks for its topics before it gives up.
const TOPICS_LIMIT: Duration = Duration::from_secs(20);
/// The same while the cluster says that there is no such topic.
const NEW_TOPIC_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// What a member that failed has to leave its group.
const GOODBYE: Duration = Duration::from_secs(2);

/// Flawed pipelines whose mistake a real process can make. The others are mistakes of the simulated client or index.
pub const REAL_VARIANTS: [&str; 9] = [
    "commit-on-poll",
    "commit-position",
    "no-drain",
    "zombie",
    "unversioned",
    "deletes-first",
    "halves-at-once",
    "drops-yield-no-offset",
    "poison-skipped",
];

/// The pipeline that `name` says; the right one without a name.
pub(super) fn variant(name: Option<&str>) -> anyhow::Result<Arc<dyn Variant>> {
    let Some(name) = name else { return Ok(Arc::new(Correct)) };
    match ANIMALS.iter().find(|animal| animal.name == name && REAL_VARIANTS.contains(&name)) {
        Some(animal) => Ok(animal.variant()),
        None => bail!("--variant {name}: a real process can be one of {}", REAL_VARIANTS.join(", ")),
    }
}

/// One process of a pipeline.
pub(super) struct Process<T> {
    env: TokioEnv,
    transport: T,
    pipeline: Pipeline,
    knobs: Knobs,
    recorder: Recorder,
    node: NodeRecorder,
    variant: Arc<dyn Variant>,
}

/// Workers and indexers of each pair, and pairs of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    pub(super) pairs: u32,
    pub(super) workers: u32,
    pub(super) indexers: u32,
}

impl<T: Transport> Process<T> {
    pub(super) fn new(
        env: TokioEnv,
        transport: T,
        pipeline: Pipeline,
        (recorder, node): (Recorder, NodeRecorder),
    ) -> anyhow::Result<Self> {
        let (knobs, variant) = (pipeline.knobs()?, variant(pipeline.variant.as_deref())?);
        Ok(Process { env, transport, pipeline, knobs, recorder, node, variant })
    }

    /// Waits for the topics that this role needs.
    async fn look_for(&self, topics: &[&Arc<str>]) -> anyhow::Result<()> {
        let started = self.env.now();
        let topics: Vec<Arc<str>> = topics.iter().map(|topic| (*topic).clone()).collect();
        loop {
            let counts = self.transport.admin().partition_counts(topics.clone()).await;
            let Some((topic, error)) = topics.iter().zip(counts).find_map(|(topic, count)| Some((topic, count.err()?)))
            else {
                return Ok(());
            };
            let limit = match error.kind {
                ErrorKind::Retriable | ErrorKind::UnknownOutcome => TOPICS_LIMIT,
                // A topic that was just made is not known to every broker at once.
                _ if error.code == "UNKNOWN_TOPIC_OR_PARTITION" => NEW_TOPIC_LIMIT,
                _ => Duration::ZERO,
            };
            if self.env.now().since(started) > limit {
                let step = match error.code {
                    "TOPIC_AUTHORIZATION_FAILED" => "ask for the rights that README lists",
                    _ => "create it first",
                };
                return Err(error).with_context(|| {
                    let kafka = &self.pipeline.kafka;
                    format!("topic `{topic}` at {kafka}: {step}, or mend --kafka or --pipeline")
                });
            }
            self.env.sleep(LOOK_AGAIN).await;
        }
    }

    fn topics(&self) -> Topics {
        Topics::of(&self.pipeline.pipeline)
    }

    fn at(&self, part: Part) -> Place {
        Place { part, env: AnyEnv::Real(self.env.clone()) }
    }

    /// Kafka: the client, the recorder, the variant's hand in front.
    fn transport(&self, part: Part) -> Altered<RecordedTransport<T>> {
        let seam = Seam { variant: self.variant.clone(), at: self.at(part), drain: self.knobs.drain };
        let recorded = RecordedTransport::new(self.transport.clone(), self.node.clone(), decode_lifecycle);
        Altered::new(recorded, seam)
    }

    /// The clients of a process; of a member of a group, when it is one.
    fn kafka_config(&self, member: Option<&Member>) -> KafkaConfig {
        let mut config = config::kafka_config(&self.pipeline.pipeline, &self.knobs, member);
        config.event_replication = self.pipeline.replication;
        config
    }

    fn member(&self, part: Part) -> impl MessengerFactory {
        let config = self.kafka_config(Some(&Member { id: self.node.name().to_string(), number: 0 }));
        let messengers = KafkaMessengers::new(self.env.clone(), self.transport(part), config);
        AlteredMessengers::new(messengers, self.variant.messengers(&self.at(part)))
    }

    fn stages(&self) -> Arc<PipelineSpec> {
        let spec = match self.pipeline.stages {
            Stages::Marks => {
                let trouble = stages::Trouble::new(Struck::new(self.recorder.clone()));
                stages::pipeline(self.env.clone(), trouble)
            }
            Stages::None => PipelineSpec::new(self.pipeline.pipeline.as_str(), Vec::new()),
        };
        Arc::new(self.variant.pipeline(spec))
    }

    fn backend(&self, part: Part, index: &str) -> Arc<dyn Backend> {
        let remote = RemoteIndex::new(self.env.clone(), index, self.node.name());
        let at = self.at(part);
        let index = self.variant.index(&at, Arc::new(remote));
        self.variant.backend(&at, Arc::new(RecordedBackend::new(index, self.node.clone())))
    }

    fn ended(&self) -> anyhow::Result<()> {
        self.node.record(What::Stopped);
        history::is_whole(&self.recorder)
    }

    pub(super) async fn worker(self, stop: Stop) -> anyhow::Result<()> {
        let topics = self.topics();
        self.look_for(&[&topics.source, &topics.dest, &topics.fail]).await?;
        self.node.record(What::Started);
        let (messengers, config) = (self.member(Part::Worker), worker_config(&self.knobs));
        let ran = runner::run_worker(self.env.clone(), messengers, self.stages(), config, stop).await;
        self.once_left(ran).await?;
        self.ended()
    }

    pub(super) async fn indexer(self, index: &str, stop: Stop) -> anyhow::Result<()> {
        let topics = self.topics();
        self.look_for(&[&topics.dest, &topics.fail]).await?;
        self.node.record(What::Started);
        let (messengers, backend) = (self.member(Part::Indexer), self.backend(Part::Indexer, index));
        let config = indexer_config(&self.knobs, self.pipeline.indexes);
        let ran = runner::run_indexer(self.env.clone(), messengers, backend, config, stop).await;
        self.once_left(ran).await?;
        self.ended()
    }

    pub(super) async fn worker_indexer(self, index: &str, pairs: Pairs, stop: Stop) -> anyhow::Result<()> {
        let topics = self.topics();
        self.look_for(&[&topics.source, &topics.fail]).await?;
        self.node.record(What::Started);
        let (env, part) = (self.env.clone(), Part::Pair);
        let lanes = (pairs.workers as usize, pairs.indexers as usize);
        let pair = |place: u32| {
            let member = Member { id: format!("{}.{place}", self.node.name()), number: place };
            let config = self.kafka_config(Some(&member));
            let config = config::hybrid_config(&self.pipeline.pipeline, &self.knobs, config, lanes);
            let messengers = HybridMessengers::new(env.clone(), self.transport(part), config);
            AlteredMessengers::new(messengers, self.variant.messengers(&self.at(part)))
        };
        let pairs: Vec<_> = (0..pairs.pairs).map(pair).collect();
        let (pipeline, backend) = (self.stages(), self.backend(part, index));
        let (worker, indexer) = (worker_config(&self.knobs), indexer_config(&self.knobs, self.pipeline.indexes));
        let ran = runner::run_pool(env.clone(), pairs, pipeline, backend, worker, indexer, stop).await;
        self.once_left(ran).await?;
        self.ended()
    }

    /// What failed leaves its group behind its error. A process that ended before would keep its partitions from all
    /// others until its session is over.
    async fn once_left<D, F>(&self, ran: Result<D, F>) -> Result<D, F> {
        if ran.is_err() {
            self.env.sleep(GOODBYE).await;
        }
        ran
    }

    /// Publishes `operations` and waits until all of them have ended; gives the summaries.
    pub(super) async fn publisher(
        self,
        operations: Vec<Op>,
        pauses: Vec<PublisherPause>,
        hybrid: bool,
    ) -> anyhow::Result<Vec<String>> {
        let topics = self.topics();
        let needed: &[&Arc<str>] =
            if hybrid { &[&topics.source, &topics.fail] } else { &[&topics.source, &topics.dest, &topics.fail] };
        self.look_for(needed).await?;
        self.node.record(What::Started);
        let (env, operations, progress) = (self.env.clone(), Arc::new(operations), SharedProgress::default());
        let mut connectors: [Box<dyn Connector>; 1] =
            [Box::new(Operations { env: env.clone(), operations, pauses, progress })];
        let (variant, recorder) = (self.variant.clone(), self.node.clone());
        let options = RunOptions {
            publisher: publisher_config(&self.knobs),
            limit: None,
            ledger: Arc::new(move |run| Box::new(RecordedLedger::new(run, variant.ledger(run), recorder.clone()))),
        };
        let (transport, config) = (self.transport(Part::Publisher), self.kafka_config(None));
        let (summaries, outcome) = if hybrid {
            let config = config::hybrid_config(&self.pipeline.pipeline, &self.knobs, config, (1, 1));
            let messengers = HybridMessengers::new(env.clone(), transport, config);
            let messengers = RecordedMessengers::new(messengers, self.node.clone(), false);
            runner::publish(&env, &messengers, &mut connectors, &options).await
        } else {
            let messengers = KafkaMessengers::new(env.clone(), transport, config);
            let messengers = RecordedMessengers::new(messengers, self.node.clone(), false);
            runner::publish(&env, &messengers, &mut connectors, &options).await
        };
        outcome?;
        for summary in &summaries {
            self.node.record(What::RunComplete { run: summary.run, summary: run_summary(summary) });
        }
        self.ended()?;
        Ok(summaries.iter().map(ToString::to_string).collect())
    }
}
