//! The runner: connectors in sequence, each a run of its own; workers and indexers beside them where they share a
//! process; a summary that adds up.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt, select};
use tokio::sync::{mpsc, oneshot};

use crate::connector::{Connector, ConnectorError};
use crate::env::Env;
use crate::identity::RunId;
use crate::index::Backend;
use crate::indexer::{Indexer, IndexerConfig};
use crate::machines::ledger::{Ledger, LedgerSummary, TicketLedger};
use crate::messenger::{MessengerError, MessengerFactory};
use crate::pipeline::PipelineSpec;
use crate::publisher::{Failure, Publisher, PublisherConfig};
use crate::stop::Stop;
use crate::worker::{Worker, WorkerConfig};

mod pairs;
pub use pairs::{run_pool, run_worker_indexer};

/// Time between two tries to bring a failed component back.
const RESTART_WAIT: Duration = Duration::from_secs(1);
/// Tries in a row to bring a component up before its process gives up.
const RESTARTS_MAX: u32 = 30;

/// Makes the ledger of a run.
pub type LedgerFactory = Arc<dyn Fn(RunId) -> Box<dyn Ledger> + Send + Sync>;

/// How connectors are run.
#[derive(Clone)]
pub struct RunOptions {
    /// Limits of the publisher.
    pub publisher: PublisherConfig,
    /// The longest time that a connector and the documents it published may take; `None` for no limit.
    pub limit: Option<Duration>,
    /// Makes the ledgers.
    pub ledger: LedgerFactory,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            publisher: PublisherConfig::default(),
            limit: None,
            ledger: Arc::new(|run| Box::new(TicketLedger::new(run))),
        }
    }
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions").field("publisher", &self.publisher).field("limit", &self.limit).finish()
    }
}

/// What became of one connector's documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectorSummary {
    /// The connector.
    pub connector: String,
    /// Its run.
    pub run: RunId,
    /// The counts.
    pub counts: LedgerSummary,
    /// The first few that failed, of those in `counts`.
    pub failures: Vec<Failure>,
    /// From opening to completion.
    pub elapsed: Duration,
}

impl fmt::Display for ConnectorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LedgerSummary { published, completed, parents, children, .. } = &self.counts;
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{}: {published} published, {completed} complete", self.connector)?;
        let LedgerSummary { ambiguous_families, conflicts, .. } = self.counts;
        for (count, one, more) in [
            (ambiguous_families, "ambiguous family", "ambiguous families"),
            (conflicts, "conflicting outcome", "conflicting outcomes"),
        ] {
            if count > 0 {
                write!(f, ", {count} {}", if count == 1 { one } else { more })?;
            }
        }
        write!(f, " in {seconds:.2} s")?;
        write!(
            f,
            " ({} indexed, {} superseded, {} dropped, {} failed",
            parents.indexed, parents.superseded, parents.dropped, parents.failed
        )?;
        if children.total() > 0 {
            write!(
                f,
                "; children: {} indexed, {} superseded, {} dropped, {} failed",
                children.indexed, children.superseded, children.dropped, children.failed
            )?;
        }
        write!(f, ")")?;
        for failure in &self.failures {
            write!(f, "\n  failed: {failure}")?;
        }
        match (parents.failed + children.failed).saturating_sub(self.failures.len() as u64) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more that failed"),
        }
    }
}

/// Why a run did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A connector stopped. The connectors after it were not started.
    #[error("connector `{connector}`: {error}")]
    Connector {
        /// Its name.
        connector: String,
        /// What it said.
        error: ConnectorError,
    },
    /// The queues failed.
    #[error("connector `{connector}`: {error}")]
    Messenger {
        /// Whose run it was.
        connector: String,
        /// What happened.
        error: MessengerError,
    },
    /// The limit passed.
    #[error("connector `{connector}` was not complete after {limit:?}; pending: {}", pending.join("; "))]
    Limit {
        /// Its name.
        connector: String,
        /// The limit.
        limit: Duration,
        /// What it waited for.
        pending: Vec<String>,
    },
    /// A worker or an indexer gave up, so that the run could not have ended.
    #[error("{component} gave up: {error}")]
    Component {
        /// Which one.
        component: String,
        /// Why.
        error: MessengerError,
    },
}

