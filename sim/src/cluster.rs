//! The Kafka cluster as a state machine: requests and time in, answers out.
//!
//! A plain struct, called synchronously. It has no IO, no tasks, no clock and no randomness, and it never looks at who
//! calls it: what it answers, and when, follows from the requests and their arrival times alone, however often and by
//! whom [`Cluster::advance`] is called. A request outlives its sender: nothing takes a submitted request back.
//!
//! The shapes are in [`protocol`]; logs in `log`, groups in `group`, committed offsets in `offsets`; what was applied
//! is told through [`audit`]. The network, connections and their deaths belong to the world around it: it keeps the
//! requests of one connection in order by their arrival times. Unlike a broker's, a connection here is not held up by
//! a parked answer.

pub mod audit;
pub mod protocol;
pub mod trace;

mod config;
mod context;
mod error;
mod group;
mod inbox;
mod log;
mod member;
mod offsets;
mod rebalance;
mod topics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Committed, Watermarks};

use self::audit::{Audit, GroupState};
use self::context::{Context, Timer};
use self::group::{Group, refuse_join};
use self::protocol::{BrokerId, CommitPartition, ConnectionId, ErrorCode, JoinGroup, OffsetCommit, Request, Response};
use self::topics::{Topics, java_hash};

pub use self::config::ClusterConfig;
pub use self::context::ProduceHook;
pub use self::inbox::RequestId;

/// Partitions of `__consumer_offsets`: a group's coordinator leads the one that its name hashes to.
const OFFSETS_PARTITIONS: u32 = 50;

/// A Kafka cluster.
///
/// ```
/// use seriatim_core::env::Instant;
/// use seriatim_sim::cluster::protocol::{BrokerId, ConnectionId, CreateTopic, Request};
/// use seriatim_sim::cluster::{Cluster, ClusterConfig};
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// let topics = vec![CreateTopic { name: "t".into(), partitions: 3, replication: 1 }];
/// let arrival = Instant::from_micros(250);
/// let request = cluster.submit(arrival, ConnectionId(1), BrokerId(0), Request::CreateTopics { topics });
/// assert_eq!(cluster.next_deadline(), Some(arrival));
///
/// cluster.advance(Instant::from_micros(400));
/// assert!(cluster.drain_answered().eq([request]));
/// let (answered_at, response) = cluster.take_response(request).expect("it was due");
/// assert_eq!((answered_at, response.to_string()), (arrival, "CreateTopics [t NONE]".into()));
/// ```
#[derive(Debug)]
pub struct Cluster {
    cx: Context,
    topics: Topics,
    groups: BTreeMap<Arc<str>, Group>,
}

impl Cluster {
    /// An empty cluster at the origin of time.
    pub fn new(mut config: ClusterConfig) -> Self {
        config.brokers = config.brokers.max(1);
        config.offsets_check_interval = config.offsets_check_interval.max(Duration::from_millis(1));
        let mut cx = Context::new(config);
        cx.arm(cx.config.offsets_check_interval, Timer::OffsetExpiry);
        Cluster { cx, topics: Topics::default(), groups: BTreeMap::new() }
    }

    /// Queues a request that reaches broker `to` at `arrives_at`, or now if that is over. Let it lie in the future: at
    /// an instant that `advance` was already told of, a request comes after all others.
    pub fn submit(
        &mut self,
        arrives_at: Instant,
        connection: ConnectionId,
        to: BrokerId,
        request: Request,
    ) -> RequestId {
        self.cx.inbox.push(arrives_at.max(self.cx.now), connection, to, request)
    }

