//! The `Transport` port: what Kafka offers to this system.
//!
//! Two implementations stand behind it, the simulated client and rdkafka, and neither is known here. Ports are
//! batch-oriented: nothing costs a round trip a record.
//!
//! # Rebalances are in-band
//! [`Poller::poll`] yields records or exactly one rebalance event. After [`Polled::Revoking`] or [`Polled::Lost`] the
//! application drains, commits and then calls [`Group::release`] with that event's number, once and whole; until then
//! the transport holds the partitions and does not rejoin. The application must go on polling meanwhile: a consumer
//! that does not poll for `poll_limit` is thrown out. [`Polled::Lost`] may follow a `Revoking` not yet released, and
//! then both are released. All assigned partitions deliver nothing from a `Revoking` until its release.
//!
//! With [`Assignor::CooperativeSticky`] alone, a `Revoking` names only what moves. What stays keeps its epoch, is
//! delivered while others drain and committed throughout, and is not named again by [`Polled::Assigned`].
//!
//! # Fences
//! Every record carries the [`Epoch`] of its partition. A commit under an epoch that is not current is refused with
//! [`ErrorKind::Fenced`] before it reaches the wire, and [`Group::release`] resolves only after every commit of the
//! released partitions that was out has been answered or cancelled.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::env::Instant;
use crate::identity::{Epoch, Position, TopicPartition};
use crate::partitioner::Partitioner;

mod delivery;
pub use delivery::Delivery;

/// A record header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Name.
    pub name: Arc<str>,
    /// Value.
    pub value: Bytes,
}

/// A record that a consumer read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it lies, and the ownership under which it was read.
    pub position: Position,
    /// Key; equal keys lie in one partition.
    pub key: Option<Bytes>,
    /// Value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
    /// Milliseconds since the Unix epoch, as the producer stamped it.
    pub timestamp_millis: i64,
}

impl Record {
    /// Bytes of key, value and headers.
    pub fn bytes(&self) -> usize {
        let of = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        of(&self.key) + of(&self.value) + headers
    }

    /// The value of the first header called `name`.
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().find(|header| &*header.name == name).map(|header| &header.value)
    }
}

/// A record to be produced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition; `None` lets the producer's partitioner choose by the key.
    pub partition: Option<i32>,
    /// Key.
    pub key: Option<Bytes>,
    /// Value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order.
    pub headers: Vec<Header>,
}

/// Where a produced record came to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Partition that it was appended to.
    pub partition: i32,
    /// Its offset there.
    pub offset: i64,
}

/// What a caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorKind {
    /// It did not happen; the same call may succeed later.
    Retriable,
    /// The caller is no longer who it was: an epoch, generation or producer id that is not current.
    Fenced,
    /// The handle is of no use any more; make a new one.
    Fatal,
    /// It may or may not have happened.
    UnknownOutcome,
    /// It will never succeed as it stands: no such topic, not allowed, too large, bad arguments.
    Refused,
}

/// An error of a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{context}: {code}")]
pub struct TransportError {
    /// What a caller may do.
    pub kind: ErrorKind,
    /// Kafka's own name of the error, as `UNKNOWN_MEMBER_ID`.
    pub code: &'static str,
    /// What was being done, to which topic or partition, and where it helps the next step.
    pub context: String,
}

impl TransportError {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, code: &'static str, context: impl Into<String>) -> Self {
        TransportError { kind, code, context: context.into() }
    }

    /// Whether it is this principal that is refused, for want of a right or for its credential: nothing is wrong with
    /// what was asked, and asking again gives the same until somebody grants it.
    pub fn is_denied(&self) -> bool {
        self.code.ends_with("_AUTHORIZATION_FAILED") || self.code == "SASL_AUTHENTICATION_FAILED"
    }
}

/// How to produce. Idempotence and `acks=all` are not optional.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Name in logs and traces.
    pub client_id: String,
    /// `linger.ms`: how long a record may wait for company.
    pub linger: Duration,
    /// `batch.num.messages`: records of one batch.
    pub batch_records_max: usize,
    /// `batch.size`: bytes of one batch; a record that is larger goes alone.
    pub batch_bytes_max: usize,
    /// `queue.buffering.max.messages`: records that may wait or be in flight; a full producer makes `send_all` wait.
    pub queue_records_max: usize,
    /// `queue.buffering.max.kbytes`, in bytes: of them, keys, values and headers; a full producer makes `send_all`
    /// wait.
    pub queue_bytes_max: usize,
    /// `message.max.bytes`: largest record that is sent.
    pub record_bytes_max: usize,
    /// `partitioner`: where records without a partition go. The pipeline names the partitions of the hops itself and
    /// leaves only its dead letters to this: the default puts a keyed one where a hop with as many partitions has its
    /// document.
    pub partitioner: Partitioner,
    /// `sticky.partitioning.linger.ms`: how long records that may go anywhere keep to one partition; zero draws one for
    /// each.
    pub sticky_linger: Duration,
    /// `topic.metadata.refresh.interval.ms`: age at which what is known of a topic is asked for again, and growth is
    /// noticed; `None` is the transport's own (Kafka's: 5 min).
    pub metadata_max_age: Option<Duration>,
    /// `topic.metadata.propagation.max.ms`: how long a topic that is said not to exist may be on its way, or a
    /// partition that a record names; after that records to it are refused.
    pub topic_propagation_max: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            client_id: "seriatim".into(),
            linger: Duration::from_millis(1),
            batch_records_max: 10_000,
            batch_bytes_max: 1_000_000,
            queue_records_max: 100_000,
            queue_bytes_max: 1 << 30,
            record_bytes_max: 1_000_000,
            partitioner: Partitioner::default(),
            sticky_linger: Duration::from_millis(10),
            metadata_max_age: None,
            topic_propagation_max: Duration::from_secs(30),
        }
    }
}

