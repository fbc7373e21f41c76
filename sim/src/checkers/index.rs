//! What the checkers look up in a history, built in one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use seriatim_core::identity::{Epoch, RunId, Ticket, TopicPartition, Version};

use super::asked;
use super::facts::{
    AppliedCommit, At, Attempt, Consumer, Family, GroupAssignment, Known, Output, Publish, Role, Run, Span, is_foreign,
};
use super::keyed::{ByOffset, Keyed};
use crate::history::{Ack, Call, Event, IndexWrite, Lifecycle, LifecycleKind, Produced, What, WriteOutcome};

/// Everything that checkers look up.
#[derive(Debug, Default)]
pub struct HistoryIndex {
    /// All publishes, in order.
    pub publishes: Vec<Publish>,
    /// What came of each publish, by run and sequence.
    pub families: Keyed<(RunId, u64), Family>,
    /// The runs.
    pub runs: BTreeMap<RunId, Run>,
    /// Known records.
    pub records: BTreeMap<TopicPartition, ByOffset<Known>>,
    /// Foreign records of which a dead letter is acknowledged, and when the first was.
    pub letters: BTreeMap<(TopicPartition, i64), At>,
    /// All ownerships, in order of assignment.
    pub spans: Vec<Span>,
    /// Those of each partition, as indices into `spans`.
    pub spans_on: BTreeMap<TopicPartition, Vec<usize>>,
    /// Ownership by consumer, partition and epoch, as an index into `spans`.
    pub span_of: BTreeMap<(Call, TopicPartition, Epoch), usize>,
    /// All members.
    pub consumers: BTreeMap<Call, Consumer>,
    /// Applied commits, by group and partition, in order.
    pub commits: BTreeMap<(Arc<str>, TopicPartition), Vec<AppliedCommit>>,
    /// Assignments at the coordinator, by group, in order.
    pub group_assigned: BTreeMap<Arc<str>, Vec<GroupAssignment>>,
    /// Moves of a log's start: when, and to which offset.
    pub log_starts: BTreeMap<TopicPartition, Vec<(At, i64)>>,
    /// End of each commit: the event.
    pub commit_ends: BTreeMap<Call, At>,
    /// Crashes: node, incarnation, when.
    pub crashes: BTreeMap<(Arc<str>, u32), At>,
}

impl HistoryIndex {
    /// Reads a history once.
    pub fn new(events: &[Event], local_mode: bool) -> Self {
        let mut index = HistoryIndex::default();
        let mut building = Building::default();
        for (at, event) in events.iter().enumerate() {
            index.take(&mut building, at, event, events);
        }
        if index.commits.values().flatten().all(|commit| commit.offset.is_none()) {
            for (place, commit) in asked::commits(&index, events) {
                index.commits.entry(place).or_default().push(commit);
            }
        }
        if local_mode || !building.any_lifecycle {
            // Nothing says how many outputs an attempt gave but what it wrote.
            let without_records = |attempt: &&mut Attempt| attempt.outputs.values().all(|one| one.dest.is_none());
            for attempt in index.families.values_mut().flat_map(Family::attempts_mut).filter(without_records) {
                let last = attempt.outputs.iter().next_back().map(|(ordinal, _)| ordinal + 1);
                attempt.outputs_known = attempt.outputs_known.or(last);
            }
        }
        index
    }

