//! The network between processes, the cluster and the index: latency, cut links, and what a process is to all of them.
//!
//! Nothing is delivered by a task. A sender submits its request with a time of arrival, sleeps one round trip, advances
//! the servers to now and takes its answer; only an answer that is not there yet parks it. A ticker advances the servers
//! for senders that died. A request outlives its sender; a dead sender submits nothing and receives nothing.

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use tokio::sync::Notify;

use crate::cluster::audit::Audit;
use crate::cluster::protocol::{BrokerId, ConnectionId, Request, Response};
use crate::cluster::{Cluster, RequestId};
use crate::executor::{Executor, Sleep, TaskGroup, lock};
use crate::history::{Recorder, What};
use crate::index_server::IndexServer;
use crate::rng::Stream;
use crate::trace::Trace;
use crate::world::WorldConfig;

/// Calls that may be made within [`PROGRESS_WINDOW`] of virtual time: more is a loop that waits for nothing.
const CALLS_PER_WINDOW_MAX: u64 = 1_000_000;
const PROGRESS_WINDOW: Duration = Duration::from_millis(100);

/// One life of a process, from its start to its crash or end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) node: Arc<str>,
    pub(crate) incarnation: u32,
    pub(crate) group: TaskGroup,
    pub(crate) link: Arc<Link>,
    pub(crate) random: Mutex<Stream>,
    dead: AtomicBool,
    stopping: AtomicBool,
    stop: Notify,
}

