//! A member of a consumer group: rebalances in-band, records out of one queue for each partition.
//!
//! Nothing is read on a thread of its own. librdkafka is asked, and never waited for, from within `poll`: so it is
//! polled when the application polls and not otherwise, and throws the member out after `max.poll.interval.ms` as it
//! should. Its threads wake the poller when a queue is not empty any more.
//!
//! Each partition has a queue of its own (`split_partition_queue`), and the main queue carries events only. So an event
//! never waits behind records, and a paused partition is one whose queue is left alone: what was fetched of it stays,
//! where librdkafka's own pause would throw it away and fetch it again. librdkafka's bounds of a queue hold the fetcher
//! back.
//!
//! A rebalance callback only writes down what is to be done ([`context`]). An assignment is taken over by a task that
//! looks up what the group has committed ([`membership`]); a revocation is given back by [`Group::release`], whole.
//! Commits go one at a time, and are fenced by epoch before they are sent ([`commits`]).

mod commits;
mod context;
mod membership;
mod state;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::select;
use rdkafka::consumer::BaseConsumer;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::KafkaError;
use seriatim_core::env::{Env, Instant};
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Commit, ErrorKind, Group, GroupConfig, Polled, Poller, RebalanceId, Record, TransportError,
};

use self::context::{Context, Shared};
use crate::client::lock;
use crate::records::Copier;

pub(crate) use membership::join;

/// How often those who wait look whether librdkafka forgot to wake them, and how often a waiting poll counts as one.
const TICK: Duration = Duration::from_millis(100);

type Consumer = BaseConsumer<Context>;

/// Makes a consumer that has subscribed. Blocks for a moment.
type Maker = Arc<dyn Fn() -> Result<Consumer, KafkaError> + Send + Sync>;

/// The queue of one partition, under one ownership.
struct Reader {
    partition: TopicPartition,
    epoch: Epoch,
    queue: PartitionQueue<Context>,
}

#[derive(Default)]
struct Readers {
    list: Vec<Reader>,
    copier: Copier,
}

/// One member, shared by its two handles and its tasks.
struct Member<E> {
    env: E,
    config: GroupConfig,
    is_cooperative: bool,
    request_limit: Duration,
    shared: Arc<Shared>,
    /// `None` when it is closed, and for as long as a new one is made.
    consumer: Mutex<Option<Arc<Consumer>>>,
    maker: Maker,
    readers: Mutex<Readers>,
    /// When librdkafka's events were last looked at: one that comes now may be as old as that.
    served_at: Mutex<Instant>,
    commits: commits::Sender,
    /// Order of commits.
    gate: tokio::sync::Mutex<()>,
}

impl<E> std::fmt::Debug for Member<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("group", &self.config.group).field("shared", &self.shared).finish()
    }
}

impl<E: Env> Member<E> {
    fn consumer(&self) -> Option<Arc<Consumer>> {
        lock(&self.consumer).clone()
    }

    fn closed_error(&self) -> TransportError {
        let context = format!("polling as a member of group `{}`, which this member left", self.config.group);
        TransportError::new(ErrorKind::Fatal, "CONSUMER_CLOSED", context)
    }

    /// Takes at most `limit` records out of the queues, partition by partition.
    fn take_records(&self, limit: usize) -> Vec<Record> {
        let mut readers = lock(&self.readers);
        let Readers { list, copier } = &mut *readers;
        let (turn, may_read) = {
            let mut state = lock(&self.shared.state);
            if list.is_empty() || state.is_held() || state.is_over() {
                return Vec::new();
            }
            state.turn = state.turn.wrapping_add(1);
            let may_read = |reader: &Reader| {
                let owned = state.owned.get(&reader.partition).filter(|owned| owned.epoch == reader.epoch);
                owned.is_some_and(|owned| !owned.is_paused && !owned.is_ending)
            };
            (state.turn, list.iter().map(may_read).collect::<Vec<_>>())
        };
        let mut records = Vec::new();
        for place in 0..list.len() {
            let place = (place + turn) % list.len();
            let Reader { partition, epoch, queue } = &list[place];
            while may_read[place] && records.len() < limit {
                match queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => records.push(copier.record(partition, *epoch, &message)),
                    Some(Err(error)) => self.note(&error, Some(partition)),
                    None => break,
                }
            }
        }
        records
    }
}

/// The polling half of a group member.
#[derive(Debug)]
pub struct KafkaPoller<E: Env> {
    member: Arc<Member<E>>,
}

impl<E: Env> Poller for KafkaPoller<E> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let member = &self.member;
        let until = member.env.now() + wait;
        loop {
            let woken = member.shared.for_poller.notified();
            member.serve();
            {
                let mut state = lock(&member.shared.state);
                if let Some(error) = &state.fatal {
                    return Err(error.clone());
                }
                if state.is_closed {
                    return Err(member.closed_error());
                }
                if let Some(event) = state.events.pop_front() {
                    return Ok(event);
                }
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
            }
            let records = member.take_records(records_max);
            let left = until.since(member.env.now());
            if !records.is_empty() || left.is_zero() {
                return Ok(Polled::Records(records));
            }
            select(pin!(woken), pin!(member.env.sleep(left.min(TICK)))).await;
        }
    }
}

impl<E: Env> Drop for KafkaPoller<E> {
    fn drop(&mut self) {
        self.member.close(None);
    }
}

/// The other half of a group member. Clones share it.
#[derive(Clone, Debug)]
pub struct KafkaGroup<E: Env> {
    member: Arc<Member<E>>,
}

impl<E: Env> KafkaGroup<E> {
    fn set_paused(&self, partitions: &[TopicPartition], is_paused: bool) {
        let mut state = lock(&self.member.shared.state);
        for partition in partitions {
            if let Some(owned) = state.owned.get_mut(partition) {
                owned.is_paused = is_paused;
            }
        }
        drop(state);
        if !is_paused {
            self.member.shared.for_poller.notify_one();
        }
    }
}

impl<E: Env> Group for KafkaGroup<E> {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        commits::commit(&self.member, commits).await
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        membership::release(&self.member, event).await
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        self.set_paused(partitions, true);
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.set_paused(partitions, false);
    }

    async fn leave(&self) {
        membership::leave(&self.member).await;
    }
}
