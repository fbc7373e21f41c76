//! What a program asks of the cluster itself: topics, offsets, and what groups have committed.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic as RdNewTopic, ResourceSpecifier};
use rdkafka::admin::{TopicReplication, TopicResult};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, client::ClientContext};
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Admin, Committed, ErrorKind, NewTopic, TransportError, Watermarks};

use crate::client::{self, PlainContext, check_topic, list};
use crate::cluster::{Cluster, Lookup};
use crate::{NO_COST, error};

/// How long groups may take to lose their last members, before [`KafkaAdmin::remove_all`] gives up.
const EMPTY_LIMIT: Duration = Duration::from_secs(60);
/// Time between two tries.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The admin client of a Kafka cluster. Clones are the same one.
#[derive(Clone, Debug)]
pub struct KafkaAdmin<E> {
    env: E,
    cluster: Arc<Cluster>,
}

impl<E: Env> KafkaAdmin<E> {
    pub(crate) fn new(env: E, cluster: Arc<Cluster>) -> Self {
        KafkaAdmin { env, cluster }
    }

    fn options(&self) -> AdminOptions {
        let limit = self.cluster.settings.request_limit;
        AdminOptions::new().request_timeout(Some(limit)).operation_timeout(Some(limit))
    }

    /// Runs a look-up, which blocks, away from the tasks.
    async fn look_up<R: Send + 'static>(
        &self,
        client: Result<Arc<Lookup>, TransportError>,
        work: impl FnOnce(&Lookup) -> Result<R, TransportError> + Send + 'static,
    ) -> Result<R, TransportError> {
        let (client, cluster) = (client?, self.cluster.clone());
        let work = move || cluster.explain(&client, work(&client));
        self.env.run_blocking(NO_COST, work).await
    }

    /// Grows `topic` to `partitions` in all.
    pub async fn create_partitions(&self, topic: &str, partitions: u32) -> Result<(), TransportError> {
        let doing = format!("growing topic `{topic}` to {partitions} partitions");
        check_topic(topic, &doing)?;
        let new = NewPartitions::new(topic, partitions as usize);
        let answer = self.cluster.admin()?.create_partitions([&new], &self.options()).await;
        only(answer, &doing)
    }

    /// Deletes `topic`.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), TransportError> {
        let doing = format!("deleting topic `{topic}`");
        check_topic(topic, &doing)?;
        let answer = self.cluster.admin()?.delete_topics(&[topic], &self.options()).await;
        only(answer, &doing)
    }

    /// Deletes every topic and every consumer group whose name begins with `prefix`: for programs that must leave
    /// nothing behind. Groups are waited for until the sessions of members that died have ended. Gives the names.
    pub async fn remove_all(&self, prefix: &str) -> Result<Vec<String>, TransportError> {
        let doing = format!("deleting all topics and groups whose names begin with `{prefix}`");
        if prefix.is_empty() {
            let context = format!("{doing}: an empty prefix is every name");
            return Err(TransportError::new(ErrorKind::Refused, "INVALID_REQUEST", context));
        }
        let (started, mut removed) = (self.env.now(), Vec::new());
        loop {
            let (topics, groups) = self.names(prefix).await?;
            if topics.is_empty() && groups.is_empty() {
                removed.sort();
                removed.dedup();
                return Ok(removed);
            }
            let (admin, options) = (self.cluster.admin()?, self.options());
            let mut last = None;
            for topic in &topics {
                match only(admin.delete_topics(&[topic], &options).await, &doing) {
                    Ok(()) => removed.push(topic.clone()),
                    // Every broker hears of it, one after the other.
                    Err(error) if error.code == "UNKNOWN_TOPIC_OR_PARTITION" => {}
                    Err(error) => last = Some(error),
                }
            }
            for group in &groups {
                match only(admin.delete_groups(&[group], &options).await, &doing) {
                    Ok(()) => removed.push(group.clone()),
                    Err(error) => last = Some(error),
                }
            }
            if self.env.now().since(started) > EMPTY_LIMIT {
                return Err(
                    last.unwrap_or_else(|| TransportError::new(ErrorKind::Retriable, "REQUEST_TIMED_OUT", doing))
                );
            }
            self.env.sleep(TRY_AGAIN).await;
        }
    }

    /// Topics and groups whose names begin with `prefix`.
    async fn names(&self, prefix: &str) -> Result<(Vec<String>, Vec<String>), TransportError> {
        let (prefix, limit) = (prefix.to_owned(), self.cluster.settings.request_limit);
        let names = move |lookup: &Lookup| {
            let client = rdkafka::consumer::Consumer::client(lookup);
            let doing = || "listing topics and groups".to_owned();
            let metadata = client.fetch_metadata(None, limit).map_err(|error| error::of(&error, doing()))?;
            let groups = client.fetch_group_list(None, limit).map_err(|error| error::of(&error, doing()))?;
            let own = |name: &str| name.starts_with(&prefix).then(|| name.to_owned());
            let topics = metadata.topics().iter().filter_map(|topic| own(topic.name())).collect();
            Ok((topics, groups.groups().iter().filter_map(|group| own(group.name())).collect()))
        };
        self.look_up(self.cluster.lookup(), names).await
    }

    /// Deletes the records of `partition` below `before`; its first offset afterwards.
    pub async fn delete_records(&self, partition: &TopicPartition, before: i64) -> Result<i64, TransportError> {
        let doing = || format!("deleting the records of {partition} below {before}");
        check_topic(&partition.topic, &doing())?;
        let offsets = list([(partition, Offset::Offset(before))]);
        let answer = self.cluster.admin()?.delete_records(&offsets, &self.options()).await;
        let answer = answer.map_err(|error| error::of(&error, doing()))?;
        let elements = answer.elements();
        let Some(element) = elements.first() else {
            return Err(error::of_code(RDKafkaErrorCode::UnknownTopicOrPartition, doing()));
        };
        element.error().map_err(|error| error::of(&error, doing()))?;
        match element.offset() {
            Offset::Offset(start) => Ok(start),
            _ => Err(error::of_code(RDKafkaErrorCode::OffsetOutOfRange, doing())),
        }
    }

    /// Creates a topic with settings of its own: `max.message.bytes`, `cleanup.policy`, …
    pub async fn create_topic(&self, topic: NewTopic, settings: &[(&str, &str)]) -> Result<(), TransportError> {
        let doing = creating(&topic);
        check_topic(&topic.name, &doing)?;
        let mut new = of_new_topic(&topic);
        for (key, value) in settings {
            new = new.set(key, value);
        }
        only(self.cluster.admin()?.create_topics([&new], &self.options()).await, &doing)
    }

    /// The setting `name` of `topic`, as it is in force.
    pub async fn topic_setting(&self, topic: &str, name: &str) -> Result<Option<String>, TransportError> {
        let doing = || format!("looking setting `{name}` of topic `{topic}` up");
        check_topic(topic, &doing())?;
        let specifier = ResourceSpecifier::Topic(topic);
        let answer = self.cluster.admin()?.describe_configs([&specifier], &self.options()).await;
        let described = answer.map_err(|error| error::of(&error, doing()))?.into_iter().next();
        match described {
            Some(Ok(resource)) => Ok(resource.get(name).and_then(|entry| entry.value.clone())),
            Some(Err(code)) => Err(error::of_code(code, doing())),
            None => Err(error::of_code(RDKafkaErrorCode::UnknownTopicOrPartition, doing())),
        }
    }
}

