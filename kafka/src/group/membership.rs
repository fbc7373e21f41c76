//! How a member joins, takes partitions over, gives them back, and goes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset};
use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Assignment, Assignor, ErrorKind, GroupConfig, OffsetReset, RebalanceId, TransportError,
};
use tokio::sync::oneshot;

use super::context::{Context, Shared, give_up, take};
use super::state::Owed;
use super::{Consumer, KafkaGroup, KafkaPoller, Maker, Member, Reader, Readers, commits};
use crate::client::{self, check_topic, detach, list, lock};
use crate::cluster::Cluster;
use crate::{NO_COST, error};

/// Part of the poll limit that is kept for the last commit of a drain, at most.
const COMMIT_RESERVE_MAX: Duration = Duration::from_secs(1);
/// Events that are taken off the queue at a time.
const EVENTS_MAX: usize = 100;
/// Time between two tries to look up what the group has committed.
const RETRY_WAIT: Duration = Duration::from_millis(200);
/// How long a member that leaves is waited for.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// How often a closing consumer is polled, for `CLOSE_POLL` each.
const CLOSE_POLLS_MAX: usize = 600;
const CLOSE_POLL: Duration = Duration::from_millis(50);

/// A new member. It joins in the background.
pub(crate) async fn join<E: Env>(
    env: E,
    cluster: &Cluster,
    config: GroupConfig,
) -> Result<(KafkaPoller<E>, KafkaGroup<E>), TransportError> {
    check(&config)?;
    let is_cooperative = config.assignors.iter().all(|assignor| assignor.is_cooperative());
    let properties = properties(cluster, &config);
    let shared = Arc::new(Shared::new(config.topics.clone()));
    let maker: Maker = {
        let (shared, topics) = (shared.clone(), config.topics.clone());
        Arc::new(move || {
            let context = Context { shared: shared.clone(), is_cooperative, is_closing: AtomicBool::new(false) };
            let mut consumer: Consumer = BaseConsumer::from_config_and_context(&properties, context)?;
            let shared = shared.clone();
            consumer.set_nonempty_callback(move || shared.changed());
            consumer.subscribe(&topics.iter().map(|topic| &**topic).collect::<Vec<_>>())?;
            Ok(consumer)
        })
    };
    let make = maker.clone();
    let made = env.run_blocking(NO_COST, move || make()).await;
    let consumer = made.map_err(|error| error::of(&error, format!("joining group `{}`", config.group)))?;
    let thread = commits::Sender::start(shared.clone(), config.group.clone());
    let commits = thread.map_err(|error| {
        let context = format!("joining group `{}`: starting a thread: {error}", config.group);
        TransportError::new(ErrorKind::Retriable, "_THREAD", context)
    })?;
    let member = Arc::new(Member {
        commits,
        served_at: Mutex::new(env.now()),
        env,
        config,
        is_cooperative,
        request_limit: cluster.settings.request_limit,
        shared,
        consumer: Mutex::new(Some(Arc::new(consumer))),
        maker,
        readers: Mutex::default(),
        gate: tokio::sync::Mutex::new(()),
    });
    Ok((KafkaPoller { member: member.clone() }, KafkaGroup { member }))
}

/// Refuses what librdkafka does not do.
fn check(config: &GroupConfig) -> Result<(), TransportError> {
    let doing = format!("joining group `{}`", config.group);
    let refused =
        |code, problem: &str| Err(TransportError::new(ErrorKind::Refused, code, format!("{doing}: {problem}")));
    if config.group.is_empty() || config.topics.is_empty() {
        return refused("INVALID_GROUP_ID", "it needs a name and at least one topic");
    }
    for topic in &config.topics {
        check_topic(topic, &doing)?;
    }
    if config.assignors.is_empty() {
        return refused("INCONSISTENT_GROUP_PROTOCOL", "name at least one assignor");
    }
    if config.assignors.contains(&Assignor::Sticky) {
        return refused(
            "UNSUPPORTED_ASSIGNOR",
            "librdkafka has no eager `sticky`; name `cooperative-sticky` or `range`",
        );
    }
    let cooperative = config.assignors.iter().filter(|assignor| assignor.is_cooperative()).count();
    if cooperative > 0 && cooperative < config.assignors.len() {
        let problem = "librdkafka takes no list of eager and cooperative assignors; name one kind";
        return refused("UNSUPPORTED_ASSIGNOR", problem);
    }
    Ok(())
}