/// Ends a run that nobody waits for any more; nothing to a run that is complete.
struct AbortOnDrop(Publisher);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `connectors` one after the other; stops at the first that fails. There is a summary of each that published, of
/// the one that failed as far as it was counted.
pub async fn publish<E: Env, F: MessengerFactory>(
    env: &E,
    messengers: &F,
    connectors: &mut [Box<dyn Connector>],
    options: &RunOptions,
) -> (Vec<ConnectorSummary>, Result<(), RunError>) {
    let mut summaries = Vec::new();
    for connector in connectors {
        let started = env.now();
        let mut publisher = None;
        let outcome = publish_one(env, messengers, connector.as_mut(), options, &mut publisher).await;
        connector.close().await;
        if let Some(AbortOnDrop(publisher)) = &publisher {
            summaries.push(ConnectorSummary {
                connector: connector.name().to_owned(),
                run: publisher.run(),
                counts: publisher.summary(),
                failures: publisher.failures(),
                elapsed: env.now().since(started),
            });
        }
        if outcome.is_err() {
            return (summaries, outcome);
        }
    }
    (summaries, Ok(()))
}

async fn publish_one<E: Env, F: MessengerFactory>(
    env: &E,
    messengers: &F,
    connector: &mut dyn Connector,
    options: &RunOptions,
    opened: &mut Option<AbortOnDrop>,
) -> Result<(), RunError> {
    let name = connector.name().to_owned();
    let of_connector = |error| RunError::Connector { connector: name.clone(), error };
    let of_messenger = |error| RunError::Messenger { connector: name.clone(), error };
    connector.pre_execute().await.map_err(of_connector)?;
    let run = RunId(u128::from(env.random()) << 64 | u128::from(env.random()));
    let messenger = messengers.publisher().await.map_err(of_messenger)?;
    let publisher = Publisher::open(env.clone(), messenger, run, (options.ledger)(run), options.publisher.clone())
        .await
        .map_err(of_messenger)?;
    let AbortOnDrop(publisher) = opened.insert(AbortOnDrop(publisher));
    let work = async {
        let executed = connector.execute(publisher).await;
        // What was published comes to its end even when the connector failed.
        publisher.close();
        publisher.completion().await.map_err(of_messenger)?;
        executed.map_err(of_connector)
    };
    match options.limit {
        None => work.await,
        Some(limit) => env.timeout(limit, work).await.unwrap_or_else(|| {
            let pending = publisher.describe_pending(5);
            Err(RunError::Limit { connector: name.clone(), limit, pending })
        }),
    }?;
    connector.post_execute().await.map_err(of_connector)
}

/// Runs one worker until asked to stop; brings it back with a new messenger when its messenger fails.
pub async fn run_worker<E: Env, F: MessengerFactory>(
    env: E,
    messengers: F,
    pipeline: Arc<PipelineSpec>,
    config: WorkerConfig,
    stop: Stop,
) -> Result<(), MessengerError> {
    let restarts = env.clone();
    restarting(&restarts, &stop, || {
        work(env.clone(), messengers.clone(), pipeline.clone(), config.clone(), stop.clone())
    })
    .await
}

/// One worker with one messenger.
async fn work<E: Env, F: MessengerFactory>(
    env: E,
    messengers: F,
    pipeline: Arc<PipelineSpec>,
    config: WorkerConfig,
    stop: Stop,
) -> Result<(), MessengerError> {
    Worker::new(env, messengers.worker().await?, &pipeline, config, stop).run().await
}

/// Runs one indexer until asked to stop; brings it back with a new messenger when its messenger fails.
pub async fn run_indexer<E: Env, F: MessengerFactory>(
    env: E,
    messengers: F,
    backend: Arc<dyn Backend>,
    config: IndexerConfig,
    stop: Stop,
) -> Result<(), MessengerError> {
    let restarts = env.clone();
    restarting(&restarts, &stop, || {
        index(env.clone(), messengers.clone(), backend.clone(), config.clone(), stop.clone())
    })
    .await
}

