//! A member of a consumer group, classic protocol: its state, and the two handles of it.
//!
//! Three parts share the state and wake each other: the `membership` task joins, heartbeats and notices what was lost;
//! the `fetcher` task keeps the buffers full; the handles here poll, commit, release and pause. Only `membership`
//! changes what is owned, and it rejoins only when every event that it raised has been released. What an eager member
//! owns goes before each rebalance; a cooperative one keeps it, with its epochs, until an assignment takes it away.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, Position, TopicPartition};
use seriatim_core::transport::{
    Commit, ErrorKind, Group, GroupConfig, Polled, Poller, RebalanceId, Record, TransportError,
};
use tokio::sync::Notify;

use super::{Client, commits, fetcher, membership};
use crate::cluster::protocol::{BatchSlice, BrokerId};
use crate::executor::lock;

/// A partition that this member owns.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) epoch: Epoch,
    /// The next offset to fetch.
    pub(super) next: i64,
    /// Fetched and not yet polled.
    pub(super) buffer: VecDeque<BatchSlice>,
    pub(super) buffered: usize,
    pub(super) paused: bool,
    /// A release of it has begun: commits are refused from here on.
    pub(super) ending: bool,
    /// The fetcher passed it over because its buffer was full.
    pub(super) starved: bool,
    /// Its next offset is not in the log; find a new one.
    pub(super) out_of_range: bool,
}

/// Partitions with the epochs that end.
type Going = Vec<(TopicPartition, Epoch)>;

/// A rebalance event that was raised and not yet released.
#[derive(Debug)]
pub(super) struct Unreleased {
    pub(super) partitions: Going,
    pub(super) is_revocation: bool,
}

#[derive(Debug)]
pub(super) struct State {
    /// The poller is gone or the member left: the tasks end.
    pub(super) closed: bool,
    pub(super) fatal: Option<TransportError>,
    pub(super) generation: i32,
    /// The next generation is being joined while partitions of this one are still owned.
    pub(super) rejoining: bool,
    /// The coordinator announced a rebalance, or the topics changed: join again.
    pub(super) rebalancing: bool,
    /// The last assignment and its generation, for sticky assignors.
    pub(super) last_assignment: (Vec<TopicPartition>, i32),
    pub(super) member_id: Arc<str>,
    pub(super) coordinator: Option<BrokerId>,
    pub(super) owned: BTreeMap<TopicPartition, Owned>,
    pub(super) events: VecDeque<Polled>,
    pub(super) unreleased: BTreeMap<RebalanceId, Unreleased>,
    pub(super) next_event: u64,
    /// Commits not yet answered or cancelled, with their partitions.
    pub(super) commits_out: BTreeMap<u64, Vec<TopicPartition>>,
    pub(super) next_commit: u64,
    /// A commit learnt that this generation is over for this member.
    pub(super) lost_by_commit: bool,
    pub(super) polling: bool,
    pub(super) last_poll: Instant,
    /// The poll limit was exceeded and nobody has polled since.
    pub(super) exceeded: bool,
    /// Which partition is served first; moves on.
    pub(super) turn: usize,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) client: Client,
    pub(super) config: GroupConfig,
    pub(super) group: Arc<str>,
    /// `group.instance.id`.
    pub(super) instance_id: Option<Arc<str>>,
    /// Whether partitions are kept while this member rejoins: only when all of its assignors are cooperative.
    pub(super) is_cooperative: bool,
    state: Mutex<State>,
    /// Something for the poller.
    pub(super) for_poller: Notify,
    /// Something for the membership task.
    pub(super) for_membership: Notify,
    /// Something for the fetcher.
    pub(super) for_fetcher: Notify,
    /// A commit was answered or cancelled.
    pub(super) commit_answered: Notify,
}

pub(super) fn join(client: Client, config: GroupConfig) -> Result<(SimPoller, SimGroup), TransportError> {
    if config.group.is_empty() || config.topics.is_empty() {
        let context = "joining a group: it needs a name and at least one topic";
        return Err(TransportError::new(ErrorKind::Refused, "INVALID_GROUP_ID", context));
    }
    if config.assignors.is_empty() {
        let context = format!("joining group `{}`: name at least one assignor", config.group);
        return Err(TransportError::new(ErrorKind::Refused, "INCONSISTENT_GROUP_PROTOCOL", context));
    }
    let now = client.host.now();
    let state = State {
        closed: false,
        fatal: None,
        generation: -1,
        rejoining: false,
        rebalancing: false,
        last_assignment: (Vec::new(), -1),
        member_id: "".into(),
        coordinator: None,
        owned: BTreeMap::new(),
        events: VecDeque::new(),
        unreleased: BTreeMap::new(),
        next_event: 0,
        commits_out: BTreeMap::new(),
        next_commit: 0,
        lost_by_commit: false,
        polling: false,
        last_poll: now,
        exceeded: false,
        turn: 0,
    };
    let member = Arc::new(Member {
        client,
        group: config.group.as_str().into(),
        instance_id: config.instance_id.as_deref().map(Into::into),
        is_cooperative: config.assignors.iter().all(|assignor| assignor.is_cooperative()),
        config,
        state: Mutex::new(state),
        for_poller: Notify::new(),
        for_membership: Notify::new(),
        for_fetcher: Notify::new(),
        commit_answered: Notify::new(),
    });
    member.client.host.spawn(membership::run(member.clone()));
    member.client.host.spawn(fetcher::run(member.clone()));
    Ok((SimPoller { member: member.clone() }, SimGroup { member }))
}