fn properties(cluster: &Cluster, config: &GroupConfig) -> ClientConfig {
    let mut properties = cluster.settings.consumer(&config.client_id);
    let mut set = |name: &str, value: u128| {
        properties.set(name, value.to_string());
    };
    set("session.timeout.ms", config.session_timeout.as_millis());
    set("heartbeat.interval.ms", config.heartbeat_interval.as_millis());
    set("max.poll.interval.ms", config.poll_limit.as_millis());
    set("queued.min.messages", config.prefetch_records_max.max(1) as u128);
    if let Some(age) = config.metadata_max_age {
        set("topic.metadata.refresh.interval.ms", age.as_millis().max(10));
    }
    let reset = match config.offset_reset {
        OffsetReset::Earliest => "earliest",
        OffsetReset::Latest => "latest",
    };
    let assignors: Vec<_> = config.assignors.iter().map(|assignor| assignor.name()).collect();
    properties.set("group.id", &config.group).set("auto.offset.reset", reset);
    properties.set("partition.assignment.strategy", assignors.join(","));
    if let Some(instance) = &config.instance_id {
        properties.set("group.instance.id", instance);
    }
    properties
}

impl<E: Env> Member<E> {
    /// Takes what librdkafka has on its main queue: rebalances, answers to commits, errors. Never waits.
    pub(super) fn serve(self: &Arc<Self>) {
        let Some(consumer) = self.consumer() else { return };
        let now = self.env.now();
        let config = &self.config;
        let reserve = COMMIT_RESERVE_MAX.min(config.poll_limit / 10);
        let drain = config.poll_limit.saturating_sub(config.heartbeat_interval).saturating_sub(reserve);
        let knew = std::mem::replace(&mut *lock(&self.served_at), now);
        *lock(&self.shared.deadline) = knew + drain;
        for _ in 0..EVENTS_MAX {
            let before = self.shared.served.load(Ordering::Relaxed);
            match consumer.poll(Duration::ZERO) {
                None if self.shared.served.load(Ordering::Relaxed) == before => break,
                None => {}
                Some(Ok(_)) => self.fail("a record came by the queue of events, and would be lost"),
                Some(Err(error)) => self.note(&error, None),
            }
        }
        let mut state = lock(&self.shared.state);
        // A revocation of nothing, or of what is lost already.
        let owed = if state.unreleased.is_empty() { state.owed.take() } else { None };
        let announced = state.take_announced();
        drop(state);
        if let Some(owed) = owed {
            let member = self.clone();
            self.env.spawn(async move {
                let _ = member.pay(owed).await;
            });
        }
        if let Some(announced) = announced {
            let member = self.clone();
            self.env.spawn(async move { member.take_over(announced).await });
        }
    }

    /// What an error means that librdkafka reports.
    pub(super) fn note(&self, error: &KafkaError, partition: Option<&TopicPartition>) {
        let group = &self.config.group;
        let doing = match partition {
            Some(partition) => format!("reading {partition} as a member of group `{group}`"),
            None => format!("being a member of group `{group}`"),
        };
        if let KafkaError::MessageConsumptionFatal(code) = error {
            return self.fatal(&error::of_code(*code, doing));
        }
        let Some(code) = error.rdkafka_error_code() else { return };
        // The rest passes, or shows otherwise: as a loss, as a topic without partitions.
        if matches!(
            code,
            RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::ClusterAuthorizationFailed
                | RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::SaslAuthenticationFailed
                | RDKafkaErrorCode::UnsupportedSASLMechanism
                | RDKafkaErrorCode::InconsistentGroupProtocol
                | RDKafkaErrorCode::InvalidSessionTimeout
                | RDKafkaErrorCode::InvalidGroupId
                | RDKafkaErrorCode::InvalidTopic
                | RDKafkaErrorCode::GroupMaxSizeReached
        ) {
            let reason = self.shared.complaints.last().map(|(_, reason)| format!(": {reason}")).unwrap_or_default();
            lock(&self.shared.state).error = Some(error::of_code(code, format!("{doing}{reason}")));
            self.shared.changed();
        }
    }

