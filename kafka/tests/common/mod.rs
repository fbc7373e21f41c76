//! A real broker for tests, and what they all need of it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::*;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaGroup, KafkaPoller, KafkaSettings, KafkaTransport};

pub type Real = KafkaTransport<TokioEnv>;

/// A real cluster and the environment that its clients live in.
pub struct World {
    pub env: TokioEnv,
    pub transport: Real,
    pub settings: KafkaSettings,
}

impl World {
    /// A transport with properties of its own.
    pub fn transport_with(&self, change: impl FnOnce(KafkaSettings) -> KafkaSettings) -> Real {
        KafkaTransport::new(self.env.clone(), change(self.settings.clone())).expect("good settings")
    }

    /// A new topic with a name of its own.
    pub async fn topic(&self, partitions: u32) -> Arc<str> {
        self.topic_with(partitions, &[]).await
    }

    /// A new topic with settings of its own.
    pub async fn topic_with(&self, partitions: u32, settings: &[(&str, &str)]) -> Arc<str> {
        let name: Arc<str> = unique("topic").into();
        let new = NewTopic { name: name.clone(), partitions, replication: 1 };
        self.transport.admin().create_topic(new, settings).await.expect("a new topic");
        self.seen(&name, partitions).await;
        name
    }

    /// Waits until a topic has as many partitions.
    pub async fn seen(&self, topic: &Arc<str>, partitions: u32) {
        for _ in 0..100 {
            let counts = self.transport.admin().partition_counts(vec![topic.clone()]).await;
            if counts == [Ok(partitions)] {
                return;
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
        panic!("`{topic}` is not seen with {partitions} partitions");
    }

    /// Produces `count` records with values `0..count` to one partition.
    pub async fn fill(&self, topic: &Arc<str>, partition: i32, from: usize, count: usize) {
        let producer = self.transport.producer(ProducerConfig::default()).await.expect("a producer");
        let records = (from..from + count).map(|number| numbered(topic, partition, number)).collect();
        for outcome in producer.send_all(records).await.await {
            outcome.expect("acknowledged");
        }
    }

    /// What a group has committed for partition 0 and on.
    pub async fn committed(&self, group: &str, topic: &Arc<str>, partitions: i32) -> Vec<Option<i64>> {
        let all = (0..partitions).map(|number| TopicPartition::new(topic.clone(), number)).collect();
        let found = self.transport.admin().committed(group.into(), all).await.expect("committed offsets");
        found.into_iter().map(|committed| committed.map(|committed| committed.offset)).collect()
    }

    /// A new member of `config`'s group.
    pub async fn join(&self, config: GroupConfig) -> Consumer {
        let (poller, group) = self.transport.join(config).await.expect("a member");
        Consumer { env: self.env.clone(), poller, group, assigned: Vec::new(), records: Vec::new() }
    }
}

pub fn numbered(topic: &Arc<str>, partition: i32, number: usize) -> Outgoing {
    Outgoing {
        topic: topic.clone(),
        partition: Some(partition),
        key: Some(Bytes::from(format!("key-{number}"))),
        value: Some(Bytes::from(number.to_string())),
        headers: Vec::new(),
    }
}

pub fn number(record: &Record) -> usize {
    std::str::from_utf8(record.value.as_deref().expect("a value")).expect("text").parse().expect("a number")
}

/// A name that no other test uses, nor an earlier run.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let random = TokioEnv::new().random();
    format!("{what}-{}-{:08x}", NEXT.fetch_add(1, Ordering::Relaxed), random >> 32)
}

/// A group of its own, with times that suit tests.
pub fn group(topic: &Arc<str>) -> GroupConfig {
    GroupConfig {
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_millis(300),
        poll_limit: Duration::from_secs(30),
        metadata_max_age: Some(Duration::from_secs(1)),
        ..GroupConfig::new(unique("group"), vec![topic.clone()])
    }
}

/// A member, and what it was given.
pub struct Consumer {
    pub env: TokioEnv,
    pub poller: KafkaPoller<TokioEnv>,
    pub group: KafkaGroup<TokioEnv>,
    pub assigned: Vec<Assignment>,
    pub records: Vec<Record>,
}

pub const WAIT: Duration = Duration::from_millis(200);

impl Consumer {
    pub async fn poll(&mut self) -> Polled {
        let polled = self.poller.poll(500, WAIT).await.expect("a poll");
        match &polled {
            Polled::Records(records) => self.records.extend(records.iter().cloned()),
            Polled::Assigned(new) => self.assigned.extend(new.iter().cloned()),
            Polled::Revoking { partitions, .. } | Polled::Lost { partitions, .. } => {
                self.assigned.retain(|old| partitions.iter().all(|(gone, _)| *gone != old.partition));
            }
        }
        polled
    }

