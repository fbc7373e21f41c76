//! The trace of a run: one line an event, and a rolling hash over all of them.
//!
//! Two runs of one seed must give the same hash; where they do not, their traces show the first difference. The hash
//! covers the facts of an event, payloads of requests too; the words of a line are only made where lines are kept.

use std::collections::VecDeque;
use std::fmt::{Display, Write};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use seriatim_core::env::Instant;

use crate::history::RollingHash;

/// How much of the trace is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMode {
    /// The last so many lines. With none, no line is ever put into words, which a run notices in its speed.
    Ring(usize),
    /// All of it.
    Full,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// When.
    pub at: Instant,
    /// On whose side: a node, `kafka`, `index` or `world`.
    pub node: Arc<str>,
    /// What.
    pub text: String,
}

impl std::fmt::Display for TraceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:<12} {}", self.at, self.node, self.text)
    }
}

#[derive(Debug)]
pub(crate) struct Trace {
    mode: TraceMode,
    lines: VecDeque<TraceLine>,
    hash: RollingHash,
    events: u64,
}

impl Trace {
    pub(crate) fn new(mode: TraceMode) -> Self {
        Trace { mode, lines: VecDeque::new(), hash: RollingHash::default(), events: 0 }
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, at: Instant, node: &Arc<str>, event: &(impl Display + Hash)) {
        (at, node).hash(&mut self.hash);
        event.hash(&mut self.hash);
        self.events += 1;
        if self.mode == TraceMode::Ring(0) {
            return;
        }
        // A full ring gives its oldest line's buffer to the newest.
        let mut buffer = match self.mode {
            TraceMode::Ring(limit) if self.lines.len() >= limit => {
                self.lines.pop_front().map(|line| line.text).unwrap_or_default()
            }
            _ => String::new(),
        };
        buffer.clear();
        // Writing to a String does not fail.
        let _ = write!(buffer, "{event}");
        self.lines.push_back(TraceLine { at, node: node.clone(), text: buffer });
    }

    /// Hash of every event so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &TraceLine> {
        self.lines.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_last_lines_and_the_hash_covers_all() {
        let node: Arc<str> = "n".into();
        let run = |mode, first: &str| {
            let mut trace = Trace::new(mode);
            for text in [first, "b", "c"] {
                trace.push(Instant::from_micros(1), &node, &text);
            }
            (trace.hash(), trace.lines().map(|line| line.text.clone()).collect::<Vec<_>>())
        };
        assert_eq!(run(TraceMode::Ring(2), "a").1, ["b", "c"]);
        assert_eq!(run(TraceMode::Full, "a").1, ["a", "b", "c"]);
        assert_eq!(run(TraceMode::Ring(0), "a").0, run(TraceMode::Full, "a").0);
        assert_ne!(run(TraceMode::Full, "a").0, run(TraceMode::Full, "x").0);
    }
}
