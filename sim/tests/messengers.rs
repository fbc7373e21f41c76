//! One suite over all messengers: the same pipeline, the same documents, the same promises, whatever carries them.
//!
//! Local and recording messengers run in memory, Kafka and hybrid ones over the simulated cluster; the clock, the tasks
//! and the index are the simulation's for all of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join, select};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::event::EventKind;
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_core::indexer::{DeletionMarker, IndexerConfig};
use seriatim_core::machines::batcher::BatchLimits;
use seriatim_core::messenger::hybrid::{HybridConfig, HybridMessengers};
use seriatim_core::messenger::kafka::{KafkaConfig, KafkaMessengers};
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::messenger::recording::RecordingMessengers;
use seriatim_core::messenger::{
    Emission, IndexerMessenger, MessengerError, MessengerFactory, Sides, Work, WorkerMessenger,
};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::publisher::Publisher;
use seriatim_core::runner::{
    ConnectorSummary, LocalOptions, RunError, RunOptions, publish, run_indexer, run_pool, run_together, run_worker,
    run_worker_indexer,
};
use seriatim_core::stage::Condition;
use seriatim_core::stages::{ChildSource, DropIf, EmitChildren, FailOn, Fault, SlowOn, Template, Trigger, sleeper};
use seriatim_core::stop::Stop;
use seriatim_core::transport::{Outgoing, Producer, ProducerConfig, Transport};
use seriatim_core::worker::WorkerConfig;
use seriatim_sim::{IndexFault, Node, RequestFault, SimEnv, SimIndex, SimTransport, World, WorldConfig, run};

/// How large everything is.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    workers: usize,
    indexers: usize,
    lane_records_max: usize,
    bytes_max: usize,
    /// Records taken and not settled, of each intake.
    records_max: usize,
    batch: usize,
}

const USUAL: Sizes =
    Sizes { workers: 3, indexers: 3, lane_records_max: 64, bytes_max: 1 << 20, records_max: 500, batch: 20 };
const TINY: Sizes = Sizes { workers: 1, indexers: 1, lane_records_max: 1, bytes_max: 100, records_max: 2, batch: 3 };

/// A family of messengers.
trait Bed: 'static {
    type Messengers: MessengerFactory;

    fn messengers(node: &Node, sizes: Sizes) -> Self::Messengers;

    /// Whether there are topics.
    const DURABLE: bool;
}

struct InMemory;
struct Recording;
struct Kafka;
struct Hybrid;

impl Bed for InMemory {
    type Messengers = LocalMessengers<SimEnv>;
    const DURABLE: bool = false;

    fn messengers(node: &Node, sizes: Sizes) -> Self::Messengers {
        let Sizes { workers, indexers, lane_records_max, bytes_max: queue_bytes_max, .. } = sizes;
        let config = LocalConfig { workers, indexers, lane_records_max, queue_bytes_max, ..LocalConfig::default() };
        LocalMessengers::new(node.env(), &config)
    }
}

impl Bed for Recording {
    type Messengers = RecordingMessengers<LocalMessengers<SimEnv>>;
    const DURABLE: bool = false;

    fn messengers(node: &Node, sizes: Sizes) -> Self::Messengers {
        RecordingMessengers::new(InMemory::messengers(node, sizes))
    }
}

impl Bed for Kafka {
    type Messengers = KafkaMessengers<SimEnv, SimTransport>;
    const DURABLE: bool = true;

    fn messengers(node: &Node, sizes: Sizes) -> Self::Messengers {
        KafkaMessengers::new(node.env(), node.transport(), kafka(sizes))
    }
}

impl Bed for Hybrid {
    type Messengers = HybridMessengers<SimEnv, SimTransport>;
    const DURABLE: bool = true;

    fn messengers(node: &Node, sizes: Sizes) -> Self::Messengers {
        let Sizes { workers, indexers, lane_records_max, bytes_max: queue_bytes_max, .. } = sizes;
        let config = HybridConfig { kafka: kafka(sizes), workers, indexers, lane_records_max, queue_bytes_max };
        HybridMessengers::new(node.env(), node.transport(), config)
    }
}

/// Beds whose work can be taken up by another process.
trait Durable: Bed {
    /// Runs workers and indexers until told to stop.
    fn components(node: &Node, sizes: Sizes, backend: Arc<dyn Backend>, stop: Stop) -> BoxFuture<'static, ()>;
}

