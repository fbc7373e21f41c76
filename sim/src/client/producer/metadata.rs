//! What a producer knows of its topics, and the task that asks.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::partitioner::Choice;

use super::lane::Pending;
use super::{Core, State};
use crate::client::broker_error;
use crate::cluster::protocol::ErrorCode;

/// A topic, as the producer knows it.
#[derive(Debug)]
pub(super) struct Topic {
    /// Its partitions; `None` when it was not seen, or is gone.
    count: Option<u32>,
    /// It was seen once: when metadata do not have it any more it is gone.
    was_seen: bool,
    /// When the producer first heard of it.
    referenced: Instant,
    refreshed: Instant,
    /// To be asked for now.
    pub(super) is_stale: bool,
    /// Records that wait to be given a partition, with the one that they name.
    pub(super) unassigned: VecDeque<(Option<i32>, Pending)>,
    /// Where records that may go anywhere go, and until when.
    sticky: Option<(i32, Instant)>,
}

/// Where a record goes.
pub(super) enum Place {
    At(i32),
    /// That is not known yet.
    Wait,
}

impl Topic {
    pub(super) fn new(now: Instant) -> Self {
        Topic {
            count: None,
            was_seen: false,
            referenced: now,
            refreshed: now,
            is_stale: true,
            unassigned: VecDeque::new(),
            sticky: None,
        }
    }

    /// The partition of a record that names `partition`, or none, by what is known now.
    pub(super) fn place(&mut self, core: &Core, pending: &Pending, partition: Option<i32>) -> Place {
        let Some(count) = self.count else {
            self.is_stale = true;
            return Place::Wait;
        };
        match partition {
            Some(partition) if u32::try_from(partition).is_ok_and(|partition| partition < count) => {
                Place::At(partition)
            }
            Some(_) => {
                self.is_stale = true;
                Place::Wait
            }
            None => Place::At(self.choose(core, pending, count)),
        }
    }

    fn choose(&mut self, core: &Core, pending: &Pending, count: u32) -> i32 {
        let linger = core.config.sticky_linger;
        match core.config.partitioner.choose(pending.record.key.as_deref(), count) {
            Choice::Partition(partition) => partition,
            Choice::Sticky if linger > Duration::ZERO => {
                let now = core.client.host.now();
                match self.sticky {
                    Some((partition, until)) if now < until && partition.unsigned_abs() < count => partition,
                    _ => {
                        let partition = core.draw(count);
                        self.sticky = Some((partition, now + linger));
                        partition
                    }
                }
            }
            Choice::Sticky | Choice::Random => core.draw(count),
        }
    }
}

/// The task that asks for metadata: at once for what is not known, and for all when they have their age.
pub(super) async fn run(core: Arc<Core>) {
    let host = &core.client.host;
    let age = core.config.metadata_max_age.unwrap_or(host.shared.config.metadata_max_age);
    loop {
        let (due, wake) = {
            let state = core.lock();
            if state.is_over() {
                return;
            }
            due(&state, host.now(), age)
        };
        if due.is_empty() {
            let timer = async {
                match wake {
                    Some(at) => host.shared.executor.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            select(pin!(core.for_metadata.notified()), pin!(timer)).await;
            host.halt_if_dead().await;
            continue;
        }
        let asked = host.now();
        let answer = core.client.refresh(due.clone()).await;
        let is_open = {
            let mut state = core.lock();
            if answer.is_ok() {
                for topic in &due {
                    learn(&core, &mut state, topic, asked);
                }
            }
            answer.is_err() || due.iter().any(|topic| state.topics.get(topic).is_some_and(|topic| topic.is_stale))
        };
        core.for_sender.notify_one();
        core.answered.notify_waiters();
        if is_open {
            core.client.back_off().await;
        }
    }
}

/// The topics to be asked for now, and when the next is due.
fn due(state: &State, now: Instant, age: Duration) -> (Vec<Arc<str>>, Option<Instant>) {
    let (mut due, mut wake) = (Vec::new(), None::<Instant>);
    for (name, topic) in &state.topics {
        let at = topic.refreshed + age;
        if topic.is_stale || topic.count.is_some() && at <= now {
            due.push(name.clone());
        } else if topic.count.is_some() {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
    }
    (due, wake)
}

/// Takes what an answer, to what was asked at `asked`, says of a topic.
fn learn(core: &Core, state: &mut State, name: &Arc<str>, asked: Instant) {
    let Some(topic) = state.topics.get_mut(name) else { return };
    topic.count = core.client.partitions(name);
    topic.refreshed = asked;
    topic.is_stale = false;
    let is_absent = match topic.count {
        Some(_) => {
            topic.was_seen = true;
            false
        }
        None => topic.was_seen || asked >= topic.referenced + core.config.topic_propagation_max,
    };
    let waiting = std::mem::take(&mut topic.unassigned);
    // Those that name their partition go first.
    let (named, free): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(partition, _)| partition.is_some());
    let mut open = VecDeque::new();
    for (partition, pending) in named.into_iter().chain(free) {
        let Some(topic) = state.topics.get_mut(name) else { return };
        match topic.place(core, &pending, partition) {
            Place::At(partition) => core.put(state, TopicPartition { topic: name.clone(), partition }, pending),
            // Before the question was sent it was not there: that answers it. A partition may be on its way too.
            Place::Wait if is_refused(core, topic, is_absent, pending.enqueued, asked) => {
                let context = match (partition, topic.count) {
                    (Some(partition), Some(count)) => {
                        format!("producing to partition {partition} of `{name}`, which has {count}")
                    }
                    _ => format!("producing to topic `{name}`, which does not exist: create it first"),
                };
                state.end(pending.owner, Err(broker_error(ErrorCode::UnknownTopicOrPartition, context)));
            }
            Place::Wait => open.push_back((partition, pending)),
        }
    }
    let Some(topic) = state.topics.get_mut(name) else { return };
    topic.is_stale = !open.is_empty();
    topic.unassigned = open;
    if is_absent {
        abandon(state, name);
    } else if topic.count.is_none() {
        topic.is_stale = true;
    }
}

/// Whether a record that was enqueued then has nowhere to go, by what was asked at `asked`.
fn is_refused(core: &Core, topic: &Topic, is_absent: bool, enqueued: Instant, asked: Instant) -> bool {
    match topic.count {
        Some(_) => enqueued + core.config.topic_propagation_max <= asked,
        None => is_absent && enqueued <= asked,
    }
}

/// Refuses what waits for the partitions of a topic that is gone. What is out is refused when its answer says the same.
fn abandon(state: &mut State, name: &Arc<str>) {
    let lanes = state.lanes.iter_mut().filter(|(partition, _)| partition.topic == *name);
    let owners: Vec<_> = lanes.flat_map(|(_, lane)| lane.abandon()).collect();
    for owner in owners {
        let context = format!("producing to topic `{name}`, which was deleted");
        state.end(owner, Err(broker_error(ErrorCode::UnknownTopicOrPartition, context)));
    }
}
