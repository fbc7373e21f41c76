//! The network between processes, the cluster and the index: latency, cut links, and what a process is to all of them.
//!
//! Nothing is delivered by a task. A sender submits its request with a time of arrival, sleeps one round trip, advances
//! the servers to now and takes its answer; only an answer that is not there yet parks it. A ticker advances them for
//! senders that died. A request outlives its sender; a dead sender submits nothing and receives nothing.

mod life;
mod round_trip;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use crate::cluster::audit::Audit;
use crate::cluster::protocol::{BrokerId, ConnectionId, Request, Response};
use crate::cluster::{Cluster, RequestId};
use crate::executor::{Executor, lock};
use crate::history::{Recorder, What};
use crate::index_server::IndexServer;
use crate::rng::Stream;
use crate::trace::Trace;
use crate::world::WorldConfig;

pub(crate) use life::{Life, Link};
pub(crate) use round_trip::{Connection, NetworkError, RoundTrip};

/// Calls that may be made within [`PROGRESS_WINDOW`] of virtual time: more is a loop that waits for nothing.
const CALLS_PER_WINDOW_MAX: u64 = 1_000_000;
const PROGRESS_WINDOW: Duration = Duration::from_millis(100);

/// Everything of a world that its tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) executor: Executor,
    pub(crate) seed: u64,
    pub(crate) config: WorldConfig,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) cluster: Cluster,
    pub(crate) index: IndexServer,
    pub(crate) trace: Trace,
    pub(crate) ticker: Ticker,
    network: Stream,
    pub(crate) recorder: Recorder,
    kafka: Arc<str>,
    waiters: BTreeMap<RequestId, Waker>,
    /// Who waits for an answer that will not come, by number: only a reset ends it early.
    stuck: BTreeMap<u64, Waker>,
    next_stuck: u64,
    /// What live group members have polled, by group and partition.
    polled: BTreeMap<(Arc<str>, TopicPartition), Polled>,
    connections: u64,
    window: Instant,
    calls: u64,
    /// Topics whose requests arrive late: how their names begin, and by how much.
    slow_topics: Option<(Arc<str>, Duration)>,
}

/// How far a life has polled a partition.
#[derive(Debug)]
struct Polled {
    node: Arc<str>,
    incarnation: u32,
    /// The offset after the last record given.
    next: i64,
}

/// When the ticker will wake, and how to wake it earlier.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    armed: Option<Instant>,
    waker: Option<Waker>,
    nudged: bool,
}

