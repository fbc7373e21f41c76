//! What every placement keeps to, whatever members say.

use super::*;

const ALL: [Assignor; 4] = [Assignor::Range, Assignor::RoundRobin, Assignor::Sticky, Assignor::CooperativeSticky];

/// Topics `a`, `b`, … with a count each.
fn topics() -> impl Strategy<Value = BTreeMap<Arc<str>, u32>> {
    let named = |counts: Vec<u32>| counts.into_iter().zip(["a", "b", "c"]).map(|(count, name)| (name.into(), count));
    prop::collection::vec(0_u32..7, 1..4).prop_map(move |counts| named(counts).collect())
}

fn subscriber(number: usize, subscribed: impl Fn(&str) -> bool) -> JoinedMember {
    JoinedMember {
        member_id: format!("m{number}").into(),
        instance_id: None,
        subscription: Subscription {
            topics: ["a", "b", "c"].into_iter().filter(|topic| subscribed(topic)).map(Into::into).collect(),
            ..Subscription::default()
        },
    }
}

/// Members with any subscriptions and any claims, contradicting ones too.
fn anybody() -> impl Strategy<Value = Vec<JoinedMember>> {
    let claim =
        (prop::sample::select(vec!["a", "b", "c"]), 0..7).prop_map(|(topic, at)| TopicPartition::new(topic, at));
    let one = (1_u8..8, prop::collection::btree_set(claim, 0..6), -1_i32..4);
    prop::collection::vec(one, 1..6).prop_map(|said| {
        let member = |(number, (mask, owned, generation)): (usize, (u8, _, i32))| {
            let mut member = subscriber(number, |topic| mask & (1 << (topic.as_bytes()[0] - b'a')) != 0);
            member.subscription.owned = std::collections::BTreeSet::into_iter(owned).collect();
            member.subscription.generation = generation;
            member
        };
        said.into_iter().enumerate().map(member).collect()
    })
}

fn equals(count: usize) -> Vec<JoinedMember> {
    (0..count).map(|number| subscriber(number, |_| true)).collect()
}

fn all_partitions(topics: &BTreeMap<Arc<str>, u32>) -> Vec<TopicPartition> {
    let of = |(topic, count): (&Arc<str>, &u32)| {
        (0..*count as i32).map(|at| TopicPartition::new(topic.clone(), at)).collect::<Vec<_>>()
    };
    topics.iter().flat_map(of).collect()
}

fn owners(given: &Assignments) -> BTreeMap<TopicPartition, Vec<Arc<str>>> {
    let mut owners: BTreeMap<TopicPartition, Vec<Arc<str>>> = BTreeMap::new();
    for (member, own) in given {
        own.iter().for_each(|partition| owners.entry(partition.clone()).or_default().push(member.clone()));
    }
    owners
}

fn spread(given: &Assignments) -> usize {
    let loads = given.iter().map(|(_, own)| own.len());
    loads.clone().max().unwrap_or(0) - loads.min().unwrap_or(0)
}

proptest! {
    #[test]
    fn every_partition_goes_to_one_member_that_subscribes(topics in topics(), members in anybody()) {
        for assignor in ALL {
            let given = assign(assignor, &members, &topics);
            prop_assert_eq!(&given, &assign(assignor, &members, &topics));
            let owners = owners(&given);
            let claimed = |partition: &TopicPartition| {
                members.iter().any(|member| member.subscription.owned.contains(partition))
            };
            for partition in all_partitions(&topics) {
                let takers: Vec<_> = members.iter().filter(|member| subscribes(member, &partition.topic)).collect();
                let given = owners.get(&partition).map_or(&[][..], Vec::as_slice);
                let withheld = assignor.is_cooperative() && claimed(&partition);
                match given {
                    [] => prop_assert!(takers.is_empty() || withheld, "{:?} has no owner", partition),
                    [one] => {
                        let subscribes = takers.iter().any(|member| member.member_id == *one);
                        prop_assert!(subscribes || withheld && takers.is_empty(), "{:?} went to {}", partition, one);
                    }
                    many => prop_assert!(false, "{:?} went to {:?}", partition, many),
                }
            }
        }
    }

    #[test]
    fn equal_members_get_equal_shares(topics in topics(), count in 1_usize..6) {
        for assignor in [Assignor::RoundRobin, Assignor::Sticky, Assignor::CooperativeSticky] {
            let given = assign(assignor, &equals(count), &topics);
            prop_assert!(spread(&given) <= 1, "{:?}", given);
        }
        for (topic, partitions) in &topics {
            let alone = BTreeMap::from([(topic.clone(), *partitions)]);
            prop_assert!(spread(&assign(Assignor::Range, &equals(count), &alone)) <= 1);
        }
    }

    #[test]
    fn a_leave_moves_only_what_the_leaver_had_and_a_join_the_least(
        topics in topics(), count in 1_usize..6, leaver in 0_usize..6,
    ) {
        let mut members = equals(count + 1);
        let before = assign(Assignor::Sticky, &members, &topics);
        own(&mut members, &before, 1);
        members.remove(leaver % (count + 1));
        let after = assign(Assignor::Sticky, &members, &topics);
        prop_assert!(spread(&after) <= 1, "{:?}", after);
        for member in &members {
            let kept = after.iter().find(|(id, _)| *id == member.member_id).map_or(&[][..], |(_, own)| own);
            prop_assert!(member.subscription.owned.iter().all(|owned| kept.contains(owned)), "{:?}", after);
        }
        // And back in: as many move as the newcomer must have.
        own(&mut members, &after, 2);
        members.push(subscriber(9, |_| true));
        let joined = assign(Assignor::Sticky, &members, &topics);
        prop_assert!(spread(&joined) <= 1, "{:?}", joined);
        let (before, now) = (owners(&after), owners(&joined));
        let moved = now.iter().filter(|(partition, owner)| before.get(*partition) != Some(*owner)).count();
        prop_assert_eq!(moved, all_partitions(&topics).len() / (count + 1));
    }

    #[test]
    fn cooperative_members_never_have_a_partition_at_once_and_settle_in_two_generations(
        before in topics(), after in topics(), count in 1_usize..5, joiners in 0_usize..3, leavers in 0_usize..3,
    ) {
        let mut members = equals(count);
        let first = assign(Assignor::CooperativeSticky, &members, &before);
        own(&mut members, &first, 1);
        members.drain(..leavers.min(count - 1));
        members.extend((0..joiners).map(|number| subscriber(10 + number, |_| true)));
        // A topic never shrinks.
        let mut topics = before;
        for (topic, grown) in after {
            let now = topics.entry(topic).or_default();
            *now = (*now).max(grown);
        }
        let mut settled = false;
        for generation in 2..4 {
            let given = assign(Assignor::CooperativeSticky, &members, &topics);
            for (member, own) in &given {
                let others = members.iter().filter(|other| other.member_id != *member);
                let held = others.flat_map(|other| &other.subscription.owned).find(|held| own.contains(held));
                prop_assert!(held.is_none(), "{} was given {:?}, which another has", member, held);
            }
            settled = owners(&given).len() == all_partitions(&topics).len();
            prop_assert!(!settled || spread(&given) <= 1, "{:?}", given);
            own(&mut members, &given, generation);
        }
        prop_assert!(settled, "{:?}", members);
    }
}
