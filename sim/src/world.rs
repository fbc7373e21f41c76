//! [`World`]: the control surface of a simulated run, and [`run`], which makes one from a seed.
//!
//! A program is any async code that is given a [`Node`]. The world starts it, crashes it without a goodbye, restarts
//! it, pauses it, asks it to stop, and tells what the cluster and the index hold in the end. It never reaches into a
//! program: what it knows of one, it knows from its requests.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::{BoxFuture, Either, select};
use seriatim_core::env::Instant;
use seriatim_core::identity::{TopicPartition, Version};
use seriatim_core::transport::{Committed, Watermarks};

use crate::client::SimTransport;
use crate::cluster::ClusterConfig;
use crate::cluster::audit::GroupState;
use crate::cluster::protocol::{BatchSlice, BrokerId, CreateTopic, FetchPartition, Record, Request, Response};
use crate::env::SimEnv;
use crate::executor::{self, Executor, lock};
use crate::history::{Keep, NodeRecorder, Recorder, What};
use crate::index_server::{IndexHook, SimIndex};
use crate::network::{Host, Life, Link, Shared};
use crate::rng::{Concern, Stream};
use crate::trace::{TraceLine, TraceMode};

/// How a world is set up.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Least time of one way between a process and a server, microseconds.
    pub latency_min_micros: u64,
    /// Most time of one way.
    pub latency_max_micros: u64,
    /// The cluster.
    pub cluster: ClusterConfig,
    /// How long a client waits for an answer before it gives the request up (`request.timeout.ms`).
    pub request_timeout: Duration,
    /// Pause before a client tries a request again (`retry.backoff.ms`).
    pub retry_backoff: Duration,
    /// Age at which clients refresh their metadata and notice new partitions (`topic.metadata.refresh.interval.ms`).
    pub metadata_max_age: Duration,
    /// How long the broker may hold an empty fetch (`fetch.wait.max.ms`).
    pub fetch_wait: Duration,
    /// How long the index remembers deletes.
    pub tombstone_retention: Duration,
    /// How much of the trace is kept.
    pub trace: TraceMode,
    /// How much of the history is kept.
    pub history: Keep,
    /// Virtual time after which a run that has not ended fails.
    pub time_limit: Duration,
}

impl Default for WorldConfig {
    fn default() -> Self {
        WorldConfig {
            latency_min_micros: 200,
            latency_max_micros: 2_000,
            cluster: ClusterConfig::default(),
            request_timeout: Duration::from_secs(10),
            retry_backoff: Duration::from_millis(100),
            metadata_max_age: Duration::from_secs(300),
            fetch_wait: Duration::from_millis(500),
            tombstone_retention: Duration::from_secs(24 * 3600),
            trace: TraceMode::Ring(200),
            history: Keep::Events,
            time_limit: Duration::from_secs(24 * 3600),
        }
    }
}

/// A run that did not come to its end: a panic anywhere in it, or the time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: the run failed: {message}")]
pub struct RunFailure {
    /// The seed.
    pub seed: u64,
    /// The panic's place and message, or what was waited for.
    pub message: String,
}

/// What a run gave.
#[derive(Debug)]
pub struct RunOutcome<T> {
    /// The seed.
    pub seed: u64,
    /// What the closure returned.
    pub result: Result<T, RunFailure>,
    /// Hash over the whole trace: equal for equal runs.
    pub hash: u64,
    /// Events traced, kept or not.
    pub events: u64,
    /// The trace, as far as it was kept.
    pub trace: Vec<TraceLine>,
    /// The history.
    pub recorder: Option<Recorder>,
    /// Virtual time at the end.
    pub ended_at: Instant,
}

impl<T> RunOutcome<T> {
    /// What the closure returned.
    ///
    /// # Panics
    /// When the run failed, with its seed and the end of its trace.
    pub fn unwrap(self) -> T {
        match self.result {
            Ok(value) => value,
            Err(failure) => {
                let tail = self.trace.iter().rev().take(40).rev();
                let tail: String = tail.map(|line| format!("  {line}\n")).collect();
                panic!("{failure}\nthe trace ends with:\n{tail}");
            }
        }
    }
}

type Program = Arc<dyn Fn(Node) -> BoxFuture<'static, ()> + Send + Sync>;

/// A place where processes live, one after the other.
struct Slot {
    link: Arc<Link>,
    incarnations: u32,
    program: Option<Program>,
    life: Option<Arc<Life>>,
    exited: bool,
}