impl State {
    /// Whether `epoch` of `partition` is the current ownership, and not being released.
    pub(super) fn is_current(&self, partition: &TopicPartition, epoch: Epoch) -> bool {
        self.owned.get(partition).is_some_and(|owned| owned.epoch == epoch && !owned.ending)
    }

    /// Whether nothing may be delivered: a revocation is not released yet. All partitions wait, not only its own.
    pub(super) fn is_held(&self) -> bool {
        self.unreleased.values().any(|event| event.is_revocation)
    }

    fn raise(&mut self, is_revocation: bool, goes: impl Fn(&TopicPartition) -> bool) -> (RebalanceId, Going) {
        let event = RebalanceId(self.next_event);
        self.next_event += 1;
        let going = self.owned.iter().filter(|(partition, _)| goes(partition));
        let partitions: Going = going.map(|(partition, owned)| (partition.clone(), owned.epoch)).collect();
        self.unreleased.insert(event, Unreleased { partitions: partitions.clone(), is_revocation });
        (event, partitions)
    }

    /// Announces that what is owned and `goes` will go. False when there is none of it.
    pub(super) fn revoke(&mut self, deadline: Instant, goes: impl Fn(&TopicPartition) -> bool) -> bool {
        if !self.owned.keys().any(&goes) {
            return false;
        }
        let (event, partitions) = self.raise(true, goes);
        self.events.push_back(Polled::Revoking { event, partitions, deadline });
        true
    }

    /// Everything owned is gone. Commits of it are refused from here on.
    pub(super) fn lose(&mut self) {
        self.generation = -1;
        self.lost_by_commit = false;
        if !self.owned.is_empty() {
            let (event, partitions) = self.raise(false, |_| true);
            self.owned.clear();
            self.events.push_back(Polled::Lost { event, partitions });
        }
    }

    /// Takes at most `limit` buffered records, partition by partition.
    fn take_records(&mut self, limit: usize, prefetch: usize) -> (Vec<Record>, bool) {
        let (mut records, mut wake_fetcher) = (Vec::new(), false);
        let count = self.owned.len();
        let turn = self.turn;
        let mut partitions: Vec<_> = self.owned.iter_mut().collect();
        if count > 0 {
            partitions.rotate_left(turn % count);
        }
        for (partition, owned) in partitions {
            if owned.paused || owned.buffered == 0 {
                continue;
            }
            while records.len() < limit
                && let Some(mut slice) = owned.buffer.pop_front()
            {
                let taken = slice.range.len().min(limit - records.len());
                let end = slice.range.start + taken;
                let part = BatchSlice { range: slice.range.start..end, ..slice.clone() };
                records.extend(part.iter().map(|(offset, record)| to_record(partition, owned.epoch, offset, record)));
                owned.buffered -= taken;
                slice.range.start = end;
                if !slice.range.is_empty() {
                    owned.buffer.push_front(slice);
                }
            }
            if owned.starved && owned.buffered <= prefetch / 2 {
                owned.starved = false;
                wake_fetcher = true;
            }
            if records.len() >= limit {
                break;
            }
        }
        if !records.is_empty() {
            self.turn = self.turn.wrapping_add(1);
        }
        (records, wake_fetcher)
    }
}

pub(super) fn to_record(
    partition: &TopicPartition,
    epoch: Epoch,
    offset: i64,
    record: &crate::cluster::protocol::Record,
) -> Record {
    Record {
        position: Position { partition: partition.clone(), offset, epoch },
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.clone(),
        timestamp_millis: record.timestamp_millis,
    }
}

impl Member {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Ends the member: its tasks stop, and nothing is said to the cluster.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.owned.clear();
        drop(state);
        self.for_membership.notify_one();
        self.for_fetcher.notify_one();
        self.for_poller.notify_one();
    }

    fn closed_error(&self) -> TransportError {
        let context = format!("polling as a member of group `{}`, which this member left", self.group);
        TransportError::new(ErrorKind::Fatal, "CONSUMER_CLOSED", context)
    }
}

