//! The leader's part of a rebalance: which member gets which partitions.
//!
//! Placements are librdkafka's, since that is what the real transport runs; where Java's clients place otherwise, the
//! file of the assignor says so. Racks are not modelled. Pure functions: the same members give the same placement.

mod range;
mod roundrobin;
mod sticky;

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::Assignor;

use crate::cluster::protocol::JoinedMember;

/// Each member's partitions, sorted.
pub(super) type Assignments = Vec<(Arc<str>, Vec<TopicPartition>)>;

/// The assignor of that name, if there is one.
pub(super) fn find(name: &str) -> Option<Assignor> {
    let all = [Assignor::Range, Assignor::RoundRobin, Assignor::Sticky, Assignor::CooperativeSticky];
    all.into_iter().find(|assignor| assignor.name() == name)
}

/// Places the partitions of the topics in `partitions`, their counts, on `members`; an unknown topic goes to nobody.
pub(super) fn assign(
    assignor: Assignor,
    members: &[JoinedMember],
    partitions: &BTreeMap<Arc<str>, u32>,
) -> Assignments {
    let mut given: BTreeMap<Arc<str>, Vec<TopicPartition>> =
        members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect();
    match assignor {
        Assignor::Range => range::assign(members, partitions, &mut given),
        Assignor::RoundRobin => roundrobin::assign(members, partitions, &mut given),
        Assignor::Sticky => sticky::assign(members, partitions, &mut given),
        Assignor::CooperativeSticky => {
            sticky::assign(members, partitions, &mut given);
            given = withhold(members, given);
        }
    }
    for own in given.values_mut() {
        own.sort();
    }
    given.into_iter().collect()
}

/// Members in their order: static ones first, by instance id, then the others by member id. That is Java's order.
/// librdkafka compares instance ids only between two static members, which is no order in a group of both kinds.
fn ordered(members: &[JoinedMember]) -> Vec<&JoinedMember> {
    let mut ordered: Vec<_> = members.iter().collect();
    ordered.sort_by_key(|member| (member.instance_id.is_none(), &member.instance_id, &member.member_id));
    ordered
}

fn subscribes(member: &JoinedMember, topic: &Arc<str>) -> bool {
    member.subscription.topics.contains(topic)
}

/// The cooperative rule (KIP-429, librdkafka `rd_kafka_cooperative_protocol_adjust_assignment`): what another member
/// still claims goes to nobody, so that its owner gives it up and joins again. What is claimed and was not placed
/// stays where it is, where Java lets it go. Of several claims the last counts.
fn withhold(
    members: &[JoinedMember],
    placed: BTreeMap<Arc<str>, Vec<TopicPartition>>,
) -> BTreeMap<Arc<str>, Vec<TopicPartition>> {
    let mut claims: BTreeMap<&TopicPartition, &Arc<str>> = BTreeMap::new();
    for member in members {
        claims.extend(member.subscription.owned.iter().map(|partition| (partition, &member.member_id)));
    }
    let mut given: BTreeMap<Arc<str>, Vec<TopicPartition>> =
        placed.keys().map(|member| (member.clone(), Vec::new())).collect();
    for (member, partitions) in &placed {
        let own = given.entry(member.clone()).or_default();
        for partition in partitions {
            if claims.remove(partition).is_none_or(|owner| owner == member) {
                own.push(partition.clone());
            }
        }
    }
    for (partition, owner) in claims {
        given.entry(owner.clone()).or_default().push(partition.clone());
    }
    given
}

#[cfg(test)]
mod tests;
