//! What the cluster and the index hold, read and changed straight, without a client and without a network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use seriatim_core::identity::{TopicPartition, Version};
use seriatim_core::transport::{Committed, Header, Outgoing, Watermarks};

use super::World;
use crate::cluster::audit::GroupState;
use crate::cluster::protocol::{
    BatchSlice, BrokerId, CreateTopic, FetchPartition, ProducePartition, Record, Request, Response,
};
use crate::env::WALL_START_MICROS;
use crate::history::{Ack, What, document_key};
use crate::recorded;

impl World {
    /// Creates a topic at once.
    ///
    /// # Panics
    /// When the cluster refuses it, as it does for a topic that exists.
    pub fn create_topic(&self, name: &str, partitions: u32) {
        let topic = CreateTopic { name: name.into(), partitions, replication: 1 };
        match self.ask(BrokerId(0), Request::CreateTopics { topics: vec![topic] }) {
            Some(Response::CreateTopics { topics }) if topics.iter().all(|(_, error)| error.is_none()) => {}
            other => panic!("topic `{name}` was not created: {other:?}"),
        }
    }

    /// Grows a topic to `partitions` in all, at once.
    ///
    /// # Panics
    /// When the cluster refuses it.
    pub fn grow_topic(&self, name: &str, partitions: u32) {
        match self.ask(BrokerId(0), Request::CreatePartitions { topics: vec![(name.into(), partitions)] }) {
            Some(Response::CreatePartitions { topics }) if topics.iter().all(|(_, error)| error.is_none()) => {}
            other => panic!("topic `{name}` did not grow: {other:?}"),
        }
    }

    /// Deletes the records of a partition below `before`, at once.
    ///
    /// # Panics
    /// When the cluster refuses it, as it does past the end of the log.
    pub fn delete_records(&self, partition: &TopicPartition, before: i64) {
        let leader = self.shared.current().cluster.leader(partition);
        let Some(leader) = leader else { panic!("there is no {partition}") };
        match self.ask(leader, Request::DeleteRecords { partitions: vec![(partition.clone(), before)] }) {
            Some(Response::DeleteRecords { partitions }) if partitions.iter().all(|one| one.error.is_none()) => {}
            other => panic!("the records of {partition} below {before} were not deleted: {other:?}"),
        }
    }

    /// Deletes a topic at once, with its records and what groups committed for it.
    ///
    /// # Panics
    /// When the cluster refuses it.
    pub fn delete_topic(&self, name: &str) {
        match self.ask(BrokerId(0), Request::DeleteTopics { topics: vec![name.into()] }) {
            Some(Response::DeleteTopics { topics }) if topics.iter().all(|(_, error)| error.is_none()) => {}
            other => panic!("topic `{name}` was not deleted: {other:?}"),
        }
    }

    /// Makes broker `to` the leader of a partition, at once; its log goes along.
    ///
    /// # Panics
    /// When there is no such partition or broker.
    pub fn move_leader(&self, partition: &TopicPartition, to: i32) {
        self.note("kafka", &format!("{partition} is led by {to}"));
        assert!(self.shared.current().cluster.move_leader(partition, BrokerId(to)), "{partition} cannot go to {to}");
    }

    /// Appends one record as a foreign program does: raw, without an envelope, without idempotence and at once. Its
    /// offset. The history shows it as produced by the node `foreign`.
    ///
    /// # Panics
    /// When the cluster refuses it.
    pub fn append(
        &self,
        partition: &TopicPartition,
        key: Option<Bytes>,
        value: Option<Bytes>,
        headers: Vec<Header>,
    ) -> i64 {
        let outgoing = Outgoing {
            topic: partition.topic.clone(),
            partition: Some(partition.partition),
            key: key.clone(),
            value: value.clone(),
            headers: headers.clone(),
        };
        let timestamp_millis = (WALL_START_MICROS + self.now().as_micros() as i64) / 1_000;
        let record = Record { key, value, headers, timestamp_millis };
        let records = [record].into();
        let batch = ProducePartition { partition: partition.clone(), producer: None, base_sequence: -1, records };
        let foreign = self.recorder().node("foreign", 1);
        let call = recorded::produce_invoked(&foreign, 0, &[outgoing], recorded::no_lifecycle);
        let leader = self.shared.current().cluster.leader(partition).unwrap_or(BrokerId(0));
        match self.ask(leader, Request::Produce { partitions: vec![batch] }) {
            Some(Response::Produce { partitions }) if partitions.iter().all(|one| one.error.is_none()) => {
                let offset = partitions.first().map_or(-1, |one| one.base_offset);
                let outcomes = vec![Ack::Ok((partition.partition, offset))];
                foreign.record(What::ProduceResolved { call, outcomes });
                offset
            }
            other => panic!("nothing was appended to {partition}: {other:?}"),
        }
    }

