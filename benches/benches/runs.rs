//! Whole runs: a simulated seed with all faults, the checkers on a history, and local mode from file to file.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use benches::{COLUMNS, line, stages};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::{BoxFuture, FutureExt};
use scenarios::drive::{Correct, Simulated};
use scenarios::plan::Plan;
use scenarios::run::{Outcome, RunOptions, run_fresh};
use scenarios::scenario::find;
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers};
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::publisher::Publisher;
use seriatim_core::runner::{LocalOptions, run_together};
use seriatim_ingest::csv_sink::CsvSink;
use seriatim_ingest::env::TokioEnv;
use seriatim_ingest::jsonl::{JsonlConnector, OnBadLine};
use seriatim_sim::checkers::{CheckOptions, check};
use seriatim_sim::history::Event;
use seriatim_sim::recorded::{RecordedBackend, RecordedTransport, decode_lifecycle};
use seriatim_sim::{World, WorldConfig};

/// The shape of plans, and the allocator: the same as the example measures.
#[path = "../../scenarios/examples/seed_speed.rs"]
#[expect(dead_code, reason = "its `main` is for the example")]
mod seed_speed;

const LOCAL_DOCUMENTS: usize = 100_000;
const HISTORY_DOCUMENTS: usize = 500;

fn seed(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("seed");
    group.sample_size(20).throughput(Throughput::Elements(1));
    let scenario = find("distributed-all").expect("there is such a scenario");
    let mut seeds = 0..;
    group.bench_function("distributed-all, 500 records", |bencher| {
        bencher.iter(|| {
            let plan = seed_speed::shaped(Plan::draw(scenario, seeds.next().expect("endless")));
            let report = run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
            assert_eq!(report.outcome, Outcome::Pass, "seed {}", plan.seed);
        });
    });
    group.finish();
}

/// Publishes lines of the light work.
struct Lines(usize);

impl Connector for Lines {
    fn name(&self) -> &str {
        "lines"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        let documents = (0..self.0).map(|number| Document::parse(line(number)).expect("a document")).collect();
        async move { publisher.publish_all(documents).await.map_err(|error| ConnectorError(error.to_string())) }.boxed()
    }
}

/// What is recorded of one process that publishes, works and indexes over the simulated Kafka.
fn history() -> Vec<Event> {
    let outcome = seriatim_sim::run(1, WorldConfig::default(), |world: World| async move {
        let config = KafkaConfig::new("p");
        for (topic, partitions) in [(&config.topics.source, 6), (&config.topics.dest, 6), (&config.topics.fail, 1)] {
            world.create_topic(topic, partitions);
        }
        world.spawn("process", move |node| {
            let config = config.clone();
            async move {
                let transport = RecordedTransport::new(node.transport(), node.recorder(), decode_lifecycle);
                let messengers = KafkaMessengers::new(node.env(), transport, config);
                let backend = Arc::new(RecordedBackend::new(node.index(), node.recorder()));
                let mut connectors: Vec<Box<dyn Connector>> = vec![Box::new(Lines(HISTORY_DOCUMENTS))];
                let pipeline = Arc::new(PipelineSpec::new("p", stages()));
                let options = LocalOptions { workers: 3, indexers: 2, ..LocalOptions::default() };
                let (_, outcome) =
                    run_together(&node.env(), &messengers, pipeline, backend, &mut connectors, &options).await;
                outcome.expect("nothing fails here");
            }
        });
        while !world.has_exited("process") {
            world.sleep(Duration::from_millis(50)).await;
        }
    });
    outcome.result.expect("it comes to its end");
    outcome.recorder.expect("the world was made").take()
}

fn checkers(criterion: &mut Criterion) {
    let events = history();
    // The runner's own summary is not part of what was recorded here.
    let options = CheckOptions { expect_completion: false, ..CheckOptions::default() };
    assert_eq!(check(&events, &options), []);
    let mut group = criterion.benchmark_group("checkers");
    group.throughput(Throughput::Elements(events.len() as u64));
    group.bench_function("all, events of 500 records", |bencher| bencher.iter(|| check(&events, &options)));
    group.finish();
}

async fn local(input: &Path, output: &Path) {
    let env = TokioEnv::new();
    let sink = Arc::new(CsvSink::create(output, &COLUMNS).expect("a file in a temporary folder"));
    let messengers = LocalMessengers::new(env.clone(), &LocalConfig::default());
    let connector = JsonlConnector::new(env.clone(), "jsonl", input, OnBadLine::Stop);
    let mut connectors: Vec<Box<dyn Connector>> = vec![Box::new(connector)];
    let pipeline = Arc::new(PipelineSpec::new("light", stages()));
    let options = LocalOptions::default();
    let (summaries, outcome) = run_together(&env, &messengers, pipeline, sink.clone(), &mut connectors, &options).await;
    outcome.expect("the run ends well");
    sink.flush().expect("a file in a temporary folder");
    assert_eq!(summaries[0].counts.parents.indexed, LOCAL_DOCUMENTS as u64);
}

fn local_mode(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.csv"));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&input).expect("a file"));
    for number in 0..LOCAL_DOCUMENTS {
        file.write_all(&line(number)).and_then(|()| file.write_all(b"\n")).expect("a file");
    }
    file.into_inner().expect("a file");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    let mut group = criterion.benchmark_group("local mode");
    group.sample_size(10).throughput(Throughput::Elements(LOCAL_DOCUMENTS as u64));
    group.bench_function("100,000 documents, JSON lines to CSV", |bencher| {
        bencher.iter(|| runtime.block_on(local(&input, &output)));
    });
    group.finish();
}

criterion_group!(benches, seed, checkers, local_mode);
criterion_main!(benches);
