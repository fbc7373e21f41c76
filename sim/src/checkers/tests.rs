//! Hand-made histories: for every property one that breaks it, with its witness, and a near miss that does not.

use std::sync::Arc;

use bytes::Bytes;
use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, Position, RunId, Ticket, Version};

use super::*;
use crate::history::{
    Ack, AssignedPartition, Call, CommittedOffset, Delivered, IndexWrite, Lifecycle, LifecycleKind, Produced,
    RunSummary, Stamp, What, WriteKind, WriteOutcome,
};

mod completion;
mod cooperative;
mod hybrid;
mod nothing_disappears;
mod offsets;
mod order;
mod polls;
mod sink;
mod table;
pub(crate) mod whole;

pub(crate) const RUN: RunId = RunId(0xabcd_ef01 << 96);

pub(crate) fn source() -> TopicPartition {
    TopicPartition::new("p_source", 0)
}

pub(crate) fn dest() -> TopicPartition {
    TopicPartition::new("p_dest", 0)
}

pub(crate) fn ticket(sequence: u64, attempt: u64, ordinal: u32) -> Ticket {
    Ticket { run: RUN, sequence, attempt, ordinal }
}

/// The version of a publish.
pub(crate) fn version(sequence: u64) -> Version {
    Version::from_hlc(sequence + 1)
}

/// The body of a publish.
pub(crate) fn body(sequence: u64) -> u64 {
    0xb0d1 + sequence
}

/// A history as it is told, a millisecond an event.
#[derive(Default)]
pub(crate) struct Story {
    pub events: Vec<Event>,
    call: Call,
}

impl Story {
    pub fn tell(&mut self, node: &str, what: What) -> At {
        let at = Instant::from_micros(1_000 * self.events.len() as u64);
        self.events.push(Event { at, node: node.into(), incarnation: 0, what });
        self.events.len() - 1
    }

    fn call(&mut self) -> Call {
        self.call += 1;
        1_000 + self.call
    }

    /// A publish without Kafka: its acknowledgement.
    pub fn publish_only(&mut self, sequence: u64, id: &str) -> At {
        let call = self.call();
        let (ticket, version, body_hash) = (ticket(sequence, 0, 0), version(sequence), body(sequence));
        let kind = WriteKind::Upsert;
        self.tell("publisher", What::PublishInvoked { call, ticket, id: id.into(), version, kind, body_hash });
        self.tell("publisher", What::PublishResolved { call, outcome: Ack::Ok(()) })
    }

    /// A publish whose record lies on the source topic at the offset of its sequence: its acknowledgement.
    pub fn publish(&mut self, sequence: u64, id: &str) -> At {
        self.publish_to(0, sequence, id)
    }

    /// A publish into one partition of the source topic: its acknowledgement.
    pub fn publish_to(&mut self, partition: i32, sequence: u64, id: &str) -> At {
        let stamp =
            Stamp { ticket: ticket(sequence, 0, 0), version: version(sequence), is_parent: false, origin: None };
        let record = Produced {
            topic: "p_source".into(),
            partition: Some(partition),
            key: Some(Bytes::copy_from_slice(id.as_bytes())),
            stamp: Some(stamp),
            size: 10,
            lifecycle: Vec::new(),
        };
        let call = self.produce_invoked("publisher", vec![record]);
        self.produce_resolved("publisher", call, vec![Ack::Ok((partition, sequence as i64))]);
        self.publish_only(sequence, id)
    }

    pub fn produce_invoked(&mut self, node: &str, records: Vec<Produced>) -> Call {
        let call = self.call();
        self.tell(node, What::ProduceInvoked { call, producer: 1, records });
        call
    }

    pub fn produce_resolved(&mut self, node: &str, call: Call, outcomes: Vec<Ack<(i32, i64)>>) -> At {
        self.tell(node, What::ProduceResolved { call, outcomes })
    }

    pub fn join(&mut self, node: &str, consumer: Call, group: &str) -> At {
        let topic: Arc<str> = if group == "p_workers" { "p_source".into() } else { "p_dest".into() };
        let topics = vec![topic];
        let (group, name) = (group.into(), node.into());
        self.tell(node, What::Joined { consumer, group, name, topics, earliest: true })
    }

    pub fn assigned(
        &mut self,
        node: &str,
        consumer: Call,
        place: TopicPartition,
        epoch: u64,
        offset: Option<i64>,
    ) -> At {
        let start = offset.unwrap_or(0);
        self.assigned_at(node, consumer, place, epoch, offset, start)
    }

