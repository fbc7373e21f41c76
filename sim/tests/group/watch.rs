//! A consumer that reads, commits and releases by itself, and what was seen of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::{Env, Instant};
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Commit, ErrorKind, Group, GroupConfig, Outgoing, Polled, Poller, Producer, ProducerConfig, RebalanceId, Transport,
    TransportError,
};
use seriatim_sim::recorded::{RecordedTransport, no_lifecycle};
use seriatim_sim::{Node, World};

/// A rebalance event, with the partitions of the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Assigned(Vec<i32>),
    Revoking(Vec<i32>),
    Released,
    Lost(Vec<i32>),
    Failed(&'static str),
}

#[derive(Debug, Default)]
pub struct Seen {
    pub events: Vec<(Instant, Event)>,
    /// What is owned now.
    pub owned: BTreeMap<i32, Epoch>,
    /// Longest time between two records of a partition under one ownership.
    pub gaps: BTreeMap<(i32, Epoch), Duration>,
    last: BTreeMap<(i32, Epoch), Instant>,
    /// Commits of owned partitions that were refused for another reason than a rebalance under way, with how.
    pub refused: Vec<(Instant, i32, ErrorKind, &'static str)>,
    pub committed: u64,
    /// Records by partition.
    pub records: BTreeMap<i32, Vec<i64>>,
    next_offset: BTreeMap<TopicPartition, (Epoch, i64)>,
    /// How long revocations are drained.
    pub drain: Duration,
    /// Leave when the next poll is over.
    pub leaves: bool,
    /// Do not poll until then.
    pub sleeps: Duration,
}

impl Seen {
    /// The events since `from`, without empty assignments.
    pub fn since(&self, from: Instant) -> Vec<Event> {
        let later = self.events.iter().filter(|(at, _)| *at >= from).map(|(_, event)| event.clone());
        later.filter(|event| *event != Event::Assigned(Vec::new())).collect()
    }

    pub fn partitions(&self) -> Vec<i32> {
        self.owned.keys().copied().collect()
    }

    /// The longest wait for a record of what is owned now, since [`Seen::forget_gaps`].
    pub fn longest_gap(&self) -> Duration {
        let own = self.owned.iter().filter_map(|(partition, epoch)| self.gaps.get(&(*partition, *epoch)));
        own.max().copied().unwrap_or_default()
    }

    pub fn forget_gaps(&mut self) {
        self.gaps.clear();
    }

    fn took(&mut self, now: Instant, records: &[seriatim_core::transport::Record]) {
        for record in records {
            let (partition, epoch) = (record.position.partition.partition, record.position.epoch);
            if let Some(last) = self.last.insert((partition, epoch), now) {
                let gap = self.gaps.entry((partition, epoch)).or_default();
                *gap = (*gap).max(now.since(last));
            }
            self.records.entry(partition).or_default().push(record.position.offset);
            self.next_offset.insert(record.position.partition.clone(), (epoch, record.position.offset + 1));
        }
    }

    fn commits(&self) -> Vec<Commit> {
        let current = |(partition, (epoch, offset)): (&TopicPartition, &(Epoch, i64))| {
            (self.owned.get(&partition.partition) == Some(epoch)).then(|| Commit {
                partition: partition.clone(),
                epoch: *epoch,
                offset: *offset,
                metadata: String::new(),
            })
        };
        self.next_offset.iter().filter_map(current).collect()
    }

    fn resolved(&mut self, now: Instant, commits: &[Commit], results: Vec<Result<(), TransportError>>) {
        for (commit, result) in commits.iter().zip(results) {
            match result {
                Ok(()) => self.committed += 1,
                // What a group answers between a join and its assignment. The next poll commits again.
                Err(error) if error.code == "REBALANCE_IN_PROGRESS" => assert_eq!(error.kind, ErrorKind::Retriable),
                Err(error) => self.refused.push((now, commit.partition.partition, error.kind, error.code)),
            }
        }
    }
}

fn numbers<T>(partitions: &[(TopicPartition, T)]) -> Vec<i32> {
    partitions.iter().map(|(partition, _)| partition.partition).collect()
}

#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    /// Starts a consumer on the new node `name`. A restart joins again.
    pub fn spawn(world: &World, name: &str, config: GroupConfig) -> Watch {
        let watch = Watch::default();
        let seen = watch.clone();
        world.spawn(name, move |node| consume(node, config.clone(), seen.clone()));
        watch
    }

    /// Waits until it owns `count` partitions.
    pub async fn owns(&self, world: &World, count: usize) {
        let pending = |_: &World| {
            let seen = self.lock();
            (seen.owned.len() != count).then(|| format!("{:?}", seen.events))
        };
        world.quiet(Duration::from_secs(120), pending).await.unwrap();
    }
}

async fn consume(node: Node, config: GroupConfig, watch: Watch) {
    let (env, transport) = (node.env(), RecordedTransport::new(node.transport(), node.recorder(), no_lifecycle));
    watch.lock().owned.clear();
    let (mut poller, group) = transport.join(config).await.unwrap();
    let mut release: Option<(Instant, RebalanceId, Vec<i32>)> = None;
    loop {
        if let Some((_, event, going)) = release.take_if(|(at, ..)| *at <= env.now()) {
            watch.lock().owned.retain(|partition, _| !going.contains(partition));
            group.release(event).await.unwrap();
            watch.lock().events.push((env.now(), Event::Released));
        }
        let sleeps = std::mem::take(&mut watch.lock().sleeps);
        env.sleep(sleeps).await;
        let polled = poller.poll(100, Duration::from_millis(50)).await;
        let now = env.now();
        let event = match polled {
            Ok(Polled::Records(records)) => {
                watch.lock().took(now, &records);
                let commits = watch.lock().commits();
                if !commits.is_empty() {
                    let results = group.commit(commits.clone()).await;
                    watch.lock().resolved(env.now(), &commits, results);
                }
                None
            }
            Ok(Polled::Assigned(new)) => {
                let mut seen = watch.lock();
                seen.owned.extend(new.iter().map(|one| (one.partition.partition, one.epoch)));
                Some(Event::Assigned(new.iter().map(|one| one.partition.partition).collect()))
            }
            Ok(Polled::Revoking { event, partitions, .. }) => {
                release = Some((now + watch.lock().drain, event, numbers(&partitions)));
                Some(Event::Revoking(numbers(&partitions)))
            }
            Ok(Polled::Lost { event, partitions }) => {
                let gone = numbers(&partitions);
                watch.lock().owned.retain(|partition, _| !gone.contains(partition));
                group.release(event).await.unwrap();
                Some(Event::Lost(numbers(&partitions)))
            }
            Err(error) => {
                watch.lock().events.push((now, Event::Failed(error.code)));
                return;
            }
        };
        if let Some(event) = event {
            watch.lock().events.push((now, event));
        }
        if watch.lock().leaves {
            watch.lock().owned.clear();
            return group.leave().await;
        }
    }
}

/// Writes to every partition of `t` ten times a second, for ever.
pub fn spawn_source(world: &World) {
    let partitions = world.partitions("t").len() as i32;
    world.spawn("source", move |node: Node| async move {
        let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
        loop {
            let record = |partition| Outgoing {
                topic: "t".into(),
                partition: Some(partition),
                key: None,
                value: Some(Bytes::from_static(b"v")),
                headers: Vec::new(),
            };
            drop(producer.send_all((0..partitions).map(record).collect()).await);
            node.env().sleep(Duration::from_millis(100)).await;
        }
    });
}