impl Durable for Kafka {
    fn components(node: &Node, sizes: Sizes, backend: Arc<dyn Backend>, stop: Stop) -> BoxFuture<'static, ()> {
        let (env, messengers) = (node.env(), Kafka::messengers(node, sizes));
        let worker = run_worker(env.clone(), messengers.clone(), pipeline(&env), WorkerConfig::default(), stop.clone());
        let indexer = run_indexer(env, messengers, backend, indexer_config(sizes), stop);
        join(worker, indexer).map(|(worker, indexer)| worker.and(indexer).unwrap()).boxed()
    }
}

impl Durable for Hybrid {
    fn components(node: &Node, sizes: Sizes, backend: Arc<dyn Backend>, stop: Stop) -> BoxFuture<'static, ()> {
        let (env, messengers) = (node.env(), Hybrid::messengers(node, sizes));
        let (pipeline, worker) = (pipeline(&env), WorkerConfig::default());
        let pair = run_worker_indexer(env, messengers, pipeline, backend, worker, indexer_config(sizes), stop);
        pair.map(Result::unwrap).boxed()
    }
}

fn kafka(sizes: Sizes) -> KafkaConfig {
    let mut config = KafkaConfig::new("p");
    for intake in [&mut config.worker, &mut config.indexer] {
        intake.group.session_timeout = Duration::from_secs(6);
        intake.group.heartbeat_interval = Duration::from_secs(1);
        intake.group.poll_limit = Duration::from_secs(30);
        intake.custody.records_max = sizes.records_max;
    }
    config
}

fn indexer_config(sizes: Sizes) -> IndexerConfig {
    IndexerConfig {
        batch: BatchLimits { items_max: sizes.batch, bytes_max: 1 << 20, age_max: Duration::from_millis(50) },
        deletion: Some(DeletionMarker { field: "kind".into(), value: "delete".into() }),
        ..IndexerConfig::default()
    }
}

/// `family` gives two children, `big` 10,000; `drop` and `fail` do as they say; the rest passes, `slow` slowly.
fn pipeline(env: &SimEnv) -> Arc<PipelineSpec> {
    let children = |name: &str, children| {
        let id = Template::parse("{id}-{n}").unwrap();
        EmitChildren::spec(name, ChildSource::Count { children, id }, &["n"])
            .when([Condition::must_hold(&["kind"], &[name])])
    };
    let kind = |kind| Trigger::holds("kind", kind);
    let stages = vec![
        children("family", 2),
        children("big", 10_000),
        SlowOn::spec("slow", kind("slow"), Duration::from_millis(30), sleeper(env.clone())),
        DropIf::spec("drop", kind("drop")),
        FailOn::spec("fail", kind("fail"), Fault::Error),
    ];
    Arc::new(PipelineSpec::new("p", stages))
}

#[derive(Clone, Debug)]
struct Op {
    id: String,
    kind: &'static str,
    n: usize,
}

impl Op {
    fn document(&self) -> Document {
        let json = format!("{{\"id\":\"{}\",\"kind\":\"{}\",\"n\":{}}}", self.id, self.kind, self.n);
        Document::parse(json.into()).unwrap()
    }
}