    /// Deletes the topics whose names begin with `prefix`, at once. How many there were.
    pub fn delete_topics(&self, prefix: &str) -> usize {
        let doomed = self.shared.current().cluster.topics_with(prefix);
        match self.ask(BrokerId(0), Request::DeleteTopics { topics: doomed }) {
            Some(Response::DeleteTopics { topics }) => topics.iter().filter(|(_, error)| error.is_none()).count(),
            _ => 0,
        }
    }

    /// The partitions of a topic; none when there is no such topic. Brokers may not have heard of the newest yet.
    pub fn partitions(&self, topic: &str) -> Vec<TopicPartition> {
        let count = self.shared.current().cluster.partition_count(topic);
        let name: Arc<str> = topic.into();
        (0..count).map(|number| TopicPartition::new(name.clone(), number as i32)).collect()
    }

    /// Whether the leader of a partition has heard of it, and takes records.
    pub fn is_open(&self, partition: &TopicPartition) -> bool {
        self.shared.current().cluster.is_open(partition)
    }

    /// Every record of a topic with its offset, by partition.
    pub fn log(&self, topic: &str) -> BTreeMap<TopicPartition, Vec<(i64, Record)>> {
        self.partitions(topic).into_iter().map(|partition| (partition.clone(), self.read_log(&partition))).collect()
    }

    fn read_log(&self, partition: &TopicPartition) -> Vec<(i64, Record)> {
        let found = {
            let inner = self.shared.current();
            inner.cluster.leader(partition).zip(inner.cluster.watermarks(partition))
        };
        let Some((leader, watermarks)) = found else { return Vec::new() };
        let fetch = FetchPartition { partition: partition.clone(), offset: watermarks.start, records_max: usize::MAX };
        let (max_wait, records_max) = (Duration::ZERO, usize::MAX);
        match self.ask(leader, Request::Fetch { max_wait, records_max, partitions: vec![fetch] }) {
            Some(Response::Fetch { partitions }) => partitions
                .iter()
                .flat_map(|fetched| fetched.batches.iter().flat_map(BatchSlice::iter))
                .map(|(offset, record)| (offset, record.clone()))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// First and next offsets of a partition.
    pub fn watermarks(&self, partition: &TopicPartition) -> Option<Watermarks> {
        self.shared.current().cluster.watermarks(partition)
    }

    /// What `group` committed for the partitions of `topic`; partitions without a commit are absent.
    pub fn committed(&self, group: &str, topic: &str) -> BTreeMap<TopicPartition, Committed> {
        let partitions = self.partitions(topic);
        let inner = self.shared.current();
        let read = |partition: TopicPartition| Some((partition.clone(), inner.cluster.committed(group, &partition)?));
        partitions.into_iter().filter_map(read).collect()
    }

    /// Records of `topic` from what `group` committed, or from the start, to the end.
    pub fn lag(&self, group: &str, topic: &str) -> u64 {
        let partitions = self.partitions(topic);
        let inner = self.shared.current();
        let lag = |partition: &TopicPartition| {
            let marks = inner.cluster.watermarks(partition)?;
            let committed = inner.cluster.committed(group, partition).map_or(marks.start, |committed| committed.offset);
            Some((marks.end - committed.max(marks.start)).max(0).unsigned_abs())
        };
        partitions.iter().filter_map(lag).sum()
    }

    /// State and generation of a group.
    pub fn group_state(&self, group: &str) -> Option<(GroupState, i32)> {
        self.shared.current().cluster.group_state(group)
    }

    /// Records that live members of `group` polled and that no committed offset covers: what a crash puts at stake.
    pub fn in_flight(&self, group: &str) -> u64 {
        let inner = self.shared.current();
        inner.in_flight(group, |partition| {
            inner.cluster.committed(group, partition).map_or(0, |committed| committed.offset)
        })
    }

    fn ask(&self, to: BrokerId, request: Request) -> Option<Response> {
        self.shared.lock().ask(self.now(), to, request)
    }

    /// What a reader of all indexes sees, by [`document_key`].
    pub fn index_documents(&self) -> BTreeMap<CompactString, (Version, Bytes)> {
        let inner = self.shared.current();
        let memory = inner.index.memory();
        let mut seen = BTreeMap::new();
        let mut see = |index: Option<&str>, (id, version, body): (&str, Version, &Bytes)| {
            seen.insert(document_key(index, id), (version, body.clone()));
        };
        for index in memory.indexes() {
            match index {
                None => memory.documents().for_each(|document| see(None, document)),
                Some(name) => memory.documents_in(name).for_each(|document| see(Some(name), document)),
            }
        }
        seen
    }
}
