//! The transport that has a flaw: a wrapper of another, which it forwards to wherever the flaw does not speak.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::partitioner::Partitioner;
use seriatim_core::transport::{
    Admin, Appended, Assigned, Commit, Committed, Delivery, ErrorKind, Group, GroupConfig, NewTopic, OffsetReset,
    Outgoing, Polled, Poller, Producer, ProducerConfig, RebalanceId, Record, Transport, TransportError, Watermarks,
};

use super::Flaw;

/// A transport with a flaw, or with none.
#[derive(Clone, Debug)]
pub struct Flawed<T, E> {
    inner: T,
    env: E,
    flaw: Option<Flaw>,
    joined: Arc<Mutex<u64>>,
}

impl<T, E> Flawed<T, E> {
    /// `inner` with `flaw`.
    pub fn new(inner: T, env: E, flaw: Option<Flaw>) -> Self {
        Flawed { inner, env, flaw, joined: Arc::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Transport, E: Env> Transport for Flawed<T, E> {
    type Producer = FlawedProducer<T::Producer>;
    type Poller = FlawedPoller<T::Poller, T::Group, E>;
    type Group = FlawedGroup<T::Group>;
    type Assigned = FlawedAssigned<T::Assigned>;
    type Admin = FlawedAdmin<T::Admin>;

    async fn producer(&self, mut config: ProducerConfig) -> Result<Self::Producer, TransportError> {
        match self.flaw {
            Some(Flaw::HashesByCrc) => config.partitioner = Partitioner::ConsistentRandom,
            Some(Flaw::NeverRefreshes) => config.metadata_max_age = None,
            _ => {}
        }
        let queue_max = config.queue_records_max;
        Ok(FlawedProducer { inner: self.inner.producer(config).await?, flaw: self.flaw, queue_max })
    }

    async fn join(&self, mut config: GroupConfig) -> Result<(Self::Poller, Self::Group), TransportError> {
        let number = {
            let mut joined = lock(&self.joined);
            *joined += 1;
            *joined
        };
        match self.flaw {
            Some(Flaw::NeverRefreshes) => config.metadata_max_age = None,
            Some(Flaw::LivesLonger) => config.session_timeout *= 5,
            Some(Flaw::NeverEvicts) => config.poll_limit = Duration::from_secs(3_600),
            Some(Flaw::IsNobody) => config.instance_id = None,
            Some(Flaw::IsSomebodyElse) => {
                let own = |id| format!("{id}-{number}-{}", self.env.random());
                config.instance_id = config.instance_id.map(own);
            }
            Some(Flaw::StartsAtTheEnd) => config.offset_reset = OffsetReset::Latest,
            _ => {}
        }
        let (poller, inner) = self.inner.join(config).await?;
        let group = FlawedGroup { inner, flaw: self.flaw, shown: Arc::default() };
        Ok((FlawedPoller { inner: poller, group: group.clone(), env: self.env.clone(), more: Vec::new() }, group))
    }

    async fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> Result<Self::Assigned, TransportError> {
        Ok(FlawedAssigned { inner: self.inner.assign(client_id, from).await?, flaw: self.flaw })
    }

    fn admin(&self) -> Self::Admin {
        FlawedAdmin { inner: self.inner.admin(), flaw: self.flaw }
    }
}

/// A producer with the flaw of its transport.
#[derive(Clone, Debug)]
pub struct FlawedProducer<P> {
    inner: P,
    flaw: Option<Flaw>,
    queue_max: usize,
}

fn softened(error: TransportError) -> TransportError {
    TransportError { kind: ErrorKind::Retriable, ..error }
}

impl<P: Producer> Producer for FlawedProducer<P> {
    async fn send_all(&self, mut records: Vec<Outgoing>) -> Delivery {
        const SHORT: usize = 100_000;
        match self.flaw {
            Some(Flaw::ForgetsPartitions) => records.iter_mut().for_each(|record| record.partition = None),
            Some(Flaw::Reverses) => records.reverse(),
            Some(Flaw::SendsTwice) => drop(self.inner.send_all(records.clone()).await),
            Some(Flaw::SendsEmptyForNone) => {
                records.iter_mut().for_each(|record| record.value = record.value.take().or(Some(Bytes::new())));
            }
            Some(Flaw::SortsHeaders) => {
                records.iter_mut().for_each(|record| record.headers.sort_by(|a, b| a.name.cmp(&b.name)));
            }
            Some(Flaw::CutsValues) => {
                let cut = |value: Bytes| value.slice(..value.len().min(SHORT));
                records.iter_mut().for_each(|record| record.value = record.value.take().map(cut));
            }
            Some(Flaw::RefusesWhenFull) => {
                let (count, room) = (records.len(), self.queue_max);
                if count > room {
                    let full = || TransportError::new(ErrorKind::Retriable, "QUEUE_FULL", "sending");
                    records.truncate(room);
                    let taken = self.inner.send_all(records).await.await;
                    let all = taken.into_iter().chain((room..count).map(|_| Err(full()))).collect();
                    return resolved(all);
                }
            }
            Some(Flaw::KnowsOnlyTheFirst) if records.iter().any(|record| record.partition > Some(0)) => {
                let code = "UNKNOWN_TOPIC_OR_PARTITION";
                let unknown = |_| Err(TransportError::new(ErrorKind::Refused, code, "producing"));
                return resolved(records.iter().map(unknown).collect());
            }
            Some(Flaw::NeverRefuses) => {
                let outcomes = self.inner.send_all(records).await.await;
                return resolved(outcomes.into_iter().map(|one| one.map_err(softened)).collect());
            }
            _ => {}
        }
        self.inner.send_all(records).await
    }

    async fn flush(&self) {
        if self.flaw != Some(Flaw::FlushesNothing) {
            self.inner.flush().await;
        }
    }
}

fn resolved(outcomes: Vec<Result<Appended, TransportError>>) -> Delivery {
    let (sender, delivery) = Delivery::new(outcomes.len());
    // Its receiver is here.
    let _ = sender.send(outcomes);
    delivery
}

/// What a member was shown, and what is behind it.
#[derive(Debug, Default)]
struct Shown {
    /// The true epochs, as last assigned.
    epochs: BTreeMap<TopicPartition, Epoch>,
    /// The epochs that were shown instead.
    renewed: BTreeMap<TopicPartition, Epoch>,
    highest: u64,
    /// The highest commit of each partition.
    commits: BTreeMap<TopicPartition, i64>,
}

/// The polling half of a member with the flaw of its transport.
#[derive(Debug)]
pub struct FlawedPoller<P, G, E> {
    inner: P,
    group: FlawedGroup<G>,
    env: E,
    /// Records of the poll before.
    more: Vec<Record>,
}

/// An epoch as `Flaw::RenewsEpochs` and `Flaw::SharesEpochs` show it.
fn shown_as(shown: &Shown, flaw: Option<Flaw>, partition: &TopicPartition, epoch: Epoch) -> Epoch {
    match flaw {
        Some(Flaw::SharesEpochs) => Epoch(1),
        Some(Flaw::RenewsEpochs) => shown.renewed.get(partition).copied().unwrap_or(epoch),
        _ => epoch,
    }
}

impl<P: Poller, G: Group, E: Env> FlawedPoller<P, G, E> {
    /// What a poll shows of what it gave.
    async fn show(&mut self, polled: Polled) -> Polled {
        let flaw = self.group.flaw;
        let polled = self.account(polled);
        match (flaw, polled) {
            (Some(Flaw::ReleasesAtOnce), Polled::Revoking { event, partitions, deadline }) => {
                let _ = self.group.inner.release(event).await;
                Polled::Revoking { event, partitions, deadline }
            }
            (Some(Flaw::HidesLosses), Polled::Lost { event, .. }) => {
                let _ = self.group.inner.release(event).await;
                Polled::Records(Vec::new())
            }
            (Some(Flaw::DropsPartitions), Polled::Assigned(mut new)) => {
                new.pop();
                Polled::Assigned(new)
            }
            (Some(Flaw::LosesTimestamps), Polled::Records(mut records)) => {
                records.iter_mut().for_each(|record| record.timestamp_millis = 0);
                Polled::Records(records)
            }
            (Some(Flaw::GivesMore), Polled::Records(records)) => {
                self.more.extend(records);
                // Two polls' worth at once.
                if self.more.len() > 10 {
                    Polled::Records(std::mem::take(&mut self.more))
                } else {
                    Polled::Records(Vec::new())
                }
            }
            (Some(Flaw::DropsWithThePoll), Polled::Records(records)) => {
                self.env.sleep(Duration::from_millis(5)).await;
                Polled::Records(records)
            }
            (_, polled) => polled,
        }
    }

    /// Keeps account of epochs, and changes them as the flaw says.
    fn account(&mut self, polled: Polled) -> Polled {
        let flaw = self.group.flaw;
        let mut shown = lock(&self.group.shown);
        // What goes keeps the epochs that it was shown under: it may be committed until it is gone.
        let going = |shown: &Shown, partitions: Vec<(TopicPartition, Epoch)>| {
            let show = |(partition, epoch)| {
                let seen = shown_as(shown, flaw, &partition, epoch);
                (partition, seen)
            };
            partitions.into_iter().map(show).collect()
        };
        match polled {
            Polled::Records(mut records) => {
                for record in &mut records {
                    let place = &mut record.position;
                    place.epoch = shown_as(&shown, flaw, &place.partition, place.epoch);
                }
                Polled::Records(records)
            }
            Polled::Assigned(mut new) => {
                shown.epochs.extend(new.iter().map(|one| (one.partition.clone(), one.epoch)));
                if flaw == Some(Flaw::RenewsEpochs) {
                    let renewed: Vec<TopicPartition> = shown.epochs.keys().cloned().collect();
                    for partition in renewed {
                        shown.highest += 1_000;
                        let epoch = Epoch(shown.highest);
                        shown.renewed.insert(partition, epoch);
                    }
                }
                for one in &mut new {
                    one.epoch = shown_as(&shown, flaw, &one.partition, one.epoch);
                }
                Polled::Assigned(new)
            }
            Polled::Revoking { event, partitions, deadline } => {
                Polled::Revoking { event, partitions: going(&shown, partitions), deadline }
            }
            Polled::Lost { event, partitions } => Polled::Lost { event, partitions: going(&shown, partitions) },
        }
    }
}

impl<P: Poller, G: Group, E: Env> Poller for FlawedPoller<P, G, E> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        let polled = self.inner.poll(records_max, wait).await?;
        Ok(self.show(polled).await)
    }
}

/// The other half of a member with the flaw of its transport.
#[derive(Clone, Debug)]
pub struct FlawedGroup<G> {
    inner: G,
    flaw: Option<Flaw>,
    shown: Arc<Mutex<Shown>>,
}

impl<G: Group> FlawedGroup<G> {
    /// The commit that is sent for `commit`; an outcome instead when none is.
    fn change(&self, mut commit: Commit) -> Result<Commit, Result<(), TransportError>> {
        const FAR: i64 = 1_000_000;
        let mut shown = lock(&self.shown);
        let current = shown.epochs.get(&commit.partition).copied();
        match self.flaw {
            Some(Flaw::LosesMetadata) => commit.metadata.clear(),
            Some(Flaw::CommitsOnlyForward) => {
                let highest = shown.commits.entry(commit.partition.clone()).or_default();
                if commit.offset < *highest {
                    return Err(Ok(()));
                }
                *highest = commit.offset;
            }
            Some(Flaw::CommitsOnlyNear) if commit.offset > FAR => {
                return Err(Err(TransportError::new(ErrorKind::Refused, "OFFSET_OUT_OF_RANGE", "committing")));
            }
            Some(Flaw::CommitsAsOfNow | Flaw::SharesEpochs) => commit.epoch = current.unwrap_or(commit.epoch),
            Some(Flaw::RenewsEpochs) if shown.renewed.get(&commit.partition) == Some(&commit.epoch) => {
                commit.epoch = current.unwrap_or(commit.epoch);
            }
            _ => {}
        }
        Ok(commit)
    }
}

impl<G: Group> Group for FlawedGroup<G> {
    async fn commit(&self, commits: Vec<Commit>) -> Vec<Result<(), TransportError>> {
        let changed: Vec<_> = commits.into_iter().map(|commit| self.change(commit)).collect();
        let sent = changed.iter().filter_map(|one| one.as_ref().ok().cloned()).collect();
        let mut answers = self.inner.commit(sent).await.into_iter();
        let outcomes =
            changed.into_iter().map(|one| one.map_or_else(|instead| instead, |_| answers.next().unwrap_or(Ok(()))));
        let hides = |outcome: Result<(), TransportError>| match outcome {
            Err(error) if error.kind == ErrorKind::Fenced && self.flaw == Some(Flaw::HidesFences) => Ok(()),
            other => other,
        };
        outcomes.map(hides).collect()
    }

