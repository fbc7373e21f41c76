//! The whole pipeline over a real broker, in one process: every document indexed once, in its last version, every
//! offset committed.

mod common;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::identity::TopicPartition;
use seriatim_core::index::memory::{MemoryIndex, SharedMemoryIndex};
use seriatim_core::messenger::MessengerFactory;
use seriatim_core::messenger::hybrid::{HybridConfig, HybridMessengers};
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::publisher::Publisher;
use seriatim_core::runner::{LocalOptions, run_together};
use seriatim_core::stage::StageSpec;
use seriatim_core::transport::{Admin as _, NewTopic, Transport as _};

use common::*;

const DOCUMENTS: usize = 12_000;
const IDS: usize = 4_000;

/// Publishes each id several times, with rising values.
struct Generated;

impl Connector for Generated {
    fn name(&self) -> &str {
        "generated"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for number in 0..DOCUMENTS {
                let json = format!(r#"{{"id":"doc-{}","number":{number},"text":"{}"}}"#, number % IDS, "x".repeat(200));
                let document = Document::parse(json.into()).expect("a document");
                publisher.publish(document).await.map_err(|error| ConnectorError(error.to_string()))?;
            }
            Ok(())
        }
        .boxed()
    }
}

async fn run<F: MessengerFactory>(world: &World, name: &str, topics: &[(Arc<str>, String)], messengers: F) {
    let admin = world.transport.admin();
    for (topic, _) in topics {
        let new = NewTopic { name: topic.clone(), partitions: 4, replication: 1 };
        admin.create_topics(vec![new]).await.pop().expect("one").expect("a topic");
        world.seen(topic, 4).await;
    }
    let index = SharedMemoryIndex::new(world.env.clone(), MemoryIndex::new(Duration::from_secs(3_600)));
    let stage = StageSpec::map("enrich", |document| {
        document.set("enriched", true).map_err(|error| seriatim_core::stage::StageError::new(error.to_string()))
    });
    let pipeline = Arc::new(PipelineSpec::new("test", vec![stage]));
    let mut connectors: [Box<dyn Connector>; 1] = [Box::new(Generated)];
    let sides = messengers.sides();
    let options = LocalOptions { workers: sides.workers, indexers: sides.indexers, ..LocalOptions::default() };
    let backend = Arc::new(index.clone());
    let (summaries, outcome) =
        run_together(&world.env, &messengers, pipeline, backend, &mut connectors, &options).await;
    outcome.expect("the run is complete");
    let counts = &summaries[0].counts;
    assert_eq!((counts.published, counts.completed), (DOCUMENTS as u64, DOCUMENTS as u64));
    assert_eq!(counts.parents.indexed + counts.parents.superseded, DOCUMENTS as u64, "{}", summaries[0]);
    let found: BTreeMap<String, u64> = {
        let index = index.lock();
        let number = |body: &[u8]| {
            let document = Document::parse(bytes::Bytes::copy_from_slice(body)).expect("an indexed document");
            assert!(document.has("enriched"));
            document.get_str("number").expect("a number").parse().expect("a number")
        };
        index.documents().map(|(id, _, body)| (id.to_owned(), number(body))).collect()
    };
    let last = |number: usize| (format!("doc-{number}"), (DOCUMENTS - IDS + number) as u64);
    assert_eq!(found, (0..IDS).map(last).collect());
    // What a clean end leaves: no lag.
    for (topic, group) in topics {
        let all: Vec<_> = (0..4).map(|number| TopicPartition::new(topic.clone(), number)).collect();
        let ends: Vec<_> = admin.watermarks(all).await.expect("watermarks").iter().map(|marks| Some(marks.end)).collect();
        assert_eq!(world.committed(group, topic, 4).await, ends, "`{group}` of `{topic}`");
    }
    let rate = DOCUMENTS as f64 / summaries[0].elapsed.as_secs_f64();
    let _ = writeln!(std::io::stderr().lock(), "{name}: {rate:.0} documents a second ({})", summaries[0]);
}

#[test]
fn a_distributed_run_over_a_real_broker_indexes_everything_and_commits_it() {
    with_broker("a_distributed_run_over_a_real_broker", 120, async |world| {
        let config = KafkaConfig::new(&unique("pipeline"));
        let topics = [
            (config.topics.source.clone(), config.topics.worker_group()),
            (config.topics.dest.clone(), config.topics.indexer_group()),
        ];
        let messengers = KafkaMessengers::new(world.env.clone(), world.transport.clone(), config);
        run(&world, "distributed", &topics, messengers).await;
    });
}

#[test]
fn a_hybrid_run_over_a_real_broker_indexes_everything_and_commits_it() {
    with_broker("a_hybrid_run_over_a_real_broker", 120, async |world| {
        let config = HybridConfig::new(&unique("pipeline"));
        let topics = [(config.kafka.topics.source.clone(), config.kafka.topics.worker_group())];
        let messengers = HybridMessengers::new(world.env.clone(), world.transport.clone(), config);
        run(&world, "hybrid", &topics, messengers).await;
    });
}
