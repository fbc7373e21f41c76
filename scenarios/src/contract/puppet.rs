//! A group member that another process plays: what it is told, what it reports, and the play itself.
//!
//! Orders and reports are values, so that a simulated node and a real child process play the same.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use seriatim_core::env::Env;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{
    Assignor, Commit, ErrorKind, Group, GroupConfig, Polled, Poller, RebalanceId, Transport,
};

/// The member that is played.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// `group.instance.id`.
    pub instance_id: Option<String>,
    /// Whether it is a cooperative member; an eager one otherwise.
    pub cooperative: bool,
    /// Whether it keeps what it is to give up until it is told to release.
    pub holds: bool,
}

impl Script {
    /// An eager member of `group` that releases at once.
    pub fn new(group: &str, topic: &str) -> Self {
        Script { group: group.into(), topic: topic.into(), instance_id: None, cooperative: false, holds: false }
    }

    /// Its configuration: that of the rules' own members.
    pub fn config(&self) -> GroupConfig {
        let base = super::support::group(&self.group, &self.topic.as_str().into());
        let assignors = if self.cooperative { vec![Assignor::CooperativeSticky] } else { base.assignors.clone() };
        GroupConfig { client_id: "puppet".into(), instance_id: self.instance_id.clone(), assignors, ..base }
    }
}

/// What a puppet is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Commit this offset of this partition, under the epoch in which it was last owned.
    Commit {
        /// The partition.
        partition: i32,
        /// The offset.
        offset: i64,
    },
    /// Release all that is held.
    Release,
}

/// What a puppet reports. Partitions in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// They came, each starting at this offset.
    Assigned(Vec<(i32, i64)>),
    /// They are to be given up.
    Revoking(Vec<i32>),
    /// They are gone.
    Lost(Vec<i32>),
    /// What became of a commit; the error's code when it was refused.
    Committed(i32, Option<String>),
    /// The member is of no use any more.
    Failed(String),
}

fn numbers(partitions: &[(TopicPartition, Epoch)]) -> Vec<i32> {
    partitions.iter().map(|(partition, _)| partition.partition).collect()
}

/// Plays the member until it fails for good. `take` gives the next order, `say` takes reports.
pub async fn play<E: Env, T: Transport>(
    env: E,
    transport: T,
    script: Script,
    mut take: impl FnMut() -> Option<Order> + Send,
    mut say: impl FnMut(Report) + Send,
) {
    let (mut poller, group) = match transport.join(script.config()).await {
        Ok(joined) => joined,
        Err(error) => return say(Report::Failed(error.to_string())),
    };
    let mut epochs: BTreeMap<i32, Epoch> = BTreeMap::new();
    let mut held: Vec<RebalanceId> = Vec::new();
    loop {
        while let Some(order) = take() {
            match order {
                Order::Commit { partition, offset } => {
                    let epoch = epochs.get(&partition).copied().unwrap_or_default();
                    let place = TopicPartition::new(script.topic.as_str(), partition);
                    let commit = Commit { partition: place, epoch, offset, metadata: "puppet".into() };
                    let outcome = group.commit(vec![commit]).await.into_iter().next();
                    let refusal = outcome.and_then(Result::err).map(|error| error.code.to_owned());
                    say(Report::Committed(partition, refusal));
                }
                Order::Release => {
                    for event in held.drain(..) {
                        // A release that is refused shows as a group that does not go on.
                        let _ = group.release(event).await;
                    }
                }
            }
        }
        match poller.poll(100, Duration::from_millis(50)).await {
            Ok(Polled::Records(_)) => {}
            Ok(Polled::Assigned(new)) => {
                epochs.extend(new.iter().map(|one| (one.partition.partition, one.epoch)));
                say(Report::Assigned(new.iter().map(|one| (one.partition.partition, one.start)).collect()));
            }
            Ok(Polled::Revoking { event, partitions, .. }) => {
                say(Report::Revoking(numbers(&partitions)));
                held.push(event);
            }
            Ok(Polled::Lost { event, partitions }) => {
                say(Report::Lost(numbers(&partitions)));
                held.push(event);
            }
            Err(error) if error.kind == ErrorKind::Retriable => env.sleep(Duration::from_millis(50)).await,
            Err(error) => return say(Report::Failed(error.code.into())),
        }
        if !script.holds {
            for event in held.drain(..) {
                let _ = group.release(event).await;
            }
        }
    }
}

/// What a puppet owns by its reports.
pub fn owned(reports: &[Report]) -> Vec<i32> {
    let mut owned = Vec::new();
    for report in reports {
        match report {
            Report::Assigned(new) => owned.extend(new.iter().map(|(partition, _)| *partition)),
            Report::Revoking(gone) | Report::Lost(gone) => owned.retain(|partition| !gone.contains(partition)),
            Report::Committed(..) => {}
            Report::Failed(_) => owned.clear(),
        }
    }
    owned.sort_unstable();
    owned
}
