//! One process of a pipeline on a real Kafka: publisher, worker, indexer, pairs of both, or the index that they share.
//!
//! It runs core's components as the simulation does, over the same wrappers, so that the same checkers can judge what
//! it writes down. It ends in order at SIGTERM or SIGINT. Exit status: 0 ended well, 2 did not, with a complaint that
//! names the place and the next step.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use futures_util::future::{Either, select};
use seriatim_core::env::Env;
use seriatim_core::stop::Stop;
use seriatim_core::transport::Transport;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};
use seriatim_sim::history::What;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::input::{self, OnError};
use crate::plan::PublisherPause;
use crate::ripgrep;
use crate::run::Exit;
use crate::workload::{Generated, Op};

pub mod history;
pub mod index;
mod roles;
pub mod settings;

pub use roles::REAL_VARIANTS;

use self::index::{IndexServer, Serving};
use self::roles::{Pairs, Process};
use self::settings::{Input, Pipeline, Recording};

/// How often a process looks whether it was asked to end.
const LOOK: Duration = Duration::from_millis(20);
/// What an index prints before its address.
pub const LISTENING: &str = "the index listens on ";

/// Runs one process of a pipeline on a real Kafka.
#[derive(Parser, Debug)]
#[command(name = "node", version, about)]
pub struct Command {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Publishes operations and waits until all of them have ended.
    Publisher(Publisher),
    /// Takes documents through the stages, from the source topic to the destination topic.
    Worker(Worker),
    /// Writes what lies on the destination topic to the index.
    Indexer(Indexer),
    /// Does both for the records of the source topic that it takes, with memory between.
    WorkerIndexer(WorkerIndexer),
    /// Holds the index, in memory, for the other processes of this machine.
    Index(Index),
}

#[derive(Args, Debug)]
struct Publisher {
    #[command(flatten)]
    pipeline: Pipeline,
    #[command(flatten)]
    recording: Recording,
    #[command(flatten)]
    input: Input,
    /// Seed of generated operations.
    #[arg(long, default_value_t = 0, value_parser = crate::command::parse_seed)]
    seed: u64,
    /// Most operations a second.
    #[arg(long)]
    rate: Option<u32>,
    /// Workers and indexers are paired: there is no destination topic.
    #[arg(long)]
    hybrid: bool,
}

#[derive(Args, Debug)]
struct Worker {
    #[command(flatten)]
    pipeline: Pipeline,
    #[command(flatten)]
    recording: Recording,
}

#[derive(Args, Debug)]
struct Indexer {
    #[command(flatten)]
    pipeline: Pipeline,
    #[command(flatten)]
    recording: Recording,
    /// Where the index is, `host:port`.
    #[arg(long)]
    index: String,
}

#[derive(Args, Debug)]
struct WorkerIndexer {
    #[command(flatten)]
    indexer: Indexer,
    /// Pairs in this process, each a member of the group.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pairs: u32,
    /// Workers of each pair.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Indexers of each pair.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    indexers: u32,
}

#[derive(Args, Debug)]
struct Index {
    #[command(flatten)]
    recording: Recording,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// How long a batch takes before it is applied, milliseconds.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    ExitCode::from(Command::parse().end() as u8)
}

impl Command {
    /// Does what was asked, until it is done or a signal asks for the end.
    pub fn end(self) -> Exit {
        // What was asked before anybody listened is not lost: the flag is set.
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            if let Err(error) = signal_hook::flag::register(signal, asked.clone()) {
                eprintln!("error: signal {signal} cannot be listened for: {error}");
                return Exit::Harness;
            }
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let ended = runtime.context("no threads for the process").and_then(|runtime| {
            let ended = runtime.block_on(self.run(asked));
            runtime.shutdown_timeout(Duration::from_secs(1));
            ended
        });
        match ended {
            Ok(()) => Exit::Pass,
            Err(error) => {
                eprintln!("error: {error:#}");
                Exit::Harness
            }
        }
    }

