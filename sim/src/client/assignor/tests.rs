//! Placements known from librdkafka's unit tests (`rdkafka_assignor.c`, `rdkafka_range_assignor.c`,
//! `rdkafka_sticky_assignor.c`; the latter after Java's `AbstractStickyAssignorTest`), and properties.

use proptest::prelude::*;

use super::*;
use crate::cluster::protocol::Subscription;

mod properties;

/// `t-0` as a partition; topic names have no other dash.
fn partition(text: &str) -> TopicPartition {
    let (topic, number) = text.split_once('-').expect("topic-partition");
    TopicPartition::new(topic, number.parse().expect("a number"))
}

/// A member from `name: topics`, `name: topics | owned @generation` or `name#instance: topics`.
fn member(text: &str) -> JoinedMember {
    let (name, said) = text.split_once(':').expect("name: topics");
    let (topics, owned) = said.split_once('|').unwrap_or((said, ""));
    let (owned, generation) = owned.split_once('@').unwrap_or((owned, "-1"));
    let (name, instance) = name.split_once('#').map_or((name, None), |(name, instance)| (name, Some(instance)));
    JoinedMember {
        member_id: name.into(),
        instance_id: instance.map(Into::into),
        subscription: Subscription {
            topics: topics.split_whitespace().map(Into::into).collect(),
            owned: owned.split_whitespace().map(partition).collect(),
            generation: generation.trim().parse().expect("a generation"),
        },
    }
}

/// Counts from `topic*count` each.
fn counts(text: &str) -> BTreeMap<Arc<str>, u32> {
    let count = |one: &str| {
        let (topic, count) = one.split_once('*').expect("topic*count");
        (topic.into(), count.parse().expect("a count"))
    };
    text.split_whitespace().map(count).collect()
}

fn shown(given: &Assignments) -> Vec<String> {
    let show = |own: &Vec<TopicPartition>| own.iter().map(|one| format!(" {one}")).collect::<String>();
    given.iter().map(|(member, own)| format!("{member}:{}", show(own))).collect()
}

fn check(assignor: Assignor, topics: &str, members: &[&str], expected: &[&str]) {
    let members: Vec<_> = members.iter().map(|text| member(text)).collect();
    let given = shown(&assign(assignor, &members, &counts(topics)));
    assert_eq!(given, expected, "{} of {topics}", assignor.name());
}

/// The members again, owning what they were given in `generation`.
fn own(members: &mut [JoinedMember], given: &Assignments, generation: i32) {
    for member in members {
        let own = given.iter().find(|(id, _)| *id == member.member_id);
        member.subscription.owned = own.map(|(_, own)| own.clone()).unwrap_or_default();
        member.subscription.generation = generation;
    }
}

#[test]
fn range_gives_contiguous_partitions_and_the_first_members_one_more() {
    use Assignor::Range;
    check(Range, "t*3", &["b: t", "a: t"], &["a: t-0 t-1", "b: t-2"]);
    check(Range, "t*1", &["a: t", "b: t"], &["a: t-0", "b:"]);
    check(Range, "t*2 u*1", &["a: t", "b: u"], &["a: t-0 t-1", "b: u-0"]);
    check(Range, "t*0 x*4", &["a: t"], &["a:"]);
    let both = ["consumer1: d b a c", "consumer2: a b c d"];
    let placed = ["consumer1: a-0 a-1 b-0 b-1 c-0 d-0", "consumer2: a-2 b-2 b-3 c-1"];
    check(Range, "a*3 b*4 c*2 d*1", &both, &placed);
    check(Range, "a*3", &["consumer1: a b c", "consumer2: a"], &["consumer1: a-0 a-1", "consumer2: a-2"]);
    let mixed = ["consumer1: t1", "consumer2: t1 t2", "consumer3: t1"];
    check(Range, "t1*3 t2*2", &mixed, &["consumer1: t1-0", "consumer2: t1-1 t2-0 t2-1", "consumer3: t1-2"]);
    let copartitioned = ["consumer1: t1 t3 t5", "consumer2: t1 t3 t5", "consumer3: t1 t3 t5"];
    let placed = ["consumer1: t1-0 t1-1 t3-0 t5-0 t5-1", "consumer2: t1-2 t1-3 t3-1 t5-2", "consumer3: t1-4 t1-5 t5-3"];
    check(Range, "t1*6 t3*2 t5*4", &copartitioned, &placed);
}

