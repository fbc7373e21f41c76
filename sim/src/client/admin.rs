//! The admin client.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Admin, Committed, ErrorKind, NewTopic, TransportError, Watermarks};

use super::{Client, TRIES_MAX, broker_error, error_kind, unanswered};
use crate::cluster::protocol::{BrokerId, CreateTopic, ErrorCode, OffsetSpec, Request, Response};

/// The simulated admin client. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SimAdmin {
    client: Arc<Client>,
}

impl SimAdmin {
    pub(super) fn new(client: Client) -> Self {
        SimAdmin { client: Arc::new(client) }
    }

    /// Grows `topic` to `partitions` in all.
    pub async fn grow(&self, topic: impl Into<Arc<str>>, partitions: u32) -> Result<(), TransportError> {
        let topic = topic.into();
        let context = format!("growing topic `{topic}` to {partitions} partitions");
        match self.client.ask_any(Request::CreatePartitions { topics: vec![(topic, partitions)] }).await {
            Ok(Response::CreatePartitions { topics }) => outcome(topics.first().map(|(_, code)| *code), context),
            Ok(_) => Err(broker_error(ErrorCode::InvalidRequest, context)),
            Err(error) => Err(unanswered(error, context)),
        }
    }

    /// Deletes `topic`.
    pub async fn delete_topic(&self, topic: impl Into<Arc<str>>) -> Result<(), TransportError> {
        let topic = topic.into();
        let context = format!("deleting topic `{topic}`");
        match self.client.ask_any(Request::DeleteTopics { topics: vec![topic] }).await {
            Ok(Response::DeleteTopics { topics }) => outcome(topics.first().map(|(_, code)| *code), context),
            Ok(_) => Err(broker_error(ErrorCode::InvalidRequest, context)),
            Err(error) => Err(unanswered(error, context)),
        }
    }

    /// First and next offsets of the partitions in `open`, one request a leader. Gives back what is to be tried again.
    async fn watermarks_once(
        &self,
        open: Vec<TopicPartition>,
        found: &mut BTreeMap<TopicPartition, Watermarks>,
    ) -> Vec<TopicPartition> {
        let (mut by_leader, mut again) = (BTreeMap::<BrokerId, Vec<_>>::new(), Vec::new());
        for partition in open {
            match self.client.leader(&partition) {
                Some(leader) => by_leader.entry(leader).or_default().push(partition),
                None => again.push(partition),
            }
        }
        for (leader, partitions) in by_leader {
            let both = |partition: &TopicPartition| {
                [(partition.clone(), OffsetSpec::Earliest), (partition.clone(), OffsetSpec::Latest)]
            };
            let request = Request::ListOffsets { partitions: partitions.iter().flat_map(both).collect() };
            let answer = self.client.send(leader, request, self.client.request_timeout()).await;
            let offsets = match answer {
                Ok(Response::ListOffsets { partitions }) => partitions,
                _ => Vec::new(),
            };
            for (place, partition) in partitions.into_iter().enumerate() {
                match offsets.get(2 * place..2 * place + 2) {
                    Some([start, end]) if start.error.is_none() && end.error.is_none() => {
                        found.insert(partition, Watermarks { start: start.offset, end: end.offset });
                    }
                    _ => again.push(partition),
                }
            }
        }
        again
    }
}

fn outcome(code: Option<ErrorCode>, context: String) -> Result<(), TransportError> {
    match code.unwrap_or(ErrorCode::InvalidRequest) {
        ErrorCode::None => Ok(()),
        code => Err(broker_error(code, context)),
    }
}

