//! Faults in words, as reports and plans' readers see them.

use std::fmt;

use super::{Action, Event, Fault, Role, Trigger};

fn seconds(micros: u64) -> String {
    format!("{}.{:03}s", micros / 1_000_000, micros % 1_000_000 / 1_000)
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::At(micros) => write!(f, "at {}", seconds(*micros)),
            Trigger::InFlight { at_least, after_micros: 0 } => write!(f, "when {at_least} records are in flight"),
            Trigger::InFlight { at_least, after_micros } => {
                write!(f, "when {at_least} records are in flight after {}", seconds(*after_micros))
            }
            Trigger::Nth { event, n } => {
                let event = match event {
                    Event::Published => "publish",
                    Event::Taken => "record taken by a worker",
                    Event::Produced => "output of a worker",
                    Event::IndexRequest => "index request",
                    Event::Commit => "commit",
                    Event::Revoking => "revocation",
                    Event::Assigned => "assignment",
                };
                write!(f, "at {event} number {n}")
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let back = |f: &mut fmt::Formatter<'_>, after: &Option<u64>| match after {
            Some(micros) => write!(f, ", back after {}", seconds(*micros)),
            None => f.write_str(", back when the run heals"),
        };
        match self {
            Action::Crash { node, restart_after_micros } => {
                write!(f, "crash {node}")?;
                back(f, restart_after_micros)
            }
            Action::Stop { node, restart_after_micros } => {
                write!(f, "stop {node} in order")?;
                back(f, restart_after_micros)
            }
            Action::Join { role: Role::Worker } => f.write_str("a worker joins"),
            Action::Join { role: Role::Indexer } => f.write_str("an indexer joins"),
            Action::Join { role: Role::Pair } => f.write_str("a node with pairs joins"),
            Action::Pause { node, for_micros } => write!(f, "pause {node} for {}", seconds(*for_micros)),
            Action::Grow { topic, add: 1 } => write!(f, "the {} topic grows by a partition", topic.name()),
            Action::Grow { topic, add } => write!(f, "the {} topic grows by {add} partitions", topic.name()),
            Action::CutLink { node, out, into, for_micros } => {
                let way = match (out, into) {
                    (true, true) => "the link of",
                    (true, false) => "the way out of",
                    _ => "the way into",
                };
                write!(f, "cut {way} {node} for {}", seconds(*for_micros))
            }
            Action::SlowLink { node, extra_micros, for_micros } => {
                let (extra, time) = (seconds(*extra_micros), seconds(*for_micros));
                write!(f, "slow the link of {node} by {extra} each way for {time}")
            }
            Action::Reset { node } => write!(f, "reset the connections of {node}"),
            Action::LoseAnswers { node, count: 1 } => write!(f, "lose an answer to {node}"),
            Action::LoseAnswers { node, count } => write!(f, "lose {count} answers to {node}"),
            Action::Clock { node, ahead_micros, drift_ppm } => {
                let side = if *ahead_micros < 0 { "behind" } else { "ahead" };
                write!(f, "the clock of {node} is {} {side}", seconds(ahead_micros.unsigned_abs()))?;
                if *drift_ppm == 0 { Ok(()) } else { write!(f, " and drifts by {drift_ppm} ppm") }
            }
            Action::Poison { topic, count: 1 } => write!(f, "an unreadable record on the {} topic", topic.name()),
            Action::Poison { topic, count } => write!(f, "{count} unreadable records on the {} topic", topic.name()),
            Action::SlowEvents { extra_micros, for_micros } => {
                write!(f, "slow the topic of events by {} for {}", seconds(*extra_micros), seconds(*for_micros))
            }
            Action::DeleteEvents => f.write_str("delete the topic of events"),
            Action::Index { permille, for_micros, .. } => {
                write!(f, "{} for {} per mille of requests during {}", self.kind(), permille, seconds(*for_micros))
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.trigger, self.action)
    }
}
