//! Violations and events in words, for whoever has to understand a failing run.
//!
//! [`block`] is what a failure prints: the property, one sentence, and the witness events one aligned line each. Seed,
//! plan and the command that replays it are added by whoever ran it.

use std::fmt::{self, Write as _};

use compact_str::CompactString;
use seriatim_core::identity::{Ticket, TopicPartition, Version};

use crate::checkers::Violation;
use crate::history::{
    Ack, AssignedPartition, Delivered, Event, IndexWrite, Lifecycle, LifecycleKind, Produced, RunSummary, Stamp, What,
    WriteKind, WriteOutcome,
};

/// Items of one event that are shown; the others are counted.
const SHOWN_MAX: usize = 3;

/// The failure block of one violation. Witness indices beyond `events` are passed over.
pub fn block(events: &[Event], violation: &Violation) -> String {
    let mut out = format!("{}: {}\n", violation.property, violation.words);
    let mut place = String::new();
    if let Some(partition) = &violation.partition {
        let _ = write!(place, " partition {partition}");
    }
    if !violation.ids.is_empty() {
        let _ = write!(place, " ids {}", violation.ids.join(", "));
    }
    if !place.is_empty() {
        let _ = writeln!(out, " {place}");
    }
    let focus = Focus { partition: violation.partition.as_ref(), ids: &violation.ids };
    let witness: Vec<(usize, &Event)> =
        violation.witness.iter().filter_map(|at| events.get(*at).map(|event| (*at, event))).collect();
    out += &lines(&witness, &focus);
    out
}

/// What a property of [`PROPERTIES`](crate::checkers::PROPERTIES) forbids, in one line.
pub fn meaning(property: &str) -> Option<&'static str> {
    Some(match property {
        "ambiguous-family" => "two attempts at one record told that they gave different outputs",
        "commit-ahead" => "an offset was committed past a record that was not finished then",
        "commit-regression" => "a group's committed offset went back",
        "commit-unowned" => "a member committed a partition that another had been given since",
        "completed-early" => "a run was declared complete with something pending",
        "completed-never" => "a run was not declared complete",
        "counted-early" => "a record was counted as complete before one attempt at it was whole",
        "dead-letter-missing" => "a document failed, and no dead letter of it is acknowledged when its run is over",
        "dead-letter-twice" => "there are more dead letters of a document than times that it was taken",
        "digest-missing" => "an attempt told its end without a digest of what it gave",
        "effect-after-release" => "an effect of an ownership began after it was given back, or lost",
        "epoch-start" => "an ownership began beside the committed offset or the reset point, or while it was held",
        "final-index" => "at the end the index is not what the operations leave",
        "key-moved" => "at one hop, equal keys of one run lie in two partitions",
        "lag-left" => "a complete run that had the time left records that its group has not committed",
        "nonmonotonic-poll" => "a record came again within one ownership",
        "outcome-conflict" => "one output was told to have ended in two ways",
        "poll-skip" => "an ownership went past a record that exists without being given it",
        "poll-unowned" => "a record was given under an ownership that had ended, or never was",
        "record-vanished" => "a record was committed past without output, event or dead letter",
        "sink-lost-write" => "what was acknowledged or committed past is not in the index",
        "sink-nonmonotonic" => "a document in the index went back to an older version",
        "sink-unseen" => "a publish was acknowledged, and never ended although its run is complete",
        "summary-mismatch" => "the summary at the end does not add up",
        "write-after-completion" => "a reader saw a change after its run was complete",
        "write-order" => "within one ownership a key's earlier record took effect after a later one",
        "write-overlap" => "a key's later record was written while the request of an earlier one was out",
        _ => return None,
    })
}

/// Events one aligned line each: number in the history, time, node, what.
pub fn trace(events: &[(usize, &Event)]) -> String {
    lines(events, &Focus { partition: None, ids: &[] })
}

