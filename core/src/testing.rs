//! For tests: an environment whose time passes when nothing else happens, and a transport that does as it is told.

use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::env::{Env, Instant};
use crate::identity::{Epoch, Position, TopicPartition};
use crate::transport::{
    Admin, Appended, Assigned, Assignment, Commit, Committed, Delivery, ErrorKind, Group, GroupConfig, NewTopic,
    Outgoing, Polled, Poller, Producer, ProducerConfig, RebalanceId, Record, Transport, TransportError, Watermarks,
};

/// Rounds of polling in which whatever can happen at one instant has happened.
const ROUNDS: usize = 20;

/// Virtual time and the tasks spawned in it.
#[derive(Clone, Default)]
pub(crate) struct Bench {
    inner: Arc<Mutex<(u64, Vec<BoxFuture<'static, ()>>)>>,
}

impl Bench {
    /// Runs `task` and everything spawned; `None` when it has not ended after `limit`.
    pub(crate) fn run<R>(&self, limit: Duration, task: impl Future<Output = R>) -> Option<R> {
        let mut task = pin!(task);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..=limit.as_millis() {
            for _ in 0..ROUNDS {
                if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
                    return Some(output);
                }
                let mut tasks = std::mem::take(&mut self.lock().1);
                tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
                let mut inner = self.lock();
                tasks.append(&mut inner.1);
                inner.1 = tasks;
            }
            self.lock().0 += 1_000;
        }
        None
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, duration: Duration) {
        self.run(duration, std::future::pending::<()>());
    }

    /// Tasks that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        self.lock().1.len()
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Vec<BoxFuture<'static, ()>>)> {
        self.inner.lock().unwrap()
    }
}

impl Env for Bench {
    fn now(&self) -> Instant {
        Instant::from_micros(self.lock().0)
    }

    fn wall_micros(&self) -> u64 {
        self.lock().0
    }

    fn random(&self) -> u64 {
        7
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.now() + duration;
        poll_fn(|_| if self.now() >= until { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.lock().1.push(Box::pin(task));
    }

    async fn run_blocking<R: Send + 'static>(&self, _: Duration, work: impl FnOnce() -> R + Send + 'static) -> R {
        work()
    }
}

/// What a [`Script`] says.
#[derive(Default)]
pub(crate) struct Lines {
    /// What the group consumer's polls give; then nothing.
    pub(crate) polls: VecDeque<Result<Polled, TransportError>>,
    /// Records sent through any producer.
    pub(crate) sent: Vec<Outgoing>,
    /// Errors of the next producers to be made.
    pub(crate) producer_errors: VecDeque<TransportError>,
    /// Commits.
    pub(crate) commits: Vec<Commit>,
    /// Whether commits stay without an answer.
    pub(crate) commits_hang: bool,
    /// What the group is read to have committed.
    pub(crate) group_has: i64,
    /// Whether reading that stays without an answer.
    pub(crate) reads_hang: bool,
    /// Members that joined.
    pub(crate) joined: usize,
    /// Whether delivery is paused.
    pub(crate) paused: bool,
    /// Rebalance events given back.
    pub(crate) released: Vec<RebalanceId>,
    /// Whether readers by assignment get nothing.
    pub(crate) unreadable: bool,
    /// Topics that the cluster does not have; it has all others.
    pub(crate) absent: BTreeSet<Arc<str>>,
    /// Whether the member left.
    pub(crate) left: bool,
}

/// How a producer answers a record.
type Answer = Arc<dyn Fn(&Outgoing) -> Result<(), TransportError> + Send + Sync>;

/// A transport that follows a script. Records that are sent can be read by assignment.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) env: Bench,
    lines: Arc<Mutex<Lines>>,
    answer: Answer,
}

impl Script {
    pub(crate) fn new(
        env: &Bench,
        answer: impl Fn(&Outgoing) -> Result<(), TransportError> + Send + Sync + 'static,
    ) -> Self {
        Script { env: env.clone(), lines: Arc::default(), answer: Arc::new(answer) }
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap()
    }

    /// The next polls give these.
    pub(crate) fn say(&self, polls: impl IntoIterator<Item = Polled>) {
        self.lines().polls.extend(polls.into_iter().map(Ok));
    }
}

/// Partition 0 of the topic `t` comes under `epoch`.
pub(crate) fn assigned(epoch: u64) -> Polled {
    let partition = TopicPartition::new("t", 0);
    Polled::Assigned(vec![Assignment { partition, epoch: Epoch(epoch), committed: None, start: 0 }])
}

impl Transport for Script {
    type Producer = Script;
    type Poller = Script;
    type Group = Script;
    type Assigned = Reader;
    type Admin = Script;

