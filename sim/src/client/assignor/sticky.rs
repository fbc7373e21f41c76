//! `sticky`: as balanced as subscriptions allow, and everything with its last owner as far as that allows.
//!
//! Follows librdkafka's `rd_kafka_sticky_assignor.c`, which follows Java's general algorithm of KIP-54. Java places
//! equal subscriptions by another one (its "constrained" builder), and then in another order: new partitions of a topic
//! from the first, where librdkafka takes them from the last. Balance and stickiness are the same.
//!
//! Two repairs, where librdkafka would abort or misplace: a partition that moved back is forgotten as moved, and a
//! partition goes back to its owner before last only if that one still subscribes.

use std::collections::BTreeMap;
use std::sync::Arc;

use seriatim_core::identity::TopicPartition;

use super::subscribes;
use crate::cluster::protocol::JoinedMember;

/// Partitions and members go by their places in the order of their names.
#[derive(Debug)]
struct Placement {
    partitions: Vec<TopicPartition>,
    /// Number of the topic of each partition.
    topic_of: Vec<usize>,
    /// Who may have each partition.
    takers: Vec<Vec<usize>>,
    /// How many partitions each member may have.
    takes: Vec<usize>,
    /// What each member has.
    current: Vec<Vec<usize>>,
    owner: Vec<Option<usize>>,
    /// The owner before the last one, where two generations claim a partition.
    previous: Vec<Option<usize>>,
    /// Members that may give or take; the others are settled.
    active: Vec<bool>,
    movements: Movements,
}

/// What moved from whom to whom, so that two members do not swap partitions of one topic.
#[derive(Debug, Default)]
struct Movements {
    of: BTreeMap<usize, (usize, usize)>,
    between: BTreeMap<(usize, usize, usize), Vec<usize>>,
}

pub(super) fn assign(
    members: &[JoinedMember],
    counts: &BTreeMap<Arc<str>, u32>,
    given: &mut BTreeMap<Arc<str>, Vec<TopicPartition>>,
) {
    let mut ordered: Vec<_> = members.iter().collect();
    ordered.sort_by(|one, other| one.member_id.cmp(&other.member_id));
    if ordered.is_empty() {
        return;
    }
    let mut placement = Placement::new(&ordered, counts);
    placement.claim(&ordered);
    let sorted = placement.sorted();
    let is_revoking = placement.drop_unsubscribed();
    let unassigned = sorted.iter().copied().filter(|partition| placement.owner[*partition].is_none()).collect();
    placement.balance(sorted, unassigned, is_revoking);
    for (member, own) in ordered.iter().zip(&placement.current) {
        let own = own.iter().map(|partition| placement.partitions[*partition].clone()).collect();
        given.insert(member.member_id.clone(), own);
    }
}

impl Placement {
    fn new(members: &[&JoinedMember], counts: &BTreeMap<Arc<str>, u32>) -> Self {
        let mut placement = Placement {
            partitions: Vec::new(),
            topic_of: Vec::new(),
            takers: Vec::new(),
            takes: vec![0; members.len()],
            current: vec![Vec::new(); members.len()],
            owner: Vec::new(),
            previous: Vec::new(),
            active: vec![true; members.len()],
            movements: Movements::default(),
        };
        for (number, (topic, count)) in counts.iter().enumerate() {
            let takers: Vec<usize> = (0..members.len()).filter(|place| subscribes(members[*place], topic)).collect();
            if takers.is_empty() {
                continue;
            }
            takers.iter().for_each(|member| placement.takes[*member] += *count as usize);
            for partition in 0..*count {
                placement.partitions.push(TopicPartition::new(topic.clone(), partition as i32));
                placement.topic_of.push(number);
                placement.takers.push(takers.clone());
            }
        }
        placement.owner = vec![None; placement.partitions.len()];
        placement.previous = placement.owner.clone();
        placement
    }

