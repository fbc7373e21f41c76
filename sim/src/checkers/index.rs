//! What the checkers look up in a history, built in one pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use seriatim_core::identity::{Epoch, RunId, Ticket, TopicPartition, Version};

use super::facts::{AppliedCommit, At, Attempt, Consumer, GroupAssignment, Known, Output, Publish, Role, Run, Span};
use crate::history::{Ack, Call, Event, IndexWrite, Lifecycle, LifecycleKind, Produced, What, WriteOutcome};

/// Everything that checkers look up.
#[derive(Debug, Default)]
pub struct HistoryIndex {
    /// All publishes, in order.
    pub publishes: Vec<Publish>,
    /// Publish of a run and sequence, as an index into `publishes`.
    pub by_sequence: BTreeMap<(RunId, u64), usize>,
    /// The runs.
    pub runs: BTreeMap<RunId, Run>,
    /// The attempts, by run, sequence and nonce.
    pub attempts: BTreeMap<(RunId, u64, u64), Attempt>,
    /// Known records, by partition and offset.
    pub records: BTreeMap<TopicPartition, BTreeMap<i64, Known>>,
    /// Where each publish lies on the source topic: partitions, offsets.
    pub sources: BTreeMap<(RunId, u64), Vec<(TopicPartition, i64)>>,
    /// All ownerships, in order of assignment.
    pub spans: Vec<Span>,
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
    /// Lowest offset that a log ever lost from its tail.
    pub truncated: BTreeMap<TopicPartition, i64>,
    /// End of each call: the event.
    pub resolved: BTreeMap<Call, At>,
    /// Crashes: node, incarnation, when.
    pub crashes: BTreeMap<(Arc<str>, u32), At>,
    /// When the faults ended.
    pub healed: Option<At>,
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
            index.commits_from_clients(events);
        }
        if local_mode {
            // Nothing says how many outputs an attempt gave unless its events do.
            for attempt in index.attempts.values_mut() {
                let last = attempt.outputs.keys().next_back().map(|ordinal| ordinal + 1);
                attempt.outputs_known = attempt.outputs_known.or(last);
            }
        }
        index
    }

    fn take<'e>(&mut self, building: &mut Building<'e>, at: At, event: &'e Event, events: &'e [Event]) {
        match &event.what {
            What::PublishInvoked { call, ticket, id, .. } => {
                let number = self.publishes.len();
                self.publishes.push(Publish { ticket: *ticket, id: id.clone(), invoked: at, acked: None });
                // A publish sent again keeps its sequence; the first one stands for it.
                if let Entry::Vacant(slot) = self.by_sequence.entry((ticket.run, ticket.sequence)) {
                    slot.insert(number);
                    self.runs.entry(ticket.run).or_default().publishes.push(number);
                }
                let first = self.by_sequence[&(ticket.run, ticket.sequence)];
                building.publishes.insert(*call, first);
            }
            What::PublishResolved { call, outcome } => {
                if let (Some(number), Ack::Ok(())) = (building.publishes.get(call), outcome) {
                    self.publishes[*number].acked.get_or_insert(at);
                }
            }
            What::RunComplete { run, summary } => {
                self.runs.entry(*run).or_default().complete.get_or_insert((at, *summary));
            }
            What::LifecycleSent { events } => {
                for lifecycle in events {
                    self.lifecycle_sent(at, lifecycle);
                    self.lifecycle_acked(at, lifecycle);
                }
            }
            What::ProduceInvoked { call, records, .. } => {
                building.produces.insert(*call, records);
                records.iter().for_each(|record| self.produced(at, record));
            }
            What::ProduceResolved { call, outcomes } => {
                self.resolved.insert(*call, at);
                let records = building.produces.remove(call).unwrap_or_default();
                for (record, outcome) in records.iter().zip(outcomes) {
                    self.produce_acked(at, record, outcome);
                }
            }
            What::BulkInvoked { call, writes } => {
                building.bulks.insert(*call, writes);
            }
            What::BulkResolved { call, outcome } => {
                self.resolved.insert(*call, at);
                if let (Some(writes), Ack::Ok(outcomes)) = (building.bulks.remove(call), outcome) {
                    // From the back: a write that was throttled while a later one of its id was taken is superseded.
                    let mut taken: BTreeMap<&str, Version> = BTreeMap::new();
                    for (write, outcome) in writes.iter().zip(outcomes).rev() {
                        let outcome = match (outcome, taken.get(write.id.as_str())) {
                            (WriteOutcome::Throttled, Some(version)) => WriteOutcome::Superseded(*version),
                            (outcome, _) => *outcome,
                        };
                        if outcome.is_indexed() {
                            taken.entry(&write.id).or_insert(write.version.unwrap_or_default());
                        }
                        self.answered(at, write, outcome);
                    }
                }
            }
            What::CommitResolved { call, .. } | What::ReleaseResolved { call, .. } => {
                self.resolved.insert(*call, at);
            }
            What::Crashed => {
                self.crashes.insert((event.node.clone(), event.incarnation), at);
            }
            What::Healed => {
                self.healed.get_or_insert(at);
            }
            _ => self.take_consumer(building, at, event, events),
        }
    }

    fn take_consumer<'e>(&mut self, building: &mut Building<'e>, at: At, event: &'e Event, events: &'e [Event]) {
        match &event.what {
            What::Joined { consumer, group, earliest, .. } => {
                self.consumers.insert(*consumer, Consumer { group: group.clone(), joined: at, earliest: *earliest });
            }
            What::Polled { records, .. } | What::Read { records, .. } => {
                for record in records {
                    let ticket = record.stamp.map(|stamp| stamp.ticket);
                    self.known(at, &record.position.partition, record.position.offset, ticket);
                }
            }
            What::Assigned { consumer, partitions } => {
                for one in partitions {
                    self.span_of.insert((*consumer, one.partition.clone(), one.epoch), self.spans.len());
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
            What::OffsetsCommitted { group, member, partition, offset, .. } => {
                let applied = AppliedCommit { at, offset: Some(*offset), member: Some(member.clone()) };
                self.commits.entry((group.clone(), partition.clone())).or_default().push(applied);
            }
            What::OffsetsExpired { group, partition } => {
                let applied = AppliedCommit { at, offset: None, member: None };
                self.commits.entry((group.clone(), partition.clone())).or_default().push(applied);
            }
            What::GroupAssigned { group, member, sender, partitions, .. } => {
                let assigned = GroupAssignment {
                    at,
                    member: member.clone(),
                    node: sender.clone(),
                    partitions: partitions.clone(),
                };
                self.group_assigned.entry(group.clone()).or_default().push(assigned);
            }
            What::LogStartMoved { partition, start } => {
                self.log_starts.entry(partition.clone()).or_default().push((at, *start));
            }
            What::LogTruncated { partition, end } => {
                let lowest = self.truncated.entry(partition.clone()).or_insert(*end);
                *lowest = (*lowest).min(*end);
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
        self.attempt(ticket).outputs.entry(ticket.ordinal).or_default()
    }

    fn attempt(&mut self, ticket: &Ticket) -> &mut Attempt {
        self.attempts.entry((ticket.run, ticket.sequence, ticket.attempt)).or_default()
    }

    fn known(&mut self, at: At, partition: &TopicPartition, offset: i64, ticket: Option<Ticket>) {
        let records = self.records.entry(partition.clone()).or_default();
        let Entry::Vacant(slot) = records.entry(offset) else { return };
        slot.insert(Known { at, ticket });
        if let (Some(ticket), Role::Source) = (ticket, Role::of(&partition.topic)) {
            self.sources.entry((ticket.run, ticket.sequence)).or_default().push((partition.clone(), offset));
        }
    }

    fn produced(&mut self, at: At, record: &Produced) {
        record.lifecycle.iter().for_each(|lifecycle| self.lifecycle_sent(at, lifecycle));
        if let (Role::Dest, Some(stamp)) = (Role::of(&record.topic), record.stamp) {
            let attempt = self.attempt(&stamp.ticket);
            attempt.origin = attempt.origin.or(stamp.origin);
            if stamp.is_parent {
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
                self.known(at, &place, *offset, ticket);
            }
            match (role, ticket) {
                (Role::Dest, Some(ticket)) => {
                    self.output(&ticket).dest.get_or_insert((at, place, *offset));
                }
                (Role::Fail, Some(ticket)) => {
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

    fn lifecycle_sent(&mut self, at: At, lifecycle: &Lifecycle) {
        if lifecycle.is_parent {
            self.attempt(&lifecycle.ticket).outputs_known = Some(lifecycle.ticket.ordinal + 1);
        }
        let output = self.output(&lifecycle.ticket);
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

    fn answered(&mut self, at: At, write: &IndexWrite, outcome: WriteOutcome) {
        if outcome.is_terminal() {
            self.output(&write.ticket).answered.get_or_insert((at, outcome));
        }
    }

    /// A real cluster does not say when it applied an offset: then what was acknowledged to a client counts.
    fn commits_from_clients(&mut self, events: &[Event]) {
        let mut asked = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            match &event.what {
                What::CommitInvoked { call, consumer, commits } => {
                    asked.insert(*call, (*consumer, commits));
                }
                What::CommitResolved { call, outcomes } => {
                    let Some((consumer, commits)) = asked.remove(call) else { continue };
                    let Some(group) = self.consumers.get(&consumer).map(|consumer| consumer.group.clone()) else {
                        continue;
                    };
                    for (commit, outcome) in commits.iter().zip(outcomes) {
                        if outcome.ok().is_some() {
                            let applied = AppliedCommit { at, offset: Some(commit.offset), member: None };
                            self.commits.entry((group.clone(), commit.partition.clone())).or_default().push(applied);
                        }
                    }
                }
                _ => {}
            }
        }
        self.commits.values_mut().for_each(|commits| commits.sort_by_key(|commit| commit.at));
    }

    /// The attempts at one publish.
    pub fn attempts_of(&self, run: RunId, sequence: u64) -> impl Iterator<Item = (u64, &Attempt)> {
        self.attempts
            .range((run, sequence, 0)..=(run, sequence, u64::MAX))
            .map(|((_, _, nonce), attempt)| (*nonce, attempt))
    }

    /// When a publish was first finished by one whole attempt.
    pub fn closed(&self, run: RunId, sequence: u64) -> Option<At> {
        self.attempts_of(run, sequence).filter_map(|(_, attempt)| attempt.closed()).min()
    }

    /// From when a publish may have been finished, for all that is known.
    pub fn may_be_closed(&self, run: RunId, sequence: u64) -> Option<At> {
        self.attempts_of(run, sequence).filter_map(|(_, attempt)| attempt.may_be_closed()).min()
    }

    /// The group's offset of a partition at the end of the history.
    pub fn last_committed(&self, partition: &TopicPartition) -> Option<i64> {
        let of_partition = self.commits.iter().filter(|((_, committed), _)| committed == partition);
        of_partition.filter_map(|(_, commits)| commits.last()?.offset).max()
    }

    /// The log's start, as far as it had moved before `at`.
    pub fn log_start(&self, partition: &TopicPartition, at: At) -> i64 {
        let moves = self.log_starts.get(partition).map_or(&[][..], Vec::as_slice);
        moves.iter().filter(|(moved, _)| *moved < at).map(|(_, start)| *start).max().unwrap_or(0)
    }
}

/// Calls that are open while the index is built.
#[derive(Default)]
struct Building<'e> {
    publishes: BTreeMap<Call, usize>,
    produces: BTreeMap<Call, &'e [Produced]>,
    bulks: BTreeMap<Call, &'e [IndexWrite]>,
    rebalances: BTreeMap<(Call, u64), At>,
}