fn lines(events: &[(usize, &Event)], focus: &Focus<'_>) -> String {
    let node = |event: &Event| match event.incarnation {
        0 => event.node.to_string(),
        life => format!("{}.{life}", event.node),
    };
    let widest = |texts: &mut dyn Iterator<Item = String>| texts.map(|text| text.chars().count()).max().unwrap_or(0);
    let number_width = widest(&mut events.iter().map(|(at, _)| at.to_string()));
    let time_width = widest(&mut events.iter().map(|(_, event)| format!("{:?}", event.at)));
    let node_width = widest(&mut events.iter().map(|(_, event)| node(event)));
    let mut out = String::new();
    for (at, event) in events {
        let (time, node, what) = (format!("{:?}", event.at), node(event), short(&event.what, focus));
        let _ = writeln!(out, "  #{at:<number_width$}  {time:>time_width$}  {node:<node_width$}  {what}");
    }
    out
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = short(&self.what, &Focus { partition: None, ids: &[] });
        write!(f, "{:?} {}.{} {what}", self.at, self.node, self.incarnation)
    }
}

/// What a violation is about: its items are shown first.
struct Focus<'a> {
    partition: Option<&'a TopicPartition>,
    ids: &'a [CompactString],
}

impl Focus<'_> {
    fn on(&self, partition: &TopicPartition) -> bool {
        self.partition == Some(partition)
    }

    /// A record of an id in focus; of the partition in focus when no id is.
    fn on_record(&self, record: &Delivered) -> bool {
        match (&record.key, self.ids) {
            (_, []) => self.on(&record.position.partition),
            (key, _) => key.as_ref().is_some_and(|key| self.about(key)),
        }
    }

    fn about(&self, id: &[u8]) -> bool {
        self.ids.iter().any(|wanted| wanted.as_bytes() == id)
    }
}

/// The items in focus, or all if none is; at most [`SHOWN_MAX`].
fn items<T>(all: &[T], in_focus: impl Fn(&T) -> bool, text: impl Fn(&T) -> String) -> String {
    let focused: Vec<&T> = all.iter().filter(|item| in_focus(item)).collect();
    let chosen = if focused.is_empty() { all.iter().collect() } else { focused };
    let mut out = chosen.iter().take(SHOWN_MAX).map(|item| text(item)).collect::<Vec<_>>().join("; ");
    let hidden = all.len() - chosen.len().min(SHOWN_MAX);
    if hidden > 0 {
        let _ = write!(out, "; and {hidden} more");
    }
    if all.is_empty() {
        out += "nothing";
    }
    out
}

fn short(what: &What, focus: &Focus<'_>) -> String {
    match what {
        What::PublishInvoked { ticket, id, version, kind, .. } => {
            format!("publish {id} {} {} {}", ticket_text(ticket), version_text(*version), kind_text(*kind))
        }
        What::PublishResolved { outcome, .. } => format!("publish {}", ack_text(outcome)),
        What::RecordCounted { sequence, .. } => format!("counts publish #{sequence} as complete"),
        What::RunComplete { run, summary } => format!("run {run:?} complete: {}", summary_text(summary)),
        What::LifecycleSent { events } => format!("events {}", items(events, |_| false, lifecycle_text)),
        What::ProduceInvoked { call, records, .. } => {
            let key = |record: &Produced| record.key.as_ref().is_some_and(|key| focus.about(key));
            format!("produce call {call}: {}", items(records, key, produced_text))
        }
        What::ProduceResolved { call, outcomes } => {
            let text = |outcome: &Ack<(i32, i64)>| match outcome {
                Ack::Ok((partition, offset)) => format!("ok {partition}@{offset}"),
                other => ack_text(other),
            };
            let here = |outcome: &Ack<(i32, i64)>| {
                outcome.ok().is_some_and(|(number, _)| focus.partition.is_some_and(|one| one.partition == *number))
            };
            format!("produced call {call}: {}", items(outcomes, here, text))
        }
        What::Joined { consumer, group, topics, .. } => {
            format!("c{consumer} joins {group} reading {}", topics.join(", "))
        }
        What::Polled { consumer, records } => {
            format!("c{consumer} polled {}", items(records, |one| focus.on_record(one), delivered_text))
        }
        What::Read { consumer, records } => {
            format!("c{consumer} read {}", items(records, |one| focus.on_record(one), delivered_text))
        }
        What::BulkInvoked { call, writes } => {
            let about = |write: &IndexWrite| focus.about(write.id.as_bytes());
            format!("bulk call {call}: {}", items(writes, about, write_text))
        }
        What::BulkResolved { call, outcome } => match outcome {
            Ack::Ok(outcomes) => {
                format!("bulk call {call} answered: {}", items(outcomes, |_| false, outcome_text))
            }
            other => format!("bulk call {call} {}", ack_text(other)),
        },
        What::IndexApplied { sender, write, changed } => {
            let from = sender.as_ref().map_or(String::new(), |sender| format!(" from {sender}"));
            let effect = if *changed { "changed" } else { "unchanged" };
            format!("index {effect}: {}{from}", write_text(write))
        }
        _ => short_group(what, focus),
    }
}