/// The polling half of a simulated group member.
#[derive(Debug)]
pub struct SimPoller {
    member: Arc<Member>,
}

/// Marks the time of a poll, so that a poll in progress never exceeds the poll limit.
struct Polling<'a>(&'a Member);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let now = self.0.client.host.now();
        let mut state = self.0.lock();
        state.polling = false;
        state.last_poll = now;
    }
}

impl Poller for SimPoller {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let member = &*self.member;
        let host = &member.client.host;
        if !host.enter() {
            std::future::pending::<()>().await;
        }
        let deadline = host.now() + wait;
        let mut patience = pin!(host.shared.executor.sleep_until(deadline));
        let polling = Polling(member);
        {
            let mut state = member.lock();
            state.polling = true;
            if std::mem::take(&mut state.exceeded) {
                member.for_membership.notify_one();
            }
        }
        let polled = loop {
            {
                let mut state = member.lock();
                if let Some(error) = &state.fatal {
                    break Err(error.clone());
                }
                if state.closed {
                    break Err(member.closed_error());
                }
                if let Some(event) = state.events.pop_front() {
                    break Ok(event);
                }
                if !state.is_held() {
                    let (records, wake) = state.take_records(records_max, member.config.prefetch_records_max);
                    drop(state);
                    if wake {
                        member.for_fetcher.notify_one();
                    }
                    if !records.is_empty() {
                        host.note_polled(&member.group, &records);
                        break Ok(Polled::Records(records));
                    }
                }
            }
            if host.now() >= deadline {
                break Ok(Polled::Records(Vec::new()));
            }
            let something = pin!(member.for_poller.notified());
            select(something, patience.as_mut()).await;
            host.halt_if_dead().await;
        };
        drop(polling);
        polled
    }
}

impl Drop for SimPoller {
    fn drop(&mut self) {
        // A destroyed consumer says nothing to the cluster: the group waits for its session to end.
        if !self.member.client.host.is_dead() {
            self.member.close();
        }
    }
}

/// The other half of a simulated group member. Clones share it.
#[derive(Clone, Debug)]
pub struct SimGroup {
    member: Arc<Member>,
}

impl commits::UnfencedCommit for SimGroup {
    async fn commit_unfenced(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        if !self.member.client.host.enter() {
            std::future::pending::<()>().await;
        }
        commits::commit(&self.member, commits, commits::Check::Nothing).await
    }
}

impl Group for SimGroup {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        if !self.member.client.host.enter() {
            std::future::pending::<()>().await;
        }
        commits::commit(&self.member, commits, commits::Check::Epoch).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        let member = &*self.member;
        member.client.host.halt_if_dead().await;
        let partitions = {
            let mut state = member.lock();
            let Some(unreleased) = state.unreleased.get(&event) else {
                let context = format!("releasing rebalance event {} of group `{}`", event.0, member.group);
                return Err(TransportError::new(ErrorKind::Refused, "UNKNOWN_REBALANCE_EVENT", context));
            };
            let partitions = unreleased.partitions.clone();
            for (partition, epoch) in &partitions {
                if let Some(owned) = state.owned.get_mut(partition).filter(|owned| owned.epoch == *epoch) {
                    owned.ending = true;
                }
            }
            partitions
        };
        commits::settled(member, &partitions).await;
        let mut state = member.lock();
        for (partition, epoch) in &partitions {
            if state.owned.get(partition).is_some_and(|owned| owned.epoch == *epoch) {
                state.owned.remove(partition);
            }
        }
        state.unreleased.remove(&event);
        drop(state);
        member.client.host.forget_polled(&member.group, partitions.iter().map(|(partition, _)| partition));
        member.for_membership.notify_one();
        // What was retained is delivered and fetched again.
        member.for_poller.notify_one();
        member.for_fetcher.notify_one();
        Ok(())
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        let mut state = self.member.lock();
        for partition in partitions {
            if let Some(owned) = state.owned.get_mut(partition) {
                owned.paused = true;
            }
        }
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        let mut state = self.member.lock();
        for partition in partitions {
            if let Some(owned) = state.owned.get_mut(partition) {
                owned.paused = false;
            }
        }
        drop(state);
        self.member.for_fetcher.notify_one();
        self.member.for_poller.notify_one();
    }

    /// A static member says nothing: its session ends by itself, or it comes back before.
    async fn leave(&self) {
        self.member.client.host.halt_if_dead().await;
        let left = {
            let mut state = self.member.lock();
            let left = (state.coordinator, state.member_id.clone());
            state.owned.clear();
            left
        };
        self.member.close();
        commits::settled(&self.member, &[]).await;
        if let (Some(coordinator), member_id) = left
            && !member_id.is_empty()
            && self.member.instance_id.is_none()
        {
            membership::send_leave(&self.member, coordinator, member_id).await;
        }
    }
}
