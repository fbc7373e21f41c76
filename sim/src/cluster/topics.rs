//! Topics, their partitions and leaders; producing, fetching and the requests of administration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use super::audit::Audit;
use super::context::{Context, Timer, TimerKey};
use super::inbox::RequestId;
use super::log::PartitionLog;
use super::protocol::{
    BrokerId, CreateTopic, ErrorCode, FetchPartition, Fetched, OffsetResult, OffsetSpec, ProducePartition, Produced,
    Response, TopicMetadata,
};

/// Most partitions that one topic may have here: a bound, where Kafka has only memory.
const PARTITIONS_MAX: u32 = 10_000;

#[derive(Debug)]
struct Partition {
    leader: BrokerId,
    made: Instant,
    log: PartitionLog,
    /// Parked fetches, in the order of their parking.
    waiters: Vec<RequestId>,
}

#[derive(Debug)]
struct ParkedFetch {
    broker: BrokerId,
    records_max: usize,
    partitions: Vec<FetchPartition>,
    timer: TimerKey,
}

/// All topics.
#[derive(Debug, Default)]
pub(super) struct Topics {
    topics: BTreeMap<Arc<str>, Vec<Partition>>,
    parked: BTreeMap<RequestId, ParkedFetch>,
}

impl Partition {
    /// Whether `broker` has heard of it: in turn, within the lag of the cluster.
    fn is_known(&self, cx: &Context, broker: BrokerId, topic: &str) -> bool {
        const TURNS: u32 = 4;
        let lag = cx.config.metadata_lag;
        lag.is_zero()
            || cx.now >= self.made + lag * (java_hash(topic).wrapping_add(broker.0 as u32) % TURNS) / (TURNS - 1)
    }
}

impl Topics {
    fn find(&self, at: &TopicPartition) -> Option<&Partition> {
        self.topics.get(&at.topic)?.get(usize::try_from(at.partition).ok()?)
    }

    fn find_mut(&mut self, at: &TopicPartition) -> Option<&mut Partition> {
        self.topics.get_mut(&at.topic)?.get_mut(usize::try_from(at.partition).ok()?)
    }

    fn led_by(&self, cx: &Context, broker: BrokerId, at: &TopicPartition) -> Result<&Partition, ErrorCode> {
        let known = self.find(at).filter(|partition| partition.is_known(cx, broker, &at.topic));
        let partition = known.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        if partition.leader == broker { Ok(partition) } else { Err(ErrorCode::NotLeaderOrFollower) }
    }

    fn led_by_mut(&mut self, cx: &Context, broker: BrokerId, at: &TopicPartition) -> Result<&mut Partition, ErrorCode> {
        self.led_by(cx, broker, at)?;
        Ok(self.find_mut(at).expect("it was just found"))
    }

    /// Whether `broker` has heard of a partition.
    pub(super) fn is_known(&self, cx: &Context, broker: BrokerId, at: &TopicPartition) -> bool {
        self.find(at).is_some_and(|partition| partition.is_known(cx, broker, &at.topic))
    }