impl Admin for SimAdmin {
    async fn create_topics(&self, topics: Vec<NewTopic>) -> Vec<Result<(), TransportError>> {
        self.client.host.halt_if_dead().await;
        let context = |topic: &NewTopic| format!("creating topic `{}`", topic.name);
        let wanted = topics
            .iter()
            .map(|topic| CreateTopic {
                name: topic.name.clone(),
                partitions: topic.partitions,
                replication: topic.replication,
            })
            .collect();
        match self.client.ask_any(Request::CreateTopics { topics: wanted }).await {
            Ok(Response::CreateTopics { topics: made }) => topics
                .iter()
                .enumerate()
                .map(|(place, topic)| outcome(made.get(place).map(|(_, code)| *code), context(topic)))
                .collect(),
            Ok(_) => topics.iter().map(|topic| Err(broker_error(ErrorCode::InvalidRequest, context(topic)))).collect(),
            Err(error) => topics.iter().map(|topic| Err(unanswered(error, context(topic)))).collect(),
        }
    }

    async fn partition_counts(&self, topics: Vec<Arc<str>>) -> Vec<Result<u32, TransportError>> {
        self.client.host.halt_if_dead().await;
        let mut asked = self.client.refresh(topics.clone()).await;
        for _ in 1..TRIES_MAX {
            if asked.is_ok() {
                break;
            }
            self.client.back_off().await;
            asked = self.client.refresh(topics.clone()).await;
        }
        topics
            .iter()
            .map(|topic| {
                let context = format!("looking topic `{topic}` up");
                match (&asked, self.client.partitions(topic)) {
                    (Ok(()), Some(count)) => Ok(count),
                    (Ok(()), None) => Err(broker_error(ErrorCode::UnknownTopicOrPartition, context)),
                    (Err(_), _) => Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context)),
                }
            })
            .collect()
    }

    async fn watermarks(&self, partitions: Vec<TopicPartition>) -> Result<Vec<Watermarks>, TransportError> {
        self.client.host.halt_if_dead().await;
        let (mut found, mut open) = (BTreeMap::new(), partitions.clone());
        open.sort();
        open.dedup();
        for attempt in 0..TRIES_MAX {
            for partition in &open {
                if attempt > 0 {
                    self.client.forget_topic(&partition.topic);
                }
                let count = self.client.partitions_of(&partition.topic, 3).await?;
                if partition.partition < 0 || partition.partition.unsigned_abs() >= count {
                    let context = format!("looking the offsets of {partition} up: its topic has {count} partitions");
                    return Err(broker_error(ErrorCode::UnknownTopicOrPartition, context));
                }
            }
            open = self.watermarks_once(open, &mut found).await;
            if open.is_empty() {
                return Ok(partitions.iter().filter_map(|partition| found.get(partition).copied()).collect());
            }
            self.client.back_off().await;
        }
        let context = format!("looking the offsets of {open:?} up, {TRIES_MAX} times");
        Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context))
    }

    async fn committed(
        &self,
        group: String,
        partitions: Vec<TopicPartition>,
    ) -> Result<Vec<Option<Committed>>, TransportError> {
        self.client.host.halt_if_dead().await;
        let group: Arc<str> = group.into();
        let context = format!("reading the committed offsets of group `{group}`");
        for attempt in 0..TRIES_MAX {
            if attempt > 0 {
                self.client.back_off().await;
            }
            let Some(coordinator) = self.client.find_coordinator(&group).await else { continue };
            let request = Request::OffsetFetch { group: group.clone(), partitions: partitions.clone() };
            let limit = self.client.request_timeout();
            let Ok(Response::OffsetFetch { error, partitions }) = self.client.send(coordinator, request, limit).await
            else {
                continue;
            };
            if error_kind(error) == ErrorKind::Retriable {
                continue;
            }
            outcome(Some(error), context)?;
            let read = |metadata: Arc<str>, offset| Committed { offset, metadata: metadata.to_string() };
            let found = partitions.into_iter();
            return Ok(found.map(|part| (part.offset >= 0).then(|| read(part.metadata, part.offset))).collect());
        }
        Err(TransportError::new(ErrorKind::Retriable, "COORDINATOR_NOT_AVAILABLE", context))
    }
}
