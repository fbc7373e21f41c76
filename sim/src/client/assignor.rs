//! The leader's part of a rebalance: Kafka's range assignor.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use crate::cluster::protocol::JoinedMember;

/// Decides, as the group's leader, which member gets which partitions.
pub(super) trait Assignor {
    /// The protocol's name in `JoinGroup`.
    const NAME: &'static str;

    /// Each member's partitions. `partitions` are the topics' counts; unknown topics are assigned to nobody.
    fn assign(members: &[JoinedMember], partitions: &BTreeMap<Arc<str>, u32>) -> Vec<(Arc<str>, Vec<TopicPartition>)>;
}

/// Per topic, members sorted by id, contiguous ranges; the first members get one more.
#[derive(Debug)]
pub(super) struct Range;

impl Assignor for Range {
    const NAME: &'static str = "range";

    fn assign(members: &[JoinedMember], partitions: &BTreeMap<Arc<str>, u32>) -> Vec<(Arc<str>, Vec<TopicPartition>)> {
        let mut given: BTreeMap<Arc<str>, Vec<TopicPartition>> =
            members.iter().map(|member| (member.member_id.clone(), Vec::new())).collect();
        for (topic, count) in partitions {
            let mut subscribers: Vec<_> =
                members.iter().filter(|member| member.subscription.topics.contains(topic)).collect();
            subscribers.sort_by(|a, b| a.member_id.cmp(&b.member_id));
            let Some(share) = count.checked_div(u32::try_from(subscribers.len()).unwrap_or(u32::MAX)) else {
                continue;
            };
            let mut next = 0;
            for (place, member) in subscribers.iter().enumerate() {
                let extra = u32::from((place as u32) < count - share * subscribers.len() as u32);
                let own = given.entry(member.member_id.clone()).or_default();
                own.extend(
                    (next..next + share + extra).map(|number| TopicPartition::new(topic.clone(), number as i32)),
                );
                next += share + extra;
            }
        }
        given.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::protocol::Subscription;

    fn check(members: &[(&str, &[&str])], topics: &[(&str, u32)], expected: &[(&str, &str)]) {
        let members: Vec<_> = members
            .iter()
            .map(|(id, topics)| JoinedMember {
                member_id: (*id).into(),
                instance_id: None,
                subscription: Subscription { topics: topics.iter().map(|t| (*t).into()).collect(), owned: vec![] },
            })
            .collect();
        let counts = topics.iter().map(|(topic, count)| ((*topic).into(), *count)).collect();
        let given = Range::assign(&members, &counts);
        let given: Vec<_> = given.iter().map(|(id, own)| (&**id, format!("{own:?}"))).collect();
        let expected: Vec<_> = expected.iter().map(|(id, own)| (*id, (*own).to_owned())).collect();
        assert_eq!(given, expected);
    }

    #[test]
    fn ranges_are_contiguous_and_the_first_get_one_more() {
        check(&[("b", &["t"]), ("a", &["t"])], &[("t", 3)], &[("a", "[t-0, t-1]"), ("b", "[t-2]")]);
        check(&[("a", &["t"]), ("b", &["t"])], &[("t", 1)], &[("a", "[t-0]"), ("b", "[]")]);
        check(&[("a", &["t"]), ("b", &["u"])], &[("t", 2), ("u", 1)], &[("a", "[t-0, t-1]"), ("b", "[u-0]")]);
        check(&[("a", &["t"])], &[("t", 0), ("x", 4)], &[("a", "[]")]);
    }
}
