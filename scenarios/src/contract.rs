//! The contract of the `Transport` port: every rule that `core` relies on, by name, each written once.
//!
//! A rule is an async function over a [`Site`]: a Kafka, a transport to it, and what a rule needs beyond the port. It
//! runs against the simulated cluster ([`simulated`]) and against real ones; where they differ the
//! simulation is wrong. [`flaws`] has transports that break the rules, one at a time, so that each is seen failing.
//!
//! It must never look behind the port: a rule knows what an application could know, and asks the cluster only through
//! the admin client.
//!
//! Rules run side by side on one cluster, so each makes its own topics and groups, and none may break the cluster.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Admin, NewTopic, Transport};

mod commits;
mod deaths;
pub mod flaws;
mod groups;
mod member;
mod producing;
pub mod puppet;
mod reading;
pub mod real;
pub mod simulated;
mod statics;
mod support;
pub mod table;
mod topics;

use self::puppet::{Order, Report, Script};

/// How long a rule waits for what must come, before it is broken.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A Kafka, and what a rule needs of the place it runs at.
pub trait Site: Clone + Send + Sync + 'static {
    /// Time, virtual or real.
    type Env: Env;
    /// The transport under test.
    type Transport: Transport;
    /// A member in another process.
    type Puppet: Puppet;

    /// Time and tasks.
    fn env(&self) -> Self::Env;

    /// The transport, as the rule's own process has it.
    fn transport(&self) -> Self::Transport;

    /// A transport over a link that can lose answers, and how it is made to: so many of the next, after their requests
    /// were applied, each with its connection.
    fn lossy(&self) -> impl Future<Output = Result<(Self::Transport, Lose)>> + Send;

    /// A name that no other rule uses.
    fn fresh(&self, what: &str) -> String;

    /// Copies of a topic's partitions.
    fn replication(&self) -> u16;

    /// Grows a topic to `partitions` in all; not all brokers may know yet.
    fn add_partitions(&self, topic: Arc<str>, partitions: u32) -> impl Future<Output = Result<()>> + Send;

    /// Deletes the records of a partition below `before`.
    fn delete_records(&self, partition: TopicPartition, before: i64) -> impl Future<Output = Result<()>> + Send;

    /// Starts a member in a process of its own.
    fn puppet(&self, script: Script) -> impl Future<Output = Result<Self::Puppet>> + Send;

    /// A new topic, known to all brokers.
    fn topic(&self, what: &str, partitions: u32) -> impl Future<Output = Result<Arc<str>>> + Send {
        async move {
            let (admin, name): (_, Arc<str>) = (self.transport().admin(), self.fresh(what).into());
            let new = NewTopic { name: name.clone(), partitions, replication: self.replication() };
            for made in admin.create_topics(vec![new]).await {
                made?;
            }
            self.settled(&name, partitions).await?;
            Ok(name)
        }
    }

    /// Grows a topic to `partitions` in all, known to their leaders.
    fn grow_topic(&self, topic: &Arc<str>, partitions: u32) -> impl Future<Output = Result<()>> + Send {
        async move {
            self.add_partitions(topic.clone(), partitions).await?;
            self.settled(topic, partitions).await
        }
    }

    /// Waits until the admin client says that a topic has so many partitions, and the leader of each tells its offsets:
    /// what changes them is answered before all brokers know.
    fn settled(&self, topic: &Arc<str>, partitions: u32) -> impl Future<Output = Result<()>> + Send {
        async move {
            let (admin, until) = (self.transport().admin(), self.env().now() + PATIENCE);
            loop {
                let counts = admin.partition_counts(vec![topic.clone()]).await;
                let all = (0..partitions).map(|number| TopicPartition::new(topic.clone(), number as i32)).collect();
                let marks = admin.watermarks(all).await;
                if counts == [Ok(partitions)] && marks.is_ok() {
                    return Ok(());
                }
                let found = (counts, marks);
                ensure!(self.env().now() < until, "`{topic}` was to have {partitions} partitions, and has {found:?}");
                self.env().sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// What a site cannot do: the rule that needs it is not checked there.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not here: {0}")]
pub struct NotHere(pub &'static str);

/// Loses so many of the next answers.
pub type Lose = Box<dyn Fn(u64) + Send + Sync>;

/// A group member in another process: it polls, releases what it must unless its script says otherwise, and reports.
pub trait Puppet: Send + 'static {
    /// Has it do something.
    fn order(&mut self, order: Order);
    /// All that it reported so far.
    fn reports(&mut self) -> Vec<Report>;
    /// Kills its process: no goodbye.
    fn kill(&mut self);
    /// Freezes its process, heartbeats too.
    fn freeze(&mut self);
    /// Lets its frozen process go on.
    fn thaw(&mut self);
}

/// A rule of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub words: &'static str,
}

macro_rules! rules {
    ($($area:ident::$name:ident, $words:literal;)*) => {
        /// All rules, in the order of the table.
        pub const RULES: &[Rule] = &[$(Rule { name: stringify!($name), words: $words }),*];

        async fn run<S: Site>(site: &S, rule: &str) -> Result<()> {
            match rule {
                $(stringify!($name) => Box::pin($area::$name(site)).await,)*
                other => bail!("there is no rule `{other}`"),
            }
        }
    };
}

rules! {
    producing::key_to_partition, "equal keys lie in one partition, the one that Java's murmur2 gives; an empty key is a key";
    producing::named_partition, "a record that names a partition lies there, whatever its key";
    producing::order_in_partition, "records of one partition lie in the order in which they were handed over, over many calls and batches";
    producing::idempotent_retry, "answers that are lost after their requests were applied lose, double and reorder nothing";
    producing::flush_awaits_all, "after a flush everything handed over before is acknowledged and can be read";
    producing::full_queue_waits, "a full producer makes its caller wait and refuses nothing";
    producing::tombstones_and_empty_keys, "no key and an empty key, no value and an empty value come back as they were";
    producing::headers_in_order, "headers come back in order, repeated names and empty values too";
    producing::timestamp_of_producer, "a record carries the wall time at which it was handed over";
    producing::large_records, "a large record passes whole; one that is too large is refused alone, by the client or by the broker";
    topics::unknown_topic_refused, "records to a topic or partition that there is not are refused, and others go on";
    topics::topic_exists_once, "a topic is created once, and by a legal name with at least one partition";
    topics::watermarks_tell_what_is_kept, "watermarks are the first offset kept and the next to be written";
    topics::growth_seen_by_producer, "a producer notices new partitions at the age of its metadata, and keys move once";
    topics::growth_can_be_written_at_once, "a producer that knew a topic before it grew writes to its new partitions when they are named";
    topics::growth_seen_by_consumer, "an eager member notices new partitions and reads them from their beginning";
    topics::growth_keeps_what_is_retained, "a cooperative member that gets new partitions keeps the old under their epochs";
    commits::commit_with_metadata, "a commit brings its metadata back, at most 4,096 bytes, and the next owner starts there";
    commits::commit_backwards_is_taken, "an owner's commit below its last is taken: nothing checks that offsets rise";
    commits::commit_past_the_end_is_taken, "a commit far past the end of the log is taken";
    commits::foreign_commit_is_fenced, "a commit of a partition that is not owned is fenced and not sent; others of its call are taken";
    commits::late_commit_is_fenced, "after a release a commit is fenced, and under an old epoch when the partition is back too";
    commits::commits_while_draining, "what is revoked can be committed until the release, and its next owner starts there";
    groups::every_partition_has_one_owner, "three members share seven partitions, each owned by one";
    groups::drain_before_handover, "nobody gets a partition before it is released, past the session too, and nothing is delivered meanwhile";
    groups::cooperative_keeps_epochs, "a cooperative member gives up only what moves; the rest keeps its epoch, is committed throughout and not named again";
    groups::epochs_rise, "a partition that comes back has a higher epoch, and two members of a process never share one";
    groups::release_once, "an event is released once, and only one that was raised";
    groups::leave_hands_over_at_once, "who leaves hands over at once, without a commit, and is told that it is closed";
    deaths::dead_member_keeps_its_session, "a member that dies without goodbye keeps its partitions for its session, and their next owner starts at its commits";
    deaths::frozen_member_is_fenced, "a member that was frozen past its session loses its partitions, is told, and its commits change nothing";
    deaths::poll_limit_evicts, "a member that does not poll loses its partitions at the limit, is told at its next poll, and comes back";
    deaths::drain_past_the_limit, "a drain that outlasts the poll limit loses the partitions; commits change nothing, and the group recovers";
    statics::static_restart_moves_nothing, "a static member that is back within its session has its partitions again, and no one else notices";
    statics::static_leave_is_silent, "a static member that leaves keeps its partitions for its session";
    statics::static_twin_fences_the_older, "of two members with one instance id the older is fenced for good";
    statics::static_death_between_generations, "what a static cooperative member was to give up when it died has no owner after its return, until the next rebalance";
    reading::offset_reset, "without a commit a member starts at the beginning or at the end, as it asks";
    reading::records_deleted_before, "a start below the first record kept is taken for the first record kept";
    reading::records_deleted_under_a_reader, "a reader whose next record is deleted goes on with the first record kept";
    reading::pause_and_resume, "a paused partition delivers nothing, others go on, and after the resume nothing is missing";
    reading::poll_keeps_its_bounds, "a poll gives at most as many records as asked, and waits no longer than asked";
    reading::cancelled_polls_lose_nothing, "polls that are dropped half-way lose no record";
    reading::assigned_positions, "a consumer by assignment reads from where it is told, and knows its next offsets";
}

/// Finds rules by their names; all of them when none is named.
pub fn find(names: &[String]) -> Result<Vec<Rule>> {
    let all = || RULES.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", ");
    let one = |name: &String| {
        let found = RULES.iter().find(|rule| rule.name == name).copied();
        found.ok_or_else(|| anyhow!("there is no rule `{name}`; there are {}", all()))
    };
    if names.is_empty() { Ok(RULES.to_vec()) } else { names.iter().map(one).collect() }
}

/// Checks one rule at `site`. An error says in which way it is broken.
pub async fn check<S: Site>(site: &S, rule: &str) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(300);
    site.env().timeout(LIMIT, run(site, rule)).await.with_context(|| format!("it did not end in {LIMIT:?}"))?
}