/// One indexer with one messenger.
async fn index<E: Env, F: MessengerFactory>(
    env: E,
    messengers: F,
    backend: Arc<dyn Backend>,
    config: IndexerConfig,
    stop: Stop,
) -> Result<(), MessengerError> {
    Indexer::new(env, messengers.indexer().await?, backend, config, stop).run().await
}

async fn restarting<E: Env, R: Future<Output = Result<(), MessengerError>>>(
    env: &E,
    stop: &Stop,
    mut component: impl FnMut() -> R,
) -> Result<(), MessengerError> {
    let mut failures = 0;
    loop {
        let started = env.now();
        let Err(error) = component().await else { return Ok(()) };
        if env.now().since(started) > RESTART_WAIT * RESTARTS_MAX {
            failures = 0;
        }
        failures += 1;
        // A right or a credential that is missing is for people to mend, and at once.
        let is_denied = matches!(&error, MessengerError::Transport(error) if error.is_denied());
        if failures > RESTARTS_MAX || is_denied || stop.is_requested() {
            return Err(error);
        }
        env.sleep(RESTART_WAIT).await;
    }
}

/// Everything that a run in one process needs beside its connectors.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Workers.
    pub workers: usize,
    /// Indexers.
    pub indexers: usize,
    /// How a worker works.
    pub worker: WorkerConfig,
    /// How an indexer writes.
    pub indexer: IndexerConfig,
    /// How connectors are run.
    pub run: RunOptions,
}

impl Default for LocalOptions {
    fn default() -> Self {
        // In one process more in flight takes memory and gives nothing: the queues hold less.
        let publisher = PublisherConfig { pending_records_max: 16_384, ..PublisherConfig::default() };
        LocalOptions {
            workers: 1,
            indexers: 1,
            worker: WorkerConfig::default(),
            indexer: IndexerConfig::default(),
            run: RunOptions { publisher, ..RunOptions::default() },
        }
    }
}

/// Runs connectors with workers and indexers in this process, over any messenger: in memory, recording, or Kafka.
pub async fn run_together<E: Env, F: MessengerFactory>(
    env: &E,
    messengers: &F,
    pipeline: Arc<PipelineSpec>,
    backend: Arc<dyn Backend>,
    connectors: &mut [Box<dyn Connector>],
    options: &LocalOptions,
) -> (Vec<ConnectorSummary>, Result<(), RunError>) {
    let stop = Stop::new();
    let (gave_up, mut failures) = mpsc::unbounded_channel();
    let mut components = Vec::new();
    let mut start = |name: String, component: BoxFuture<'static, Result<(), MessengerError>>| {
        let gave_up = gave_up.clone();
        components.push(spawn(env, async move {
            if let Err(error) = component.await {
                // The run may be over already.
                let _ = gave_up.send(RunError::Component { component: name, error });
            }
        }));
    };
    for number in 0..options.workers {
        let (messengers, pipeline) = (messengers.clone(), pipeline.clone());
        let worker = run_worker(env.clone(), messengers, pipeline, options.worker.clone(), stop.clone());
        start(format!("worker {number}"), worker.boxed());
    }
    for number in 0..options.indexers {
        let (messengers, backend) = (messengers.clone(), backend.clone());
        let indexer = run_indexer(env.clone(), messengers, backend, options.indexer.clone(), stop.clone());
        start(format!("indexer {number}"), indexer.boxed());
    }
    drop(gave_up);
    let outcome = {
        let published = pin!(publish(env, messengers, connectors, &options.run));
        let failed = pin!(failures.recv());
        match select(published, failed).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((Some(error), _)) => (Vec::new(), Err(error)),
            // All components ended without an error, which they do only when asked to.
            Either::Right((None, published)) => published.await,
        }
    };
    stop.request();
    for ended in components {
        // An error here means that the component's task was dropped: it has ended all the same.
        let _ = ended.await;
    }
    outcome
}

/// Spawns `task`; the receiver resolves when it has ended.
fn spawn<E: Env, R: Send + 'static>(env: &E, task: impl Future<Output = R> + Send + 'static) -> oneshot::Receiver<R> {
    let (ended, receiver) = oneshot::channel();
    env.spawn(async move {
        // Nobody may be waiting.
        let _ = ended.send(task.await);
    });
    receiver
}

#[cfg(test)]
mod tests;