#[derive(Default)]
struct Slots {
    by_name: BTreeMap<Arc<str>, Slot>,
    lives: u64,
}

/// A simulated world. Clones are the same one.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
    slots: Arc<Mutex<Slots>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.shared.seed).field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Runs `scenario` in a world made from `seed`, on a thread and a clock of its own, to its end.
pub fn run<T, F, Fut>(seed: u64, config: WorldConfig, scenario: F) -> RunOutcome<T>
where
    F: FnOnce(World) -> Fut + Send,
    Fut: Future<Output = T>,
    T: Send,
{
    let made: Mutex<Option<World>> = Mutex::new(None);
    let limit = config.time_limit;
    let order = Stream::new(seed, Concern::Schedule).next_u64();
    let outcome = executor::run(order, |executor| {
        let world = World::new(executor, seed, config);
        *lock(&made) = Some(world.clone());
        async move {
            let limit_reached = pin!(world.shared.executor.sleep(limit));
            let scenario = pin!(scenario(world.clone()));
            match select(scenario, limit_reached).await {
                Either::Left((value, _)) => Ok(value),
                Either::Right(((), _)) => Err(format!("it did not end within {limit:?} of virtual time")),
            }
        }
    });
    let fail = |message| RunFailure { seed, message };
    let result = outcome.and_then(|inner| inner).map_err(fail);
    let Some(world) = lock(&made).take() else {
        return RunOutcome {
            seed,
            result,
            hash: 0,
            events: 0,
            trace: Vec::new(),
            recorder: None,
            ended_at: Instant::default(),
        };
    };
    // Programs may hold the world, and the world holds them.
    let slots = std::mem::take(&mut *lock(&world.slots));
    drop(slots);
    world.shared.clear();
    let inner = world.shared.lock();
    RunOutcome {
        seed,
        result,
        hash: inner.trace.hash(),
        events: inner.trace.events(),
        trace: inner.trace.lines().cloned().collect(),
        recorder: Some(inner.recorder.clone()),
        ended_at: world.shared.executor.now(),
    }
}

impl World {
    fn new(executor: Executor, seed: u64, config: WorldConfig) -> Self {
        let servers = executor.task_group("servers");
        let shared = Arc::new(Shared::new(executor, seed, config));
        shared.executor.spawn(servers, shared.clone().tick());
        World { shared, slots: Arc::default() }
    }