    /// Polls until `is_such` of what a poll gave, at most `seconds`.
    pub async fn until(&mut self, seconds: u64, mut is_such: impl FnMut(&Polled) -> bool) -> Polled {
        let until = self.env.now() + Duration::from_secs(seconds);
        loop {
            let polled = self.poll().await;
            if is_such(&polled) {
                return polled;
            }
            assert!(self.env.now() < until, "it did not come in {seconds} s; last: {polled:?}");
        }
    }

    /// Polls until `partitions` are assigned.
    pub async fn until_assigned(&mut self, partitions: usize) {
        if self.assigned.len() != partitions {
            let mut owned = self.assigned.len();
            self.until(20, |polled| {
                if let Polled::Assigned(new) = polled {
                    owned += new.len();
                }
                owned == partitions
            })
            .await;
        }
    }

    /// Polls until as many records came in all.
    pub async fn until_records(&mut self, count: usize) {
        let until = self.env.now() + Duration::from_secs(20);
        while self.records.len() < count {
            self.poll().await;
            assert!(self.env.now() < until, "{} of {count} records came", self.records.len());
        }
    }

    pub fn epoch(&self, partition: i32) -> seriatim_core::identity::Epoch {
        self.assigned.iter().find(|one| one.partition.partition == partition).expect("it is owned").epoch
    }

    pub fn commit_of(&self, topic: &Arc<str>, partition: i32, offset: i64) -> Commit {
        let partition = TopicPartition::new(topic.clone(), partition);
        let epoch = self.epoch(partition.partition);
        Commit { partition, epoch, offset, metadata: "seriatim/1".into() }
    }

    pub async fn commit(&self, topic: &Arc<str>, partition: i32, offset: i64) -> Result<(), TransportError> {
        let commit = self.commit_of(topic, partition, offset);
        self.group.commit(vec![commit]).await.pop().expect("one result")
    }
}

/// Runs `test` against a real broker, within a bound.
pub fn with_broker<F: Future<Output = ()>>(name: &str, seconds: u64, test: impl FnOnce(World) -> F) {
    let Some(address) = seriatim_kafka_dev::testing::broker() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let run = async {
        let env = TokioEnv::new();
        let settings = KafkaSettings::new(address);
        let transport = KafkaTransport::connect(env.clone(), settings.clone()).await.expect("a broker");
        test(World { env, transport, settings }).await;
    };
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(seconds), run).await });
    // What hangs must not hang the end of the test too.
    runtime.shutdown_background();
    ended.unwrap_or_else(|_| panic!("{name} did not end in {seconds} s"));
}

/// What a member in the background was given, and when.
pub type Log = Arc<std::sync::Mutex<Vec<Polled>>>;

/// A member that polls on its own, commits nothing, and releases everything at once.
pub struct Background {
    pub log: Log,
    pub group: KafkaGroup<TokioEnv>,
    task: tokio::task::JoinHandle<()>,
}

impl Background {
    pub fn start(mut consumer: Consumer) -> Self {
        let log = Log::default();
        let (written, group) = (log.clone(), consumer.group.clone());
        let task = tokio::spawn(async move {
            loop {
                let Ok(polled) = consumer.poller.poll(500, WAIT).await else { return };
                if let Polled::Revoking { event, .. } | Polled::Lost { event, .. } = &polled {
                    consumer.group.release(*event).await.expect("released");
                }
                written.lock().expect("log").push(polled);
            }
        });
        Background { log, group, task }
    }

    pub fn assigned(&self) -> usize {
        let mut owned = std::collections::BTreeSet::new();
        for polled in self.log.lock().expect("log").iter() {
            match polled {
                Polled::Assigned(new) => owned.extend(new.iter().map(|one| one.partition.clone())),
                Polled::Revoking { partitions, .. } | Polled::Lost { partitions, .. } => {
                    owned.retain(|one| partitions.iter().all(|(gone, _)| gone != one));
                }
                Polled::Records(_) => {}
            }
        }
        owned.len()
    }

    pub fn records(&self) -> Vec<Record> {
        let log = self.log.lock().expect("log");
        let records = log.iter().filter_map(|polled| match polled {
            Polled::Records(records) => Some(records.clone()),
            _ => None,
        });
        records.flatten().collect()
    }

    /// Waits until it owns as many.
    pub async fn until_assigned(&self, partitions: usize, seconds: u64) {
        for _ in 0..seconds * 20 {
            if self.assigned() == partitions {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{} partitions, not {partitions}: {:?}", self.assigned(), self.log.lock().expect("log"));
    }

    /// Leaves, and ends.
    pub async fn stop(self) {
        self.group.leave().await;
        self.task.await.expect("it ended");
    }
}

impl Background {
    /// Waits until it owns as many, while `other` goes on polling and gets nothing.
    pub async fn until_assigned_while(&self, partitions: usize, other: &mut Consumer) {
        for _ in 0..100 {
            if self.assigned() == partitions {
                return;
            }
            assert_eq!(other.poll().await, Polled::Records(Vec::new()), "nothing comes until the release");
        }
        panic!("{} partitions, not {partitions}", self.assigned());
    }
}
