//! What the tests of group members share.

use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Assignment, Commit, ErrorKind, Group, GroupConfig, Outgoing, Polled, Poller, Producer, ProducerConfig, RebalanceId,
    Record, Transport,
};
use seriatim_sim::{Node, SimGroup, SimPoller, TraceMode, World, WorldConfig};

pub fn config() -> GroupConfig {
    GroupConfig {
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_secs(1),
        poll_limit: Duration::from_secs(20),
        ..GroupConfig::new("g", vec!["t".into()])
    }
}

pub fn world() -> WorldConfig {
    WorldConfig { trace: TraceMode::Ring(2_000), ..WorldConfig::default() }
}

pub async fn fill(world: &World, records_per_partition: usize) {
    let producer = world.node("filler").transport().producer(ProducerConfig::default()).await.unwrap();
    let records = world
        .partitions("t")
        .iter()
        .flat_map(|partition| std::iter::repeat_n(partition.partition, records_per_partition))
        .map(|partition| Outgoing {
            topic: "t".into(),
            partition: Some(partition),
            key: None,
            value: Some(Bytes::from_static(b"v")),
            headers: Vec::new(),
        })
        .collect();
    assert!(producer.send_all(records).await.await.into_iter().all(|outcome| outcome.is_ok()));
}

/// A member in the hands of a test.
pub struct Member {
    pub poller: SimPoller,
    pub group: SimGroup,
}

impl Member {
    pub async fn join(node: &Node) -> Self {
        Self::with(node, config()).await
    }

    pub async fn with(node: &Node, config: GroupConfig) -> Self {
        let (poller, group) = node.transport().join(config).await.unwrap();
        Member { poller, group }
    }

    pub async fn poll(&mut self) -> Polled {
        self.poller.poll(100, Duration::from_millis(500)).await.unwrap()
    }

    /// Polls past records to the next event.
    pub async fn event(&mut self) -> Polled {
        for _ in 0..1_000 {
            match self.poll().await {
                Polled::Records(_) => {}
                event => return event,
            }
        }
        panic!("no rebalance event in 500 s");
    }

    pub async fn assigned(&mut self) -> Vec<Assignment> {
        match self.event().await {
            Polled::Assigned(assignments) => assignments,
            other => panic!("an assignment was due, not {other:?}"),
        }
    }

    pub async fn revoking(&mut self) -> (RebalanceId, Vec<(TopicPartition, Epoch)>, Instant) {
        match self.event().await {
            Polled::Revoking { event, partitions, deadline } => (event, partitions, deadline),
            other => panic!("a revocation was due, not {other:?}"),
        }
    }

    pub async fn lost(&mut self) -> (RebalanceId, Vec<(TopicPartition, Epoch)>) {
        match self.event().await {
            Polled::Lost { event, partitions } => (event, partitions),
            other => panic!("a loss was due, not {other:?}"),
        }
    }

    pub async fn records(&mut self) -> Vec<Record> {
        match self.poll().await {
            Polled::Records(records) => records,
            other => panic!("records were due, not {other:?}"),
        }
    }

    pub async fn commit(&self, partition: &TopicPartition, epoch: Epoch, offset: i64) -> Result<(), ErrorKind> {
        let metadata = "m".to_owned();
        let commit = Commit { partition: partition.clone(), epoch, offset, metadata };
        self.group.commit(vec![commit]).await.remove(0).map_err(|error| error.kind)
    }
}

pub fn numbers(assignments: &[Assignment]) -> Vec<i32> {
    assignments.iter().map(|assignment| assignment.partition.partition).collect()
}