fn short_group(what: &What, focus: &Focus<'_>) -> String {
    match what {
        What::Assigned { consumer, partitions } => {
            format!("c{consumer} assigned {}", items(partitions, |one| focus.on(&one.partition), assigned_text))
        }
        What::Revoking { consumer, event, partitions, deadline } => {
            let list = items(partitions, |(one, _)| focus.on(one), |(one, epoch)| format!("{one} e{}", epoch.0));
            format!("c{consumer} told to give up {list} by {deadline:?} (rebalance {event})")
        }
        What::Lost { consumer, event, partitions } => {
            let list = items(partitions, |(one, _)| focus.on(one), |(one, epoch)| format!("{one} e{}", epoch.0));
            format!("c{consumer} lost {list} (rebalance {event})")
        }
        What::ReleaseInvoked { consumer, event, .. } => format!("c{consumer} releases rebalance {event}"),
        What::ReleaseResolved { outcome, .. } => format!("release {}", ack_text(outcome)),
        What::CommitInvoked { consumer, commits, .. } => {
            let list = items(
                commits,
                |one| focus.on(&one.partition),
                |one| format!("{}@{} e{}", one.partition, one.offset, one.epoch.0),
            );
            format!("c{consumer} commits {list}")
        }
        What::CommitResolved { outcomes, .. } => {
            format!("commit {}", items(outcomes, |one| one.ok().is_none(), ack_text))
        }
        What::Left { consumer } => format!("c{consumer} leaves its group"),
        What::OffsetsCommitted { group, member, partition, offset, .. } => {
            format!("committed {partition}@{offset} in {group} for {member}")
        }
        What::GroupAssigned { group, member, generation, partitions, .. } => {
            let list = items(partitions, |one| focus.on(one), ToString::to_string);
            format!("group {group} generation {generation} gives {member} {list}")
        }
        What::OffsetsExpired { group, partition } => format!("forgot the offset of {partition} in {group}"),
        What::LogStartMoved { partition, start } => format!("log {partition} now starts at {start}"),
        What::FaultInjected { kind, target, in_flight } => format!("FAULT {kind} on {target}, {in_flight} in flight"),
        What::Started => "started".to_owned(),
        What::Crashed => "CRASHED".to_owned(),
        What::Stopped => "stopped".to_owned(),
        What::Healed => "healed: no more faults".to_owned(),
        other => format!("{other:?}"),
    }
}

fn ack_text<T>(ack: &Ack<T>) -> String {
    match ack {
        Ack::Ok(_) => "ok".to_owned(),
        Ack::Fail(code) => format!("failed: {code}"),
        Ack::Unknown(code) => format!("outcome unknown: {code}"),
    }
}

fn ticket_text(ticket: &Ticket) -> String {
    format!("#{}/{:04x}.{}", ticket.sequence, ticket.attempt & 0xffff, ticket.ordinal)
}

