//! The admin client.

use std::sync::Arc;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Admin, Committed, ErrorKind, NewTopic, TransportError, Watermarks};

use super::{Client, TRIES_MAX, broker_error, error_kind, unanswered};
use crate::cluster::protocol::{CreateTopic, ErrorCode, OffsetSpec, Request, Response};

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

    async fn offset(&self, partition: &TopicPartition, spec: OffsetSpec) -> Result<i64, TransportError> {
        self.client.partitions_of(&partition.topic, 3).await?;
        for _ in 0..TRIES_MAX {
            if let Some(offset) = self.client.list_offset(partition, spec).await {
                return Ok(offset);
            }
            self.client.partitions_of(&partition.topic, 3).await?;
            self.client.back_off().await;
        }
        let context = format!("looking the offsets of {partition} up, {TRIES_MAX} times");
        Err(TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", context))
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
        let mut found = Vec::with_capacity(partitions.len());
        for partition in &partitions {
            let start = self.offset(partition, OffsetSpec::Earliest).await?;
            let end = self.offset(partition, OffsetSpec::Latest).await?;
            found.push(Watermarks { start, end });
        }
        Ok(found)
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
