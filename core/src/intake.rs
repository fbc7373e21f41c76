//! The consuming side of a Kafka messenger: polls, hands records out as claims, commits, drains and releases.
//!
//! Two tasks serve one group consumer. The *poll task* polls, so that the consumer stays a member however long a stage
//! takes; past the processing limit it stops, so that Kafka evicts a stuck worker. The *steward* carries out what
//! [`Custody`] decides: commits and releases, one at a time, so that no commit can overtake another.
//!
//! Every record is handed out as a [`Claim`], and a claim is the only way to a side effect: [`Claim::begin`] is the
//! fence, and dropping the last part of a claim settles its record, done only if every part said so.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::Notify;

pub use self::claim::Claim;
use self::steward::{ReadBack, steward};
pub use self::uncovered::Uncovered;
use crate::env::{Env, Instant};
use crate::identity::{Position, TopicPartition};
use crate::machines::custody::{Custody, CustodyConfig, Step};
use crate::stop::Stop;
use crate::transport::{ErrorKind, Group, GroupConfig, Polled, Poller, RebalanceId, Record, Transport, TransportError};

mod claim;
mod steward;
mod uncovered;

/// How an intake consumes.
#[derive(Clone, Debug)]
pub struct IntakeConfig {
    /// The group membership.
    pub group: GroupConfig,
    /// Limits of what is out, and the rhythm of commits.
    pub custody: CustodyConfig,
    /// Records asked for in one poll.
    pub poll_records_max: usize,
    /// Longest wait of one poll.
    pub poll_wait: Duration,
    /// Time without any progress while records are out after which polling stops, so that the group takes the
    /// partitions away.
    pub processing_limit: Duration,
    /// Bytes of records that may be taken and not settled.
    pub bytes_max: usize,
    /// How often an intake at rest reads back what the group has committed.
    pub read_back_interval: Duration,
    /// Time for a drain when the intake is closed.
    pub close_limit: Duration,
    /// Where it counts the ownerships that ended with effects that no commit covers.
    pub uncovered: Uncovered,
}

impl IntakeConfig {
    /// The defaults for a member of a group.
    pub fn new(group: GroupConfig) -> Self {
        IntakeConfig {
            group,
            custody: CustodyConfig::default(),
            poll_records_max: 500,
            poll_wait: Duration::from_millis(500),
            processing_limit: Duration::from_secs(600),
            bytes_max: 64 << 20,
            read_back_interval: Duration::from_secs(30),
            close_limit: Duration::from_secs(10),
            uncovered: Uncovered::default(),
        }
    }
}

/// What the tasks and the claims of one intake share.
#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    /// For the steward: something may be decided anew.
    decide: Notify,
    /// For the component: records came, or the end.
    arrived: Notify,
    /// For the poll task: there is room again, or the end.
    room: Notify,
    /// The component took or finished something since the poll task last looked.
    progressed: AtomicBool,
    /// For whoever holds records back: a drain began.
    draining: Notify,
    /// Requested at the end.
    ended: Stop,
    close_limit: Duration,
    uncovered: Uncovered,
}

#[derive(Debug)]
struct State {
    custody: Custody,
    queue: VecDeque<(Record, Claim)>,
    end: Option<Result<(), TransportError>>,
    /// When the component last took a record or finished a part of one, as far as the poll task knows.
    last_progress: Instant,
    /// Bytes of the records that are taken and not settled.
    bytes: usize,
    bytes_max: usize,
    /// Delivery is paused until half of the room is free again.
    paused: bool,
    low_room: usize,
}

impl State {
    /// Records that may still be taken.
    fn room(&self) -> usize {
        if self.bytes >= self.bytes_max { 0 } else { self.custody.room() }
    }

    /// Whether a paused delivery may go on.
    fn has_room_again(&self) -> bool {
        self.bytes <= self.bytes_max / 2 && self.custody.room() >= self.low_room
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds an intake")
    }

