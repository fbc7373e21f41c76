//! How runs end that cannot go on.

use super::*;
use crate::document::Document;
use crate::index::memory::{MemoryIndex, SharedMemoryIndex};
use crate::messenger::local::{LocalConfig, LocalMessengers};
use crate::stage::{StageSpec, Step};
use crate::testing::Bench;

/// Publishes one document.
struct One;

impl Connector for One {
    fn name(&self) -> &str {
        "one"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        let document = Document::new("a").expect("an id");
        async move { publisher.publish(document).await.map(|_| ()).map_err(|error| ConnectorError(error.to_string())) }
            .boxed()
    }
}

/// Messengers of which no worker ever gets one.
#[derive(Clone)]
struct NoWorkers(LocalMessengers<Bench>);

impl MessengerFactory for NoWorkers {
    type Worker = <LocalMessengers<Bench> as MessengerFactory>::Worker;
    type Indexer = <LocalMessengers<Bench> as MessengerFactory>::Indexer;
    type Publisher = <LocalMessengers<Bench> as MessengerFactory>::Publisher;

    fn sides(&self) -> crate::messenger::Sides {
        self.0.sides()
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        Err(MessengerError::Closed("broker"))
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        self.0.indexer().await
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        self.0.publisher().await
    }
}

fn run<F: MessengerFactory>(
    bench: &Bench,
    messengers: &F,
    stages: Vec<StageSpec>,
    options: &LocalOptions,
) -> (Vec<ConnectorSummary>, Result<(), RunError>) {
    let pipeline = Arc::new(PipelineSpec::new("p", stages));
    let backend = Arc::new(SharedMemoryIndex::new(bench.clone(), MemoryIndex::new(Duration::from_secs(60))));
    let mut connectors: [Box<dyn Connector>; 1] = [Box::new(One)];
    let run = run_together(bench, messengers, pipeline, backend, &mut connectors, options);
    bench.run(Duration::from_secs(120), run).expect("it ends")
}

#[test]
fn a_run_whose_worker_gives_up_ends_and_says_so() {
    let bench = Bench::default();
    let messengers = NoWorkers(LocalMessengers::new(bench.clone(), &LocalConfig::default()));
    let (_, outcome) = run(&bench, &messengers, Vec::new(), &LocalOptions::default());
    assert_eq!(outcome.expect_err("nobody works").to_string(), "worker 0 gave up: the broker is gone");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.tasks(), 0, "something of the run lives on");
}

#[test]
fn a_stage_that_waits_for_ever_does_not_outlive_the_limit() {
    let bench = Bench::default();
    let messengers = LocalMessengers::new(bench.clone(), &LocalConfig::default());
    struct Never(Option<Document>);
    impl crate::stage::Stage for Never {
        fn start(&mut self, document: Document) {
            self.0 = Some(document);
        }

        fn next(&mut self) -> Result<Step, crate::stage::StageError> {
            Ok(self.0.take().map_or(Step::End, |_| Step::Wait(std::future::pending().boxed())))
        }
    }
    let options = LocalOptions {
        run: RunOptions { limit: Some(Duration::from_secs(5)), ..RunOptions::default() },
        ..LocalOptions::default()
    };
    let (summaries, outcome) = run(&bench, &messengers, vec![StageSpec::new("never", || Never(None))], &options);
    assert!(matches!(outcome, Err(RunError::Limit { .. })), "{outcome:?}");
    assert_eq!((summaries[0].counts.published, summaries[0].counts.completed), (1, 0));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.tasks(), 0, "something of the run lives on");
}
