//! Puts the histories of several processes together while they are written, and once they are whole.
//!
//! A line is taken when its end is there. What a killed process left of its last line tells of something that it did
//! not begin, and is left out; of a process that ended by itself it is an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use seriatim_sim::history::{Event, What};

use crate::drive::faults::occurrence;
use crate::fault;

/// Most bytes that are read of a file at a time.
const CHUNK: u64 = 4 << 20;

#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// Bytes that were read.
    read: u64,
    /// The line whose end is not there yet.
    rest: Vec<u8>,
    lines: u64,
}

/// What has happened so far, as far as it is written.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    sources: Vec<Source>,
    events: Vec<Event>,
    counts: BTreeMap<fault::Event, u64>,
    published: u64,
    counted: u64,
    complete: bool,
}

impl Gathered {
    /// One more file, which need not be there yet.
    pub(super) fn add(&mut self, path: PathBuf) {
        self.sources.push(Source { path, read: 0, rest: Vec::new(), lines: 0 });
    }

    /// Reads what is new.
    pub(super) fn read(&mut self) -> anyhow::Result<()> {
        let mut sources = std::mem::take(&mut self.sources);
        let read = sources.iter_mut().try_for_each(|source| source.read(|event| self.take(event)));
        self.sources = sources;
        read
    }

    fn take(&mut self, event: Event) {
        if let Some((what, count)) = occurrence(&event.what) {
            *self.counts.entry(what).or_default() += count;
        }
        match &event.what {
            What::PublishInvoked { .. } => self.published += 1,
            What::RecordCounted { .. } => self.counted += 1,
            What::RunComplete { .. } => self.complete = true,
            _ => {}
        }
        self.events.push(event);
    }

    /// How often something happened that a trigger counts.
    pub(super) fn count(&self, of: fault::Event) -> u64 {
        self.counts.get(&of).copied().unwrap_or(0)
    }

    /// Documents that were published.
    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Documents that were published and are not counted as complete.
    pub(super) fn in_flight(&self) -> u64 {
        self.published.saturating_sub(self.counted)
    }

    /// Whether the publisher has declared its run complete.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Everything, `more` too, in the order of time. `was_killed` says of a file whether its process was.
    pub(super) fn merge(mut self, more: Vec<Event>, was_killed: impl Fn(&Path) -> bool) -> anyhow::Result<Vec<Event>> {
        self.read()?;
        for Source { path, rest, lines, .. } in &self.sources {
            if !rest.is_empty() && !was_killed(path) {
                bail!("{}: line {} has no end, though its process ended by itself", path.display(), lines + 1);
            }
        }
        self.events.extend(more);
        // Stable: what one process wrote in one microsecond stays in its order.
        self.events.sort_by_key(|event| event.at);
        Ok(self.events)
    }
}

impl Source {
    fn read(&mut self, mut each: impl FnMut(Event)) -> anyhow::Result<()> {
        loop {
            let mut chunk = Vec::new();
            let mut file = match File::open(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                file => file.with_context(|| format!("cannot read {}", self.path.display()))?,
            };
            file.seek(SeekFrom::Start(self.read))?;
            let count = file.take(CHUNK).read_to_end(&mut chunk)?;
            self.read += count as u64;
            for byte_line in chunk.split_inclusive(|byte| *byte == b'\n') {
                self.rest.extend_from_slice(byte_line);
                if self.rest.ends_with(b"\n") {
                    self.lines += 1;
                    let event = serde_json::from_slice(&self.rest);
                    each(event.with_context(|| format!("{}: line {}", self.path.display(), self.lines))?);
                    self.rest.clear();
                }
            }
            if (count as u64) < CHUNK {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use seriatim_core::env::Instant;

    use super::*;

    fn line(micros: u64, node: &str, what: What) -> String {
        let event = Event { at: Instant::from_micros(micros), node: node.into(), incarnation: 0, what };
        serde_json::to_string(&event).expect("an event is JSON") + "\n"
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
        file.write_all(text.as_bytes()).expect("room");
    }

    fn nodes(events: &[Event]) -> Vec<(u64, &str)> {
        events.iter().map(|event| (event.at.as_micros(), &*event.node)).collect()
    }

    #[test]
    fn lines_are_taken_when_they_are_whole_and_put_in_the_order_of_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let mut gathered = Gathered::default();
        gathered.add(a.clone());
        gathered.add(b.clone());
        gathered.read().expect("no file is no error");
        append(&a, &line(10, "a", What::Started));
        append(&a, &line(30, "a", What::Stopped)[..20]);
        append(&b, &line(20, "b", What::Started));
        gathered.read().expect("readable");
        assert_eq!(nodes(&gathered.events), [(10, "a"), (20, "b")]);
        append(&a, &line(30, "a", What::Stopped)[20..]);
        append(&b, &line(25, "b", What::Stopped));
        let more = vec![serde_json::from_str(&line(22, "world", What::Healed)).expect("an event")];
        let merged = gathered.merge(more, |_| false).expect("whole");
        assert_eq!(nodes(&merged), [(10, "a"), (20, "b"), (22, "world"), (25, "b"), (30, "a")]);
    }

    #[test]
    fn half_a_last_line_is_left_out_of_a_killed_process_and_an_error_of_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        append(&path, &line(10, "a", What::Started));
        append(&path, "{\"at\":11,\"no");
        let gathered = || {
            let mut gathered = Gathered::default();
            gathered.add(path.clone());
            gathered
        };
        assert_eq!(nodes(&gathered().merge(Vec::new(), |_| true).expect("it was killed")), [(10, "a")]);
        let error = gathered().merge(Vec::new(), |_| false).expect_err("it ended by itself").to_string();
        assert!(error.ends_with("a: line 2 has no end, though its process ended by itself"), "{error}");
        append(&path, "nonsense\n");
        let error = format!("{:#}", gathered().merge(Vec::new(), |_| true).expect_err("not an event"));
        assert!(error.contains("a: line 2: "), "{error}");
    }
}