    /// Applies everything due up to and including `now`, in the order of time; at one instant, requests by connection
    /// and then by sequence, and then timers. A time that is over counts as the latest
    /// one seen.
    pub fn advance(&mut self, now: Instant) {
        let now = now.max(self.cx.now);
        loop {
            let arrival = self.cx.inbox.next_arrival();
            let timer = self.cx.next_timer();
            match (arrival, timer) {
                (Some(arrival), timer) if arrival <= now && timer.is_none_or(|timer| arrival <= timer) => {
                    self.cx.now = self.cx.now.max(arrival);
                    if let Some((id, to, request)) = self.cx.inbox.pop() {
                        self.apply(id, to, request);
                    }
                }
                (_, Some(timer)) if timer <= now => {
                    self.cx.now = self.cx.now.max(timer);
                    if let Some(timer) = self.cx.pop_timer() {
                        self.fire(timer);
                    }
                }
                _ => break,
            }
        }
        self.cx.now = now;
    }

    /// When and what a request was answered, once. `None` while it is queued or parked.
    pub fn take_response(&mut self, request: RequestId) -> Option<(Instant, Response)> {
        self.cx.inbox.take(request)
    }

    /// The requests answered since the last call, in the order of their answers: whom to wake. Drain it after every
    /// `advance`, it only grows. It may name requests that were taken or forgotten meanwhile.
    pub fn drain_answered(&mut self) -> std::vec::Drain<'_, RequestId> {
        self.cx.inbox.drain_answered()
    }

    /// Nobody waits for this answer any more. The request is still applied.
    pub fn forget(&mut self, request: RequestId) {
        self.cx.inbox.forget(request);
    }

    /// When `advance` has something to do next. It may be earlier than that (a session that was renewed), never later.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_arrival().into_iter().chain(self.next_timer()).min()
    }

    /// When the next request arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.cx.inbox.next_arrival()
    }

    /// When the cluster does something by itself next: answers a fetch without records, ends a session.
    pub fn next_timer(&self) -> Option<Instant> {
        self.cx.next_timer()
    }

    /// What was applied since the last call, each with its time. Drain it regularly, it only grows.
    pub fn drain_audit(&mut self) -> std::vec::Drain<'_, (Instant, Audit)> {
        self.cx.audit.drain(..)
    }

    /// Decides what is refused instead of appended from now on; `None` lets all pass.
    pub fn on_produce(&mut self, hook: Option<ProduceHook>) {
        self.cx.on_produce.0 = hook;
    }

    /// Makes `to` the leader of a partition, at once; its log goes along. Fetches that are parked on it are answered.
    /// False when there is no such partition or broker.
    pub fn move_leader(&mut self, partition: &TopicPartition, to: BrokerId) -> bool {
        let is_broker = u32::try_from(to.0).is_ok_and(|to| to < self.cx.config.brokers);
        is_broker && self.topics.move_leader(&mut self.cx, partition, to)
    }

    /// Requests that are queued, parked, or answered and not taken.
    pub fn outstanding(&self) -> usize {
        self.cx.inbox.outstanding()
    }

    /// The settings.
    pub fn config(&self) -> &ClusterConfig {
        &self.cx.config
    }

    /// The broker that coordinates `group`.
    pub fn coordinator(&self, group: &str) -> BrokerId {
        BrokerId((java_hash(group) % OFFSETS_PARTITIONS % self.cx.config.brokers) as i32)
    }

    /// The broker that leads a partition, for reports.
    pub fn leader(&self, partition: &TopicPartition) -> Option<BrokerId> {
        self.topics.leader(partition)
    }

    /// The number of partitions of a topic, whoever has heard of them; for reports.
    pub fn partition_count(&self, topic: &str) -> usize {
        self.topics.count(topic)
    }

    /// Whether the leader of a partition has heard of it, for reports.
    pub fn is_open(&self, partition: &TopicPartition) -> bool {
        self.leader(partition).is_some_and(|leader| self.topics.is_known(&self.cx, leader, partition))
    }

    /// The topics whose names begin with `prefix`, for reports.
    pub fn topics_with(&self, prefix: &str) -> Vec<Arc<str>> {
        self.topics.names().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// First and next offsets of a partition, for reports.
    pub fn watermarks(&self, partition: &TopicPartition) -> Option<Watermarks> {
        self.topics.watermarks(partition).map(|(start, end)| Watermarks { start, end })
    }

    /// What a group committed for a partition, for reports.
    pub fn committed(&self, group: &str, partition: &TopicPartition) -> Option<Committed> {
        let found = self.groups.get(group)?.offsets.fetch(partition.clone());
        (found.offset >= 0).then(|| Committed { offset: found.offset, metadata: found.metadata.to_string() })
    }

    /// State and generation of a group, for reports.
    pub fn group_state(&self, group: &str) -> Option<(GroupState, i32)> {
        self.groups.get(group).map(|group| (group.state, group.generation))
    }

    /// Applies one request: the table of what goes where.
    fn apply(&mut self, id: RequestId, to: BrokerId, request: Request) {
        let cx = &mut self.cx;
        let response = match request {
            Request::Metadata { topics } => self.topics.metadata(cx, to, topics),
            Request::InitProducerId => Response::InitProducerId { producer: cx.next_producer() },
            Request::Produce { partitions } => return self.topics.produce(cx, id, to, partitions),
            Request::Fetch { max_wait, records_max, partitions } => {
                return self.topics.fetch(cx, id, to, (max_wait, records_max), partitions);
            }
            Request::ListOffsets { partitions } => self.topics.list_offsets(cx, to, partitions),
            Request::DeleteRecords { partitions } => self.topics.delete_records(cx, to, partitions),
            Request::CreateTopics { topics } => self.topics.create(cx, topics),
            Request::CreatePartitions { topics } => self.topics.grow(cx, topics),
            Request::DeleteTopics { topics } => self.delete_topics(topics),
            Request::FindCoordinator { group } => {
                let error = if group.is_empty() { ErrorCode::InvalidGroupId } else { ErrorCode::None };
                Response::FindCoordinator { error, coordinator: self.coordinator(&group) }
            }
            Request::JoinGroup(join) => return self.join(id, to, join),
            Request::SyncGroup { group, generation, member_id, instance_id, assignments } => {
                match self.member_group(to, &group) {
                    Ok((cx, group)) => {
                        return group.sync(cx, id, (generation, member_id, instance_id), assignments);
                    }
                    Err(error) => Response::SyncGroup { error, assignment: Vec::new() },
                }
            }
            Request::Heartbeat { group, generation, member_id, instance_id } => {
                let error = match self.member_group(to, &group) {
                    Ok((cx, group)) => group.heartbeat(cx, generation, &member_id, instance_id.as_ref()),
                    Err(error) => error,
                };
                Response::Heartbeat { error }
            }
            Request::LeaveGroup { group, member_id, instance_id } => {
                let error = match self.member_group(to, &group) {
                    Ok((cx, group)) => group.leave(cx, &member_id, instance_id.as_ref()),
                    Err(error) => error,
                };
                Response::LeaveGroup { error }
            }
            Request::OffsetCommit(commit) => self.commit(to, commit),
            Request::OffsetFetch { group, partitions } => self.fetch_offsets(to, &group, partitions),
        };
        self.cx.answer(id, response);
    }

    fn fire(&mut self, timer: Timer) {
        let cx = &mut self.cx;
        match timer {
            Timer::Fetch(request) => self.topics.finish_fetch(cx, request),
            Timer::Phase(group, phase) => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.phase_over(cx, phase);
                }
            }
            Timer::Session(group, member) => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.session_over(cx, &member);
                }
            }
            Timer::OffsetExpiry => {
                self.groups.retain(|_, group| {
                    group.expire_offsets(cx);
                    !group.die_if_useless(cx)
                });
                cx.arm(cx.config.offsets_check_interval, Timer::OffsetExpiry);
            }
        }
    }

    fn check_coordinator(&self, to: BrokerId, group: &str) -> Result<(), ErrorCode> {
        if group.is_empty() {
            Err(ErrorCode::InvalidGroupId)
        } else if self.coordinator(group) != to {
            Err(ErrorCode::NotCoordinator)
        } else {
            Ok(())
        }
    }

    /// The group of a request that only a member can send.
    fn member_group(&mut self, to: BrokerId, group: &str) -> Result<(&mut Context, &mut Group), ErrorCode> {
        self.check_coordinator(to, group)?;
        let group = self.groups.get_mut(group).ok_or(ErrorCode::UnknownMemberId)?;
        Ok((&mut self.cx, group))
    }

    fn join(&mut self, id: RequestId, to: BrokerId, join: JoinGroup) {
        let bounds = self.cx.config.session_timeout_min..=self.cx.config.session_timeout_max;
        let error = match self.check_coordinator(to, &join.group) {
            Err(error) => Some(error),
            Ok(()) if !bounds.contains(&join.session_timeout) => Some(ErrorCode::InvalidSessionTimeout),
            Ok(()) if !join.member_id.is_empty() && !self.groups.contains_key(&join.group) => {
                Some(ErrorCode::UnknownMemberId)
            }
            Ok(()) => None,
        };
        if let Some(error) = error {
            return refuse_join(&mut self.cx, id, error, join.member_id);
        }
        let (cx, name) = (&mut self.cx, Arc::clone(&join.group));
        self.groups.entry(Arc::clone(&name)).or_insert_with(|| Group::new(name, cx.now)).join(cx, id, join);
    }

    /// Partitions that do not exist are refused first, then the committer, then each partition's metadata.
    fn commit(&mut self, to: BrokerId, commit: OffsetCommit) -> Response {
        let known = |part: &CommitPartition| self.topics.is_known(&self.cx, to, &part.partition);
        let known: Vec<bool> = commit.partitions.iter().map(known).collect();
        let is_any_known = known.contains(&true);
        let refusal = if is_any_known { self.accept_commit(to, &commit) } else { ErrorCode::None };
        let mut group = self.groups.get_mut(&commit.group);
        let mut result = |at: usize| {
            let part = &commit.partitions[at];
            let error = match &mut group {
                _ if !known[at] => ErrorCode::UnknownTopicOrPartition,
                Some(group) if refusal.is_none() => group.offsets.commit(&mut self.cx, &commit, part),
                _ => refusal,
            };
            (part.partition.clone(), error)
        };
        Response::OffsetCommit { partitions: (0..commit.partitions.len()).map(&mut result).collect() }
    }

    fn accept_commit(&mut self, to: BrokerId, commit: &OffsetCommit) -> ErrorCode {
        if let Err(error) = self.check_coordinator(to, &commit.group) {
            return error;
        }
        if !self.groups.contains_key(&commit.group) {
            if commit.generation >= 0 {
                return ErrorCode::GroupIdNotFound;
            }
            self.groups.insert(Arc::clone(&commit.group), Group::new(Arc::clone(&commit.group), self.cx.now));
        }
        let group = self.groups.get_mut(&commit.group).expect("it was there or was just made");
        group.accept_commit(&mut self.cx, commit)
    }

    fn fetch_offsets(&self, to: BrokerId, group: &str, partitions: Vec<TopicPartition>) -> Response {
        if let Err(error) = self.check_coordinator(to, group) {
            return Response::OffsetFetch { error, partitions: Vec::new() };
        }
        let none = offsets::GroupOffsets::default();
        let offsets = self.groups.get(group).map_or(&none, |group| &group.offsets);
        let partitions = partitions.into_iter().map(|partition| offsets.fetch(partition)).collect();
        Response::OffsetFetch { error: ErrorCode::None, partitions }
    }

    fn delete_topics(&mut self, topics: Vec<Arc<str>>) -> Response {
        let cx = &mut self.cx;
        let mut delete = |topic: Arc<str>| {
            let error = self.topics.delete(cx, &topic);
            if error.is_none() {
                for (name, group) in &mut self.groups {
                    group.offsets.remove_topic(cx, name, &topic);
                }
            }
            (topic, error)
        };
        Response::DeleteTopics { topics: topics.into_iter().map(&mut delete).collect() }
    }
}

#[cfg(test)]
mod tests;