    async fn release(&self, event: RebalanceId) -> Result<(), TransportError> {
        match (self.inner.release(event).await, self.flaw) {
            (Err(_), Some(Flaw::ReleasesAnything | Flaw::ReleasesAtOnce | Flaw::HidesLosses)) => Ok(()),
            (outcome, _) => outcome,
        }
    }

    fn pause(&self, partitions: &[TopicPartition]) {
        if self.flaw != Some(Flaw::NeverPauses) {
            self.inner.pause(partitions);
        }
    }

    fn resume(&self, partitions: &[TopicPartition]) {
        self.inner.resume(partitions);
    }

    async fn leave(&self) {
        if self.flaw != Some(Flaw::LeavesInSilence) {
            self.inner.leave().await;
        }
    }
}

/// A consumer by assignment with the flaw of its transport.
#[derive(Debug)]
pub struct FlawedAssigned<A> {
    inner: A,
    flaw: Option<Flaw>,
}

impl<A: Assigned> Assigned for FlawedAssigned<A> {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Vec<Record>, TransportError> {
        let mut records = self.inner.poll(records_max, wait).await?;
        if self.flaw == Some(Flaw::LosesTimestamps) {
            records.iter_mut().for_each(|record| record.timestamp_millis = 0);
        }
        Ok(records)
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        let ahead = if self.flaw == Some(Flaw::RunsAhead) { 3 } else { 0 };
        self.inner.positions().into_iter().map(|(partition, offset)| (partition, offset + ahead)).collect()
    }
}

/// An admin client with the flaw of its transport.
#[derive(Clone, Debug)]
pub struct FlawedAdmin<A> {
    inner: A,
    flaw: Option<Flaw>,
}

impl<A: Admin> Admin for FlawedAdmin<A> {
    async fn create_topics(&self, topics: Vec<NewTopic>) -> Vec<Result<(), TransportError>> {
        let exists = |outcome: Result<(), TransportError>| match outcome {
            Err(error) if error.code == "TOPIC_ALREADY_EXISTS" && self.flaw == Some(Flaw::CreatesAgain) => Ok(()),
            other => other,
        };
        self.inner.create_topics(topics).await.into_iter().map(exists).collect()
    }

    async fn partition_counts(&self, topics: Vec<Arc<str>>) -> Vec<Result<u32, TransportError>> {
        self.inner.partition_counts(topics).await
    }

    async fn watermarks(&self, partitions: Vec<TopicPartition>) -> Result<Vec<Watermarks>, TransportError> {
        let early = i64::from(self.flaw == Some(Flaw::EndsOneEarly));
        let end = |marks: Watermarks| Watermarks { end: (marks.end - early).max(marks.start), ..marks };
        Ok(self.inner.watermarks(partitions).await?.into_iter().map(end).collect())
    }

    async fn committed(
        &self,
        group: String,
        partitions: Vec<TopicPartition>,
    ) -> Result<Vec<Option<Committed>>, TransportError> {
        self.inner.committed(group, partitions).await
    }
}