    fn settled(&self, position: &Position, bytes: usize, done: bool) {
        let mut state = self.lock();
        state.bytes = state.bytes.saturating_sub(bytes);
        let decide = state.custody.settled(position, done);
        self.progressed.store(true, Ordering::Relaxed);
        let room = state.paused && state.has_room_again();
        drop(state);
        if decide {
            self.decide.notify_one();
        }
        if room {
            self.room.notify_one();
        }
    }

    /// For the poll task: what to do next. `None` at the end.
    fn poll_plan(&self, now: Instant, processing_limit: Duration) -> Option<PollPlan> {
        let mut state = self.lock();
        if state.end.is_some() {
            return None;
        }
        let handed_out = state.custody.held() - state.queue.len().min(state.custody.held());
        if self.progressed.swap(false, Ordering::Relaxed) || handed_out == 0 {
            state.last_progress = now;
        }
        if now.since(state.last_progress) > processing_limit {
            return Some(PollPlan::Stuck);
        }
        let room = state.room();
        let turns = if state.paused { state.has_room_again() } else { room == 0 };
        state.paused ^= turns;
        Some(match (turns, state.paused) {
            (true, true) => PollPlan::Pause(state.custody.partitions()),
            (true, false) => PollPlan::Resume(state.custody.partitions()),
            (false, paused) => PollPlan::Poll { room, paused },
        })
    }

    /// For the steward: the next step. `None` at the end.
    fn next_step(&self, now: Instant) -> Option<Step> {
        let mut state = self.lock();
        let step = state.end.is_none().then(|| state.custody.step(now));
        self.uncovered.add(state.custody.take_uncovered());
        step
    }

    /// For the steward at the end: nothing is in custody any more. What has to be given back.
    fn abandon(&self) -> Vec<RebalanceId> {
        let mut state = self.lock();
        let events = state.custody.abandon();
        self.uncovered.add(state.custody.take_uncovered());
        events
    }

    /// Nothing new begins, and the group is left once what has to be finished is committed.
    fn drain(&self, now: Instant) {
        let mut state = self.lock();
        if state.end.is_some() || state.custody.is_closing() {
            return;
        }
        let State { custody, queue, .. } = &mut *state;
        custody.close(now + self.close_limit);
        let abandoned = take_inactive(queue, custody);
        drop(state);
        drop(abandoned);
        self.decide.notify_one();
        self.arrived.notify_one();
        self.draining.notify_waiters();
    }

    fn finish(&self, how: Result<(), TransportError>) {
        let mut state = self.lock();
        state.end.get_or_insert(how);
        let abandoned = std::mem::take(&mut state.queue);
        drop(state);
        drop(abandoned);
        self.arrived.notify_one();
        self.decide.notify_one();
        self.room.notify_one();
        self.ended.request();
    }
}

/// What the poll task does next.
enum PollPlan {
    /// Ask for as many records as there is room for.
    Poll { room: usize, paused: bool },
    /// No room: stop delivery, and go on polling.
    Pause(Vec<TopicPartition>),
    /// There is room again.
    Resume(Vec<TopicPartition>),
    /// The component does not move: do not poll, so that the group takes the partitions away.
    Stuck,
}

/// A group consumer whose records come as claims.
#[derive(Debug)]
pub struct Intake<E> {
    env: E,
    cell: Arc<Cell>,
    /// Something was handed out since the component last heard that a drain waits.
    owed: bool,
}

impl<E: Env> Intake<E> {
    /// Joins the group and starts the two tasks.
    pub async fn start<T: Transport>(env: E, transport: &T, config: IntakeConfig) -> Result<Self, TransportError> {
        let (poller, group) = transport.join(config.group.clone()).await?;
        let state = State {
            low_room: (config.custody.records_max / 2).max(1),
            custody: Custody::new(config.custody.clone()),
            queue: VecDeque::new(),
            end: None,
            last_progress: env.now(),
            bytes: 0,
            bytes_max: config.bytes_max,
            paused: false,
        };
        let cell = Arc::new(Cell {
            state: Mutex::new(state),
            decide: Notify::new(),
            arrived: Notify::new(),
            room: Notify::new(),
            progressed: AtomicBool::new(false),
            draining: Notify::new(),
            ended: Stop::new(),
            close_limit: config.close_limit,
            uncovered: config.uncovered.clone(),
        });
        let read_back = ReadBack {
            admin: transport.admin(),
            group: config.group.group.clone(),
            interval: config.read_back_interval,
        };
        env.spawn(poll_records(env.clone(), poller, group.clone(), cell.clone(), config));
        env.spawn(steward(env.clone(), group, read_back, cell.clone()));
        Ok(Intake { env, cell, owed: false })
    }