/// Where to start on a partition without a committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetReset {
    /// At the oldest record that is kept. The right one: `Latest` loses what came before discovery.
    Earliest,
    /// At the end.
    Latest,
}

/// A strategy by which a group's leader gives partitions to members (`partition.assignment.strategy`).
///
/// With one of the first three a member gives up everything before each rebalance; with the last only what must move.
/// librdkafka has no eager `sticky` of its own, nor mixed lists; Java has both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assignor {
    /// `range`: contiguous partitions of each topic.
    Range,
    /// `roundrobin`: all partitions in turn.
    RoundRobin,
    /// `sticky`: balanced, and as before where it can be; eager.
    Sticky,
    /// `cooperative-sticky`: the same, and what stays with its member is never given up.
    CooperativeSticky,
}

impl Assignor {
    /// Kafka's own name, as `cooperative-sticky`.
    pub const fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
            Assignor::Sticky => "sticky",
            Assignor::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// Whether members keep their partitions while they rejoin.
    pub const fn is_cooperative(self) -> bool {
        matches!(self, Assignor::CooperativeSticky)
    }
}

/// How to consume as a member of a group. Offsets are never stored or committed but by [`Group::commit`].
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Name in logs and traces.
    pub client_id: String,
    /// The group.
    pub group: String,
    /// Topics.
    pub topics: Vec<Arc<str>>,
    /// `session.timeout.ms`: silence after which the coordinator drops the member.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: time between polls after which the member leaves; also the group's rebalance time-out.
    pub poll_limit: Duration,
    /// Where to start without a committed offset.
    pub offset_reset: OffsetReset,
    /// Records that the client may hold for one partition before it was asked for them.
    pub prefetch_records_max: usize,
    /// `partition.assignment.strategy`: what this member supports, the preferred first. The group uses one that all
    /// its members support. With any eager one in the list the member gives up everything before it rejoins: a list of
    /// both kinds is for changing a group over, and Java's clients take it where librdkafka refuses it.
    pub assignors: Vec<Assignor>,
    /// `group.instance.id`: makes the member static. One that comes back within its session keeps its partitions
    /// without a rebalance; one that leaves says nothing; the older of two with one id is fenced, for good.
    pub instance_id: Option<String>,
    /// `topic.metadata.refresh.interval.ms`: age at which this member looks for new partitions; `None` is the
    /// transport's own.
    pub metadata_max_age: Option<Duration>,
}

impl GroupConfig {
    /// A member of `group` reading `topics`, with Kafka's own time-outs.
    pub fn new(group: impl Into<String>, topics: Vec<Arc<str>>) -> Self {
        GroupConfig {
            client_id: "seriatim".into(),
            group: group.into(),
            topics,
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            poll_limit: Duration::from_secs(300),
            offset_reset: OffsetReset::Earliest,
            prefetch_records_max: 10_000,
            assignors: vec![Assignor::Range, Assignor::RoundRobin],
            instance_id: None,
            metadata_max_age: None,
        }
    }
}

/// A committed offset with its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// What the committer wrote beside it, at most 4,096 bytes.
    pub metadata: String,
}

/// A partition that came to this consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The partition.
    pub partition: TopicPartition,
    /// The new ownership.
    pub epoch: Epoch,
    /// What the group had committed, if anything.
    pub committed: Option<Committed>,
    /// The offset at which reading starts.
    pub start: i64,
}

/// Number of a rebalance event of one consumer, to be given back to [`Group::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RebalanceId(pub u64);

/// What one poll gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Records in partition order; empty when none came in time.
    Records(Vec<Record>),
    /// New partitions. Retained ones are not listed and keep their epochs. May be empty.
    Assigned(Vec<Assignment>),
    /// These partitions will go. Drain, commit, then release, before the deadline.
    Revoking {
        /// To be given to [`Group::release`].
        event: RebalanceId,
        /// The partitions, with the epochs that end.
        partitions: Vec<(TopicPartition, Epoch)>,
        /// `poll_limit` − heartbeat − time for a commit, from when the transport knew.
        deadline: Instant,
    },
    /// These partitions are gone already: another member may own them. Abandon, then release.
    Lost {
        /// To be given to [`Group::release`].
        event: RebalanceId,
        /// The partitions, with the epochs that ended.
        partitions: Vec<(TopicPartition, Epoch)>,
    },
}