/// The clock reading in seconds, without the thousands that all versions of a run share, and the number of the output.
fn version_text(version: Version) -> String {
    let micros = version.hlc() % 1_000_000_000;
    let text = format!("v{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    match version.0 & 0x3ff {
        0 => text,
        output => format!("{text}+{output}"),
    }
}

fn kind_text(kind: WriteKind) -> &'static str {
    match kind {
        WriteKind::Upsert => "upsert",
        WriteKind::Delete => "delete",
    }
}

fn stamp_text(stamp: &Stamp) -> String {
    let origin = stamp.origin.map_or(String::new(), |(partition, offset)| format!(" from {partition}@{offset}"));
    format!("{} {}{origin}", ticket_text(&stamp.ticket), version_text(stamp.version))
}

fn key_text(key: Option<&bytes::Bytes>) -> String {
    key.map_or("no key".to_owned(), |key| String::from_utf8_lossy(key).into_owned())
}

fn lifecycle_text(lifecycle: &Lifecycle) -> String {
    let kind = match lifecycle.kind {
        LifecycleKind::Created => "created",
        LifecycleKind::Indexed => "indexed",
        LifecycleKind::Superseded => "superseded",
        LifecycleKind::Dropped => "dropped",
        LifecycleKind::Failed => "failed",
    };
    format!("{} {kind}", ticket_text(&lifecycle.ticket))
}

fn produced_text(record: &Produced) -> String {
    if !record.lifecycle.is_empty() {
        return format!("{} [{}]", record.topic, items(&record.lifecycle, |_| false, lifecycle_text));
    }
    let stamp = record.stamp.map_or("no envelope".to_owned(), |stamp| stamp_text(&stamp));
    format!("{} {} {stamp}", record.topic, key_text(record.key.as_ref()))
}

fn delivered_text(record: &Delivered) -> String {
    let position = &record.position;
    let stamp = record.stamp.map_or("no envelope".to_owned(), |stamp| ticket_text(&stamp.ticket));
    let key = key_text(record.key.as_ref());
    format!("{}@{} e{} {key} {stamp}", position.partition, position.offset, position.epoch.0)
}

fn assigned_text(one: &AssignedPartition) -> String {
    let committed = one.committed.map_or("nothing".to_owned(), |offset| offset.to_string());
    format!("{} e{} from {} ({committed} committed)", one.partition, one.epoch.0, one.start)
}

fn write_text(write: &IndexWrite) -> String {
    let version = write.version.map_or(String::new(), |version| format!(" {}", version_text(version)));
    let position = write.position.as_ref().map_or(String::new(), |position| {
        format!(" from {}@{} e{}", position.partition, position.offset, position.epoch.0)
    });
    format!("{} {}{version} {}{position}", kind_text(write.kind), write.id, ticket_text(&write.ticket))
}

fn outcome_text(outcome: &WriteOutcome) -> String {
    match outcome {
        WriteOutcome::Applied => "applied".to_owned(),
        WriteOutcome::Duplicate => "duplicate".to_owned(),
        WriteOutcome::Superseded(current) => format!("superseded by {}", version_text(*current)),
        WriteOutcome::Throttled => "throttled".to_owned(),
        WriteOutcome::Rejected => "rejected".to_owned(),
    }
}

fn summary_text(summary: &RunSummary) -> String {
    let RunSummary { published, children, indexed, superseded, dropped, failed, ambiguous, conflicts } = summary;
    let mut text = format!(
        "{published} published, {children} children, {indexed} indexed, {superseded} superseded, {dropped} dropped, \
         {failed} failed"
    );
    let rare = [(ambiguous, "ambiguous"), (conflicts, "in conflict")];
    for (count, name) in rare {
        if *count > 0 {
            let _ = write!(text, ", {count} {name}");
        }
    }
    text
}

#[cfg(test)]
#[path = "explain/tests.rs"]
mod tests;