fn creating(topic: &NewTopic) -> String {
    format!("creating topic `{}` with {} partitions, {} copies each", topic.name, topic.partitions, topic.replication)
}

fn of_new_topic(topic: &NewTopic) -> RdNewTopic<'_> {
    let partitions = i32::try_from(topic.partitions).unwrap_or(i32::MAX);
    RdNewTopic::new(&topic.name, partitions, TopicReplication::Fixed(i32::from(topic.replication)))
}

/// The result of a request about one topic or group.
fn only<T>(answer: KafkaResult<Vec<Result<T, (T, RDKafkaErrorCode)>>>, doing: &str) -> Result<(), TransportError> {
    match answer {
        Ok(results) => match results.into_iter().next() {
            Some(Ok(_)) => Ok(()),
            Some(Err((_, code))) => Err(error::of_code(code, doing)),
            None => Err(error::of_code(RDKafkaErrorCode::InvalidRequest, doing)),
        },
        Err(error) => Err(unanswered(&error, doing)),
    }
}

/// An error of a whole request that changes something: without an answer it may have.
fn unanswered(error: &KafkaError, doing: impl Into<String>) -> TransportError {
    let error = error::of(error, doing);
    match error.code {
        "REQUEST_TIMED_OUT" | "NETWORK_EXCEPTION" => TransportError { kind: ErrorKind::UnknownOutcome, ..error },
        _ => error,
    }
}

async fn create<C: ClientContext>(
    admin: &AdminClient<C>,
    topics: &[NewTopic],
    options: &AdminOptions,
) -> KafkaResult<Vec<TopicResult>> {
    let new: Vec<_> = topics.iter().map(of_new_topic).collect();
    admin.create_topics(&new, options).await
}

impl<E: Env> Admin for KafkaAdmin<E> {
    async fn create_topics(&self, topics: Vec<NewTopic>) -> Vec<Result<(), TransportError>> {
        let mut results = Vec::with_capacity(topics.len());
        let admin = self.cluster.admin();
        let options = self.options();
        for topic in topics {
            // One request each: librdkafka refuses a whole request for one of two with the same name.
            let doing = creating(&topic);
            let result = match (check_topic(&topic.name, &doing), &admin) {
                (Err(error), _) => Err(error),
                (Ok(()), Err(error)) => Err(error.clone()),
                (Ok(()), Ok(admin)) => only(create::<PlainContext>(admin, &[topic], &options).await, &doing),
            };
            results.push(result);
        }
        results
    }

    async fn partition_counts(&self, topics: Vec<Arc<str>>) -> Vec<Result<u32, TransportError>> {
        let mut counts = Vec::with_capacity(topics.len());
        for topic in topics {
            let limit = self.cluster.settings.request_limit;
            let count = move |client: &Lookup| {
                client::partition_count(rdkafka::consumer::Consumer::client(client), &topic, limit)
            };
            counts.push(self.look_up(self.cluster.lookup(), count).await);
        }
        counts
    }

    async fn watermarks(&self, partitions: Vec<TopicPartition>) -> Result<Vec<Watermarks>, TransportError> {
        let limit = self.cluster.settings.request_limit;
        let work = move |client: &Lookup| client::watermarks(client, &partitions, limit);
        self.look_up(self.cluster.lookup(), work).await
    }

    async fn committed(
        &self,
        group: String,
        partitions: Vec<TopicPartition>,
    ) -> Result<Vec<Option<Committed>>, TransportError> {
        let limit = self.cluster.settings.request_limit;
        let client = self.cluster.group(&group);
        let doing = move || format!("reading the committed offsets of group `{group}`");
        self.look_up(client, move |client: &Lookup| client::committed(client, &partitions, limit, &doing)).await
    }
}