    pub(super) fn fail(&self, problem: &str) {
        let context = format!("being a member of group `{}`: {problem}", self.config.group);
        self.fail_as(&TransportError::new(ErrorKind::Fatal, "_STATE", context));
    }

    /// librdkafka says that this consumer is of no use any more: with its reason.
    pub(super) fn fatal(&self, error: &TransportError) {
        let reason = self.consumer().and_then(|consumer| consumer.client().fatal_error());
        let of_reason =
            |(code, reason)| error::of_code(code, format!("being a member of group `{}`: {reason}", self.config.group));
        self.fail_as(&reason.map_or_else(|| error.clone(), of_reason));
    }

    /// Ends the member for good.
    pub(super) fn fail_as(&self, error: &TransportError) {
        let error = TransportError { kind: ErrorKind::Fatal, ..error.clone() };
        lock(&self.shared.state).fail(error);
        self.shared.changed();
    }

    /// The coordinator does not know this member any more. librdkafka says so by itself, but not while it waits for a
    /// revocation to be given back.
    pub(super) fn thrown_out(&self) {
        lock(&self.shared.state).thrown_out(self.is_cooperative);
        self.shared.changed();
    }

    /// Gives librdkafka what it waits for, away from the tasks: it asks its own main thread and waits for the answer.
    async fn pay(self: &Arc<Self>, owed: Owed) -> Result<(), TransportError> {
        let Some(consumer) = self.consumer() else { return Ok(()) };
        if owed.begins_anew {
            drop(consumer);
            return self.begin_anew(owed).await;
        }
        let is_cooperative = self.is_cooperative;
        let pay = move || give_up(&consumer, is_cooperative, &owed.partitions);
        let paid = self.env.run_blocking(NO_COST, pay).await;
        self.shared.changed();
        paid.map_err(|error| {
            let error = error::of(&error, format!("giving partitions of group `{}` back", self.config.group));
            self.fail_as(&error);
            error
        })
    }

    /// Closes the consumer, which believes in what is gone, and makes another.
    async fn begin_anew(self: &Arc<Self>, owed: Owed) -> Result<(), TransportError> {
        let announced = lock(&self.shared.state).announced.take();
        self.end_consumer(Some(owed), announced, None);
        let make = self.maker.clone();
        let made = self.env.run_blocking(NO_COST, move || make()).await;
        let doing = || format!("joining group `{}` anew", self.config.group);
        let made = made.map_err(|error| {
            let error = error::of(&error, doing());
            self.fail_as(&error);
            error
        })?;
        *lock(&self.consumer) = Some(Arc::new(made));
        if lock(&self.shared.state).is_closed {
            // It was closed meanwhile, and nobody would close this one.
            self.end_consumer(None, None, None);
        }
        self.shared.changed();
        Ok(())
    }

    /// Takes an assignment over: looks up where to start, then tells librdkafka to read from there.
    async fn take_over(self: Arc<Self>, partitions: Vec<TopicPartition>) {
        // Kept through a close: librdkafka waits to hear of this assignment before it says goodbye.
        let Some(consumer) = self.consumer() else { return };
        let found = self.starts(&consumer, &partitions).await;
        let member = self.clone();
        let assign = move || member.assign(&consumer, &partitions, found);
        if let Err(error) = self.env.run_blocking(NO_COST, assign).await {
            self.fail_as(&error::of(&error, format!("taking partitions of group `{}` over", self.config.group)));
        }
        self.shared.changed();
    }