/// `count` operations on a few ids, of the kinds given, in an order that depends on the seed alone.
fn operations(seed: u64, count: usize, kinds: &[&'static str]) -> Vec<Op> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    (0..count).map(|n| Op { id: format!("d{}", draw(40)), kind: kinds[draw(kinds.len())], n }).collect()
}

/// What the index has in the end: the model of the whole pipeline.
fn model(ops: &[Op], refused: impl Fn(&str) -> bool) -> BTreeMap<String, usize> {
    let mut index = BTreeMap::new();
    for Op { id, kind, n } in ops {
        let children = if *kind == "family" { 2 } else { 0 };
        let written = (0..children).map(|child| format!("{id}-{child}")).chain([id.clone()]);
        match *kind {
            "drop" | "fail" => {}
            "delete" => {
                index.remove(id);
            }
            _ => index.extend(written.filter(|id| !refused(id)).map(|id| (id, *n))),
        }
    }
    index
}

fn index(world: &World) -> BTreeMap<String, usize> {
    let documents = world.index_documents();
    documents.into_iter().map(|(id, (_, body))| (id.to_string(), number(&body))).collect()
}

fn number(body: &[u8]) -> usize {
    serde_json::from_slice::<serde_json::Value>(body).unwrap()["n"].as_u64().unwrap() as usize
}

fn count(ops: &[Op], kind: &str) -> u64 {
    ops.iter().filter(|op| op.kind == kind).count() as u64
}

/// Publishes operations, so far apart.
struct Operations(Vec<Op>, SimEnv, Duration);

impl Connector for Operations {
    fn name(&self) -> &str {
        "operations"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for op in &self.0 {
                if !self.2.is_zero() {
                    self.1.sleep(self.2).await;
                }
                publisher.publish(op.document()).await.map_err(|error| ConnectorError(error.to_string()))?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// Writes in the order in which they were asked for: index id, and the number of an upsert.
type Writes = Arc<Mutex<Vec<(String, Option<usize>)>>>;

/// A backend that keeps what was written through it.
struct Noted(SimIndex, Writes);

impl Backend for Noted {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        let write = |op: &IndexOp| match &op.action {
            Action::Upsert(body) => (op.id.to_string(), Some(number(body.json()))),
            Action::Delete => (op.id.to_string(), None),
        };
        self.1.lock().unwrap().extend(ops.iter().map(write));
        self.0.bulk(ops)
    }
}

/// The writes of each id go by the order of their publishes, and none is made twice.
fn assert_in_order(writes: &Writes) {
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for (id, n) in writes.lock().unwrap().iter() {
        let n = n.unwrap();
        let before = last.insert(id.clone(), n);
        assert!(before.is_none_or(|before| before < n), "{id}: {n} was written after {before:?}");
    }
}

fn world_of<B: Bed, T: Send, F>(seed: u64, test: impl FnOnce(World) -> F + Send) -> T
where
    F: Future<Output = T>,
{
    let config = WorldConfig { time_limit: Duration::from_secs(3_600), ..WorldConfig::default() };
    let outcome = run(seed, config, |world| {
        if B::DURABLE {
            world.create_topic("p_source", 4);
            world.create_topic("p_dest", 3);
            world.create_topic("p_fail", 1);
        }
        test(world)
    });
    outcome.unwrap()
}

/// Runs everything in one process.
async fn together<F: MessengerFactory>(
    node: &Node,
    messengers: &F,
    sizes: Sizes,
    ops: &[Op],
    indexer: IndexerConfig,
    writes: &Writes,
) -> (ConnectorSummary, Result<(), RunError>) {
    let env = node.env();
    let options = LocalOptions { workers: sizes.workers, indexers: sizes.indexers, indexer, ..LocalOptions::default() };
    let mut connectors: [Box<dyn Connector>; 1] = [Box::new(Operations(ops.to_vec(), env.clone(), Duration::ZERO))];
    let backend = Arc::new(Noted(node.index(), writes.clone()));
    let (mut summaries, outcome) =
        run_together(&env, messengers, pipeline(&env), backend, &mut connectors, &options).await;
    (summaries.pop().expect("it published"), outcome)
}

fn lag(world: &World) -> u64 {
    world.lag("p_workers", "p_source")
}

/// Records that no document can be made of.
async fn poison(node: &Node, records: usize) {
    let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
    let record = |number: usize| Outgoing {
        topic: "p_source".into(),
        partition: Some(number as i32 % 4),
        key: Some("poison".into()),
        value: Some("{not json".into()),
        headers: Vec::new(),
    };
    for outcome in producer.send_all((0..records).map(record).collect()).await.await {
        outcome.unwrap();
    }
}

fn everything_published_comes_to_its_end<B: Bed>() {
    let kinds = ["plain", "plain", "slow", "family", "drop", "fail", "delete"];
    for seed in 1..4 {
        let ops = operations(seed, 300, &kinds);
        world_of::<B, _, _>(seed, |world| async move {
            let refused = |id: &str| id.ends_with("-1");
            let mut requests = 0;
            world.on_index(Some(Box::new(move |_, ops| {
                requests += 1;
                let places = |wanted: fn(&str) -> bool| {
                    let places = ops.iter().enumerate().filter(move |(_, op)| wanted(&op.id));
                    places.map(|(place, _)| place).collect()
                };
                let away = if requests % 7 == 3 { RequestFault::Unavailable } else { RequestFault::None };
                IndexFault { refused: places(|id| id.ends_with("-1")), request: away, ..IndexFault::default() }
            })));
            let node = world.node("process");
            let poisoned = if B::DURABLE { 6 } else { 0 };
            if B::DURABLE {
                poison(&node, poisoned).await;
            }
            let messengers = B::messengers(&node, USUAL);
            let (summary, outcome) =
                together(&node, &messengers, USUAL, &ops, indexer_config(USUAL), &Writes::default()).await;
            outcome.unwrap();
            assert_eq!(index(&world), model(&ops, refused));
            let (parents, children) = (summary.counts.parents, summary.counts.children);
            let families = count(&ops, "family");
            assert_eq!((summary.counts.published, summary.counts.completed), (300, 300));
            assert_eq!((parents.dropped, parents.failed), (count(&ops, "drop"), count(&ops, "fail")));
            assert_eq!(parents.total(), 300);
            assert_eq!((children.indexed + children.superseded, children.failed), (families, families));
            if B::DURABLE {
                let dead: usize = world.log("p_fail").values().map(Vec::len).sum();
                assert_eq!(dead as u64, poisoned as u64 + count(&ops, "fail") + families);
                assert_eq!(lag(&world), 0, "something was not committed");
            }
        });
    }
}

fn order_holds_for_each_id_without_versions<B: Bed>() {
    for seed in 1..4 {
        let ops = operations(seed, 400, &["plain", "slow", "plain"]);
        world_of::<B, _, _>(seed, |world| async move {
            let (node, writes) = (world.node("process"), Writes::default());
            let config = IndexerConfig { versions: false, ..indexer_config(USUAL) };
            let (_, outcome) = together(&node, &B::messengers(&node, USUAL), USUAL, &ops, config, &writes).await;
            outcome.unwrap();
            assert_in_order(&writes);
            assert_eq!(writes.lock().unwrap().len(), 400);
            assert_eq!(index(&world), model(&ops, |_| false));
        });
    }
}

fn a_big_family_goes_through_tiny_queues<B: Bed>() {
    let mut ops = operations(9, 40, &["plain", "family"]);
    ops.insert(20, Op { id: "big".into(), kind: "big", n: 1_000 });
    world_of::<B, _, _>(9, |world| async move {
        let (node, writes) = (world.node("process"), Writes::default());
        let messengers = B::messengers(&node, TINY);
        let (summary, outcome) = together(&node, &messengers, TINY, &ops, indexer_config(TINY), &writes).await;
        outcome.unwrap();
        let index = index(&world);
        let of_big = index.keys().filter(|id| id.starts_with("big")).count();
        assert_eq!(of_big, 10_001);
        assert_eq!(index.len() - of_big, model(&ops, |id| id.starts_with("big")).len());
        assert_eq!(summary.counts.children.total(), 10_000 + 2 * count(&ops, "family"));
        if B::DURABLE {
            assert_eq!(lag(&world), 0);
        }
    });
}

fn a_recording_keeps_what_passes<B: Bed>() {
    let ops = operations(5, 100, &["plain", "family", "drop", "fail", "delete"]);
    world_of::<B, _, _>(5, |world| async move {
        let (node, writes) = (world.node("process"), Writes::default());
        let messengers = RecordingMessengers::new(B::messengers(&node, USUAL));
        let (_, outcome) = together(&node, &messengers, USUAL, &ops, indexer_config(USUAL), &writes).await;
        outcome.unwrap();
        let passed = messengers.passed();
        let ids = |documents: &[Document]| documents.iter().map(|one| one.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&passed.for_processing), ops.iter().map(|op| op.id.clone()).collect::<Vec<_>>());
        let mut written: Vec<String> = writes.lock().unwrap().iter().map(|(id, _)| id.clone()).collect();
        let mut sent = ids(&passed.for_indexing);
        written.sort_unstable();
        sent.sort_unstable();
        assert_eq!(sent, written);
        let kinds = |kind| passed.events.iter().filter(|event| event.kind == kind).count() as u64;
        let families = count(&ops, "family");
        let finished = 3 * families + count(&ops, "plain") + count(&ops, "delete");
        let expected = [2 * families, finished, count(&ops, "fail"), count(&ops, "drop")];
        assert_eq!([EventKind::Create, EventKind::Finish, EventKind::Fail, EventKind::Drop].map(kinds), expected);
        assert_eq!(passed.failed.len() as u64, count(&ops, "fail"));
    });
}

/// Messengers of which one worker or one indexer fails once, at the poll with that number.
#[derive(Clone)]
struct Failing<F> {
    inner: F,
    worker: Arc<AtomicI64>,
    indexer: Arc<AtomicI64>,
}

struct Half<M>(M, Arc<AtomicI64>);

impl<M> Half<M> {
    fn count(&self) -> Result<(), MessengerError> {
        if self.1.fetch_sub(1, Ordering::Relaxed) == 1 { Err(MessengerError::Closed("test")) } else { Ok(()) }
    }
}

impl<F: MessengerFactory> MessengerFactory for Failing<F> {
    type Worker = Half<F::Worker>;
    type Indexer = Half<F::Indexer>;
    type Publisher = F::Publisher;

    fn sides(&self) -> Sides {
        self.inner.sides()
    }

    async fn worker(&self) -> Result<Self::Worker, MessengerError> {
        Ok(Half(self.inner.worker().await?, self.worker.clone()))
    }

    async fn indexer(&self) -> Result<Self::Indexer, MessengerError> {
        Ok(Half(self.inner.indexer().await?, self.indexer.clone()))
    }

    async fn publisher(&self) -> Result<Self::Publisher, MessengerError> {
        self.inner.publisher().await
    }
}

impl<M: WorkerMessenger> WorkerMessenger for Half<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.count()?;
        self.0.poll(records_max).await
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.0.send(emissions).await
    }

    fn drain(&mut self) {
        self.0.drain();
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Half<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.count()?;
        self.0.poll(records_max).await
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.0.complete(outcomes).await
    }

    fn drain(&mut self) {
        self.0.drain();
    }

    async fn close(&mut self) {
        self.0.close().await;
    }
}