    fn take<'e>(&mut self, building: &mut Building<'e>, at: At, event: &'e Event, events: &'e [Event]) {
        match &event.what {
            What::PublishInvoked { call, ticket, id, .. } => {
                let number = self.publishes.len();
                self.publishes.push(Publish {
                    ticket: *ticket,
                    id: id.clone(),
                    invoked: at,
                    acked: None,
                    refused: false,
                });
                let first = *self.family(ticket).publish.get_or_insert(number);
                if first == number {
                    self.runs.entry(ticket.run).or_default().publishes.push(number);
                }
                building.publishes.insert(*call, first);
            }
            What::PublishResolved { call, outcome } => {
                let Some(number) = building.publishes.remove(call) else { return };
                match outcome {
                    Ack::Ok(()) => self.publishes[number].acked = self.publishes[number].acked.or(Some(at)),
                    Ack::Fail(_) => self.publishes[number].refused = true,
                    Ack::Unknown(_) => {}
                }
            }
            What::RunComplete { run, summary } => {
                self.runs.entry(*run).or_default().complete.get_or_insert((at, *summary));
            }
            What::LifecycleSent { events } => {
                building.any_lifecycle |= !events.is_empty();
                for lifecycle in events {
                    self.lifecycle_sent(at, lifecycle);
                    self.lifecycle_acked(at, lifecycle);
                }
            }
            What::ProduceInvoked { call, records, .. } => {
                building.produces.insert(*call, records);
                for record in records {
                    building.any_lifecycle |= !record.lifecycle.is_empty();
                    self.produced(at, record);
                }
            }
            What::ProduceResolved { call, outcomes } => {
                let records = building.produces.remove(call).unwrap_or_default();
                for (record, outcome) in records.iter().zip(outcomes) {
                    self.produce_acked(at, record, outcome);
                    if let (Role::Fail, Ack::Ok(_)) = (Role::of(&record.topic), outcome) {
                        let topics = building.reads.get(&event.node).map_or(&[][..], Vec::as_slice);
                        self.foreign_letter(at, topics, record);
                    }
                }
            }
            What::BulkInvoked { call, writes } => {
                building.bulks.insert(*call, (at, writes));
            }
            What::BulkResolved { call, outcome } => {
                if let Some((sent, writes)) = building.bulks.remove(call) {
                    self.bulk_resolved((sent, at), writes, outcome.ok().map_or(&[], Vec::as_slice));
                }
            }
            What::CommitResolved { call, .. } => {
                self.commit_ends.insert(*call, at);
            }
            What::Crashed => {
                self.crashes.insert((event.node.clone(), event.incarnation), at);
            }
            _ => self.take_consumer(building, at, event, events),
        }
    }

    fn take_consumer<'e>(&mut self, building: &mut Building<'e>, at: At, event: &'e Event, events: &'e [Event]) {
        match &event.what {
            What::Joined { consumer, group, name, topics, earliest } => {
                let (group, name, topics) = (group.clone(), name.clone(), topics.clone());
                self.consumers.insert(
                    *consumer,
                    Consumer { group, name, topics: topics.clone(), joined: at, earliest: *earliest },
                );
                let reads = building.reads.entry(event.node.clone()).or_default();
                reads.extend(topics.iter().cloned());
                reads.sort();
                reads.dedup();
            }
            What::Polled { records, .. } | What::Read { records, .. } => {
                for record in records {
                    let ticket = record.stamp.map(|stamp| stamp.ticket);
                    let (partition, offset) = (&record.position.partition, record.position.offset);
                    self.known(at, partition, offset, ticket, record.key.as_ref());
                }
            }
            What::Assigned { consumer, partitions } => {
                for one in partitions {
                    self.span_of.insert((*consumer, one.partition.clone(), one.epoch), self.spans.len());
                    self.spans_on.entry(one.partition.clone()).or_default().push(self.spans.len());
                    self.spans.push(Span {
                        consumer: *consumer,
                        node: event.node.clone(),
                        incarnation: event.incarnation,
                        partition: one.partition.clone(),
                        epoch: one.epoch,
                        assigned: at,
                        committed: one.committed,
                        start: one.start,
                        revoking: None,
                        lost: None,
                        released: None,
                    });
                }
            }
            What::Revoking { consumer, event: number, partitions, .. } => {
                building.rebalances.insert((*consumer, *number), at);
                self.each_span(*consumer, partitions, |span| span.revoking = span.revoking.or(Some(at)));
            }
            What::Lost { consumer, event: number, partitions } => {
                building.rebalances.insert((*consumer, *number), at);
                self.each_span(*consumer, partitions, |span| span.lost = span.lost.or(Some(at)));
            }
            What::ReleaseInvoked { consumer, event: number, .. } => {
                if let Some(What::Revoking { partitions, .. } | What::Lost { partitions, .. }) =
                    building.rebalances.get(&(*consumer, *number)).map(|at| &events[*at].what)
                {
                    self.each_span(*consumer, partitions, |span| span.released = span.released.or(Some(at)));
                }
            }
            What::OffsetsCommitted { group, member, partition, offset } => {
                let applied = AppliedCommit { at, offset: Some(*offset), member: Some(member.clone()) };
                self.commits.entry((group.clone(), partition.clone())).or_default().push(applied);
            }
            What::OffsetsExpired { group, partition } => {
                let applied = AppliedCommit { at, offset: None, member: None };
                self.commits.entry((group.clone(), partition.clone())).or_default().push(applied);
            }
            What::GroupAssigned { group, member, partitions, .. } => {
                let assigned = GroupAssignment { at, member: member.clone(), partitions: partitions.clone() };
                self.group_assigned.entry(group.clone()).or_default().push(assigned);
            }
            What::LogStartMoved { partition, start } => {
                self.log_starts.entry(partition.clone()).or_default().push((at, *start));
            }
            _ => {}
        }
    }

    fn each_span(&mut self, consumer: Call, partitions: &[(TopicPartition, Epoch)], mut change: impl FnMut(&mut Span)) {
        for (partition, epoch) in partitions {
            if let Some(number) = self.span_of.get(&(consumer, partition.clone(), *epoch)) {
                change(&mut self.spans[*number]);
            }
        }
    }

    fn output(&mut self, ticket: &Ticket) -> &mut Output {
        self.attempt(ticket).outputs.note(ticket.ordinal)
    }

    fn attempt(&mut self, ticket: &Ticket) -> &mut Attempt {
        self.family(ticket).note(ticket.attempt)
    }

    fn family(&mut self, ticket: &Ticket) -> &mut Family {
        self.families.entry((ticket.run, ticket.sequence)).or_default()
    }

    fn known(&mut self, at: At, partition: &TopicPartition, offset: i64, ticket: Option<Ticket>, key: Option<&Bytes>) {
        let records = self.records.entry(partition.clone()).or_default();
        let is_news = records.set_first(offset, || Known { at, ticket, key: key.cloned() });
        if let (true, Some(ticket), Role::Source) = (is_news, ticket, Role::of(&partition.topic)) {
            self.family(&ticket).sources.push((partition.clone(), offset));
        }
    }

    fn produced(&mut self, at: At, record: &Produced) {
        record.lifecycle.iter().for_each(|lifecycle| self.lifecycle_sent(at, lifecycle));
        let role = Role::of(&record.topic);
        if let (Role::Dest | Role::Fail, Some(stamp)) = (role, record.stamp.filter(|one| !is_foreign(Some(one.ticket))))
        {
            let attempt = self.attempt(&stamp.ticket);
            attempt.begun.get_or_insert(at);
            attempt.origin = attempt.origin.or(stamp.origin);
            if stamp.is_parent && role == Role::Dest {
                attempt.outputs_known = Some(stamp.ticket.ordinal + 1);
            }
        }
    }

    fn produce_acked(&mut self, at: At, record: &Produced, outcome: &Ack<(i32, i64)>) {
        let role = Role::of(&record.topic);
        if let Ack::Ok((partition, offset)) = outcome {
            let place = TopicPartition { topic: record.topic.clone(), partition: *partition };
            let ticket = record.stamp.map(|stamp| stamp.ticket);
            if role != Role::Events {
                self.known(at, &place, *offset, ticket, record.key.as_ref());
            }
            match (role, ticket) {
                (Role::Dest, Some(ticket)) => {
                    self.output(&ticket).dest.get_or_insert((at, place, *offset));
                }
                (Role::Fail, Some(ticket)) if !is_foreign(Some(ticket)) => {
                    self.output(&ticket).buried.get_or_insert(at);
                    self.output(&ticket).gave_up.get_or_insert((at, LifecycleKind::Failed));
                }
                _ => {}
            }
        }
        // A run that is over has no event topic: its late events are dropped, which settles them.
        let gone = matches!(outcome, Ack::Fail(code) if code == "UNKNOWN_TOPIC_OR_PARTITION");
        if matches!(outcome, Ack::Ok(_)) || gone {
            record.lifecycle.iter().for_each(|lifecycle| self.lifecycle_acked(at, lifecycle));
        }
    }

    /// A dead letter, perhaps of a foreign record: that lies on what the letter's writer reads.
    fn foreign_letter(&mut self, at: At, topics: &[Arc<str>], record: &Produced) {
        let stamp = record.stamp.filter(|stamp| is_foreign(Some(stamp.ticket)));
        let Some((partition, offset)) = stamp.and_then(|stamp| stamp.origin) else { return };
        for topic in topics.iter().filter(|topic| matches!(Role::of(topic), Role::Source | Role::Dest)) {
            self.letters.entry((TopicPartition { topic: topic.clone(), partition }, offset)).or_insert(at);
        }
    }

    fn lifecycle_sent(&mut self, at: At, lifecycle: &Lifecycle) {
        let attempt = self.attempt(&lifecycle.ticket);
        attempt.begun.get_or_insert(at);
        if lifecycle.is_parent {
            attempt.outputs_known = Some(lifecycle.ticket.ordinal + 1);
        }
        if lifecycle.digest != 0 {
            attempt.digest.get_or_insert((at, lifecycle.digest));
        } else if lifecycle.is_parent {
            attempt.undigested.get_or_insert(at);
        }
        let output = attempt.outputs.note(lifecycle.ticket.ordinal);
        match lifecycle.kind {
            LifecycleKind::Created => {
                output.created.get_or_insert((at, None));
            }
            LifecycleKind::Dropped | LifecycleKind::Failed => {
                output.told.get_or_insert((at, lifecycle.kind));
            }
            LifecycleKind::Indexed | LifecycleKind::Superseded => {}
        }
    }

    fn lifecycle_acked(&mut self, at: At, lifecycle: &Lifecycle) {
        let output = self.output(&lifecycle.ticket);
        match lifecycle.kind {
            LifecycleKind::Created => {
                if let Some((_, acked)) = &mut output.created {
                    acked.get_or_insert(at);
                }
            }
            LifecycleKind::Dropped | LifecycleKind::Failed => {
                output.gave_up.get_or_insert((at, lifecycle.kind));
                output.event.get_or_insert((at, lifecycle.kind));
            }
            LifecycleKind::Indexed | LifecycleKind::Superseded => {
                output.event.get_or_insert((at, lifecycle.kind));
            }
        }
    }

    fn bulk_resolved(&mut self, (sent, at): (At, At), writes: &[IndexWrite], outcomes: &[WriteOutcome]) {
        // A write that was throttled is superseded when the answer says that the index has a later one of its document.
        // Without versions the order of publishing stands for them.
        let rank = |write: &IndexWrite| {
            let Ticket { sequence, ordinal, .. } = write.ticket;
            write.version.unwrap_or(Version(sequence.cast_signed() << 10 | i64::from(ordinal)))
        };
        let mut taken: BTreeMap<(Option<&str>, &str), Version> = BTreeMap::new();
        let any_throttled = outcomes.contains(&WriteOutcome::Throttled);
        for (write, outcome) in writes.iter().zip(outcomes).filter(|_| any_throttled) {
            let has = match outcome {
                WriteOutcome::Superseded(current) => *current,
                outcome if outcome.is_indexed() => rank(write),
                _ => continue,
            };
            let highest = taken.entry(write.target()).or_insert(has);
            *highest = has.max(*highest);
        }
        for (number, write) in writes.iter().enumerate() {
            let mut outcome = outcomes.get(number).copied();
            if let (Some(WriteOutcome::Throttled), Some(has)) = (outcome, taken.get(&write.target()))
                && rank(write) < *has
            {
                outcome = Some(WriteOutcome::Superseded(*has));
            }
            let attempt = self.attempt(&write.ticket);
            if let Some(position) = write.position.as_ref().filter(|one| Role::of(&one.partition.topic) == Role::Source)
            {
                // A pair: its writes say where the attempt started.
                attempt.begun = Some(attempt.begun.map_or(sent, |first| first.min(sent)));
                attempt.origin = attempt.origin.or(Some((position.partition.partition, position.offset)));
            }
            let output = attempt.outputs.note(write.ticket.ordinal);
            // Requests are answered in another order than they were sent in.
            output.written = Some(output.written.map_or(sent, |first| first.min(sent)));
            if let Some(outcome) = outcome.filter(|outcome| outcome.is_terminal()) {
                output.answered.get_or_insert((at, outcome));
                match outcome {
                    WriteOutcome::Applied | WriteOutcome::Duplicate => output.taken = output.taken.or(Some(at)),
                    WriteOutcome::Superseded(_) => output.superseded = output.superseded.or(Some(at)),
                    WriteOutcome::Rejected | WriteOutcome::Throttled => {}
                }
            }
        }
    }

    /// A publish, the first of its sequence.
    pub fn publish(&self, run: RunId, sequence: u64) -> Option<&Publish> {
        self.families.get(&(run, sequence))?.publish.map(|number| &self.publishes[number])
    }

    /// Where a publish lies on the source topic: partitions, offsets.
    pub fn sources_of(&self, run: RunId, sequence: u64) -> &[(TopicPartition, i64)] {
        self.families.get(&(run, sequence)).map_or(&[], |family| &family.sources)
    }

    /// The attempts at one publish, in the order of their nonces.
    pub fn attempts_of(&self, run: RunId, sequence: u64) -> impl Iterator<Item = (u64, &Attempt)> {
        self.families.get(&(run, sequence)).into_iter().flat_map(Family::attempts)
    }

    /// The attempt that a ticket is of.
    pub fn attempt_of(&self, ticket: &Ticket) -> Option<&Attempt> {
        self.families.get(&(ticket.run, ticket.sequence))?.attempt(ticket.attempt)
    }

    /// When a publish was first finished by one whole attempt.
    pub fn closed(&self, run: RunId, sequence: u64) -> Option<At> {
        self.families.get(&(run, sequence)).and_then(Family::closed)
    }

    /// From when a publish may have been finished, for all that is known.
    pub fn may_be_closed(&self, run: RunId, sequence: u64) -> Option<At> {
        self.attempts_of(run, sequence).filter_map(|(_, attempt)| attempt.may_be_closed()).min()
    }

    /// The log's start, as far as it had moved before `at`.
    pub fn log_start(&self, partition: &TopicPartition, at: At) -> i64 {
        let moves = self.log_starts.get(partition).map_or(&[][..], Vec::as_slice);
        // A log's start never goes back.
        moves[..moves.partition_point(|(moved, _)| *moved < at)].last().map_or(0, |(_, start)| *start)
    }
}

/// Calls that are open while the index is built.
#[derive(Default)]
struct Building<'e> {
    publishes: BTreeMap<Call, usize>,
    produces: BTreeMap<Call, &'e [Produced]>,
    bulks: BTreeMap<Call, (At, &'e [IndexWrite])>,
    rebalances: BTreeMap<(Call, u64), At>,
    /// Topics of each node's consumers.
    reads: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    any_lifecycle: bool,
}