    /// What the group has committed, and where to start; asked for as long as it takes. `None` when the member closes.
    async fn starts(
        self: &Arc<Self>,
        consumer: &Arc<Consumer>,
        partitions: &[TopicPartition],
    ) -> Option<Vec<Assignment>> {
        while !lock(&self.shared.state).is_closed {
            let (asked, member, consumer) = (partitions.to_vec(), self.clone(), consumer.clone());
            match self.env.run_blocking(NO_COST, move || member.look_up(&consumer, &asked)).await {
                Ok(found) => return Some(found),
                Err(error) => {
                    if error.kind != ErrorKind::Retriable {
                        lock(&self.shared.state).error = Some(error);
                        self.shared.changed();
                    }
                    self.env.sleep(RETRY_WAIT).await;
                }
            }
        }
        None
    }

    /// Blocks for as long as two requests take.
    fn look_up(&self, consumer: &Consumer, partitions: &[TopicPartition]) -> Result<Vec<Assignment>, TransportError> {
        let limit = self.request_limit.min(Duration::from_secs(5));
        let doing = || format!("reading the committed offsets of group `{}`", self.config.group);
        let committed = client::committed(consumer, partitions, limit, &doing)?;
        let without = partitions.iter().zip(&committed).filter(|(_, committed)| committed.is_none());
        let without: Vec<_> = without.map(|(partition, _)| partition.clone()).collect();
        let which = match self.config.offset_reset {
            OffsetReset::Earliest => Offset::Beginning,
            OffsetReset::Latest => Offset::End,
        };
        let mut resets = client::offsets(consumer, &without, which, limit)?.into_iter();
        let pairs = partitions.iter().zip(committed);
        Ok(pairs
            .map(|(partition, committed)| {
                let reset = || resets.next().unwrap_or_default();
                let start = committed.as_ref().map_or_else(reset, |committed| committed.offset);
                Assignment { partition: partition.clone(), epoch: Epoch::default(), committed, start }
            })
            .collect())
    }

    /// Splits the queues off and tells librdkafka to read. Without starts it is only told that it was heard: the member
    /// closes, and librdkafka waits for that.
    fn assign(
        &self,
        consumer: &Arc<Consumer>,
        partitions: &[TopicPartition],
        found: Option<Vec<Assignment>>,
    ) -> Result<(), KafkaError> {
        let Some(found) = found else {
            return take(consumer, self.is_cooperative, &list(partitions.iter().map(|one| (one, Offset::Invalid))));
        };
        let mut readers = Vec::with_capacity(found.len());
        for new in &found {
            // Before librdkafka reads: what it has by then would come by the queue of events.
            let Some(mut queue) = consumer.split_partition_queue(&new.partition.topic, new.partition.partition) else {
                return Err(KafkaError::Subscription("the partition has no queue".into()));
            };
            let shared = self.shared.clone();
            queue.set_nonempty_callback(move || shared.for_poller.notify_one());
            readers.push(Reader { partition: new.partition.clone(), epoch: new.epoch, queue });
        }
        let starts = list(found.iter().map(|new| (&new.partition, Offset::Offset(new.start))));
        {
            let mut state = lock(&self.shared.state);
            if !state.is_over() {
                // Before librdkafka has it: it may want it back, or call it lost, as soon as it has.
                let epochs = state.assign(found);
                readers.iter_mut().zip(epochs).for_each(|(reader, epoch)| reader.epoch = epoch);
            }
        }
        take(consumer, self.is_cooperative, &starts)?;
        let mut all = lock(&self.readers);
        all.list.retain(|old| readers.iter().all(|new| new.partition != old.partition));
        all.list.append(&mut readers);
        drop(all);
        // Those of what is gone again.
        self.drop_readers();
        Ok(())
    }

    /// Drops the queues of what is not owned any more.
    fn drop_readers(&self) {
        let mut readers = lock(&self.readers);
        let state = lock(&self.shared.state);
        let is_owned =
            |reader: &Reader| state.owned.get(&reader.partition).is_some_and(|owned| owned.epoch == reader.epoch);
        let (kept, dropped) = std::mem::take(&mut readers.list).into_iter().partition(is_owned);
        readers.list = kept;
        drop(state);
        drop(readers);
        // Outside of the locks: librdkafka's own are taken.
        drop::<Vec<Reader>>(dropped);
    }

