//! Whole runs in one process under tokio: what passes, what is counted, what order holds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::event::EventKind;
use seriatim_core::index::memory::{MemoryIndex, SharedMemoryIndex};
use seriatim_core::indexer::{DeletionMarker, IndexerConfig};
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::messenger::recording::RecordingMessengers;
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::publisher::{Publisher, PublisherConfig};
use seriatim_core::runner::{ConnectorSummary, LocalOptions, RunError, RunOptions, run_together};
use seriatim_core::stage::{Condition, StageError, StageSpec};
use seriatim_core::stages::EmitChildren;
use seriatim_ingest::csv_sink::CsvSink;
use seriatim_ingest::dead_letters::JsonlDeadLetters;
use seriatim_ingest::env::TokioEnv;

/// Publishes given documents, from several tasks if asked, and notes the calls of its life.
struct Given {
    name: String,
    documents: Vec<String>,
    fails: bool,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Given {
    fn boxed(name: &str, documents: Vec<String>) -> Box<dyn Connector> {
        Box::new(Given { name: name.into(), documents, fails: false, calls: Arc::default() })
    }

    fn note(&self, call: &str) {
        self.calls.lock().expect("not poisoned").push(format!("{} {call}", self.name));
    }
}

impl Connector for Given {
    fn name(&self) -> &str {
        &self.name
    }

    fn pre_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        self.note("pre");
        async { Ok(()) }.boxed()
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        self.note("execute");
        async move {
            for document in self.documents.drain(..) {
                let document = Document::parse(document.into()).expect("a test document");
                publisher.publish(document).await.map_err(|error| ConnectorError(error.to_string()))?;
            }
            if self.fails { Err(ConnectorError("told to fail".into())) } else { Ok(()) }
        }
        .boxed()
    }

    fn post_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        self.note("post");
        async { Ok(()) }.boxed()
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        self.note("close");
        async {}.boxed()
    }
}

type Factory = RecordingMessengers<LocalMessengers<TokioEnv>>;

struct Ran {
    summaries: Vec<ConnectorSummary>,
    outcome: Result<(), RunError>,
    messengers: Factory,
    index: SharedMemoryIndex<TokioEnv>,
}

fn run(stages: Vec<StageSpec>, mut connectors: Vec<Box<dyn Connector>>, options: &LocalOptions) -> Ran {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let env = TokioEnv::new();
        let (workers, indexers) = (options.workers, options.indexers);
        let config = LocalConfig { workers, indexers, lane_records_max: 64, ..LocalConfig::default() };
        let messengers = RecordingMessengers::new(LocalMessengers::new(env.clone(), &config));
        let index = SharedMemoryIndex::new(env.clone(), MemoryIndex::new(Duration::from_secs(3_600)));
        let pipeline = Arc::new(PipelineSpec::new("test", stages));
        let backend = Arc::new(index.clone());
        let work = run_together(&env, &messengers, pipeline, backend, &mut connectors, options);
        let (summaries, outcome) = tokio::time::timeout(Duration::from_secs(60), work).await.expect("it never hangs");
        Ran { summaries, outcome, messengers, index }
    })
}

fn fail_where(field: &'static str) -> StageSpec {
    StageSpec::map("fail", |_| Err(StageError::new("told to fail"))).when([Condition::must_have(&[field])])
}

fn drop_where(field: &'static str) -> StageSpec {
    StageSpec::map("drop", |document| {
        document.mark_dropped();
        Ok(())
    })
    .when([Condition::must_have(&[field])])
}