    pub fn assigned_at(
        &mut self,
        node: &str,
        consumer: Call,
        partition: TopicPartition,
        epoch: u64,
        committed: Option<i64>,
        start: i64,
    ) -> At {
        let partitions = vec![AssignedPartition { partition, epoch: Epoch(epoch), committed, start }];
        self.tell(node, What::Assigned { consumer, partitions })
    }

    /// A poll of records: offset, key, ticket.
    pub fn polled(
        &mut self,
        node: &str,
        consumer: Call,
        place: TopicPartition,
        epoch: u64,
        records: &[(i64, &str, Ticket)],
    ) -> At {
        let records = records.iter().map(|(offset, key, ticket)| Delivered {
            position: Position { partition: place.clone(), offset: *offset, epoch: Epoch(epoch) },
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            stamp: Some(Stamp { ticket: *ticket, version: version(ticket.sequence), is_parent: true, origin: None }),
        });
        let records = records.collect();
        self.tell(node, What::Polled { consumer, records })
    }

    /// A parent handed to the producer for the destination topic, from the offset of its sequence.
    pub fn produce(&mut self, node: &str, sequence: u64, attempt: u64, id: &str) -> Call {
        self.produce_output(node, ticket(sequence, attempt, 0), true, id)
    }

    pub fn produce_output(&mut self, node: &str, ticket: Ticket, is_parent: bool, id: &str) -> Call {
        let origin = Some((0, ticket.sequence as i64));
        let stamp = Stamp { ticket, version: version(ticket.sequence), is_parent, origin };
        let key = Some(Bytes::copy_from_slice(id.as_bytes()));
        let topic = "p_dest".into();
        let record = Produced { topic, partition: Some(0), key, stamp: Some(stamp), size: 10, lifecycle: Vec::new() };
        self.produce_invoked(node, vec![record])
    }

    pub fn produced(&mut self, node: &str, call: Call, offset: i64) -> At {
        self.produce_resolved(node, call, vec![Ack::Ok((0, offset))])
    }

    pub fn bulk(&mut self, node: &str, writes: Vec<IndexWrite>) -> Call {
        let call = self.call();
        self.tell(node, What::BulkInvoked { call, writes });
        call
    }

    pub fn answered(&mut self, node: &str, call: Call, outcomes: Vec<WriteOutcome>) -> At {
        self.tell(node, What::BulkResolved { call, outcome: Ack::Ok(outcomes) })
    }

    pub fn applied(&mut self, write: IndexWrite) -> At {
        self.tell("index", What::IndexApplied { sender: None, write: Box::new(write), changed: true })
    }

    /// Lifecycle events of parents, sent and acknowledged: the acknowledgement.
    pub fn event(&mut self, node: &str, ticket: Ticket, kind: LifecycleKind) -> At {
        let call = self.event_sent(node, ticket, kind, true);
        self.produce_resolved(node, call, vec![Ack::Ok((0, 0))])
    }

    /// One lifecycle event, sent and acknowledged.
    pub fn event_of(&mut self, node: &str, lifecycle: Lifecycle) -> At {
        let (topic, lifecycle) = ("p_event_abcd".into(), vec![lifecycle]);
        let record = Produced { topic, partition: Some(0), key: None, stamp: None, size: 10, lifecycle };
        let call = self.produce_invoked(node, vec![record]);
        self.produce_resolved(node, call, vec![Ack::Ok((0, 0))])
    }

    pub fn event_sent(&mut self, node: &str, ticket: Ticket, kind: LifecycleKind, is_parent: bool) -> Call {
        let lifecycle = vec![Lifecycle { ticket, kind, is_parent, digest: 0 }];
        let topic = "p_event_abcd".into();
        let record = Produced { topic, partition: Some(0), key: None, stamp: None, size: 10, lifecycle };
        self.produce_invoked(node, vec![record])
    }

    /// A dead letter, handed over.
    pub fn dead_letter(&mut self, node: &str, key: &str, ticket: Ticket, origin: Option<(i32, i64)>) -> Call {
        let stamp = Some(Stamp { ticket, version: Version::default(), is_parent: false, origin });
        let (topic, key) = ("p_fail".into(), Some(Bytes::copy_from_slice(key.as_bytes())));
        self.produce_invoked(
            node,
            vec![Produced { topic, partition: None, key, stamp, size: 1, lifecycle: Vec::new() }],
        )
    }

    /// A poll of one record that nobody of this system wrote.
    pub fn polled_foreign(&mut self, node: &str, consumer: Call, place: TopicPartition, offset: i64, key: &str) -> At {
        let key = Some(Bytes::copy_from_slice(key.as_bytes()));
        let position = Position { partition: place, offset, epoch: Epoch(1) };
        self.tell(node, What::Polled { consumer, records: vec![Delivered { position, key, stamp: None }] })
    }

