//! `roundrobin`: all partitions in the order of topics, dealt to members in turn; who does not subscribe is passed
//! over.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::{ordered, subscribes};
use crate::cluster::protocol::JoinedMember;

pub(super) fn assign(
    members: &[JoinedMember],
    partitions: &BTreeMap<Arc<str>, u32>,
    given: &mut BTreeMap<Arc<str>, Vec<TopicPartition>>,
) {
    let ordered = ordered(members);
    let mut turn = ordered.iter().cycle();
    for (topic, count) in partitions {
        if !ordered.iter().any(|member| subscribes(member, topic)) {
            continue;
        }
        for number in 0..*count {
            let member = turn.by_ref().find(|member| subscribes(member, topic));
            let member = member.expect("somebody subscribes, so that the cycle comes to it");
            let own = given.entry(member.member_id.clone()).or_default();
            own.push(TopicPartition::new(topic.clone(), number as i32));
        }
    }
}