fn a_component_whose_messenger_fails_is_brought_back<B: Durable>() {
    for (seed, (worker, indexer)) in (1..).zip([(4, 0), (0, 4), (3, 9)]) {
        let ops = operations(seed, 300, &["plain", "slow", "family", "drop"]);
        world_of::<B, _, _>(seed, |world| async move {
            let node = world.node("process");
            let messengers = Failing {
                inner: B::messengers(&node, USUAL),
                worker: Arc::new(AtomicI64::new(worker)),
                indexer: Arc::new(AtomicI64::new(indexer)),
            };
            let (summary, outcome) =
                together(&node, &messengers, USUAL, &ops, indexer_config(USUAL), &Writes::default()).await;
            outcome.unwrap();
            let left = [&messengers.worker, &messengers.indexer].map(|left| left.load(Ordering::Relaxed));
            assert!(left.iter().all(|left| *left <= 0), "nothing failed: {left:?}");
            assert_eq!(index(&world), model(&ops, |_| false));
            assert_eq!(summary.counts.completed, 300);
        });
    }
}

/// Runs a node's components until the world asks it to stop.
async fn until_stopped<B: Durable>(node: Node, sizes: Sizes, writes: Writes) {
    let stop = Stop::new();
    let backend = Arc::new(Noted(node.index(), writes));
    let mut running = B::components(&node, sizes, backend, stop.clone());
    select(&mut running, pin!(node.stopping())).await;
    stop.request();
    running.await;
}