    /// A commit that is asked for, applied and acknowledged: its application.
    pub fn commit(&mut self, node: &str, consumer: Call, place: TopicPartition, epoch: u64, offset: i64) -> At {
        let call = self.call();
        let epoch = Epoch(epoch);
        let commits = vec![CommittedOffset { partition: place.clone(), epoch, offset, metadata: "".into() }];
        self.tell(node, What::CommitInvoked { call, consumer, commits });
        let at = self.offset_committed(node, place, offset);
        self.tell(node, What::CommitResolved { call, outcomes: vec![Ack::Ok(())] });
        at
    }

    pub fn offset_committed(&mut self, node: &str, partition: TopicPartition, offset: i64) -> At {
        let group = if &*partition.topic == "p_source" { "p_workers" } else { "p_indexers" };
        let (group, member) = (group.into(), format!("{node}-1").into());
        self.tell("broker-1", What::OffsetsCommitted { group, member, partition, offset })
    }

    pub fn gives(&mut self, group: &str, node: &str, partition: TopicPartition) -> At {
        let (group, member, partitions) = (group.into(), format!("{node}-1").into(), vec![partition]);
        self.tell("broker-1", What::GroupAssigned { group, member, generation: 1, partitions })
    }

    /// An assignment of one generation at the coordinator, as of a member on a node of its name.
    pub fn generation(&mut self, generation: i32, member: &str, node: &str, partitions: &[TopicPartition]) -> At {
        let (group, member, partitions) = ("p_workers".into(), format!("{node}-{member}").into(), partitions.to_vec());
        self.tell("broker-1", What::GroupAssigned { group, member, generation, partitions })
    }

    pub fn revoking(&mut self, node: &str, consumer: Call, place: TopicPartition, epoch: u64) -> At {
        let (event, deadline) = (epoch, Instant::from_micros(u64::MAX));
        self.tell(node, What::Revoking { consumer, event, partitions: vec![(place, Epoch(epoch))], deadline })
    }

    pub fn lost(&mut self, node: &str, consumer: Call, place: TopicPartition, epoch: u64) -> At {
        self.tell(node, What::Lost { consumer, event: epoch, partitions: vec![(place, Epoch(epoch))] })
    }

    /// A release of the rebalance with the number of the epoch: its invocation.
    pub fn release(&mut self, node: &str, consumer: Call, epoch: u64) -> At {
        let call = self.call();
        let at = self.tell(node, What::ReleaseInvoked { call, consumer, event: epoch });
        self.tell(node, What::ReleaseResolved { call, outcome: Ack::Ok(()) });
        at
    }

    pub fn complete(&mut self, summary: RunSummary) -> At {
        self.tell("publisher", What::RunComplete { run: RUN, summary })
    }

    pub fn check(&self) -> Vec<Violation> {
        self.check_with(|_| {})
    }

    pub fn check_with(&self, change: impl FnOnce(&mut CheckOptions)) -> Vec<Violation> {
        let mut options = CheckOptions { expect_completion: false, ..CheckOptions::default() };
        change(&mut options);
        check(&self.events, &options)
    }

    /// Nothing is found.
    pub fn clean(&self) {
        assert_eq!(self.check(), []);
    }

    /// Exactly this property, with this witness.
    pub fn finds(&self, property: &str, witness: &[At]) {
        found(&self.check(), property, witness);
    }
}

pub(crate) fn found(violations: &[Violation], property: &str, witness: &[At]) {
    let names: Vec<_> = violations.iter().map(|one| (one.property, &one.witness[..], &one.words)).collect();
    assert!(violations.len() == 1, "wanted {property} {witness:?} alone, found {names:#?}");
    assert_eq!((violations[0].property, &violations[0].witness[..]), (property, witness), "{names:#?}");
    assert!(PROPERTIES.contains(&violations[0].property));
    assert!(CHECKERS.contains(&violations[0].checker));
}

/// A write of the parent of `sequence`, read from the destination topic at `offset` under epoch 1.
pub(crate) fn write(id: &str, sequence: u64, attempt: u64, offset: i64) -> IndexWrite {
    IndexWrite {
        index: None,
        id: id.into(),
        version: Some(version(sequence)),
        kind: WriteKind::Upsert,
        body_hash: body(sequence),
        ticket: ticket(sequence, attempt, 0),
        position: Some(Position { partition: dest(), offset, epoch: Epoch(1) }),
    }
}

/// `published` documents, all indexed.
pub(crate) fn all_indexed(published: u64) -> RunSummary {
    RunSummary { published, indexed: published, ..RunSummary::default() }
}