/// A commit of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The partition.
    pub partition: TopicPartition,
    /// The ownership under which the offset was reached.
    pub epoch: Epoch,
    /// The next offset to read.
    pub offset: i64,
    /// Metadata; every commit carries some.
    pub metadata: String,
}

/// How to create a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Name.
    pub name: Arc<str>,
    /// Partitions.
    pub partitions: u32,
    /// Copies of each.
    pub replication: u16,
}

/// The first offset kept and the next offset to be written of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// First offset that is kept.
    pub start: i64,
    /// Offset that the next record will get: records below it can be read.
    pub end: i64,
}

/// A connection to one Kafka cluster, as one process sees it.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Its producers.
    type Producer: Producer;
    /// The polling half of its group consumers.
    type Poller: Poller;
    /// The other half of its group consumers.
    type Group: Group;
    /// Its consumers by assignment.
    type Assigned: Assigned;
    /// Its admin client.
    type Admin: Admin;

    /// A new idempotent producer.
    fn producer(&self, config: ProducerConfig) -> impl Future<Output = Result<Self::Producer, TransportError>> + Send;

    /// A new member of a group. It joins in the background; the first assignment arrives through the poller.
    fn join(
        &self,
        config: GroupConfig,
    ) -> impl Future<Output = Result<(Self::Poller, Self::Group), TransportError>> + Send;

    /// A consumer of given partitions from given offsets, outside any group.
    fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> impl Future<Output = Result<Self::Assigned, TransportError>> + Send;

    /// An admin client.
    fn admin(&self) -> Self::Admin;
}

/// An idempotent producer. Clones share it. Dropping the last clone abandons what is unacknowledged.
pub trait Producer: Clone + Send + Sync + 'static {
    /// Enqueues `records` in order, waiting while the producer is full, and returns their acknowledgements to come.
    /// Records of two calls to one partition are appended in the order in which the calls' futures were first polled.
    /// Retriable errors are retried for ever.
    fn send_all(&self, records: Vec<Outgoing>) -> impl Future<Output = Delivery> + Send;

    /// Resolves when everything enqueued before is acknowledged or failed.
    fn flush(&self) -> impl Future<Output = ()> + Send;
}

/// The polling half of a group consumer, owned by the polling task.
pub trait Poller: Send + 'static {
    /// At most `records_max` records, or one rebalance event; waits at most `wait` for either. An event goes before
    /// records, and records of a partition that an event revoked are never given after it. Cancel-safe: dropping the
    /// future loses neither.
    fn poll(
        &mut self,
        records_max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Polled, TransportError>> + Send;
}

/// The other half of a group consumer. Clones share it.
pub trait Group: Clone + Send + Sync + 'static {
    /// Commits, all or each on its own: one result a commit, in order. A commit whose epoch is not current is
    /// `Fenced` and not sent.
    fn commit(&self, commits: Vec<Commit>) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send;

    /// Gives the partitions of a `Revoking` or `Lost` back, whole. Queued commits of them are awaited or cancelled
    /// first.
    fn release(&self, event: RebalanceId) -> impl Future<Output = Result<(), TransportError>> + Send;

    /// Stops delivery of `partitions` until resumed; polling goes on. Unassigned ones are passed over.
    fn pause(&self, partitions: &[TopicPartition]);

    /// Resumes delivery of `partitions`. Unassigned ones are passed over.
    fn resume(&self, partitions: &[TopicPartition]);

    /// Leaves the group for good, without a commit. The poller's next poll says `CONSUMER_CLOSED`.
    fn leave(&self) -> impl Future<Output = ()> + Send;
}

/// A consumer by assignment, outside any group.
pub trait Assigned: Send + 'static {
    /// At most `records_max` records; waits at most `wait` for the first. Their epoch is 0.
    fn poll(
        &mut self,
        records_max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Record>, TransportError>> + Send;

    /// The next offset that it will read, for each partition, in the order of the assignment.
    fn positions(&self) -> Vec<(TopicPartition, i64)>;
}

/// What a program may ask of the cluster itself.
pub trait Admin: Clone + Send + Sync + 'static {
    /// Creates topics; one result each, in order. `TOPIC_ALREADY_EXISTS` is an error of kind `Refused`.
    fn create_topics(&self, topics: Vec<NewTopic>) -> impl Future<Output = Vec<Result<(), TransportError>>> + Send;

    /// Number of partitions of each topic; `UNKNOWN_TOPIC_OR_PARTITION` where there is none.
    fn partition_counts(&self, topics: Vec<Arc<str>>) -> impl Future<Output = Vec<Result<u32, TransportError>>> + Send;

    /// First and next offsets of partitions, in order.
    fn watermarks(
        &self,
        partitions: Vec<TopicPartition>,
    ) -> impl Future<Output = Result<Vec<Watermarks>, TransportError>> + Send;

    /// What `group` has committed for partitions, in order.
    fn committed(
        &self,
        group: String,
        partitions: Vec<TopicPartition>,
    ) -> impl Future<Output = Result<Vec<Option<Committed>>, TransportError>> + Send;
}