#[test]
fn a_document_that_fails_fails_alone() {
    let documents = vec![r#"{"id":"a"}"#.into(), r#"{"id":"b","bad":1}"#.into(), r#"{"id":"c"}"#.into()];
    let ran = run(vec![fail_where("bad")], vec![Given::boxed("one", documents)], &LocalOptions::default());
    ran.outcome.expect("the run is complete");
    let counts = &ran.summaries[0].counts;
    assert_eq!((counts.published, counts.completed, counts.parents.indexed, counts.parents.failed), (3, 3, 2, 1));
    let passed = ran.messengers.passed();
    let mut events: Vec<_> = passed.events.iter().map(|event| (event.document_id.to_string(), event.kind)).collect();
    events.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [("a", EventKind::Finish), ("b", EventKind::Fail), ("c", EventKind::Finish)];
    assert_eq!(events, expected.map(|(id, kind)| (id.to_owned(), kind)));
    assert_eq!(passed.failed, [("b".to_owned(), "stage `fail` failed: told to fail".to_owned())]);
}

#[test]
fn every_document_that_fails_is_dead_lettered_with_its_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("dead.jsonl");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let summaries = runtime.expect("a runtime").block_on(async {
        let env = TokioEnv::new();
        let letters = Arc::new(JsonlDeadLetters::append_to(&path).expect("it can be made"));
        let config = LocalConfig { dead_letters: Some(letters), ..LocalConfig::default() };
        let messengers = LocalMessengers::new(env.clone(), &config);
        let rows = CsvSink::create(&folder.path().join("rows.csv"), &["id"]).expect("it can be made");
        let pipeline = Arc::new(PipelineSpec::new("test", vec![fail_where("bad")]));
        // A third fails in its stage, a third in the sink, which cannot delete.
        let document = |n: usize| match n % 3 {
            0 => format!("{{\"id\":\"d{n}\",\"bad\":1}}"),
            1 => format!("{{\"id\":\"d{n}\",\"gone\":\"yes\"}}"),
            _ => format!("{{\"id\":\"d{n}\"}}"),
        };
        let mut connectors = [Given::boxed("one", (0..300).map(document).collect())];
        let deletion = Some(DeletionMarker { field: "gone".into(), value: "yes".into() });
        let options =
            LocalOptions { indexer: IndexerConfig { deletion, ..IndexerConfig::default() }, ..LocalOptions::default() };
        let run = run_together(&env, &messengers, pipeline, Arc::new(rows), &mut connectors, &options);
        let (summaries, outcome) = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it never hangs");
        outcome.expect("the run is complete");
        summaries
    });
    let text = std::fs::read_to_string(&path).expect("it is there");
    let mut letters: Vec<(usize, String)> = text
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            assert_eq!(line["id"], line["document"].get("id").cloned().unwrap_or(line["id"].clone()));
            let number = line["id"].as_str().and_then(|id| id[1..].parse().ok());
            (number.expect("an id"), line["cause"].as_str().expect("a cause").to_owned())
        })
        .collect();
    letters.sort();
    let cause = |n: usize| match n % 3 {
        0 => "stage `fail` failed: told to fail",
        _ => "a CSV file cannot delete a row that it has written",
    };
    let expected: Vec<_> = (0..300).filter(|n| n % 3 != 2).map(|n| (n, cause(n).to_owned())).collect();
    assert_eq!(letters, expected);
    let summary = &summaries[0];
    assert_eq!((summary.counts.parents.failed, summary.failures.len()), (200, 5));
    let shown = summary.to_string();
    assert!(shown.contains("\n  failed: `d0`: stage `fail` failed: told to fail\n"), "{shown}");
    assert!(shown.ends_with("\n  and 195 more that failed"), "{shown}");
}