#[test]
fn roundrobin_deals_all_partitions_in_turn() {
    use Assignor::RoundRobin;
    let both = ["consumer1: d b a c", "consumer2: a b c d"];
    let placed = ["consumer1: a-0 a-2 b-1 b-3 c-1", "consumer2: a-1 b-0 b-2 c-0 d-0"];
    check(RoundRobin, "a*3 b*4 c*2 d*1", &both, &placed);
    check(RoundRobin, "a*3", &["consumer1: a b c", "consumer2: a"], &["consumer1: a-0 a-2", "consumer2: a-1"]);
    let lopsided = ["consumer1: a b c d e f g h i j k l", "consumer2: b d f h l"];
    let placed = ["consumer1: a-0 c-0 e-0 g-0 i-0 j-0 k-0", "consumer2: b-0 d-0 f-0 h-0 l-0"];
    check(RoundRobin, "a*1 b*1 c*1 d*1 e*1 f*1 g*1 h*1 i*1 j*1 k*1 l*1", &lopsided, &placed);
    check(RoundRobin, "a*1 x*3", &["consumer1: a"], &["consumer1: a-0"]);
}

#[test]
fn static_members_come_first_in_the_order_of_their_instances() {
    let members = ["a: t", "z#one: t", "y#two: t"];
    check(Assignor::Range, "t*4", &members, &["a: t-3", "y: t-2", "z: t-0 t-1"]);
    check(Assignor::RoundRobin, "t*4", &members, &["a: t-2", "y: t-1", "z: t-0 t-3"]);
}

#[test]
fn sticky_places_what_nobody_has_as_librdkafka_does() {
    use Assignor::Sticky;
    check(Sticky, "t*0", &["consumer1: t"], &["consumer1:"]);
    check(Sticky, "t1*1 t2*2", &["consumer1: t1 t2"], &["consumer1: t1-0 t2-0 t2-1"]);
    check(Sticky, "t1*3 t2*3", &["consumer1: t1"], &["consumer1: t1-0 t1-1 t1-2"]);
    check(Sticky, "t1*1", &["consumer1: t1", "consumer2: t1"], &["consumer1: t1-0", "consumer2:"]);
    check(Sticky, "t1*2", &["consumer1: t1", "consumer2: t1"], &["consumer1: t1-0", "consumer2: t1-1"]);
    let mixed = ["consumer1: t1", "consumer2: t1 t2", "consumer3: t1"];
    check(Sticky, "t1*3 t2*2", &mixed, &["consumer1: t1-0 t1-2", "consumer2: t2-0 t2-1", "consumer3: t1-1"]);
    let both = ["consumer1: t1 t2", "consumer2: t1 t2"];
    check(Sticky, "t1*3 t2*3", &both, &["consumer1: t1-0 t1-2 t2-1", "consumer2: t1-1 t2-0 t2-2"]);
    let poor_for_roundrobin =
        ["consumer1: t1 t2 t3 t4 t5", "consumer2: t1 t3 t5", "consumer3: t1 t3 t5", "consumer4: t1 t2 t3 t4 t5"];
    let placed = ["consumer1: t2-0 t3-0", "consumer2: t1-0 t3-1", "consumer3: t1-1 t5-0", "consumer4: t4-0 t5-1"];
    check(Sticky, "t1*2 t2*1 t3*2 t4*1 t5*2", &poor_for_roundrobin, &placed);
}

#[test]
fn sticky_keeps_what_members_have_and_trusts_the_highest_generation() {
    use Assignor::Sticky;
    let filled = ["consumer1: t | t-0 t-1 @1", "consumer2: t | t-2 @1", "consumer3: t"];
    check(Sticky, "t*4", &filled, &["consumer1: t-0 t-1", "consumer2: t-2", "consumer3: t-3"]);
    let placed = ["consumer1: a-0 a-2 b-1", "consumer2: a-1 b-0 b-2"];
    for generation in ["9", "-1"] {
        let stale = format!("consumer2: a b | a-0 a-2 b-1 @{generation}");
        check(Sticky, "a*3 b*3", &["consumer1: a b | a-0 a-2 b-1 @10", &stale], &placed);
    }
    let twice = ["consumer1: t | t-0 t-1 @1", "consumer2: t | t-0 t-2 @1", "consumer3: t"];
    check(Sticky, "t*3", &twice, &["consumer1: t-1", "consumer2: t-2", "consumer3: t-0"]);
    let twice = ["consumer1: t | t-0 t-1 @1", "consumer2: t | t-1 t-2 @1", "consumer3: t"];
    check(Sticky, "t*3", &twice, &["consumer1: t-0", "consumer2: t-2", "consumer3: t-1"]);
    let twice = ["consumer1: t | t-0 @1", "consumer2: t | t-0 t-1 @1"];
    check(Sticky, "t*3", &twice, &["consumer1: t-0 t-2", "consumer2: t-1"]);
    let three = [
        "consumer1: a b c | a-0 b-0 c-0 @10",
        "consumer2: a b c | a-1 b-1 c-1 @9",
        "consumer3: a b c | b-1 c-0 c-2 @8",
    ];
    let placed = ["consumer1: a-0 b-0 c-0", "consumer2: a-1 b-1 c-1", "consumer3: a-2 b-2 c-2"];
    check(Sticky, "a*3 b*3 c*3", &three, &placed);
    let several = ["consumer1: a b | a-0 b-1 a-1 @10", "consumer2: a b | a-0 b-1 b-2 @8"];
    check(Sticky, "a*3 b*3", &several, &["consumer1: a-0 a-1 b-1", "consumer2: a-2 b-0 b-2"]);
    let newcomer = [
        "consumer1: a b c d",
        "consumer2: a b c d | a-0 c-0 b-0 @9",
        "consumer3: a b c d | d-2 c-2 b-1 @8",
        "consumer4: a b c d | d-1 a-1 a-2 @7",
    ];
    let placed =
        ["consumer1: b-2 c-1 d-0", "consumer2: a-0 b-0 c-0", "consumer3: b-1 c-2 d-2", "consumer4: a-1 a-2 d-1"];
    check(Sticky, "a*3 b*3 c*3 d*3", &newcomer, &placed);
}