    async fn producer(&self, _: ProducerConfig) -> Result<Script, TransportError> {
        let error = self.lines().producer_errors.pop_front();
        error.map_or_else(|| Ok(self.clone()), Err)
    }

    async fn join(&self, _: GroupConfig) -> Result<(Script, Script), TransportError> {
        self.lines().joined += 1;
        Ok((self.clone(), self.clone()))
    }

    async fn assign(&self, _: String, from: Vec<(TopicPartition, i64)>) -> Result<Reader, TransportError> {
        Ok(Reader { script: self.clone(), next: from[0].1 as usize, from })
    }

    fn admin(&self) -> Script {
        self.clone()
    }
}

impl Producer for Script {
    async fn send_all(&self, records: Vec<Outgoing>) -> Delivery {
        let (sender, delivery) = Delivery::new(records.len());
        let answer = |record: &Outgoing| (self.answer)(record).map(|()| Appended { partition: 0, offset: 0 });
        let answers: Vec<_> = records.iter().map(answer).collect();
        let taken = records.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        self.lines().sent.extend(taken.map(|(record, _)| record));
        let _ = sender.send(answers);
        delivery
    }

    async fn flush(&self) {}
}

impl Poller for Script {
    async fn poll(&mut self, _: usize, wait: Duration) -> Result<Polled, TransportError> {
        let next = self.lines().polls.pop_front();
        match next {
            Some(polled) => polled,
            None => {
                self.env.sleep(wait).await;
                Ok(Polled::Records(Vec::new()))
            }
        }
    }
}

impl Group for Script {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        let results = commits.iter().map(|_| Ok(())).collect();
        self.lines().commits.extend(commits);
        if self.lines().commits_hang {
            std::future::pending::<()>().await;
        }
        results
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        let mut lines = self.lines();
        assert!(!lines.left, "an event is given back after the member left");
        lines.released.push(event);
        Ok(())
    }

    fn pause(&self, _: &[TopicPartition]) {
        self.lines().paused = true;
    }

    fn resume(&self, _: &[TopicPartition]) {
        self.lines().paused = false;
    }

    async fn leave(&self) {
        self.lines().left = true;
    }
}

/// Reads what was sent to the topic of its only partition.
pub(crate) struct Reader {
    script: Script,
    next: usize,
    from: Vec<(TopicPartition, i64)>,
}

impl Assigned for Reader {
    async fn poll(&mut self, _: usize, wait: Duration) -> Result<Vec<Record>, TransportError> {
        let topic = self.from[0].0.topic.clone();
        let sent: Vec<Outgoing> = self.script.lines().sent.iter().filter(|one| one.topic == topic).cloned().collect();
        let next = if self.script.lines().unreadable { sent.len() } else { self.next.min(sent.len()) };
        let fresh: Vec<Record> = sent[next..].iter().map(|one| self.record(one)).collect();
        if fresh.is_empty() {
            self.script.env.sleep(wait).await;
        }
        self.next += fresh.len();
        Ok(fresh)
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        vec![(self.from[0].0.clone(), self.next as i64)]
    }
}

impl Reader {
    fn record(&self, sent: &Outgoing) -> Record {
        Record {
            position: Position { partition: self.from[0].0.clone(), offset: 0, epoch: Epoch(0) },
            key: sent.key.clone(),
            value: sent.value.clone(),
            headers: sent.headers.clone(),
            timestamp_millis: 0,
        }
    }
}

impl Admin for Script {
    async fn create_topics(&self, topics: Vec<NewTopic>) -> Vec<Result<(), TransportError>> {
        topics.iter().map(|_| Ok(())).collect()
    }

    async fn partition_counts(&self, topics: Vec<Arc<str>>) -> Vec<Result<u32, TransportError>> {
        let absent = || TransportError::new(ErrorKind::Refused, "UNKNOWN_TOPIC_OR_PARTITION", "test");
        let count = |topic| if self.lines().absent.contains(topic) { Err(absent()) } else { Ok(1) };
        topics.iter().map(count).collect()
    }

    async fn watermarks(&self, partitions: Vec<TopicPartition>) -> Result<Vec<Watermarks>, TransportError> {
        let sent = |topic: &Arc<str>| self.lines().sent.iter().filter(|one| one.topic == *topic).count() as i64;
        Ok(partitions.iter().map(|one| Watermarks { start: 0, end: sent(&one.topic) }).collect())
    }

    async fn committed(
        &self,
        _: String,
        partitions: Vec<TopicPartition>,
    ) -> Result<Vec<Option<Committed>>, TransportError> {
        if self.lines().reads_hang {
            std::future::pending::<()>().await;
        }
        let offset = self.lines().group_has;
        Ok(partitions.iter().map(|_| Some(Committed { offset, metadata: String::new() })).collect())
    }
}