    /// At most `records_max` records, in partition order; waits for the first. None of them when a drain waits for what
    /// was handed out. `None` after [`Intake::drain`]: what waits here lies above all that has begun. Cancel-safe.
    pub async fn next(&mut self, records_max: usize) -> Result<Option<Vec<(Record, Claim)>>, TransportError> {
        loop {
            {
                let mut state = self.cell.lock();
                if !state.queue.is_empty() {
                    let count = records_max.min(state.queue.len());
                    let records: Vec<_> = state.queue.drain(..count).collect();
                    self.cell.progressed.store(true, Ordering::Relaxed);
                    self.owed = true;
                    return Ok(Some(records));
                }
                match &state.end {
                    Some(Err(error)) => return Err(error.clone()),
                    None if !state.custody.is_closing() => {}
                    Some(Ok(())) | None => return Ok(None),
                }
                if self.owed && state.custody.is_awaiting() {
                    self.owed = false;
                    return Ok(Some(Vec::new()));
                }
            }
            self.cell.arrived.notified().await;
        }
    }

    /// A handle to end it from where its records are sent on.
    pub fn failure_handle(&self) -> FailureHandle {
        FailureHandle { cell: Arc::downgrade(&self.cell) }
    }

    /// A handle to ask for its end, and to hear of it, where its records are waited for.
    pub fn end(&self) -> IntakeEnd {
        IntakeEnd { cell: self.cell.clone() }
    }

    /// Lets nothing begin above what has begun, and leaves the group when all up to that is finished and committed, or
    /// at the close limit.
    pub fn drain(&self) {
        self.cell.drain(self.env.now());
    }

    /// Drains, commits and leaves the group; bounded by the close limit.
    pub async fn close(&mut self) {
        self.drain();
        let limit = self.cell.close_limit + Duration::from_secs(1);
        let cell = self.cell.clone();
        self.env
            .timeout(limit, async {
                while cell.lock().end.is_none() {
                    cell.arrived.notified().await;
                }
            })
            .await;
        self.cell.finish(Ok(()));
    }
}

/// Lets whoever sends on behalf of an intake's records end it: its next poll gives the error.
#[derive(Clone, Debug)]
pub struct FailureHandle {
    cell: Weak<Cell>,
}

impl FailureHandle {
    /// Ends the intake with `error`.
    pub fn fail(&self, error: TransportError) {
        if let Some(cell) = self.cell.upgrade() {
            cell.finish(Err(error));
        }
    }
}

/// Asks for the end of an intake, and tells of it.
#[derive(Clone, Debug)]
pub struct IntakeEnd {
    cell: Arc<Cell>,
}

impl IntakeEnd {
    /// As [`Intake::drain`], at this time.
    pub fn drain(&self, now: Instant) {
        self.cell.drain(now);
    }

    /// Whether somebody asked for it.
    pub fn is_draining(&self) -> bool {
        self.cell.lock().custody.is_closing()
    }

    /// Completes when a drain waits for what was handed out.
    pub async fn awaited(&self) {
        loop {
            let mut draining = pin!(self.cell.draining.notified());
            draining.as_mut().enable();
            if self.cell.lock().custody.is_awaiting() {
                return;
            }
            draining.await;
        }
    }