/// Runs rounds of `sticky`, each with what the round before gave.
fn rounds(topic_counts: &[&str], groups: &[&[&str]], expected: &[&[&str]]) {
    let mut last: Assignments = Vec::new();
    for (round, ((topics, names), expected)) in topic_counts.iter().zip(groups).zip(expected).enumerate() {
        let mut members: Vec<_> = names.iter().map(|text| member(text)).collect();
        own(&mut members, &last, round as i32);
        last = assign(Assignor::Sticky, &members, &counts(topics));
        assert_eq!(shown(&last), *expected, "round {round}");
    }
}

#[test]
fn sticky_moves_no_more_than_joins_and_leaves_ask_for() {
    let (one, two, three) = ("consumer1: t", "consumer2: t", "consumer3: t");
    rounds(
        &["t*6"; 6],
        &[&[one], &[one, two], &[one, two, three], &[one, two, three], &[two, three], &[three]],
        &[
            &["consumer1: t-0 t-1 t-2 t-3 t-4 t-5"],
            &["consumer1: t-3 t-4 t-5", "consumer2: t-0 t-1 t-2"],
            &["consumer1: t-4 t-5", "consumer2: t-1 t-2", "consumer3: t-0 t-3"],
            &["consumer1: t-4 t-5", "consumer2: t-1 t-2", "consumer3: t-0 t-3"],
            &["consumer2: t-1 t-2 t-5", "consumer3: t-0 t-3 t-4"],
            &["consumer3: t-0 t-1 t-2 t-3 t-4 t-5"],
        ],
    );
    rounds(
        &["t*3"; 3],
        &[&[one], &[one, two], &[two]],
        &[&["consumer1: t-0 t-1 t-2"], &["consumer1: t-1 t-2", "consumer2: t-0"], &["consumer2: t-0 t-1 t-2"]],
    );
    // New partitions come from the last one back: Java takes them from the first.
    let both: &[&str] = &["consumer1: t1 t2", "consumer2: t1 t2"];
    rounds(
        &["t1*3", "t1*3 t2*3", "t2*3"],
        &[both, both, both],
        &[
            &["consumer1: t1-0 t1-2", "consumer2: t1-1"],
            &["consumer1: t1-0 t1-2 t2-1", "consumer2: t1-1 t2-0 t2-2"],
            &["consumer1: t2-1", "consumer2: t2-0 t2-2"],
        ],
    );
}

#[test]
fn cooperative_withholds_what_another_member_still_has() {
    use Assignor::CooperativeSticky;
    // KIP-429: what moves goes to nobody at first.
    let joining = ["consumer1: t | t-0 t-1 t-2 @1", "consumer2: t"];
    check(CooperativeSticky, "t*3", &joining, &["consumer1: t-1 t-2", "consumer2:"]);
    let released = ["consumer1: t | t-1 t-2 @2", "consumer2: t | @2"];
    check(CooperativeSticky, "t*3", &released, &["consumer1: t-1 t-2", "consumer2: t-0"]);
    // What nobody had moves at once, so that a leave takes one generation.
    let left = ["consumer1: t | t-1 t-2 @3"];
    check(CooperativeSticky, "t*3", &left, &["consumer1: t-0 t-1 t-2"]);
    // What is claimed and was not placed stays with who claims it.
    let unknown = ["consumer1: t | t-0 u-0 @1", "consumer2: t"];
    check(CooperativeSticky, "t*2", &unknown, &["consumer1: t-0 u-0", "consumer2: t-1"]);
}