async fn published(node: &Node, messengers: &impl MessengerFactory, ops: &[Op], apart: Duration) -> ConnectorSummary {
    let env = node.env();
    let mut connectors: [Box<dyn Connector>; 1] = [Box::new(Operations(ops.to_vec(), env.clone(), apart))];
    let (mut summaries, outcome) = publish(&env, messengers, &mut connectors, &RunOptions::default()).await;
    outcome.unwrap();
    summaries.pop().unwrap()
}

/// Versions stay on, but have nothing to do: a planned rebalance and a planned stop neither repeat nor reorder.
fn a_successor_goes_on_where_a_stopped_one_ended<B: Durable>() {
    for seed in 1..4 {
        let ops = operations(seed, 600, &["plain", "slow", "plain"]);
        world_of::<B, _, _>(seed, |world| async move {
            let writes = Writes::default();
            for name in ["first", "second"] {
                let writes = writes.clone();
                world.spawn(name, move |node| until_stopped::<B>(node, USUAL, writes.clone()));
                world.sleep(Duration::from_secs(1)).await;
                world.note(name, "has begun");
            }
            let (stopping, noted) = (world.clone(), writes.clone());
            let change = async move {
                stopping.sleep(Duration::from_secs(6)).await;
                let before = noted.lock().unwrap().len();
                assert!((50..550).contains(&before), "{before} writes: it is not in mid-run");
                assert!(stopping.stop("first", Duration::from_secs(12)).await, "it does not end");
                let again = noted.clone();
                stopping.spawn("third", move |node| until_stopped::<B>(node, USUAL, again.clone()));
            };
            let node = world.node("publisher");
            let messengers = B::messengers(&node, USUAL);
            let publishing = published(&node, &messengers, &ops, Duration::from_millis(20));
            let (summary, ()) = join(publishing, change).await;
            assert_eq!(summary.counts.completed, 600);
            assert_in_order(&writes);
            assert_eq!(writes.lock().unwrap().len(), 600, "something was written twice");
            assert_eq!(index(&world), model(&ops, |_| false));
            for name in ["second", "third"] {
                assert!(world.stop(name, Duration::from_secs(12)).await, "{name} does not end");
            }
            assert_eq!(lag(&world), 0);
        });
    }
}

