//! A request and its answer: one sleep, then a look; parked only when the answer is not there yet.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use seriatim_core::env::Instant;

use super::{Host, Link};
use crate::cluster::RequestId;
use crate::cluster::protocol::{BrokerId, ConnectionId, Request, Response};
use crate::executor::Sleep;

/// An answer that is due so soon is slept for: who waits hears of a reset then.
const SOON: Duration = Duration::from_millis(10);

/// A connection: its requests arrive in the order in which they were sent, and it ends as a whole. An answer that does
/// not come costs all that were under way behind it, as on a real one; an idempotent producer relies on that. What was
/// under way may still arrive when it has ended: after what is sent on the one that follows, too.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Changes when it is made again.
    id: AtomicU64,
    last_arrival: AtomicU64,
    last_due: AtomicU64,
    resets: AtomicU64,
    /// Its age when it was last made.
    made_at: AtomicU64,
}

impl Connection {
    /// The connection of `age`, made now unless it stands. `count` numbers them.
    fn at(&self, age: u64, count: &mut u64) -> ConnectionId {
        if self.made_at.swap(age, Ordering::Relaxed) != age {
            *count += 1;
            self.id.store(*count, Ordering::Relaxed);
            self.last_arrival.store(0, Ordering::Relaxed);
            self.last_due.store(0, Ordering::Relaxed);
        }
        ConnectionId(self.id.load(Ordering::Relaxed))
    }

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
    pub(crate) fn connect(&self) -> Arc<Connection> {
        let mut inner = self.shared.lock();
        inner.connections += 1;
        let (id, zero) = (AtomicU64::new(inner.connections), || AtomicU64::new(0));
        let made_at = AtomicU64::new(self.life.link.resets.load(Ordering::Relaxed));
        Arc::new(Connection { id, last_arrival: zero(), last_due: zero(), resets: zero(), made_at })
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
        let id = connection.at(trip.age, &mut inner.connections);
        let there = self.latency(inner) + inner.lateness(&request);
        trip.back = self.latency(inner);
        let arrival = (now + there).max(Instant::from_micros(connection.last_arrival.load(Ordering::Relaxed)));
        connection.last_arrival.store(arrival.as_micros(), Ordering::Relaxed);
        let lost = self.life.link.cut_out.load(Ordering::Relaxed);
        inner.trace.push(now, &self.life.node, &Sent { to, request: &request, lost });
        if lost {
            trip.stuck = Some(inner.number_stuck());
        } else {
            trip.id = Some(inner.cluster.submit(arrival, id, to, request));
            // Answers come in order too, as far as none is parked.
            trip.due = (arrival + trip.back).max(Instant::from_micros(connection.last_due.load(Ordering::Relaxed)));
            connection.last_due.store(trip.due.as_micros(), Ordering::Relaxed);
            trip.set_sleep(trip.due.min(trip.give_up_at));
            trip.stuck = (trip.due.since(now) > SOON).then(|| inner.number_stuck());
            inner.nudge(arrival + self.shared.patience());
        }
        trip
    }
}

/// A request as the trace has it.
#[derive(Hash)]
struct Sent<'a> {
    to: BrokerId,
    request: &'a Request,
    lost: bool,
}

impl fmt::Display for Sent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.lost { " (lost: the link is cut)" } else { "" };
        write!(f, "-> {} {}{suffix}", self.to.0, self.request)
    }
}

/// An answer as the trace has it.
#[derive(Hash)]
struct Received<'a> {
    response: &'a Response,
    lost: bool,
}

impl fmt::Display for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<- {}{}", if self.lost { "(lost) " } else { "" }, self.response)
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
    /// Its number among those that wait in vain, or long: a reset wakes them. Others look soon by themselves.
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
            inner.trace.push(now, &self.host.life.node, &Received { response: &response, lost: false });
            return Poll::Ready(Ok(response));
        }
        inner.trace.push(now, &self.host.life.node, &Received { response: &response, lost: true });
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
