//! Pairs of workers and indexers that share a group membership, alone and several in one process.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{TryFutureExt, select};
use tokio::sync::{mpsc, oneshot};

use super::{RunError, restarting, spawn};
use crate::env::Env;
use crate::index::Backend;
use crate::indexer::{Indexer, IndexerConfig};
use crate::messenger::{MessengerError, MessengerFactory, Sides};
use crate::pipeline::PipelineSpec;
use crate::stop::Stop;
use crate::worker::{Worker, WorkerConfig};

/// Runs the workers and indexers of one pair ([`crate::messenger::hybrid`]) until asked to stop, as many as
/// `messengers` has lanes for. When one of them fails they all end, and come back together.
pub async fn run_worker_indexer<E: Env, F: MessengerFactory>(
    env: E,
    messengers: F,
    pipeline: Arc<PipelineSpec>,
    backend: Arc<dyn Backend>,
    worker: WorkerConfig,
    indexer: IndexerConfig,
    stop: Stop,
) -> Result<(), MessengerError> {
    let pair = Halves { env: env.clone(), messengers, pipeline, backend, worker, indexer };
    restarting(&env, &stop, || pair.run_once(&stop)).await
}

/// What the components of a pair are made from.
struct Halves<E, F> {
    env: E,
    messengers: F,
    pipeline: Arc<PipelineSpec>,
    backend: Arc<dyn Backend>,
    worker: WorkerConfig,
    indexer: IndexerConfig,
}

/// Asks components to stop that nobody waits for any more.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

impl<E: Env, F: MessengerFactory> Halves<E, F> {
    /// Runs the pair until `stop` or until one of its components ends. Workers are stopped first: what they have handed
    /// over is then indexed, within the close limit.
    async fn run_once(&self, stop: &Stop) -> Result<(), MessengerError> {
        // All messengers before anything runs: one asked for later might find its pair dead, and begin another that has
        // no worker and holds partitions all the same.
        let Sides { workers, indexers } = self.messengers.sides();
        let (mut of_workers, mut of_indexers) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            of_workers.push(self.messengers.worker().await?);
        }
        for _ in 0..indexers {
            of_indexers.push(self.messengers.indexer().await?);
        }
        let (stop_workers, stop_indexers) = (StopOnDrop(Stop::new()), StopOnDrop(Stop::new()));
        let (ended, mut endings) = mpsc::unbounded_channel();
        let worker = |messenger| {
            let (env, config, stop) = (self.env.clone(), self.worker.clone(), stop_workers.0.clone());
            let worker = Worker::new(env, messenger, &self.pipeline, config, stop);
            spawn_noted(&self.env, &ended, worker.run())
        };
        let workers: Vec<_> = of_workers.into_iter().map(worker).collect();
        let indexer = |messenger| {
            let (env, config, stop) = (self.env.clone(), self.indexer.clone(), stop_indexers.0.clone());
            let indexer = Indexer::new(env, messenger, self.backend.clone(), config, stop);
            spawn_noted(&self.env, &ended, indexer.run())
        };
        let indexers: Vec<_> = of_indexers.into_iter().map(indexer).collect();
        drop(ended);
        select(pin!(stop.requested()), pin!(endings.recv())).await;
        let mut outcome = Ok(());
        for (side, stop) in [(workers, stop_workers), (indexers, stop_indexers)] {
            stop.0.request();
            for component in side {
                // Without an answer its task was dropped, and its messenger with it.
                let ended = component.await.unwrap_or(Err(MessengerError::Closed("task of a worker or an indexer")));
                outcome = outcome.and(ended);
            }
        }
        outcome
    }
}

/// Runs several pairs in one process until asked to stop; each of `pairs` is a group member of its own. A pair that
/// gives up ends the pool: the others stop, and the error names it.
pub async fn run_pool<E: Env, F: MessengerFactory>(
    env: E,
    pairs: Vec<F>,
    pipeline: Arc<PipelineSpec>,
    backend: Arc<dyn Backend>,
    worker: WorkerConfig,
    indexer: IndexerConfig,
    stop: Stop,
) -> Result<(), RunError> {
    let pool = StopOnDrop(Stop::new());
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut running = Vec::new();
    for (number, messengers) in pairs.into_iter().enumerate() {
        let (pipeline, backend, stop) = (pipeline.clone(), backend.clone(), pool.0.clone());
        let pair =
            run_worker_indexer(env.clone(), messengers, pipeline, backend, worker.clone(), indexer.clone(), stop);
        let named = pair.map_err(move |error| RunError::Component { component: format!("pair {number}"), error });
        running.push(spawn_noted(&env, &ended, named));
    }
    drop(ended);
    select(pin!(stop.requested()), pin!(endings.recv())).await;
    pool.0.request();
    let mut outcome = Ok(());
    for (number, pair) in running.into_iter().enumerate() {
        let dropped = || RunError::Component {
            component: format!("pair {number}"),
            error: MessengerError::Closed("task of the pair"),
        };
        outcome = outcome.and(pair.await.unwrap_or_else(|_| Err(dropped())));
    }
    outcome
}

/// The same, and tells `ended` when it has.
fn spawn_noted<E: Env, R: Send + 'static>(
    env: &E,
    ended: &mpsc::UnboundedSender<()>,
    task: impl Future<Output = R> + Send + 'static,
) -> oneshot::Receiver<R> {
    let ended = ended.clone();
    spawn(env, async move {
        let outcome = task.await;
        // Nobody may be waiting.
        let _ = ended.send(());
        outcome
    })
}