macro_rules! suite {
    ($name:ident, $bed:ident: $($test:ident)*) => {
        mod $name {
            $(
                #[test]
                fn $test() {
                    super::$test::<super::$bed>();
                }
            )*
        }
    };
    ($name:ident, $bed:ident) => {
        suite!($name, $bed: everything_published_comes_to_its_end order_holds_for_each_id_without_versions
            a_big_family_goes_through_tiny_queues a_recording_keeps_what_passes);
    };
}

suite!(local, InMemory);
suite!(recording, Recording);
suite!(kafka_topics, Kafka);
suite!(hybrid, Hybrid);
suite!(kafka_lasting, Kafka:
    a_component_whose_messenger_fails_is_brought_back a_successor_goes_on_where_a_stopped_one_ended);
suite!(hybrid_lasting, Hybrid:
    a_component_whose_messenger_fails_is_brought_back a_successor_goes_on_where_a_stopped_one_ended);

/// Three parents become nine documents, and only the offsets of the parents are committed, when all nine are indexed.
#[test]
fn a_pair_commits_nothing_before_it_is_indexed() {
    let ops: Vec<Op> = (0..3).map(|n| Op { id: format!("p{n}"), kind: "family", n }).collect();
    world_of::<Hybrid, _, _>(3, |world| async move {
        let away = Arc::new(AtomicBool::new(true));
        let told = away.clone();
        world.on_index(Some(Box::new(move |_, _| {
            let request = if told.load(Ordering::Relaxed) { RequestFault::Unavailable } else { RequestFault::None };
            IndexFault { request, ..IndexFault::default() }
        })));
        let writes = Writes::default();
        world.spawn("pair", move |node| until_stopped::<Hybrid>(node, TINY, writes.clone()));
        let watched = world.clone();
        let watch = async move {
            watched.sleep(Duration::from_secs(20)).await;
            assert_eq!(watched.committed("p_workers", "p_source").values().filter(|one| one.offset > 0).count(), 0);
            assert_eq!(index(&watched).len(), 0);
            away.store(false, Ordering::Relaxed);
        };
        let node = world.node("publisher");
        let messengers = Hybrid::messengers(&node, TINY);
        let (summary, ()) = join(published(&node, &messengers, &ops, Duration::ZERO), watch).await;
        assert_eq!((summary.counts.completed, index(&world).len()), (3, 9));
        assert!(world.stop("pair", Duration::from_secs(12)).await);
        let committed = world.committed("p_workers", "p_source");
        assert_eq!(committed.values().map(|one| one.offset).sum::<i64>(), 3);
    });
}

#[test]
fn the_pairs_of_a_pool_share_the_partitions() {
    let ops = operations(2, 400, &["plain", "slow", "family"]);
    world_of::<Hybrid, _, _>(2, |world| async move {
        let writes = Writes::default();
        let noted = writes.clone();
        world.spawn("pool", move |node| {
            let (env, stop, backend) = (node.env(), Stop::new(), Arc::new(Noted(node.index(), noted.clone())));
            let pairs = (0..2).map(|_| Hybrid::messengers(&node, USUAL)).collect();
            let (pipeline, worker, indexer) = (pipeline(&env), WorkerConfig::default(), indexer_config(USUAL));
            async move {
                let pool = run_pool(env, pairs, pipeline, backend, worker, indexer, stop.clone());
                let mut pool = pin!(pool);
                select(pool.as_mut(), pin!(node.stopping())).await;
                stop.request();
                pool.await.unwrap();
            }
        });
        let node = world.node("publisher");
        let messengers = Hybrid::messengers(&node, USUAL);
        let summary = published(&node, &messengers, &ops, Duration::from_millis(5)).await;
        assert_eq!(summary.counts.completed, 400);
        assert_eq!(index(&world), model(&ops, |_| false));
        assert!(world.stop("pool", Duration::from_secs(12)).await);
        assert_eq!(lag(&world), 0);
        let ids: BTreeSet<_> = writes.lock().unwrap().iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(ids, index(&world).into_keys().collect());
    });
}