    /// Ends the member, and tells `done` when its goodbye has been said. Does not wait.
    pub(super) fn close(&self, done: Option<oneshot::Sender<()>>) {
        let (owed, announced) = {
            let mut state = lock(&self.shared.state);
            state.is_closed = true;
            state.owned.clear();
            state.events.clear();
            state.unreleased.clear();
            (state.owed.take(), state.announced.take())
        };
        self.shared.changed();
        self.end_consumer(owed, announced, done);
    }

    /// Closes the consumer, on a thread of its own: librdkafka waits for what it is owed, and for the broker.
    fn end_consumer(
        &self,
        owed: Option<Owed>,
        announced: Option<Vec<TopicPartition>>,
        done: Option<oneshot::Sender<()>>,
    ) {
        let Some(consumer) = lock(&self.consumer).take() else { return };
        // From here on rebalances are done within the callback.
        consumer.context().is_closing.store(true, Ordering::Release);
        let readers = std::mem::take(&mut *lock(&self.readers));
        let is_cooperative = self.is_cooperative;
        detach("kafka-close", move || {
            drop(readers);
            close(&consumer, is_cooperative, owed, announced);
            if let Some(done) = done {
                // Whoever asked may have lost interest.
                let _ = done.send(());
            }
            wait_for_others(&consumer);
        });
    }
}

/// Says goodbye. librdkafka waits for the call that it is owed, and would wait for ever.
fn close(consumer: &Consumer, is_cooperative: bool, owed: Option<Owed>, announced: Option<Vec<TopicPartition>>) {
    if let Some(owed) = owed {
        let _ = give_up(consumer, is_cooperative, &owed.partitions);
    }
    if let Some(announced) = announced {
        let _ = take(consumer, is_cooperative, &list(announced.iter().map(|one| (one, Offset::Invalid))));
    }
    if consumer.close_queue().is_err() {
        return;
    }
    for _ in 0..CLOSE_POLLS_MAX {
        if consumer.closed() {
            return;
        }
        let _ = consumer.poll(CLOSE_POLL);
    }
}

/// Whoever drops the last handle waits for librdkafka's threads: that should be this thread, which may.
fn wait_for_others(consumer: &Arc<Consumer>) {
    for _ in 0..CLOSE_POLLS_MAX {
        if Arc::strong_count(consumer) == 1 {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "a thread of its own, outside of any task")]
        std::thread::sleep(CLOSE_POLL);
    }
}

/// Gives an event back, whole, once no commit of its partitions is out.
pub(super) async fn release<E: Env>(member: &Arc<Member<E>>, event: RebalanceId) -> Result<(), TransportError> {
    let going = lock(&member.shared.state).begin_release(event);
    let Some(going) = going else {
        let context = format!("releasing rebalance event {} of group `{}`", event.0, member.config.group);
        return Err(TransportError::new(ErrorKind::Refused, "UNKNOWN_REBALANCE_EVENT", context));
    };
    commits::settled(member, &going).await;
    let owed = lock(&member.shared.state).end_release(event);
    member.drop_readers();
    member.shared.changed();
    let Some(owed) = owed else { return Ok(()) };
    // In a task, so that librdkafka gets it even if this caller gives up.
    let (done, paid) = oneshot::channel();
    let payer = member.clone();
    member.env.spawn(async move {
        let _ = done.send(payer.pay(owed).await);
    });
    paid.await.unwrap_or(Ok(()))
}

/// Leaves, without a commit, and waits until the goodbye has been said.
pub(super) async fn leave<E: Env>(member: &Arc<Member<E>>) {
    let (done, said) = oneshot::channel();
    member.close(Some(done));
    // Without an answer the session ends by itself.
    let _ = member.env.timeout(LEAVE_LIMIT, said).await;
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.list.iter().map(|reader| &reader.partition)).finish()
    }
}
