//! A group member in the hands of a rule: it polls when told to, keeps account of what it owns, and holds every poll
//! to the rules that no poll may break.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use seriatim_core::env::{Env, Instant};
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Assignment, Commit, ErrorKind, Group, GroupConfig, Polled, Poller, RebalanceId, Record, Transport, TransportError,
};

use super::support::commit;
use super::{PATIENCE, Puppet, Site, puppet};

const WAIT: Duration = Duration::from_millis(50);

/// A rebalance event that is not released yet.
#[derive(Clone, Debug)]
pub struct Held {
    pub event: RebalanceId,
    pub partitions: Vec<(TopicPartition, Epoch)>,
    /// `None` for a loss.
    pub deadline: Option<Instant>,
}

/// A member, as an application knows it.
pub struct Member<T: Transport> {
    poller: T::Poller,
    pub group: T::Group,
    /// What it owns, also while it is being given up.
    pub owned: BTreeMap<TopicPartition, Epoch>,
    /// Every assignment, latest last.
    pub assigned: Vec<Assignment>,
    /// Assignments that came, also empty ones.
    pub assignments: usize,
    /// All records, in the order of delivery.
    pub records: Vec<Record>,
    /// Revocations and losses that are not released.
    pub held: Vec<Held>,
    /// What was to be given up, by event.
    pub revoked: Vec<Vec<(TopicPartition, Epoch)>>,
    pub lost: Vec<Vec<(TopicPartition, Epoch)>>,
    /// Whether it releases at once.
    pub releases: bool,
    highest: Option<Epoch>,
}

impl<T: Transport> Member<T> {
    pub async fn join<S: Site<Transport = T>>(site: &S, config: GroupConfig) -> Result<Self> {
        let (poller, group) = site.transport().join(config).await?;
        Ok(Member {
            poller,
            group,
            owned: BTreeMap::new(),
            assigned: Vec::new(),
            assignments: 0,
            records: Vec::new(),
            held: Vec::new(),
            revoked: Vec::new(),
            lost: Vec::new(),
            releases: true,
            highest: None,
        })
    }