    /// Takes over what members say that they own. The highest generation is right; two claims of one generation are
    /// both wrong.
    fn claim(&mut self, members: &[&JoinedMember]) {
        let mut claims: Vec<Vec<(i32, usize)>> = vec![Vec::new(); self.partitions.len()];
        for (place, member) in members.iter().enumerate() {
            for partition in &member.subscription.owned {
                if let Ok(found) = self.partitions.binary_search(partition) {
                    claims[found].push((member.subscription.generation, place));
                }
            }
        }
        for (partition, mut claims) in claims.into_iter().enumerate() {
            claims.sort();
            if claims.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                continue;
            }
            let mut latest = claims.into_iter().rev().map(|(_, member)| member);
            if let Some(member) = latest.next() {
                self.give(partition, member);
                self.previous[partition] = latest.next();
            }
        }
    }

    fn give(&mut self, partition: usize, member: usize) {
        self.current[member].push(partition);
        self.owner[partition] = Some(member);
    }

    fn may_take(&self, member: usize, partition: usize) -> bool {
        self.takers[partition].binary_search(&member).is_ok()
    }

    fn load(&self, member: usize) -> usize {
        self.current[member].len()
    }

    /// In which order partitions are looked at. With equal subscriptions: one after another from whoever has most,
    /// those that changed hands first, and then those that nobody has. Otherwise the ones with the fewest takers first.
    fn sorted(&self) -> Vec<usize> {
        let all = 0..self.partitions.len();
        if self.takers.iter().any(|takers| takers.len() < self.current.len()) {
            let mut sorted: Vec<usize> = all.collect();
            sorted.sort_by_key(|partition| self.takers[*partition].len());
            return sorted;
        }
        let mut remaining = self.current.clone();
        remaining.iter_mut().for_each(|own| own.sort());
        let mut sorted = Vec::with_capacity(self.partitions.len());
        while let Some(own) = remaining.iter_mut().max_by_key(|own| own.len()).filter(|own| !own.is_empty()) {
            let moved = own.iter().position(|partition| self.previous[*partition].is_some());
            sorted.push(own.remove(moved.unwrap_or(0)));
        }
        let nobodys = all.filter(|partition| self.owner[*partition].is_none());
        if sorted.is_empty() { nobodys.collect() } else { sorted.into_iter().chain(nobodys.rev()).collect() }
    }

    /// Takes from each member what it no longer subscribes to. Whether there was any.
    fn drop_unsubscribed(&mut self) -> bool {
        let mut any = false;
        for member in 0..self.current.len() {
            for partition in std::mem::take(&mut self.current[member]) {
                if self.may_take(member, partition) {
                    self.current[member].push(partition);
                } else {
                    self.owner[partition] = None;
                    any = true;
                }
            }
        }
        any
    }

    fn balance(&mut self, mut sorted: Vec<usize>, mut unassigned: Vec<usize>, is_revoking: bool) {
        let is_initial = self.current.iter().all(Vec::is_empty);
        for partition in &unassigned {
            if let Some(member) = self.takers[*partition].iter().copied().min_by_key(|member| self.load(*member)) {
                self.give(*partition, member);
            }
        }
        sorted.retain(|partition| self.takers[*partition].len() >= 2);
        unassigned.retain(|partition| self.takers[*partition].len() >= 2);
        for member in 0..self.current.len() {
            let may_give = self.current[member].iter().any(|partition| self.takers[*partition].len() >= 2);
            self.active[member] = may_give || self.load(member) < self.takes[member];
        }
        let before = (self.current.clone(), self.owner.clone());
        if !is_revoking {
            self.reassign(&unassigned);
        }
        let score = self.imbalance(&before.0);
        if self.reassign(&sorted) && !is_initial && self.imbalance(&self.current) >= score {
            (self.current, self.owner) = before;
        }
    }

    /// Sum of the differences between all pairs of members.
    fn imbalance(&self, current: &[Vec<usize>]) -> usize {
        let loads: Vec<usize> =
            current.iter().zip(&self.active).filter(|(_, active)| **active).map(|(own, _)| own.len()).collect();
        let pairs = loads.iter().enumerate().flat_map(|(place, one)| loads[place + 1..].iter().map(|two| (*one, *two)));
        pairs.map(|(one, two): (usize, usize)| one.abs_diff(two)).sum()
    }

    fn is_balanced(&self) -> bool {
        let active = (0..self.current.len()).filter(|member| self.active[*member]);
        let loads = active.clone().map(|member| self.load(member));
        let (Some(least), Some(most)) = (loads.clone().min(), loads.max()) else { return true };
        let could_gain = |member: usize| {
            self.load(member) < self.takes[member]
                && (0..self.partitions.len()).any(|partition| {
                    let owner = self.owner[partition];
                    self.may_take(member, partition)
                        && owner.is_some_and(|owner| owner != member && self.load(owner) > self.load(member))
                })
        };
        least + 1 >= most || !active.into_iter().any(could_gain)
    }

    /// Moves partitions of `from` until nothing gets better. Each move makes the loads more even, so it ends. Whether
    /// any moved.
    fn reassign(&mut self, from: &[usize]) -> bool {
        let mut any = false;
        loop {
            let mut moved = false;
            for partition in from {
                if self.is_balanced() {
                    break;
                }
                let Some(owner) = self.owner[*partition] else { continue };
                let is_better = |member: usize| self.load(owner) > self.load(member) + 1;
                let previous = self.previous[*partition].filter(|member| self.may_take(*member, *partition));
                let takers = &self.takers[*partition];
                let target = if previous.is_some_and(is_better) {
                    previous
                } else if takers.iter().any(|member| is_better(*member)) {
                    takers.iter().copied().min_by_key(|member| self.load(*member))
                } else {
                    None
                };
                if let Some(target) = target {
                    let actual = self.movements.actual(self.topic_of[*partition], *partition, owner, target);
                    self.shift(actual, target);
                    moved = true;
                }
            }
            any |= moved;
            if !moved {
                return any;
            }
        }
    }

    fn shift(&mut self, partition: usize, target: usize) {
        let Some(owner) = self.owner[partition] else { return };
        self.movements.note(self.topic_of[partition], partition, owner, target);
        self.current[owner].retain(|own| *own != partition);
        self.give(partition, target);
    }
}

impl Movements {
    /// The partition to move from `owner` to `target` for the sake of `wanted`: one that came the other way before.
    fn actual(&self, topic: usize, wanted: usize, owner: usize, target: usize) -> usize {
        self.between.get(&(topic, target, owner)).and_then(|came| came.first()).copied().unwrap_or(wanted)
    }

    fn note(&mut self, topic: usize, partition: usize, from: usize, to: usize) {
        let mut source = from;
        if let Some((first, last)) = self.of.remove(&partition) {
            let key = (topic, first, last);
            if let Some(moved) = self.between.get_mut(&key) {
                moved.retain(|one| *one != partition);
                if moved.is_empty() {
                    self.between.remove(&key);
                }
            }
            source = first;
        }
        if source != to {
            self.of.insert(partition, (source, to));
            self.between.entry((topic, source, to)).or_default().push(partition);
        }
    }
}
