//! Runs the pipeline on a real Kafka, as processes of their own, strikes it, and has the same checkers judge what they
//! wrote down.
//!
//! A run has two phases, as a simulated one: while documents flow the faults strike; then what is down or frozen comes
//! back, and everything must come to its end within a bound. Nothing that was started survives it: every process has a
//! guard that ends it when the run is over, however it ended. A run's folder is removed, unless the run failed.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::messenger::kafka::Topics;
use seriatim_core::transport::{Admin, NewTopic, Transport, TransportError};
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};
use seriatim_sim::history::{Keep, Recorder, write_jsonl};

use crate::fault::Node;
use crate::interrupt;
use crate::node::history;
use crate::node::index::RemoteIndex;
use crate::plan::{Mode, Workload};
use crate::ripgrep;
use crate::run::{Outcome, RunReport};
use crate::workload::{Expected, Op};

pub mod cases;
mod cast;
pub mod document;
mod faults;
mod gather;
mod judge;
mod plan;
mod process;
pub mod soak;

pub use faults::Brokers;
pub use plan::{BrokerFault, RealPlan, StopSignal};
pub use process::Program;

use self::cast::{Cast, Stage, State, TICK, operations};
use self::faults::Injector;
use self::judge::Ended;

/// Longest time of a run's faults.
const FAULTS_LIMIT: Duration = Duration::from_secs(120);
/// Longest time from the last fault until the run is complete.
const HEALED_LIMIT: Duration = Duration::from_secs(120);
/// The same of a flawed pipeline, which may never complete.
const FLAWED_LIMIT: Duration = Duration::from_secs(20);
/// Longest time from completion until nothing lags.
const QUIET_LIMIT: Duration = Duration::from_secs(60);
/// How long topics may take until they can be seen.
const TOPICS_LIMIT: Duration = Duration::from_secs(30);
/// Looks in a row that must see them.
const LOOKS: u32 = 3;
/// Time between two questions to the cluster.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A cluster to run on, and the program whose processes run.
#[derive(Clone)]
pub struct Site {
    /// How processes are started.
    pub program: Program,
    /// Brokers, `host:port` with commas between.
    pub bootstrap: String,
    /// Copies of each topic.
    pub replication: u16,
    /// The cluster itself, where runs may break it.
    pub brokers: Brokers,
}

/// What a real run told, beside what a simulated one does.
#[derive(Debug)]
pub struct RealReport {
    /// As of a simulated run; of what it does not have there is nothing.
    pub report: RunReport,
    /// Brokers that were killed.
    pub brokers_killed: u64,
    /// Of the pauses, those in which a member stood still for longer than its session.
    pub outlasted: u64,
    /// From the first publish to completion.
    pub flowed: Duration,
    /// The folder, which is kept when the run failed: plan, histories, what the processes printed.
    pub kept: Option<PathBuf>,
}

