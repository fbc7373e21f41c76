//! [`World`]: the control surface of a simulated run, and [`run`], which makes one from a seed.
//!
//! A program is any async code that is given a [`Node`]. The world starts it, crashes it without a goodbye, restarts
//! it, pauses it, asks it to stop, and tells what the cluster and the index hold in the end. It never reaches into a
//! program: what it knows of one, it knows from its requests.

mod config;
mod node;
mod reads;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use seriatim_core::env::Instant;

use crate::cluster::ProduceHook;
use crate::executor::{self, Executor, lock};
use crate::history::{Recorder, What};
use crate::index_server::IndexHook;
use crate::network::{Host, Life, Link, Shared};
use crate::rng::{Concern, Stream};
use crate::trace::TraceLine;

pub use config::{RunFailure, RunOutcome, WorldConfig};
pub use node::Node;

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
    /// Out of it, what is sent never arrives; into it, what is sent is applied and its answer never arrives. Mending a
    /// direction resets the connections: no connection goes on behind what a cut swallowed.
    pub fn cut_link(&self, name: &str, out: bool, into: bool) {
        self.note(name, if out || into { "link cut" } else { "link mended" });
        let link = self.link(name);
        let out_before = link.cut_out.swap(out, Ordering::Relaxed);
        let in_before = link.cut_in.swap(into, Ordering::Relaxed);
        if out_before && !out || in_before && !into {
            link.resets.fetch_add(1, Ordering::Relaxed);
            self.shared.lock().wake_waiters();
        }
    }

    /// Adds `extra` to each direction of the link of `name`.
    pub fn slow_link(&self, name: &str, extra: Duration) {
        let micros = u64::try_from(extra.as_micros()).unwrap_or(u64::MAX);
        self.link(name).extra_micros.store(micros, Ordering::Relaxed);
    }

    /// Loses the next `count` answers on their way to `name`, of brokers and of the index alike, each with its
    /// connection: the requests were applied.
    pub fn lose_answers(&self, name: &str, count: u64) {
        self.link(name).lose_answers.store(count, Ordering::Relaxed);
    }

    /// Resets every connection of `name`, to brokers and to the index: whatever waits for an answer learns that it will
    /// not come.
    pub fn reset_connections(&self, name: &str) {
        self.note(name, "connections reset");
        self.link(name).resets.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().wake_waiters();
    }

    /// Makes every append to and every read of the topics whose names begin with `prefix` arrive `extra` later, and
    /// whatever is behind it on its connection; zero mends it. One such fault at a time.
    pub fn slow_topics(&self, prefix: &str, extra: Duration) {
        self.note("kafka", if extra.is_zero() { "topics mended" } else { "topics slow" });
        self.shared.lock().set_slow_topics((!extra.is_zero()).then(|| (prefix.into(), extra)));
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

    /// Decides of each batch of records that reaches a broker whether it is refused instead of appended, and with which
    /// error; `None` lets all pass.
    pub fn on_produce(&self, hook: Option<ProduceHook>) {
        self.shared.lock().cluster.on_produce(hook);
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
        self.shared.lock().trace.push(now, &node.into(), &text);
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