    /// Completes at the end.
    pub async fn ended(&self) {
        self.cell.ended.requested().await;
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Result<(), TransportError>> {
        self.cell.lock().end.clone()
    }
}

impl<E> Drop for Intake<E> {
    fn drop(&mut self) {
        self.cell.finish(Ok(()));
    }
}

async fn poll_records<E: Env, P: Poller, G: Group>(
    env: E,
    mut poller: P,
    group: G,
    cell: Arc<Cell>,
    config: IntakeConfig,
) {
    loop {
        let (room, paused) = match cell.poll_plan(env.now(), config.processing_limit) {
            None => return,
            Some(PollPlan::Poll { room, paused }) => (room, paused),
            Some(PollPlan::Pause(partitions)) => {
                group.pause(&partitions);
                continue;
            }
            Some(PollPlan::Resume(partitions)) => {
                group.resume(&partitions);
                continue;
            }
            Some(PollPlan::Stuck) => {
                env.sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let records_max = room.clamp(1, config.poll_records_max);
        let polled = {
            let poll = pin!(poller.poll(records_max, config.poll_wait));
            let wake = pin!(cell.room.notified());
            match select(poll, wake).await {
                Either::Left((polled, _)) => polled,
                Either::Right(((), _)) => continue,
            }
        };
        match polled {
            Ok(polled) => {
                if let (true, Polled::Assigned(new)) = (paused, &polled) {
                    group.pause(&new.iter().map(|one| one.partition.clone()).collect::<Vec<_>>());
                }
                take_in(&cell, polled);
            }
            Err(error) if error.kind == ErrorKind::Retriable => env.sleep(Duration::from_millis(100)).await,
            Err(error) => {
                // That one cannot poll once the group is left is no failure, and the steward tells of the end.
                if !cell.lock().custody.has_left() {
                    cell.finish(Err(error));
                }
                return;
            }
        }
    }
}

/// Notes what a poll gave.
fn take_in(cell: &Arc<Cell>, polled: Polled) {
    let mut abandoned = VecDeque::new();
    let mut cut = None;
    let drains = matches!(polled, Polled::Revoking { .. });
    let mut state = cell.lock();
    if state.end.is_some() && matches!(polled, Polled::Records(_) | Polled::Assigned(_)) {
        return;
    }
    let State { custody, queue, bytes: held_bytes, .. } = &mut *state;
    match polled {
        Polled::Records(records) => {
            if records.is_empty() {
                return;
            }
            for record in records {
                if custody.taken(&record.position) {
                    let bytes = record.bytes();
                    *held_bytes += bytes;
                    let claim = Claim::new(cell.clone(), record.position.clone(), bytes);
                    queue.push_back((record, claim));
                } else if custody.is_active(&record.position) {
                    cut = Some(record.position);
                    break;
                }
            }
        }
        Polled::Assigned(new) => custody.assigned(&new),
        Polled::Revoking { event, partitions, deadline } => {
            custody.revoking(event, partitions, deadline);
            abandoned = take_inactive(queue, custody);
        }
        Polled::Lost { event, partitions } => {
            custody.lost(event, partitions);
            cell.uncovered.add(custody.take_uncovered());
            abandoned = take_inactive(queue, custody);
        }
    }
    drop(state);
    drop(abandoned);
    if let Some(Position { partition, offset, .. }) = cut {
        // What lies there now is another record. Only a new ownership reads it, and it must not be passed over.
        let context = format!("reading {partition} at {offset}, where records were read before: its log was cut");
        return cell.finish(Err(TransportError::new(ErrorKind::Fatal, "LOG_TRUNCATION", context)));
    }
    cell.arrived.notify_one();
    cell.decide.notify_one();
    if drains {
        cell.draining.notify_waiters();
    }
}

/// The queued records that must not be worked on any more. Dropped outside the lock: each settles its record.
fn take_inactive(queue: &mut VecDeque<(Record, Claim)>, custody: &Custody) -> VecDeque<(Record, Claim)> {
    let (active, inactive) =
        std::mem::take(queue).into_iter().partition(|(record, _)| custody.is_active(&record.position));
    *queue = active;
    inactive
}

#[cfg(test)]
mod tests;