/// Runs `real` on a runtime of its own, to its end.
pub fn run(real: &RealPlan, site: &Site) -> anyhow::Result<RealReport> {
    real.validate()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("no threads for the driver")?;
    let folder = tempfile::Builder::new().prefix("seriatim-real-").tempdir().context("a folder for the run")?;
    fs::write(folder.path().join("plan.toml"), real.to_toml()).context("writing the plan")?;
    let ran = runtime.block_on(async {
        let env = TokioEnv::new();
        let transport = KafkaTransport::connect(env.clone(), KafkaSettings::new(&site.bootstrap)).await?;
        // Runs of many seeds share a cluster, and a seed may come twice.
        let pipeline = format!("real-{}-{:08x}", real.plan.seed, env.random() as u32);
        let ran = drive(real, site, folder.path().to_owned(), (&env, &transport, &pipeline)).await;
        if site.brokers.is_none() {
            // The cluster is somebody else's, and outlives this.
            let removed = transport.admin().remove_all(&pipeline).await;
            return ran.and_then(|ran| {
                removed.context("the run has ended, and its topics and groups cannot be removed")?;
                Ok(ran)
            });
        }
        ran
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    match ran {
        Ok(mut ran) => {
            ran.kept = (ran.report.outcome != Outcome::Pass).then(|| folder.keep());
            Ok(ran)
        }
        Err(error) if interrupt::asked() => Err(error),
        Err(error) => Err(error).with_context(|| format!("the run's folder is kept: {}", folder.keep().display())),
    }
}

async fn drive(
    real: &RealPlan,
    site: &Site,
    folder: PathBuf,
    (env, transport, pipeline): (&TokioEnv, &KafkaTransport<TokioEnv>, &str),
) -> anyhow::Result<RealReport> {
    let recorder = Recorder::new(Keep::Events, history::clock(env.clone()));
    let ops: Arc<Vec<Op>> = match &real.plan.workload {
        Workload::Generated(generated) => Arc::new(generated.operations(real.plan.seeds.workload)),
        _ => ripgrep::history(),
    };
    write_operations(&folder, &ops)?;
    let expected = Expected::after(&ops);
    let topics = Topics::of(pipeline);
    create_topics(env, transport, &topics, real, site.replication).await?;
    let stage = Stage {
        program: site.program.clone(),
        bootstrap: site.bootstrap.clone(),
        replication: site.replication,
        pipeline: pipeline.to_owned(),
        folder: folder.clone(),
    };
    let mut cast = Cast::new(env.clone(), stage, real.clone(), recorder).await?;
    cast.start_consumers()?;
    cast.start(Node::Publisher)?;
    let mut injector = Injector::new(env.clone(), transport.clone(), topics.clone(), real, site.brokers.clone());
    let flowed = through_faults(env, &mut cast, &mut injector).await?;
    let mut ended = Ended::default();
    injector.heal(&mut cast, HEALED_LIMIT).await?;
    let limit = if real.variant.is_some() { FLAWED_LIMIT } else { HEALED_LIMIT };
    let flowed_after = to_completion(env, &mut cast, &mut injector, limit, &mut ended).await?;
    if ended.stuck.is_none() {
        quiet(env, transport, &topics, real, &mut cast, &mut injector, &mut ended).await?;
    }
    let index = RemoteIndex::new(env.clone(), &cast.index_address, "driver");
    if !consumers_end(&mut cast, &index, &mut ended).await? && ended.stuck.is_none() {
        ended.stuck = Some("a process that was asked to end in order had to be killed".into());
    }
    let (strikes, brokers_killed) = (injector.strikes.clone(), injector.brokers_killed());
    let outlasted = cast.outlasted;
    let events = cast.into_events()?;
    let mut report = judge::report(real, events.clone(), &ended, &expected);
    report.faults = strikes;
    if report.outcome != Outcome::Pass {
        let mut file = fs::File::create(folder.join("history.jsonl")).context("keeping the history")?;
        write_jsonl(&events, &mut file).context("keeping the history")?;
    }
    Ok(RealReport { report, brokers_killed, outlasted, flowed: flowed + flowed_after, kept: None })
}

fn write_operations(folder: &std::path::Path, ops: &[Op]) -> anyhow::Result<()> {
    let text: String = ops.iter().map(|op| op.document() + "\n").collect();
    let mut file = fs::File::create(operations(folder)).context("writing the operations")?;
    file.write_all(text.as_bytes()).context("writing the operations")
}

async fn create_topics(
    env: &TokioEnv,
    transport: &KafkaTransport<TokioEnv>,
    topics: &Topics,
    real: &RealPlan,
    replication: u16,
) -> anyhow::Result<()> {
    let topology = &real.plan.topology;
    let mut wanted = vec![(topics.source.clone(), topology.source_partitions), (topics.fail.clone(), 1)];
    if topology.mode == Mode::Distributed {
        wanted.push((topics.dest.clone(), topology.dest_partitions));
    }
    let new =
        |(name, partitions): &(Arc<str>, u32)| NewTopic { name: name.clone(), partitions: *partitions, replication };
    let created = transport.admin().create_topics(wanted.iter().map(new).collect()).await;
    created.into_iter().collect::<Result<Vec<()>, TransportError>>().context("creating the topics of the run")?;
    let (names, started) = (wanted.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), env.now());
    // Each look may ask another broker, and one may know later than the next.
    let mut seen = 0;
    while seen < LOOKS {
        let is_seen = transport.admin().partition_counts(names.clone()).await.iter().all(Result::is_ok);
        seen = if is_seen { seen + 1 } else { 0 };
        if env.now().since(started) > TOPICS_LIMIT {
            bail!("the topics of the run were created and cannot be seen; is the cluster healthy?");
        }
        env.sleep(ASK_AGAIN).await;
    }
    Ok(())
}

/// What ends a run at once: somebody asked.
fn uninterrupted() -> anyhow::Result<()> {
    if interrupt::asked() { bail!("interrupted") } else { Ok(()) }
}

/// Lets the faults strike until all have, or the publisher is through. Gives how long records flowed.
async fn through_faults(env: &TokioEnv, cast: &mut Cast, injector: &mut Injector) -> anyhow::Result<Duration> {
    let (started, mut first) = (env.now(), None);
    loop {
        uninterrupted()?;
        cast.gathered.read()?;
        if cast.gathered.published() > 0 {
            first.get_or_insert(env.now());
        }
        injector.tick(cast).await?;
        let through = cast.gathered.is_complete() || cast.state(Node::Publisher) == Some(State::Down);
        if through || injector.is_over() || env.now().since(started) > FAULTS_LIMIT {
            return Ok(first.map_or(Duration::ZERO, |first| env.now().since(first)));
        }
        env.sleep(TICK).await;
    }
}

/// Waits until the publisher has ended.
async fn to_completion(
    env: &TokioEnv,
    cast: &mut Cast,
    injector: &mut Injector,
    limit: Duration,
    ended: &mut Ended,
) -> anyhow::Result<Duration> {
    let started = env.now();
    loop {
        uninterrupted()?;
        cast.gathered.read()?;
        injector.revive(cast)?;
        let waited = env.now().since(started);
        if cast.state(Node::Publisher) == Some(State::Down) {
            if !cast.gathered.is_complete() {
                ended.stuck = Some(format!("the publisher failed; it printed: {}", cast.last_words(Node::Publisher)));
            }
            return Ok(waited);
        }
        if waited > limit {
            ended.stuck = Some(format!(
                "{} s after the last fault the run is not complete: {} of {} documents are pending",
                limit.as_secs(),
                cast.gathered.in_flight(),
                cast.gathered.published()
            ));
            return Ok(waited);
        }
        env.sleep(TICK).await;
    }
}

/// Waits until every group has committed to the end of what it reads.
async fn quiet(
    env: &TokioEnv,
    transport: &KafkaTransport<TokioEnv>,
    topics: &Topics,
    real: &RealPlan,
    cast: &mut Cast,
    injector: &mut Injector,
    ended: &mut Ended,
) -> anyhow::Result<()> {
    let mut groups = vec![(topics.worker_group(), topics.source.clone())];
    if real.plan.topology.mode == Mode::Distributed {
        groups.push((topics.indexer_group(), topics.dest.clone()));
    }
    let started = env.now();
    loop {
        uninterrupted()?;
        cast.gathered.read()?;
        injector.revive(cast)?;
        let mut left = Vec::new();
        for (group, topic) in &groups {
            match lag(transport, group, topic).await {
                Ok(0) => {}
                Ok(lag) => left.push(format!("{group} lags by {lag}")),
                Err(error) => left.push(error.to_string()),
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if env.now().since(started) > QUIET_LIMIT {
            ended.stuck = Some(format!("the run is complete, and {}", left.join(", ")));
            return Ok(());
        }
        env.sleep(ASK_AGAIN).await;
    }
}

/// Records of `topic` that `group` has not committed.
async fn lag(transport: &KafkaTransport<TokioEnv>, group: &str, topic: &Arc<str>) -> Result<i64, TransportError> {
    let admin = transport.admin();
    let count = admin.partition_counts(vec![topic.clone()]).await.into_iter().collect::<Result<Vec<u32>, _>>()?;
    let count = count.first().copied().unwrap_or(0);
    let all: Vec<_> = (0..count).map(|one| TopicPartition::new(topic.clone(), one as i32)).collect();
    let marks = admin.watermarks(all.clone()).await?;
    let committed = admin.committed(group.to_owned(), all).await?;
    let behind = marks.iter().zip(&committed).map(|(marks, committed)| {
        (marks.end - committed.as_ref().map_or(marks.start, |committed| committed.offset)).max(0)
    });
    Ok(behind.sum())
}

/// Ends everybody, and keeps what the index holds. Whether all ended in order.
async fn consumers_end(cast: &mut Cast, index: &RemoteIndex<TokioEnv>, ended: &mut Ended) -> anyhow::Result<bool> {
    let in_order = cast.end_members().await;
    ended.documents = index.documents().await.context("asking the index what it holds")?;
    Ok(in_order & cast.end_index().await)
}