impl Shared {
    pub(crate) fn new(executor: Executor, seed: u64, config: WorldConfig) -> Self {
        let clock = executor.clone();
        let recorder = Recorder::new(config.history, move || clock.now());
        let inner = Inner {
            cluster: Cluster::new(config.cluster.clone()),
            index: IndexServer::new(config.tombstone_retention),
            trace: Trace::new(config.trace),
            ticker: Ticker::default(),
            network: Stream::new(config.network_seed.unwrap_or(seed), crate::rng::Concern::Network),
            recorder,
            kafka: "kafka".into(),
            waiters: BTreeMap::new(),
            stuck: BTreeMap::new(),
            next_stuck: 0,
            polled: BTreeMap::new(),
            connections: 0,
            window: Instant::default(),
            calls: 0,
            slow_topics: None,
        };
        Shared { executor, seed, config, inner: Mutex::new(inner) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The world's state with everything applied that is due.
    pub(crate) fn current(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        inner.pump(self.executor.now());
        inner
    }

    /// How long after it is due the ticker does what the cluster does by itself: a round trip's longest way back, so
    /// that somebody else has nearly always come by.
    fn grace(&self) -> Duration {
        Duration::from_micros(self.config.latency_max_micros + 1)
    }

    /// How long after its arrival the ticker applies a request. Only one whose sender died waits for that, and only
    /// when nobody else comes by; every other sender applies its own.
    pub(crate) fn patience(&self) -> Duration {
        50 * self.grace()
    }

    /// Drives the servers for ever. One task of the world.
    pub(crate) async fn tick(self: Arc<Self>) {
        loop {
            let mut sleep = {
                let mut inner = self.current();
                let timer = inner.cluster.next_timer().map(|at| at + self.grace());
                let arrivals = inner.cluster.next_arrival().into_iter().chain(inner.index.next_arrival());
                let armed = arrivals.min().map(|at| at + self.patience()).into_iter().chain(timer).min();
                inner.ticker = Ticker { armed, ..Ticker::default() };
                armed.map(|at| self.executor.sleep_until(at))
            };
            std::future::poll_fn(|cx| {
                let mut inner = self.lock();
                if std::mem::take(&mut inner.ticker.nudged) {
                    return Poll::Ready(());
                }
                inner.ticker.waker = Some(cx.waker().clone());
                drop(inner);
                sleep.as_mut().map_or(Poll::Pending, |sleep| Pin::new(sleep).poll(cx))
            })
            .await;
        }
    }

    /// Forgets every waker and hook at the end of a run: they may hold a task, or the world itself.
    pub(crate) fn clear(&self) {
        let held = {
            let mut inner = self.lock();
            inner.ticker.waker = None;
            inner.cluster.on_produce(None);
            (inner.index.take_hook(), std::mem::take(&mut inner.waiters), std::mem::take(&mut inner.stuck))
        };
        drop(held);
    }
}

impl Inner {
    /// Applies everything due up to `now` and wakes whoever was answered.
    pub(crate) fn pump(&mut self, now: Instant) {
        self.cluster.advance(now);
        for answered in self.cluster.drain_answered() {
            if let Some(waker) = self.waiters.remove(&answered) {
                waker.wake();
            }
        }
        self.index.advance(now, &mut self.trace, &self.recorder);
        for (at, audit) in self.cluster.drain_audit() {
            self.trace.push(at, &self.kafka, &audit);
            if let Some(what) = history_of(audit) {
                self.recorder.record(&self.kafka, 0, what);
            }
        }
    }

    /// Wakes the ticker when it sleeps past `at`.
    pub(crate) fn nudge(&mut self, at: Instant) {
        if self.ticker.armed.is_none_or(|armed| at < armed) && !self.ticker.nudged {
            self.ticker.nudged = true;
            if let Some(waker) = self.ticker.waker.take() {
                waker.wake();
            }
        }
    }

    /// Wakes everybody who waits for an answer, to look again at its link.
    pub(crate) fn wake_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.waiters).into_values();
        for waker in waiters.chain(std::mem::take(&mut self.stuck).into_values()) {
            waker.wake();
        }
    }

    pub(crate) fn set_slow_topics(&mut self, slow: Option<(Arc<str>, Duration)>) {
        self.slow_topics = slow;
    }

    /// How much later than others a request arrives because of the topics that it appends to or reads.
    fn lateness(&self, request: &Request) -> Duration {
        let Some((prefix, extra)) = &self.slow_topics else { return Duration::ZERO };
        let is_slow = |partition: &TopicPartition| partition.topic.starts_with(&**prefix);
        let touches = match request {
            Request::Produce { partitions } => partitions.iter().any(|one| is_slow(&one.partition)),
            Request::Fetch { partitions, .. } => partitions.iter().any(|one| is_slow(&one.partition)),
            _ => false,
        };
        if touches { *extra } else { Duration::ZERO }
    }

    fn number_stuck(&mut self) -> u64 {
        self.next_stuck += 1;
        self.next_stuck
    }

    /// Puts a request straight to broker `to`, without a network, and gives its answer. For what never parks.
    pub(crate) fn ask(&mut self, now: Instant, to: BrokerId, request: Request) -> Option<Response> {
        self.pump(now);
        let id = self.cluster.submit(now, ConnectionId(0), to, request);
        self.pump(now);
        self.cluster.take_response(id).map(|(_, response)| response)
    }

    /// Records of `group` that live members polled and that no committed offset covers.
    pub(crate) fn in_flight(&self, group: &str, committed: impl Fn(&TopicPartition) -> i64) -> u64 {
        let own = self.polled.iter().filter(|((of, _), _)| &**of == group);
        own.map(|((_, partition), polled)| (polled.next - committed(partition)).max(0).unsigned_abs()).sum()
    }

    /// A life is over: what it polled is nobody's any more.
    pub(crate) fn forget_life(&mut self, life: &Life) {
        self.polled.retain(|_, polled| polled.node != life.node || polled.incarnation != life.incarnation);
    }