    async fn run(self, asked: Arc<AtomicBool>) -> anyhow::Result<()> {
        let env = TokioEnv::new();
        let stop = Stop::new();
        let (of_signals, clock) = (stop.clone(), env.clone());
        env.spawn(async move {
            while !asked.load(Ordering::Relaxed) {
                clock.sleep(LOOK).await;
            }
            of_signals.request();
        });
        match self.role {
            Role::Publisher(publisher) => publisher.run(env, stop).await,
            Role::Worker(worker) => {
                let process = process(env, worker.pipeline, &worker.recording, "worker").await?;
                process.worker(stop).await
            }
            Role::Indexer(indexer) => {
                let process = process(env, indexer.pipeline, &indexer.recording, "indexer").await?;
                process.indexer(&indexer.index, stop).await
            }
            Role::WorkerIndexer(WorkerIndexer { indexer, pairs, workers, indexers }) => {
                let process = process(env, indexer.pipeline, &indexer.recording, "worker-indexer").await?;
                process.worker_indexer(&indexer.index, Pairs { pairs, workers, indexers }, stop).await
            }
            Role::Index(index) => index.run(env, stop).await,
        }
    }
}

/// The process of a role, connected.
async fn process(
    env: TokioEnv,
    pipeline: Pipeline,
    recording: &Recording,
    role: &str,
) -> anyhow::Result<Process<impl Transport>> {
    // What is wrong with the words is said before any broker is asked.
    pipeline.knobs()?;
    roles::variant(pipeline.variant.as_deref())?;
    let recorder = history::recorder(recording.history.as_deref(), env.clone())?;
    let node = recording.life(role).recorder(&recorder);
    let transport = connect(&env, pipeline.kafka_settings()?).await?;
    Process::new(env, transport, pipeline, (recorder, node))
}

impl Publisher {
    async fn run(self, env: TokioEnv, stop: Stop) -> anyhow::Result<()> {
        let operations = self.operations()?;
        let pauses = pauses(operations.len() as u64, self.rate);
        let process = process(env, self.pipeline, &self.recording, "publisher").await?;
        let (publishing, asked) =
            (std::pin::pin!(process.publisher(operations, pauses, self.hybrid)), std::pin::pin!(stop.requested()));
        match select(publishing, asked).await {
            Either::Left((summaries, _)) => summaries?.iter().for_each(|summary| println!("{summary}")),
            Either::Right(_) => anyhow::bail!("asked to end before the run was complete"),
        }
        Ok(())
    }

    fn operations(&self) -> anyhow::Result<Vec<Op>> {
        if let Some(path) = &self.input.input {
            return read(path);
        }
        if self.input.ripgrep {
            return Ok(ripgrep::history().to_vec());
        }
        let records = self.input.generate.unwrap_or(1);
        let generated = Generated {
            records,
            ids: records.div_ceil(10).max(1),
            delete_permille: 100,
            children_permille: 100,
            children_max: 3,
            drop_permille: 20,
            fail_permille: 20,
            slow_permille: 20,
            slow_ms_max: 50,
            reject_permille: 0,
            panic_permille: 0,
            stuck_permille: 0,
            stuck_ms_max: 0,
            indexes: 0,
        };
        generated.validate()?;
        Ok(generated.operations(self.seed))
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Op>> {
    Ok(input::read(path, OnError::Stop)?.operations)
}

/// The pauses that keep a publisher of so many records below `rate` a second.
pub fn pauses(records: u64, rate: Option<u32>) -> Vec<PublisherPause> {
    const PAUSE: Duration = Duration::from_millis(50);
    let Some(rate) = rate.map(u64::from) else { return Vec::new() };
    let burst = (rate / 20).max(1);
    let for_micros = if rate >= 20 { PAUSE.as_micros() as u64 } else { 1_000_000 / rate.max(1) };
    (1..records.div_ceil(burst)).map(|number| PublisherPause { after_records: number * burst, for_micros }).collect()
}

impl Index {
    async fn run(self, env: TokioEnv, stop: Stop) -> anyhow::Result<()> {
        let recorder = history::recorder(self.recording.history.as_deref(), env.clone())?;
        let node = self.recording.life("index").recorder(&recorder);
        node.record(What::Started);
        let serving = Serving { delay: Duration::from_millis(self.delay_ms) };
        let server = IndexServer::new(env, serving, node.clone());
        let address = server.listen(&self.listen, stop.clone()).await;
        let address = address.with_context(|| format!("cannot listen on {}; is something there?", self.listen))?;
        println!("{LISTENING}{address}");
        stop.requested().await;
        node.record(What::Stopped);
        history::is_whole(&recorder)
    }
}

/// The cluster that `settings` name, once one of its brokers has answered.
async fn connect(env: &TokioEnv, settings: KafkaSettings) -> anyhow::Result<KafkaTransport<TokioEnv>> {
    Ok(KafkaTransport::connect(env.clone(), settings).await?)
}
