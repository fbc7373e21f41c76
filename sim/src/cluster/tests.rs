//! The bench that the cluster's tests stand on: one cluster, one clock, answers in their short form.

mod commits;
mod groups;
mod logs;
mod order;
mod statics;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use super::audit::Audit;
use super::protocol::*;
use super::{Cluster, ClusterConfig, RequestId};

const BROKER: BrokerId = BrokerId(0);
const SESSION: Duration = Duration::from_secs(10);
const REBALANCE: Duration = Duration::from_secs(60);

pub(super) struct Bench {
    cluster: Cluster,
    now: Instant,
}

impl Bench {
    /// A cluster with topic `t` of two partitions.
    fn new() -> Self {
        Bench::with(ClusterConfig::default())
    }

    fn with(config: ClusterConfig) -> Self {
        let mut bench = Bench { cluster: Cluster::new(config), now: Instant::default() };
        let topic = CreateTopic { name: "t".into(), partitions: 2, replication: 1 };
        assert_eq!(bench.ask(Request::CreateTopics { topics: vec![topic] }), "CreateTopics [t NONE]");
        bench
    }

    /// Sends a request; a millisecond passes.
    fn send(&mut self, request: Request) -> RequestId {
        self.now = self.now + Duration::from_millis(1);
        let id = self.cluster.submit(self.now, ConnectionId(0), BROKER, request);
        self.cluster.advance(self.now);
        id
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.cluster.advance(self.now);
    }

    /// The short form of an answer, or `parked`.
    fn answer(&mut self, id: RequestId) -> String {
        self.cluster.take_response(id).map_or("parked".into(), |(_, response)| response.to_string())
    }

    fn response(&mut self, request: Request) -> Response {
        let id = self.send(request);
        self.cluster.take_response(id).expect("it is not parked").1
    }

    fn ask(&mut self, request: Request) -> String {
        let id = self.send(request);
        self.answer(id)
    }

    /// When an answer came.
    fn answered_at(&mut self, id: RequestId) -> Option<Duration> {
        self.cluster.take_response(id).map(|(at, _)| at.since(Instant::default()))
    }

    fn state(&self) -> String {
        self.cluster.group_state("g").map_or("none".into(), |(state, generation)| format!("{state:?} g{generation}"))
    }

    fn audits(&mut self) -> Vec<Audit> {
        self.cluster.drain_audit().map(|(_, audit)| audit).collect()
    }
}

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn record(value: &str) -> Record {
    Record {
        key: None,
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Vec::new(),
        timestamp_millis: 0,
    }
}

fn records(count: usize) -> Arc<[Record]> {
    (0..count).map(|number| record(&number.to_string())).collect()
}

fn produce(producer: Option<(i64, i16)>, base_sequence: i32, count: usize) -> Request {
    let producer = producer.map(|(id, epoch)| ProducerId { id, epoch });
    let batch = ProducePartition { partition: tp(0), producer, base_sequence, records: records(count) };
    Request::Produce { partitions: vec![batch] }
}

fn fetch(offset: i64, max_wait: u64) -> Request {
    let part = FetchPartition { partition: tp(0), offset, records_max: 100 };
    Request::Fetch { max_wait: Duration::from_millis(max_wait), records_max: 100, partitions: vec![part] }
}

fn protocols(names: &[&str]) -> Vec<GroupProtocol> {
    let subscription = Subscription { topics: vec!["t".into()], ..Subscription::default() };
    names.iter().map(|name| GroupProtocol { name: (*name).into(), subscription: subscription.clone() }).collect()
}

fn join_with(member: &str, names: &[&str]) -> JoinGroup {
    JoinGroup {
        group: "g".into(),
        client_id: "c".into(),
        member_id: member.into(),
        instance_id: None,
        session_timeout: SESSION,
        rebalance_timeout: REBALANCE,
        protocols: protocols(names),
    }
}

fn join(member: &str) -> Request {
    Request::JoinGroup(join_with(member, &["range"]))
}

fn sync(member: &str, generation: i32, assignments: &[(&str, i32)]) -> Request {
    Request::SyncGroup {
        group: "g".into(),
        generation,
        member_id: member.into(),
        instance_id: None,
        assignments: assignments.iter().map(|(member, partition)| ((*member).into(), vec![tp(*partition)])).collect(),
    }
}

fn heartbeat(member: &str, generation: i32) -> Request {
    Request::Heartbeat { group: "g".into(), generation, member_id: member.into(), instance_id: None }
}

fn leave(member: &str) -> Request {
    Request::LeaveGroup { group: "g".into(), member_id: member.into(), instance_id: None }
}

fn commit_to(member: &str, generation: i32, partition: i32, offset: i64, metadata: Option<&str>) -> Request {
    Request::OffsetCommit(OffsetCommit {
        group: "g".into(),
        generation,
        member_id: member.into(),
        instance_id: None,
        partitions: vec![CommitPartition { partition: tp(partition), offset, metadata: metadata.map(Into::into) }],
    })
}

fn commit(member: &str, generation: i32, offset: i64) -> Request {
    commit_to(member, generation, 0, offset, None)
}

fn committed() -> Request {
    Request::OffsetFetch { group: "g".into(), partitions: vec![tp(0), tp(1)] }
}