    /// Starts `program` on the new node `name`. A restart runs it again.
    ///
    /// # Panics
    /// When there is a node of that name.
    pub fn spawn<F, Fut>(&self, name: &str, program: F)
    where
        F: Fn(Node) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let program: Program = Arc::new(move |node| Box::pin(program(node)));
        self.with_slot(name, true, |slot| slot.program = Some(program));
        self.begin(name);
    }

    /// The node `name`, made when there is none: a process without a program of its own, for code of the scenario.
    pub fn node(&self, name: &str) -> Node {
        let alive = self.with_slot(name, true, |slot| slot.life.clone().filter(|life| !life.is_dead()));
        match alive {
            Some(life) => Node { host: Host { shared: self.shared.clone(), life } },
            None => self.begin(name),
        }
    }

    /// Kills the process on `name` at once: no goodbye, no flush, no commit. Its requests that are under way arrive.
    pub fn crash(&self, name: &str) {
        if let Some(life) = self.with_slot(name, false, |slot| slot.life.take()).filter(|life| !life.is_dead()) {
            life.kill();
            self.shared.executor.kill(life.group);
            self.shared.lock().forget_life(&life);
            self.note(name, "crashed");
            self.recorder().record(&life.node, life.incarnation, What::Crashed);
        }
    }

    /// Starts the program of `name` again in a new life, after a crash or an end. Crashes one that still runs.
    pub fn restart(&self, name: &str) {
        self.crash(name);
        self.begin(name);
    }

    /// Asks the process on `name` to end ([`Node::stopping`]) and waits at most `bound` for it. Whether it has ended.
    pub async fn stop(&self, name: &str, bound: Duration) -> bool {
        self.request_stop(name);
        let give_up_at = self.now() + bound;
        while !self.has_exited(name) && self.now() < give_up_at {
            self.sleep(Duration::from_millis(5)).await;
        }
        self.has_exited(name)
    }

    /// Asks the process on `name` to end, and does not wait.
    pub fn request_stop(&self, name: &str) {
        if let Some(life) = self.life(name) {
            self.note(name, "asked to stop");
            life.stop();
        }
    }

    /// Whether the program on `name` came to its end by itself.
    pub fn has_exited(&self, name: &str) -> bool {
        self.with_slot(name, false, |slot| slot.exited)
    }

    /// Whether a process lives on `name`, paused or not.
    pub fn is_alive(&self, name: &str) -> bool {
        self.life(name).is_some()
    }

    /// Freezes the process on `name`: heartbeats too. What it waits for goes on.
    pub fn pause(&self, name: &str) {
        if let Some(life) = self.life(name) {
            self.note(name, "paused");
            self.shared.executor.pause(life.group);
        }
    }

    /// Lets a paused process go on.
    pub fn resume(&self, name: &str) {
        if let Some(life) = self.life(name) {
            self.note(name, "resumed");
            self.shared.executor.resume(life.group);
        }
    }

    /// Cuts the link of `name` to every server, out of it, into it, or both; `cut_link(name, false, false)` mends it.
    /// Mending resets the connections: what the cut swallowed is known to be lost then, if not before.
    pub fn cut_link(&self, name: &str, out: bool, into: bool) {
        self.note(name, if out || into { "link cut" } else { "link mended" });
        let link = self.link(name);
        link.cut_out.store(out, Ordering::Relaxed);
        link.cut_in.store(into, Ordering::Relaxed);
        if !out && !into {
            link.resets.fetch_add(1, Ordering::Relaxed);
            self.shared.lock().wake_waiters();
        }
    }

    /// Adds `extra` to each direction of the link of `name`.
    pub fn slow_link(&self, name: &str, extra: Duration) {
        let micros = u64::try_from(extra.as_micros()).unwrap_or(u64::MAX);
        self.link(name).extra_micros.store(micros, Ordering::Relaxed);
    }

    /// Loses the next `count` answers on their way to `name`, each with its connection: the requests were applied.
    pub fn lose_answers(&self, name: &str, count: u64) {
        self.link(name).lose_answers.store(count, Ordering::Relaxed);
    }

    /// Resets every connection of `name`: whatever waits for an answer learns that it will not come.
    pub fn reset_connections(&self, name: &str) {
        self.note(name, "connections reset");
        self.link(name).resets.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().wake_waiters();
    }

    /// Sets the wall clock of `name`: how far it is ahead, microseconds, and its drift, millionths. It may jump.
    pub fn set_wall_clock(&self, name: &str, ahead_micros: i64, drift_ppm: i64) {
        let link = self.link(name);
        link.wall_offset_micros.store(ahead_micros, Ordering::Relaxed);
        link.wall_drift_ppm.store(drift_ppm, Ordering::Relaxed);
    }

    /// Decides what goes wrong with each bulk request from now on; `None` lets all pass.
    pub fn on_index(&self, hook: Option<IndexHook>) {
        self.shared.lock().index.set_hook(hook);
    }

    /// Completes `duration` of virtual time from now.
    pub async fn sleep(&self, duration: Duration) {
        self.shared.executor.sleep(duration).await;
    }

    /// Virtual time since the run began.
    pub fn now(&self) -> Instant {
        self.shared.executor.now()
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// A fresh copy of the seed's stream for `concern`, from its beginning.
    pub fn stream(&self, concern: Concern) -> Stream {
        Stream::new(self.shared.seed, concern)
    }

    /// Waits until `pending` says nothing, at most `bound`; what is still pending then is the `Err`. Asks every 20 ms.
    pub async fn quiet(
        &self,
        bound: Duration,
        mut pending: impl FnMut(&World) -> Option<String>,
    ) -> Result<(), String> {
        let give_up_at = self.now() + bound;
        while let Some(what) = pending(self) {
            if self.now() >= give_up_at {
                return Err(format!("after {bound:?}: {what}"));
            }
            self.sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Creates a topic at once.
    ///
    /// # Panics
    /// When the cluster refuses it, as it does for a topic that exists.
    pub fn create_topic(&self, name: &str, partitions: u32) {
        let topic = CreateTopic { name: name.into(), partitions, replication: 1 };
        match self.ask(BrokerId(0), Request::CreateTopics { topics: vec![topic] }) {
            Some(Response::CreateTopics { topics }) if topics.iter().all(|(_, error)| error.is_none()) => {}
            other => panic!("topic `{name}` was not created: {other:?}"),
        }
    }

    /// Grows a topic to `partitions` in all, at once.
    ///
    /// # Panics
    /// When the cluster refuses it.
    pub fn grow_topic(&self, name: &str, partitions: u32) {
        match self.ask(BrokerId(0), Request::CreatePartitions { topics: vec![(name.into(), partitions)] }) {
            Some(Response::CreatePartitions { topics }) if topics.iter().all(|(_, error)| error.is_none()) => {}
            other => panic!("topic `{name}` did not grow: {other:?}"),
        }
    }

    /// The partitions of a topic; none when there is no such topic.
    pub fn partitions(&self, topic: &str) -> Vec<TopicPartition> {
        let count = match self.ask(BrokerId(0), Request::Metadata { topics: Some(vec![topic.into()]) }) {
            Some(Response::Metadata { topics, .. }) => topics.first().map_or(0, |topic| topic.leaders.len()),
            _ => 0,
        };
        let name: Arc<str> = topic.into();
        (0..count).map(|number| TopicPartition::new(name.clone(), number as i32)).collect()
    }

    /// Every record of a topic with its offset, by partition.
    pub fn log(&self, topic: &str) -> BTreeMap<TopicPartition, Vec<(i64, Record)>> {
        self.partitions(topic).into_iter().map(|partition| (partition.clone(), self.read_log(&partition))).collect()
    }

    fn read_log(&self, partition: &TopicPartition) -> Vec<(i64, Record)> {
        let found = {
            let inner = self.shared.current();
            inner.cluster.leader(partition).zip(inner.cluster.watermarks(partition))
        };
        let Some((leader, watermarks)) = found else { return Vec::new() };
        let fetch = FetchPartition { partition: partition.clone(), offset: watermarks.start, records_max: usize::MAX };
        let (max_wait, records_max) = (Duration::ZERO, usize::MAX);
        match self.ask(leader, Request::Fetch { max_wait, records_max, partitions: vec![fetch] }) {
            Some(Response::Fetch { partitions }) => partitions
                .iter()
                .flat_map(|fetched| fetched.batches.iter().flat_map(BatchSlice::iter))
                .map(|(offset, record)| (offset, record.clone()))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// First and next offsets of a partition.
    pub fn watermarks(&self, partition: &TopicPartition) -> Option<Watermarks> {
        self.shared.current().cluster.watermarks(partition)
    }

    /// What `group` committed for the partitions of `topic`; partitions without a commit are absent.
    pub fn committed(&self, group: &str, topic: &str) -> BTreeMap<TopicPartition, Committed> {
        let partitions = self.partitions(topic);
        let inner = self.shared.current();
        let read = |partition: TopicPartition| Some((partition.clone(), inner.cluster.committed(group, &partition)?));
        partitions.into_iter().filter_map(read).collect()
    }

    /// Records of `topic` from what `group` committed, or from the start, to the end.
    pub fn lag(&self, group: &str, topic: &str) -> u64 {
        let partitions = self.partitions(topic);
        let inner = self.shared.current();
        let lag = |partition: &TopicPartition| {
            let marks = inner.cluster.watermarks(partition)?;
            let committed = inner.cluster.committed(group, partition).map_or(marks.start, |committed| committed.offset);
            Some((marks.end - committed.max(marks.start)).max(0).unsigned_abs())
        };
        partitions.iter().filter_map(lag).sum()
    }

    /// State and generation of a group.
    pub fn group_state(&self, group: &str) -> Option<(GroupState, i32)> {
        self.shared.current().cluster.group_state(group)
    }

    /// Records that live members of `group` polled and that no committed offset covers: what a crash puts at stake.
    pub fn in_flight(&self, group: &str) -> u64 {
        let inner = self.shared.current();
        inner.in_flight(group, |partition| {
            inner.cluster.committed(group, partition).map_or(0, |committed| committed.offset)
        })
    }

    fn ask(&self, to: BrokerId, request: Request) -> Option<Response> {
        self.shared.lock().ask(self.now(), to, request)
    }

    /// What a reader of the index sees.
    pub fn index_documents(&self) -> BTreeMap<CompactString, (Version, Bytes)> {
        let inner = self.shared.current();
        let documents = inner.index.memory().documents();
        documents.map(|(id, version, body)| (id.into(), (version, body.clone()))).collect()
    }

    /// The history of the run. Record what only the scenario knows with it.
    pub fn recorder(&self) -> Recorder {
        self.shared.lock().recorder.clone()
    }

    /// Hash over every event so far.
    pub fn rolling_hash(&self) -> u64 {
        self.shared.current().trace.hash()
    }

    /// The trace, as far as it is kept.
    pub fn trace(&self) -> Vec<TraceLine> {
        self.shared.current().trace.lines().cloned().collect()
    }

    /// Writes a line into the trace.
    pub fn note(&self, node: &str, text: &str) {
        let now = self.now();
        self.shared.lock().trace.push(now, &node.into(), 0, format_args!("{text}"));
    }

    fn with_slot<R>(&self, name: &str, may_be_new: bool, act: impl FnOnce(&mut Slot) -> R) -> R {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.by_name.get_mut(name) {
            return act(slot);
        }
        assert!(may_be_new, "there is no node `{name}`; there are {:?}", slots.by_name.keys());
        let fresh = Slot { link: Arc::default(), incarnations: 0, program: None, life: None, exited: false };
        act(slots.by_name.entry(name.into()).or_insert(fresh))
    }

    fn life(&self, name: &str) -> Option<Arc<Life>> {
        self.with_slot(name, false, |slot| slot.life.clone()).filter(|life| !life.is_dead())
    }

    fn link(&self, name: &str) -> Arc<Link> {
        self.with_slot(name, true, |slot| slot.link.clone())
    }

    /// Begins a new life on `name`, and its program if it has one.
    fn begin(&self, name: &str) -> Node {
        let group = self.shared.executor.task_group(name);
        let number = {
            let mut slots = lock(&self.slots);
            slots.lives += 1;
            slots.lives
        };
        let random = Stream::new(self.shared.seed, Concern::Env { life: number });
        let (life, program) = self.with_slot(name, false, |slot| {
            slot.incarnations += 1;
            let life = Arc::new(Life::new(name.into(), slot.incarnations, group, slot.link.clone(), random));
            slot.life = Some(life.clone());
            slot.exited = false;
            (life, slot.program.clone())
        });
        self.note(name, "started");
        self.recorder().record(&life.node, life.incarnation, What::Started);
        let node = Node { host: Host { shared: self.shared.clone(), life } };
        if let Some(program) = program {
            let (world, inside) = (Arc::downgrade(&self.slots), node.clone());
            node.host.spawn(async move {
                program(inside.clone()).await;
                // The process ends, and its other tasks with it.
                let life = inside.host.life.clone();
                inside.host.shared.lock().recorder.record(&life.node, life.incarnation, What::Stopped);
                life.kill();
                inside.host.shared.lock().forget_life(&life);
                inside.host.shared.executor.kill(life.group);
                if let Some(slots) = world.upgrade()
                    && let Some(slot) = lock(&slots).by_name.get_mut(&*life.node)
                {
                    slot.exited = true;
                }
            });
        }
        node
    }
}

/// One life of a process: what a program is given. Everything made from it is inert once the process is dead.
#[derive(Clone, Debug)]
pub struct Node {
    host: Host,
}

impl Node {
    /// Kafka, as this process reaches it.
    pub fn transport(&self) -> SimTransport {
        SimTransport::new(self.host.clone())
    }

    /// Time, tasks and randomness of this process.
    pub fn env(&self) -> SimEnv {
        SimEnv { host: self.host.clone() }
    }

    /// The search backend, as this process reaches it.
    pub fn index(&self) -> SimIndex {
        SimIndex { host: self.host.clone() }
    }

    /// Name of the node.
    pub fn name(&self) -> &Arc<str> {
        &self.host.life.node
    }

    /// Which life of the node this is, from 1.
    pub fn incarnation(&self) -> u32 {
        self.host.life.incarnation
    }

    /// The history, as this process writes it.
    pub fn recorder(&self) -> NodeRecorder {
        let recorder = self.host.shared.lock().recorder.clone();
        recorder.node(self.name().clone(), self.incarnation())
    }

    /// Completes when the world asks this process to end.
    pub async fn stopping(&self) {
        self.host.life.stopping().await;
    }

    /// Whether the world has asked this process to end.
    pub fn is_stopping(&self) -> bool {
        self.host.life.is_stopping()
    }
}
