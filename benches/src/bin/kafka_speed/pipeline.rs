//! The pipeline: core's components over rdkafka, with the defaults that everybody gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::index::{Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_core::indexer::IndexerConfig;
use seriatim_core::messenger::hybrid::{HybridConfig, HybridMessengers};
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers};
use seriatim_core::publisher::Publisher;
use seriatim_core::runner::{self, RunOptions};
use seriatim_core::stop::Stop;
use seriatim_core::worker::WorkerConfig;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};

use crate::part::{Clock, Names, Work};
use crate::payload::{self, lines};

/// Documents that the connector reads at once.
const CHUNK: usize = 250;

/// Takes everything and keeps nothing.
struct Discard;

impl Backend for Discard {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        ready(Ok(vec![ItemOutcome::Applied; ops.len()])).boxed()
    }
}

/// Reads lines that lie in memory.
struct Lines {
    lines: Vec<Bytes>,
    is_measured: bool,
    clock: Option<Clock>,
}

impl Connector for Lines {
    fn name(&self) -> &str {
        "lines"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            self.clock = Some(Clock::start(self.is_measured));
            for chunk in self.lines.chunks(CHUNK) {
                let documents = chunk.iter().map(|line| Document::parse(line.clone())).collect::<Result<Vec<_>, _>>();
                let documents = documents.map_err(|error| ConnectorError(error.to_string()))?;
                publisher.publish_all(documents).await.map_err(|error| ConnectorError(error.to_string()))?;
            }
            Ok(())
        }
        .boxed()
    }

    fn post_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        if let Some(clock) = self.clock.take() {
            clock.stop(self.lines.len());
        }
        ready(Ok(())).boxed()
    }
}

/// Runs `role` with a transport, on a runtime as that of any of our processes.
fn run<F: Future<Output = anyhow::Result<()>>>(
    work: &Work,
    stop: &Arc<AtomicBool>,
    role: impl FnOnce(TokioEnv, KafkaTransport<TokioEnv>, Stop) -> F,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let (env, of_signals, asked) = (TokioEnv::new(), Stop::new(), stop.clone());
        let (clock, stop) = (env.clone(), of_signals.clone());
        env.spawn(async move {
            while !asked.load(Ordering::Relaxed) {
                clock.sleep(Duration::from_millis(50)).await;
            }
            of_signals.request();
        });
        let transport = KafkaTransport::connect(env.clone(), KafkaSettings::new(&work.kafka)).await?;
        role(env, transport, stop).await
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    ended
}

/// The defaults, but for the linger.
fn kafka(work: &Work, names: &Names) -> KafkaConfig {
    let mut config = KafkaConfig::new(&names.pipeline);
    config.producer.linger = work.linger();
    config
}

fn pair(work: &Work, names: &Names) -> HybridConfig {
    HybridConfig { kafka: kafka(work, names), ..HybridConfig::new(&names.pipeline) }
}

/// Publishes and waits until the run is complete: once to warm up, once on the clock.
pub fn publisher(work: &Work, names: &Names, hybrid: bool, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let of = |first, docs, is_measured| -> Box<dyn Connector> {
        Box::new(Lines { lines: lines(first, docs), is_measured, clock: None })
    };
    let mut connectors = [of(0, work.warm_up, false), of(work.warm_up, work.docs, true)];
    run(work, stop, async |env, transport, _| {
        let options = RunOptions::default();
        let (summaries, outcome) = if hybrid {
            let messengers = HybridMessengers::new(env.clone(), transport, pair(work, names));
            runner::publish(&env, &messengers, &mut connectors, &options).await
        } else {
            let messengers = KafkaMessengers::new(env.clone(), transport, kafka(work, names));
            runner::publish(&env, &messengers, &mut connectors, &options).await
        };
        outcome?;
        let indexed: u64 = summaries.iter().map(|summary| summary.counts.parents.indexed).sum();
        anyhow::ensure!(indexed == (work.warm_up + work.docs) as u64, "{indexed} were indexed: {summaries:?}");
        Ok(())
    })
}

/// A worker.
pub fn worker(work: &Work, names: &Names, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    run(work, stop, async |env, transport, stop| {
        let messengers = KafkaMessengers::new(env.clone(), transport, kafka(work, names));
        let (stages, config) = (Arc::new(payload::pipeline()), WorkerConfig::default());
        runner::run_worker(env, messengers, stages, config, stop).await.context("the worker")
    })
}

/// An indexer.
pub fn indexer(work: &Work, names: &Names, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    run(work, stop, async |env, transport, stop| {
        let messengers = KafkaMessengers::new(env.clone(), transport, kafka(work, names));
        runner::run_indexer(env, messengers, Arc::new(Discard), IndexerConfig::default(), stop)
            .await
            .context("the indexer")
    })
}

/// A worker and an indexer with memory between.
pub fn worker_indexer(work: &Work, names: &Names, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    run(work, stop, async |env, transport, stop| {
        let messengers = HybridMessengers::new(env.clone(), transport, pair(work, names));
        let (stages, worker, indexer) =
            (Arc::new(payload::pipeline()), WorkerConfig::default(), IndexerConfig::default());
        runner::run_pool(env, vec![messengers], stages, Arc::new(Discard), worker, indexer, stop)
            .await
            .context("the pair")
    })
}