#[test]
fn a_dropped_child_is_created_and_dropped_and_its_family_is_complete() {
    let stages = vec![
        EmitChildren::count("children", 3),
        StageSpec::map("mark", |document| {
            if document.id() == "a-1" {
                document.mark_dropped();
            }
            Ok(())
        }),
    ];
    let ran = run(stages, vec![Given::boxed("one", vec![r#"{"id":"a"}"#.into()])], &LocalOptions::default());
    ran.outcome.expect("the run is complete");
    let counts = &ran.summaries[0].counts;
    assert_eq!((counts.parents.indexed, counts.children.indexed, counts.children.dropped), (1, 2, 1));
    let passed = ran.messengers.passed();
    let of = |id: &str| passed.events.iter().filter(|e| e.document_id == id).map(|e| e.kind).collect::<Vec<_>>();
    assert_eq!(of("a-1"), [EventKind::Create, EventKind::Drop]);
    assert_eq!(of("a-2"), [EventKind::Create, EventKind::Finish]);
    assert_eq!(of("a"), [EventKind::Finish]);
    assert_eq!(ran.index.lock().len(), 3);
}

#[test]
fn a_connector_that_fails_stops_those_after_it_and_every_started_one_is_closed() {
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let connectors = ["one", "two", "three"].map(|name| -> Box<dyn Connector> {
        let documents = vec![format!(r#"{{"id":"{name}"}}"#)];
        Box::new(Given { name: name.into(), documents, fails: name == "two", calls: calls.clone() })
    });
    let ran = run(Vec::new(), connectors.into(), &LocalOptions::default());
    assert_eq!(ran.outcome.expect_err("two failed").to_string(), "connector `two`: told to fail");
    let complete = ran.summaries.iter().map(|summary| (summary.connector.as_str(), summary.counts.completed));
    assert_eq!(complete.collect::<Vec<_>>(), [("one", 1), ("two", 1)]);
    let expected = ["one pre", "one execute", "one post", "one close", "two pre", "two execute", "two close"];
    assert_eq!(*calls.lock().expect("not poisoned"), expected);
    // What two published before it failed came to its end.
    assert!(ran.index.lock().get("two").is_some());
}

#[test]
fn a_cap_on_pending_documents_does_not_deadlock() {
    let document =
        |n: u32| if n.is_multiple_of(3) { format!(r#"{{"id":"{n}"}}"#) } else { format!(r#"{{"id":"{n}","no":1}}"#) };
    let options = LocalOptions {
        workers: 2,
        run: RunOptions {
            publisher: PublisherConfig { pending_records_max: 10, ..PublisherConfig::default() },
            ..RunOptions::default()
        },
        indexer: IndexerConfig::default(),
        ..LocalOptions::default()
    };
    let mut options = options;
    options.indexer.batch.age_max = Duration::from_millis(1);
    let ran = run(vec![drop_where("no")], vec![Given::boxed("one", (0..20_000).map(document).collect())], &options);
    ran.outcome.expect("the run is complete");
    let counts = &ran.summaries[0].counts;
    assert_eq!((counts.parents.indexed, counts.parents.dropped), (6_667, 13_333));
}

#[test]
fn order_for_each_id_holds_with_several_workers_and_indexers_and_without_versions() {
    let (ids, updates) = (200, 50);
    let documents = (0..ids * updates).map(|n| {
        let (update, id) = (n / ids, n % ids);
        let slow = if (n * 7919) % 97 == 0 { r#","slow":1"# } else { "" };
        let op = if update == updates - 1 && id % 5 == 0 { "delete" } else { "update" };
        format!(r#"{{"id":"doc-{id}","op":"{op}","update":{update}{slow}}}"#)
    });
    let slow = StageSpec::map("slow", |_| {
        std::hint::black_box((0..20_000u64).fold(0u64, |sum, n| sum.wrapping_mul(31).wrapping_add(n)));
        Ok(())
    })
    .when([Condition::must_have(&["slow"])]);
    let options = LocalOptions {
        workers: 4,
        indexers: 3,
        indexer: IndexerConfig {
            versions: false,
            deletion: Some(DeletionMarker { field: "op".into(), value: "delete".into() }),
            ..IndexerConfig::default()
        },
        ..LocalOptions::default()
    };
    let ran = run(vec![slow], vec![Given::boxed("one", documents.collect())], &options);
    ran.outcome.expect("the run is complete");
    let index = ran.index.lock();
    for id in 0..ids {
        let found = index.get(&format!("doc-{id}")).map(|(_, body)| String::from_utf8_lossy(body).into_owned());
        match found {
            None => assert_eq!(id % 5, 0, "doc-{id} is missing"),
            Some(body) => assert!(id % 5 != 0 && body.contains(&format!("\"update\":{}", updates - 1)), "{body}"),
        }
    }
}

#[test]
fn a_run_that_takes_too_long_says_what_is_pending() {
    let stuck = StageSpec::map("stuck", |_| {
        #[expect(clippy::disallowed_methods, reason = "a stage that holds its thread up")]
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    });
    let options = LocalOptions {
        run: RunOptions { limit: Some(Duration::from_millis(200)), ..RunOptions::default() },
        ..LocalOptions::default()
    };
    let ran = run(vec![stuck], vec![Given::boxed("one", vec![r#"{"id":"a"}"#.into()])], &options);
    let error = ran.outcome.expect_err("it takes two seconds").to_string();
    assert!(error.contains("was not complete after 200ms; pending: ") && error.contains("a"), "{error}");
}

/// Publishes from several tasks at once, each its own ids.
struct Several {
    env: TokioEnv,
}

impl Connector for Several {
    fn name(&self) -> &str {
        "several"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let (ended, mut ends) = tokio::sync::mpsc::channel(8);
            for task in 0..8 {
                let (publisher, ended) = (publisher.clone(), ended.clone());
                self.env.spawn(async move {
                    for update in 0..500 {
                        let json = format!(r#"{{"id":"doc-{task}","update":{update}}}"#);
                        let document = Document::parse(json.into()).expect("a test document");
                        publisher.publish(document).await.expect("the run goes on");
                    }
                    ended.send(()).await.expect("somebody waits");
                });
            }
            drop(ended);
            while ends.recv().await.is_some() {}
            Ok(())
        }
        .boxed()
    }
}

#[test]
fn several_tasks_publish_into_one_run_and_each_keeps_its_order() {
    let connectors: Vec<Box<dyn Connector>> = vec![Box::new(Several { env: TokioEnv::new() })];
    let mut options = LocalOptions { workers: 2, indexers: 2, ..LocalOptions::default() };
    options.indexer.versions = false;
    let ran = run(Vec::new(), connectors, &options);
    ran.outcome.expect("the run is complete");
    assert_eq!(ran.summaries[0].counts.completed, 4_000);
    let index = ran.index.lock();
    for task in 0..8 {
        let (_, body) = index.get(&format!("doc-{task}")).expect("it is there");
        assert!(String::from_utf8_lossy(body).contains("\"update\":499"), "an earlier update came last");
    }
}