    pub(super) fn count(&self, topic: &str) -> usize {
        self.topics.get(topic).map_or(0, Vec::len)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    pub(super) fn leader(&self, at: &TopicPartition) -> Option<BrokerId> {
        self.find(at).map(|partition| partition.leader)
    }

    pub(super) fn watermarks(&self, at: &TopicPartition) -> Option<(i64, i64)> {
        self.find(at).map(|partition| (partition.log.start(), partition.log.high_watermark()))
    }

    pub(super) fn metadata(&self, cx: &Context, of: BrokerId, topics: Option<Vec<Arc<str>>>) -> Response {
        let topics = topics.unwrap_or_else(|| self.topics.keys().cloned().collect());
        let describe = |topic: Arc<str>| {
            let partitions = self.topics.get(&topic).into_iter().flatten();
            let known = partitions.filter(|partition| partition.is_known(cx, of, &topic));
            let leaders: Vec<_> = known.map(|partition| partition.leader).collect();
            let error = if leaders.is_empty() { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::None };
            TopicMetadata { topic, error, leaders }
        };
        Response::Metadata {
            brokers: (0..cx.config.brokers as i32).map(BrokerId).collect(),
            topics: topics.into_iter().map(describe).collect(),
        }
    }

    /// Appends all batches, answers, and only then wakes readers.
    pub(super) fn produce(
        &mut self,
        cx: &mut Context,
        request: RequestId,
        to: BrokerId,
        batches: Vec<ProducePartition>,
    ) {
        let mut woken = Vec::new();
        let mut append = |batch: ProducePartition| {
            let bytes_max = cx.config.message_max_bytes;
            let count = batch.records.len() as u32;
            let refusal = cx.on_produce.0.as_mut().and_then(|refuses| refuses(&batch));
            let result = refusal.map_or(Ok(()), Err).and_then(|()| {
                let partition = self.led_by_mut(cx, to, &batch.partition)?;
                let append = partition.log.append(batch.producer, batch.base_sequence, batch.records, bytes_max)?;
                if !append.duplicate && !partition.waiters.is_empty() {
                    woken.extend_from_slice(&partition.waiters);
                }
                Ok(append)
            });
            match result {
                Ok(append) => {
                    cx.tell(Audit::Appended {
                        partition: batch.partition.clone(),
                        base_offset: append.base_offset,
                        count,
                        producer: batch.producer,
                        duplicate: append.duplicate,
                    });
                    Produced { partition: batch.partition, error: ErrorCode::None, base_offset: append.base_offset }
                }
                Err(error) => Produced { partition: batch.partition, error, base_offset: -1 },
            }
        };
        let partitions = batches.into_iter().map(&mut append).collect();
        cx.answer(request, Response::Produce { partitions });
        for fetch in woken {
            self.finish_fetch(cx, fetch);
        }
    }

    pub(super) fn fetch(
        &mut self,
        cx: &mut Context,
        request: RequestId,
        to: BrokerId,
        (max_wait, records_max): (Duration, usize),
        partitions: Vec<FetchPartition>,
    ) {
        let (results, ready) = self.read(cx, to, records_max, &partitions);
        if ready || max_wait.is_zero() || partitions.is_empty() {
            cx.answer(request, Response::Fetch { partitions: results });
            return;
        }
        for part in &partitions {
            let waiters = &mut self.find_mut(&part.partition).expect("it was read").waiters;
            if waiters.last() != Some(&request) {
                waiters.push(request);
            }
            debug_assert!(waiters.len() <= self.parked.len() + 1, "who waits is parked");
        }
        let timer = cx.arm(max_wait, Timer::Fetch(request));
        self.parked.insert(request, ParkedFetch { broker: to, records_max, partitions, timer });
    }

    /// What a fetch gives now, and whether that has a record or an error.
    fn read(&self, cx: &Context, to: BrokerId, records_max: usize, wanted: &[FetchPartition]) -> (Vec<Fetched>, bool) {
        let (mut left, mut ready) = (records_max, false);
        let mut read_one = |part: &FetchPartition| {
            let mut batches = Vec::new();
            let outcome = self.led_by(cx, to, &part.partition).and_then(|partition| {
                left -= partition.log.read(part.offset, part.records_max.min(left), &mut batches)?;
                Ok((partition.log.high_watermark(), partition.log.start()))
            });
            ready |= outcome.is_err() || !batches.is_empty();
            let (error, (high_watermark, log_start)) = match outcome {
                Ok(watermarks) => (ErrorCode::None, watermarks),
                Err(error) => (error, (-1, -1)),
            };
            Fetched { partition: part.partition.clone(), error, high_watermark, log_start, batches }
        };
        let results = wanted.iter().map(&mut read_one).collect();
        (results, ready)
    }

    /// Answers a parked fetch with what there is; nothing when it was answered already.
    pub(super) fn finish_fetch(&mut self, cx: &mut Context, request: RequestId) {
        let Some(fetch) = self.parked.remove(&request) else { return };
        cx.cancel(fetch.timer);
        for part in &fetch.partitions {
            if let Some(partition) = self.find_mut(&part.partition) {
                partition.waiters.retain(|waiter| *waiter != request);
            }
        }
        let (partitions, _) = self.read(cx, fetch.broker, fetch.records_max, &fetch.partitions);
        cx.answer(request, Response::Fetch { partitions });
    }

    pub(super) fn list_offsets(
        &self,
        cx: &Context,
        to: BrokerId,
        partitions: Vec<(TopicPartition, OffsetSpec)>,
    ) -> Response {
        let look_up = |(partition, spec): (TopicPartition, OffsetSpec)| {
            let found = self.led_by(cx, to, &partition).map(|found| match spec {
                OffsetSpec::Earliest => found.log.start(),
                OffsetSpec::Latest => found.log.high_watermark(),
            });
            offset_result(partition, found)
        };
        Response::ListOffsets { partitions: partitions.into_iter().map(look_up).collect() }
    }

    pub(super) fn delete_records(
        &mut self,
        cx: &mut Context,
        to: BrokerId,
        partitions: Vec<(TopicPartition, i64)>,
    ) -> Response {
        let mut delete = |(partition, offset): (TopicPartition, i64)| {
            let moved = self.led_by_mut(cx, to, &partition).and_then(|found| {
                let before = found.log.start();
                found.log.delete_before(offset).map(|after| (before, after))
            });
            if let Ok((before, log_start)) = moved
                && before != log_start
            {
                cx.tell(Audit::LogStartMoved { partition: partition.clone(), log_start });
            }
            offset_result(partition, moved.map(|(_, after)| after))
        };
        Response::DeleteRecords { partitions: partitions.into_iter().map(&mut delete).collect() }
    }

    pub(super) fn create(&mut self, cx: &mut Context, topics: Vec<CreateTopic>) -> Response {
        let mut create = |topic: CreateTopic| {
            let error = if !is_topic_name(&topic.name) {
                ErrorCode::InvalidTopicException
            } else if self.topics.contains_key(&topic.name) {
                ErrorCode::TopicAlreadyExists
            } else if topic.partitions == 0 || topic.partitions > PARTITIONS_MAX {
                ErrorCode::InvalidPartitions
            } else if topic.replication == 0 || u32::from(topic.replication) > cx.config.brokers {
                ErrorCode::InvalidReplicationFactor
            } else {
                let made = (0..topic.partitions).map(|number| new_partition(cx, &topic.name, number)).collect();
                self.topics.insert(Arc::clone(&topic.name), made);
                cx.tell(Audit::TopicCreated { topic: Arc::clone(&topic.name), partitions: topic.partitions });
                ErrorCode::None
            };
            (topic.name, error)
        };
        Response::CreateTopics { topics: topics.into_iter().map(&mut create).collect() }
    }

    pub(super) fn grow(&mut self, cx: &mut Context, topics: Vec<(Arc<str>, u32)>) -> Response {
        let mut grow = |(topic, count): (Arc<str>, u32)| {
            let error = match self.topics.get_mut(&topic) {
                None => ErrorCode::UnknownTopicOrPartition,
                Some(partitions) if count as usize <= partitions.len() || count > PARTITIONS_MAX => {
                    ErrorCode::InvalidPartitions
                }
                Some(partitions) => {
                    partitions.extend((partitions.len() as u32..count).map(|number| new_partition(cx, &topic, number)));
                    cx.tell(Audit::PartitionsAdded { topic: Arc::clone(&topic), partitions: count });
                    ErrorCode::None
                }
            };
            (topic, error)
        };
        Response::CreatePartitions { topics: topics.into_iter().map(&mut grow).collect() }
    }

    pub(super) fn move_leader(&mut self, cx: &mut Context, at: &TopicPartition, to: BrokerId) -> bool {
        let Some(partition) = self.find_mut(at) else { return false };
        partition.leader = to;
        for fetch in partition.waiters.clone() {
            self.finish_fetch(cx, fetch);
        }
        true
    }

    /// Removes a topic. Fetches parked on it are answered.
    pub(super) fn delete(&mut self, cx: &mut Context, topic: &Arc<str>) -> ErrorCode {
        let Some(partitions) = self.topics.remove(topic) else {
            return ErrorCode::UnknownTopicOrPartition;
        };
        cx.tell(Audit::TopicDeleted { topic: Arc::clone(topic) });
        for fetch in partitions.into_iter().flat_map(|partition| partition.waiters) {
            self.finish_fetch(cx, fetch);
        }
        ErrorCode::None
    }
}

fn offset_result(partition: TopicPartition, outcome: Result<i64, ErrorCode>) -> OffsetResult {
    match outcome {
        Ok(offset) => OffsetResult { partition, error: ErrorCode::None, offset },
        Err(error) => OffsetResult { partition, error, offset: -1 },
    }
}

/// Partitions of a topic take turns over the brokers, from one that the name gives.
fn new_partition(cx: &Context, topic: &str, number: u32) -> Partition {
    let first = java_hash(topic) % cx.config.brokers;
    let leader = BrokerId(((first + number) % cx.config.brokers) as i32);
    Partition { leader, made: cx.now, log: PartitionLog::default(), waiters: Vec::new() }
}

/// `Utils.abs(name.hashCode())` of Java.
pub(super) fn java_hash(name: &str) -> u32 {
    name.encode_utf16().fold(0u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit))) & 0x7fff_ffff
}

/// AK `Topic.validate`.
fn is_topic_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= 249 && name != "." && name != ".." && name.bytes().all(legal)
}
