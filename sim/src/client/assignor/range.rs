//! `range`: per topic, members in order, contiguous partitions; the first members get one more.

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
    for (topic, count) in partitions {
        let subscribers: Vec<_> = ordered.iter().filter(|member| subscribes(member, topic)).collect();
        let number = u32::try_from(subscribers.len()).unwrap_or(u32::MAX);
        let Some(share) = count.checked_div(number) else { continue };
        let mut with_one_more = count - share * number;
        let mut next = 0;
        for member in subscribers {
            let end = next + share + u32::from(with_one_more > 0);
            with_one_more = with_one_more.saturating_sub(1);
            let own = given.entry(member.member_id.clone()).or_default();
            own.extend((next..end).map(|number| TopicPartition::new(topic.clone(), number as i32)));
            next = end;
        }
    }
}