impl Life {
    pub(crate) fn new(node: Arc<str>, incarnation: u32, group: TaskGroup, link: Arc<Link>, random: Stream) -> Self {
        let (dead, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        Life { node, incarnation, group, link, random: Mutex::new(random), dead, stopping, stop: Notify::new() }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.stop.notify_waiters();
    }

    pub(crate) async fn stopping(&self) {
        let notified = self.stop.notified();
        if !self.is_stopping() {
            notified.await;
        }
    }
}

/// A node's connection to the rest of the world, over all its lives, and its clock.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) cut_out: AtomicBool,
    pub(crate) cut_in: AtomicBool,
    /// Added to each direction, microseconds.
    pub(crate) extra_micros: AtomicU64,
    /// Answers still to be lost on their way back.
    pub(crate) lose_answers: AtomicU64,
    /// Rises when every connection of the node is reset.
    pub(crate) resets: AtomicU64,
    /// Wall clock ahead of true time, microseconds.
    pub(crate) wall_offset_micros: AtomicI64,
    /// Wall clock's drift, millionths.
    pub(crate) wall_drift_ppm: AtomicI64,
}

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
    /// Whose member ids these are, learnt from the requests that carry them.
    members: BTreeMap<Arc<str>, Arc<str>>,
    pub(crate) recorder: Recorder,
    kafka: Arc<str>,
    waiters: BTreeMap<RequestId, Waker>,
    /// Who waits for an answer that will not come, by number: only a reset ends it early.
    stuck: BTreeMap<u64, Waker>,
    next_stuck: u64,
    /// What live group members have polled: the next offset, and by which life.
    polled: BTreeMap<(Arc<str>, TopicPartition), (Arc<str>, u32, i64)>,
    connections: u64,
    window: Instant,
    calls: u64,
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
            network: Stream::new(seed, crate::rng::Concern::Network),
            members: BTreeMap::new(),
            recorder,
            kafka: "kafka".into(),
            waiters: BTreeMap::new(),
            stuck: BTreeMap::new(),
            next_stuck: 0,
            polled: BTreeMap::new(),
            connections: 0,
            window: Instant::default(),
            calls: 0,
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

    /// How long after it is due the ticker applies what nobody else did: a round trip's longest way back, so that the
    /// sender of a request is nearly always there first.
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_micros(self.config.latency_max_micros + 1)
    }

    /// Drives the servers for ever. One task of the world.
    pub(crate) async fn tick(self: Arc<Self>) {
        loop {
            let mut sleep = {
                let mut inner = self.current();
                let armed = inner.next_deadline().map(|at| at + self.grace());
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

    /// Forgets every waker, so that no task is held by another at the end of a run.
    pub(crate) fn clear(&self) {
        let wakers = {
            let mut inner = self.lock();
            inner.ticker.waker = None;
            (std::mem::take(&mut inner.waiters), std::mem::take(&mut inner.stuck))
        };
        drop(wakers);
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
            self.trace.push(at, &self.kafka, 0, format_args!("{audit:?}"));
            if let Some(what) = history_of(audit, &self.members) {
                self.recorder.record(&self.kafka, 0, what);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.cluster.next_deadline(), self.index.next_arrival()].into_iter().flatten().min()
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
        own.map(|((_, partition), (_, _, next))| (next - committed(partition)).max(0).unsigned_abs()).sum()
    }

    /// A life is over: what it polled is nobody's any more.
    pub(crate) fn forget_life(&mut self, life: &Life) {
        self.polled.retain(|_, (node, incarnation, _)| *node != life.node || *incarnation != life.incarnation);
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

/// One process's way to the servers: its network and its identity. Inert once the process is dead.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) shared: Arc<Shared>,
    pub(crate) life: Arc<Life>,
}

/// A connection: its requests arrive in the order in which they were sent, and it ends as a whole. An answer that does
/// not come costs all that were under way behind it, as on a real one; an idempotent producer relies on that.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    last_arrival: AtomicU64,
    last_due: AtomicU64,
    resets: AtomicU64,
}

impl Connection {
    /// How often it was reset, with its node's other connections or alone.
    fn age(&self, link: &Link) -> u64 {
        self.resets.load(Ordering::Relaxed) + link.resets.load(Ordering::Relaxed)
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NetworkError {
    /// Nothing came in time: the request may or may not have been applied, or may be later.
    #[error("REQUEST_TIMED_OUT")]
    TimedOut,
    /// The connection was reset: the request may or may not have been applied, or may be later.
    #[error("NETWORK_EXCEPTION")]
    Disconnected,
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
                let next = (self.life.node.clone(), self.life.incarnation, position.offset + 1);
                inner.polled.insert((group.clone(), position.partition.clone()), next);
            }
        }
    }

    /// Notes that a group member gave partitions back.
    pub(crate) fn forget_polled<'a>(&self, group: &Arc<str>, partitions: impl Iterator<Item = &'a TopicPartition>) {
        let mut inner = self.shared.lock();
        for partition in partitions {
            let key = (group.clone(), partition.clone());
            if inner.polled.get(&key).is_some_and(|(node, ..)| *node == self.life.node) {
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

    pub(crate) fn connect(&self) -> Arc<Connection> {
        let mut inner = self.shared.lock();
        inner.connections += 1;
        let (id, zero) = (ConnectionId(inner.connections), || AtomicU64::new(0));
        Arc::new(Connection { id, last_arrival: zero(), last_due: zero(), resets: zero() })
    }

    /// Microseconds that one way takes now.
    pub(crate) fn latency(&self, inner: &mut Inner) -> Duration {
        let config = &self.shared.config;
        let drawn = inner.network.between(config.latency_min_micros, config.latency_max_micros);
        Duration::from_micros(drawn + self.life.link.extra_micros.load(Ordering::Relaxed))
    }

    /// Sends `request` to broker `to`. It is on its way when this returns; the answer is awaited at most `limit`.
    pub(crate) fn send(
        &self,
        connection: &Arc<Connection>,
        to: BrokerId,
        request: Request,
        limit: Duration,
    ) -> RoundTrip {
        let now = self.now();
        let mut trip = RoundTrip {
            host: self.clone(),
            id: None,
            due: now + limit,
            back: Duration::ZERO,
            parked: false,
            stuck: None,
            answer: None,
            connection: connection.clone(),
            age: connection.age(&self.life.link),
            give_up_at: now + limit,
            sleep: self.shared.executor.sleep_until(now + limit),
        };
        if self.is_dead() {
            return trip;
        }
        let inner = &mut *self.shared.lock();
        inner.count_call(now, &self.life);
        let there = self.latency(inner);
        trip.back = self.latency(inner);
        let arrival = (now + there).max(Instant::from_micros(connection.last_arrival.load(Ordering::Relaxed)));
        connection.last_arrival.store(arrival.as_micros(), Ordering::Relaxed);
        let lost = self.life.link.cut_out.load(Ordering::Relaxed);
        let suffix = if lost { " (lost: the link is cut)" } else { "" };
        let digest = payload_digest(&request);
        inner.trace.push(now, &self.life.node, digest, format_args!("-> {} {request}{suffix}", to.0));
        if lost {
            trip.stuck = Some(inner.number_stuck());
        } else {
            if let Request::OffsetCommit(commit) = &request
                && !commit.member_id.is_empty()
                && !inner.members.contains_key(&commit.member_id)
            {
                inner.members.insert(commit.member_id.clone(), self.life.node.clone());
            }
            trip.id = Some(inner.cluster.submit(arrival, connection.id, to, request));
            // Answers come in order too, as far as none is parked.
            trip.due = (arrival + trip.back).max(Instant::from_micros(connection.last_due.load(Ordering::Relaxed)));
            connection.last_due.store(trip.due.as_micros(), Ordering::Relaxed);
            trip.set_sleep(trip.due.min(trip.give_up_at));
            inner.nudge(arrival + self.shared.grace());
        }
        trip
    }
}

/// What a history says of an audit.
fn history_of(audit: Audit, members: &BTreeMap<Arc<str>, Arc<str>>) -> Option<What> {
    match audit {
        Audit::OffsetCommitted { group, partition, offset, member, .. } => {
            let sender = members.get(&member).cloned();
            Some(What::OffsetsCommitted { group, member, sender, partition, offset })
        }
        Audit::OffsetRemoved { group, partition, .. } => Some(What::OffsetsExpired { group, partition }),
        Audit::LogStartMoved { partition, log_start } => Some(What::LogStartMoved { partition, start: log_start }),
        _ => None,
    }
}

/// What a trace line of a request does not show.
fn payload_digest(request: &Request) -> u64 {
    let Request::Produce { partitions } = request else { return 0 };
    let mut hasher = DefaultHasher::new();
    for record in partitions.iter().flat_map(|batch| batch.records.iter()) {
        record.key.hash_into(&mut hasher);
        record.value.hash_into(&mut hasher);
        for header in &record.headers {
            hasher.write(header.name.as_bytes());
            hasher.write(&header.value);
        }
    }
    hasher.finish()
}

trait HashInto {
    fn hash_into(&self, hasher: &mut DefaultHasher);
}

impl HashInto for Option<bytes::Bytes> {
    fn hash_into(&self, hasher: &mut DefaultHasher) {
        match self {
            Some(bytes) => {
                hasher.write_usize(bytes.len());
                hasher.write(bytes);
            }
            None => hasher.write_usize(usize::MAX),
        }
    }
}

/// A request on its way, as a future of its answer. Dropping it takes nothing back.
#[derive(Debug)]
#[must_use = "the answer comes only to who awaits it"]
pub(crate) struct RoundTrip {
    host: Host,
    id: Option<RequestId>,
    /// When the answer is here, unless it is parked.
    due: Instant,
    back: Duration,
    parked: bool,
    /// Its number among those that wait in vain.
    stuck: Option<u64>,
    /// An answer on its way back, and when it is here.
    answer: Option<(Instant, Response)>,
    connection: Arc<Connection>,
    /// The connection's when this was sent.
    age: u64,
    give_up_at: Instant,
    sleep: Sleep,
}

impl RoundTrip {
    fn set_sleep(&mut self, until: Instant) {
        self.sleep = self.host.shared.executor.sleep_until(until);
    }

    /// Takes an answer that has arrived at this end.
    fn arrive(&mut self, now: Instant, response: Response) -> Poll<Result<Response, NetworkError>> {
        let link = &self.host.life.link;
        let lose = link.lose_answers.load(Ordering::Relaxed);
        let cut = link.cut_in.load(Ordering::Relaxed);
        let mut inner = self.host.shared.lock();
        if !cut && lose == 0 {
            inner.trace.push(now, &self.host.life.node, 0, format_args!("<- {response}"));
            return Poll::Ready(Ok(response));
        }
        inner.trace.push(now, &self.host.life.node, 0, format_args!("<- (lost) {response}"));
        if cut {
            self.stuck = Some(inner.number_stuck());
            drop(inner);
            self.set_sleep(self.give_up_at);
            return Poll::Pending;
        }
        drop(inner);
        link.lose_answers.store(lose - 1, Ordering::Relaxed);
        self.reset();
        Poll::Ready(Err(NetworkError::Disconnected))
    }

    /// Ends the connection: everything under way on it learns that its answer will not come.
    fn reset(&self) {
        self.connection.resets.fetch_add(1, Ordering::Relaxed);
        self.host.shared.lock().wake_waiters();
    }
}

impl Future for RoundTrip {
    type Output = Result<Response, NetworkError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.host.is_dead() {
            return Poll::Pending;
        }
        if this.connection.age(&this.host.life.link) != this.age {
            return Poll::Ready(Err(NetworkError::Disconnected));
        }
        let now = this.host.now();
        if let Some(id) = this.id.filter(|_| now >= this.due) {
            let mut inner = this.host.shared.lock();
            inner.pump(now);
            match inner.cluster.take_response(id) {
                Some((answered, response)) => {
                    inner.waiters.remove(&id);
                    drop(inner);
                    this.id = None;
                    this.answer = Some((answered + this.back, response));
                    let arrival = (answered + this.back).max(now);
                    this.set_sleep(arrival.min(this.give_up_at));
                }
                None => {
                    inner.waiters.insert(id, cx.waker().clone());
                    drop(inner);
                    if !this.parked {
                        this.parked = true;
                        this.set_sleep(this.give_up_at);
                    }
                }
            }
        }
        if let Some((_, response)) = this.answer.take_if(|(arrival, _)| *arrival <= now)
            && let Poll::Ready(answer) = this.arrive(now, response)
        {
            return Poll::Ready(answer);
        }
        if let Some(number) = this.stuck {
            this.host.shared.lock().stuck.insert(number, cx.waker().clone());
        }
        if now < this.give_up_at {
            return Pin::new(&mut this.sleep).poll(cx).map(|()| Err(NetworkError::TimedOut));
        }
        this.reset();
        Poll::Ready(Err(NetworkError::TimedOut))
    }
}

impl Drop for RoundTrip {
    fn drop(&mut self) {
        if self.id.is_some() || self.stuck.is_some() {
            let mut inner = self.host.shared.lock();
            let stuck = self.stuck.and_then(|number| inner.stuck.remove(&number));
            let waiter = self.id.and_then(|id| {
                inner.cluster.forget(id);
                inner.waiters.remove(&id)
            });
            drop(inner);
            drop((stuck, waiter));
        }
    }
}