    /// Numbers of the partitions that it owns and is not giving up.
    pub fn partitions(&self) -> Vec<i32> {
        let going = |partition: &&TopicPartition| {
            self.held.iter().any(|held| held.partitions.iter().any(|(one, _)| one == *partition))
        };
        let mut numbers: Vec<i32> =
            self.owned.keys().filter(|one| !going(one)).map(|partition| partition.partition).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Rebalance events so far.
    pub fn events(&self) -> usize {
        self.assignments + self.revoked.len() + self.lost.len()
    }

    pub fn epoch(&self, partition: &TopicPartition) -> Result<Epoch> {
        self.owned.get(partition).copied().with_context(|| format!("{partition} is not owned"))
    }

    /// The latest assignment of a partition.
    pub fn assignment(&self, partition: &TopicPartition) -> Result<&Assignment> {
        let found = self.assigned.iter().rev().find(|one| one.partition == *partition);
        found.with_context(|| format!("{partition} was never assigned"))
    }

    /// Records of one partition.
    pub fn of(&self, partition: &TopicPartition) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.position.partition == *partition)
    }

    pub fn commit_of(&self, partition: &TopicPartition, offset: i64) -> Result<Commit> {
        let epoch = self.epoch(partition)?;
        Ok(Commit { partition: partition.clone(), epoch, offset, metadata: "m".into() })
    }

    /// Commits under the current epoch.
    pub fn commit(&self, partition: &TopicPartition, offset: i64) -> impl Future<Output = Result<()>> + Send + use<T> {
        // Pollers are not to be shared between threads, so the future does not hold one.
        let (group, wanted) = (self.group.clone(), self.commit_of(partition, offset));
        async move { Ok(commit(&group, wanted?).await?) }
    }

    /// One poll as it is.
    pub async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Polled, TransportError> {
        self.poller.poll(records_max, wait).await
    }

    /// One poll; what it gives is taken into account.
    pub async fn step(&mut self) -> Result<()> {
        match self.poll(100, WAIT).await {
            Ok(polled) => self.take(polled).await,
            // A broker that cannot be reached for a moment.
            Err(error) if error.kind == ErrorKind::Retriable => Ok(()),
            Err(error) => bail!("a poll failed: {error}"),
        }
    }

    /// Takes what a poll gave into account, and releases unless told otherwise.
    pub async fn take(&mut self, polled: Polled) -> Result<()> {
        match polled {
            Polled::Records(records) => {
                for record in records {
                    self.take_record(record)?;
                }
            }
            Polled::Assigned(new) => {
                self.assignments += 1;
                for one in new {
                    let before = self.owned.insert(one.partition.clone(), one.epoch);
                    ensure!(before.is_none(), "{} was assigned, and is owned already", one.partition);
                    ensure!(
                        self.highest < Some(one.epoch),
                        "epochs rise, and {:?} follows {:?}",
                        one.epoch,
                        self.highest
                    );
                    self.assigned.push(one);
                }
                self.highest = self.assigned.iter().map(|one| one.epoch).max();
            }
            Polled::Revoking { event, partitions, deadline } => {
                self.goes(event, &partitions)?;
                self.revoked.push(partitions.clone());
                self.held.push(Held { event, partitions, deadline: Some(deadline) });
            }
            Polled::Lost { event, partitions } => {
                self.goes(event, &partitions)?;
                self.lost.push(partitions.clone());
                self.held.push(Held { event, partitions, deadline: None });
            }
        }
        if self.releases { self.release().await } else { Ok(()) }
    }

    fn take_record(&mut self, record: Record) -> Result<()> {
        let place = &record.position;
        ensure!(!self.held.iter().any(|held| held.deadline.is_some()), "{place:?} came while a revocation was held");
        let epoch = self.owned.get(&place.partition);
        ensure!(epoch == Some(&place.epoch), "{place:?} came, and the partition's epoch is {epoch:?}");
        let last = self
            .records
            .iter()
            .rev()
            .find(|one| one.position.partition == place.partition && one.position.epoch == place.epoch);
        ensure!(last.is_none_or(|last| last.position.offset < place.offset), "{place:?} came after {last:?}");
        self.records.push(record);
        Ok(())
    }

    fn goes(&self, event: RebalanceId, partitions: &[(TopicPartition, Epoch)]) -> Result<()> {
        ensure!(self.held.iter().all(|held| held.event != event), "{event:?} was raised twice");
        for (partition, epoch) in partitions {
            let owned = self.owned.get(partition);
            ensure!(owned == Some(epoch), "{partition} goes under {epoch:?}, and was owned under {owned:?}");
        }
        Ok(())
    }

    /// Releases all that is held.
    pub async fn release(&mut self) -> Result<()> {
        for held in std::mem::take(&mut self.held) {
            self.group.release(held.event).await?;
            for (partition, epoch) in held.partitions {
                if self.owned.get(&partition) == Some(&epoch) {
                    self.owned.remove(&partition);
                }
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!(
            "owns {:?}, {} assignments, revoked {:?}, lost {:?}, holds {:?}, {} records",
            self.partitions(),
            self.assignments,
            self.revoked,
            self.lost,
            self.held,
            self.records.len()
        )
    }
}

/// Polls `members` in turn until `is_so`.
pub async fn until<S: Site>(
    site: &S,
    what: &str,
    members: &mut [&mut Member<S::Transport>],
    mut is_so: impl FnMut(&[&mut Member<S::Transport>]) -> bool,
) -> Result<()> {
    let give_up_at = site.env().now() + PATIENCE;
    while !is_so(members) {
        if site.env().now() >= give_up_at {
            let members: Vec<String> = members.iter().map(|member| member.describe()).collect();
            bail!("{what}: not after {PATIENCE:?}; members: {}", members.join("; "));
        }
        for member in members.iter_mut() {
            member.step().await?;
        }
    }
    Ok(())
}

/// Polls `members` in turn for `time`.
pub async fn during<S: Site>(site: &S, time: Duration, members: &mut [&mut Member<S::Transport>]) -> Result<()> {
    let until = site.env().now() + time;
    while site.env().now() < until {
        for member in members.iter_mut() {
            member.step().await?;
        }
    }
    Ok(())
}

/// Polls `members` in turn until they own this many partitions each.
pub async fn owning<S: Site>(site: &S, counts: &[usize], members: &mut [&mut Member<S::Transport>]) -> Result<()> {
    let own = |members: &[&mut Member<S::Transport>]| {
        members.iter().zip(counts).all(|(member, count)| member.held.is_empty() && member.owned.len() == *count)
    };
    until(site, &format!("members own {counts:?} partitions"), members, own).await
}

/// Polls `member` until it and `puppet` own this many partitions.
pub async fn sharing<S: Site>(
    site: &S,
    member: &mut Member<S::Transport>,
    other: &mut S::Puppet,
    (own, others): (usize, usize),
) -> Result<()> {
    let what = format!("the member owns {own} partitions and the puppet {others}");
    let mut members = [member];
    let share = until(site, &what, &mut members, |members| {
        members[0].held.is_empty() && members[0].owned.len() == own && puppet::owned(&other.reports()).len() == others
    });
    match share.await {
        Ok(()) => Ok(()),
        Err(error) => Err(error.context(format!("the puppet reports {:?}", other.reports()))),
    }
}