    /// Counts a call that a program made, and ends the run when it makes them without waiting for anything.
    pub(crate) fn count_call(&mut self, now: Instant, life: &Life) {
        if now.since(self.window) > PROGRESS_WINDOW {
            (self.window, self.calls) = (now, 0);
        }
        self.calls += 1;
        assert!(
            self.calls <= CALLS_PER_WINDOW_MAX,
            "{CALLS_PER_WINDOW_MAX} calls within {PROGRESS_WINDOW:?} of virtual time, the last by `{}`: a loop polls \
             without waiting (a poll with `wait` zero, or a retry without a pause)",
            life.node
        );
    }
}

/// A place among those who wait for a reset.
struct Stuck<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        let waker = self.shared.lock().stuck.remove(&self.number);
        drop(waker);
    }
}

/// One process's way to the servers: its network and its identity. Inert once the process is dead.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) shared: Arc<Shared>,
    pub(crate) life: Arc<Life>,
}

impl Host {
    pub(crate) fn now(&self) -> Instant {
        self.shared.executor.now()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.life.is_dead()
    }

    /// Counts a call of the program and says whether it is alive.
    pub(crate) fn enter(&self) -> bool {
        self.shared.lock().count_call(self.now(), &self.life);
        !self.is_dead()
    }

    /// Completes `duration` from now; never in a dead process.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.shared.executor.sleep(duration).await;
        self.halt_if_dead().await;
    }

    /// How often the connections of the node were reset.
    pub(crate) fn resets(&self) -> u64 {
        self.life.link.resets.load(Ordering::Relaxed)
    }

    /// Waits until `until`. False when the connections, as old as `age`, are reset first.
    pub(crate) async fn sleep_unless_reset(&self, age: u64, until: Instant) -> bool {
        let mut sleep = self.shared.executor.sleep_until(until);
        let stuck = Stuck { shared: &self.shared, number: self.shared.lock().number_stuck() };
        std::future::poll_fn(|cx| {
            if self.is_dead() {
                return Poll::Pending;
            }
            if self.resets() != age {
                return Poll::Ready(false);
            }
            stuck.shared.lock().stuck.insert(stuck.number, cx.waker().clone());
            Pin::new(&mut sleep).poll(cx).map(|()| true)
        })
        .await
    }

    /// Never completes in a dead process.
    pub(crate) async fn halt_if_dead(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Notes what a group member was given.
    pub(crate) fn note_polled(&self, group: &Arc<str>, records: &[seriatim_core::transport::Record]) {
        let mut inner = self.shared.lock();
        let mut ahead = records.iter().peekable();
        while let Some(record) = ahead.next() {
            let position = &record.position;
            // The last of a run of one partition stands for all.
            if ahead.peek().is_none_or(|next| next.position.partition != position.partition) {
                let (node, incarnation) = (self.life.node.clone(), self.life.incarnation);
                let polled = Polled { node, incarnation, next: position.offset + 1 };
                inner.polled.insert((group.clone(), position.partition.clone()), polled);
            }
        }
    }

    /// Notes that a group member gave partitions back.
    pub(crate) fn forget_polled<'a>(&self, group: &Arc<str>, partitions: impl Iterator<Item = &'a TopicPartition>) {
        let mut inner = self.shared.lock();
        for partition in partitions {
            let key = (group.clone(), partition.clone());
            if inner.polled.get(&key).is_some_and(|polled| polled.node == self.life.node) {
                inner.polled.remove(&key);
            }
        }
    }

    /// Runs `task` as part of the process.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if !self.is_dead() {
            self.shared.executor.spawn(self.life.group, task);
        }
    }

    /// Microseconds that one way takes now.
    pub(crate) fn latency(&self, inner: &mut Inner) -> Duration {
        let config = &self.shared.config;
        let drawn = inner.network.between(config.latency_min_micros, config.latency_max_micros);
        Duration::from_micros(drawn + self.life.link.extra_micros.load(Ordering::Relaxed))
    }
}

/// What a history says of an audit.
fn history_of(audit: Audit) -> Option<What> {
    match audit {
        Audit::OffsetCommitted { group, partition, offset, member, .. } => {
            Some(What::OffsetsCommitted { group, member, partition, offset })
        }
        Audit::Assigned { group, member, generation, partitions } => {
            Some(What::GroupAssigned { group, member, generation, partitions })
        }
        Audit::OffsetRemoved { group, partition, .. } => Some(What::OffsetsExpired { group, partition }),
        Audit::LogStartMoved { partition, log_start } => Some(What::LogStartMoved { partition, start: log_start }),
        _ => None,
    }
}
