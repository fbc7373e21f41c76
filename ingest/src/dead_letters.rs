//! Keeps the dead letters of local mode in a file of JSON lines.
//!
//! A line has `id`, `cause`, `run` and `sequence` of the publish, and what was to be processed as `document` (as a
//! string when it is no JSON). Each is written out before its failure is reported, so that nothing waits in memory.
//! What cannot be written is counted, and told with the cause of the failure.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use futures_util::future::{BoxFuture, FutureExt, ready};
use serde::Serialize;
use serde_json::value::RawValue;
use seriatim_core::messenger::{DeadLetter, DeadLetterSink};

/// Appends dead letters to one file.
#[derive(Debug)]
pub struct JsonlDeadLetters {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The last write failed, and may have ended within a line.
    torn: bool,
    kept: u64,
    lost: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    cause: &'a str,
    run: String,
    sequence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Box<RawValue>>,
}

impl JsonlDeadLetters {
    /// Appends to `path`, which is made when it is not there.
    pub fn append_to(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(JsonlDeadLetters { path, state: Mutex::new(State { file, torn: false, kept: 0, lost: 0 }) })
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Letters that were written.
    pub fn kept(&self) -> u64 {
        self.lock().kept
    }

    /// Letters that could not be written.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the file")
    }
}

impl State {
    fn write(&mut self, letters: &[DeadLetter]) -> io::Result<()> {
        let mut lines = if self.torn { b"\n".to_vec() } else { Vec::new() };
        for letter in letters {
            serde_json::to_writer(&mut lines, &line(letter))?;
            lines.push(b'\n');
        }
        self.file.write_all(&lines)
    }
}

fn line(letter: &DeadLetter) -> Line<'_> {
    let DeadLetter { id, envelope, body, cause } = letter;
    let document = body.as_deref().and_then(|body| {
        let text = String::from_utf8_lossy(body);
        // Within JSON line breaks stand between tokens only.
        let json = RawValue::from_string(text.replace(['\n', '\r'], " "));
        json.or_else(|_| serde_json::value::to_raw_value(&text)).ok()
    });
    Line { id, cause, run: envelope.ticket.run.to_string(), sequence: envelope.ticket.sequence, document }
}

impl DeadLetterSink for JsonlDeadLetters {
    fn keep(&self, letters: Vec<DeadLetter>) -> BoxFuture<'_, Result<(), String>> {
        let mut state = self.lock();
        let written = state.write(&letters);
        state.torn = written.is_err();
        let count = letters.len() as u64;
        *if state.torn { &mut state.lost } else { &mut state.kept } += count;
        ready(written.map_err(|error| format!("{}: {error}", self.path.display()))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;
    use seriatim_core::identity::{Envelope, RunId, Ticket};

    use super::*;

    fn letter(id: &str, body: Option<&'static str>) -> DeadLetter {
        let ticket = Ticket { run: RunId(10), sequence: 4, ..Ticket::default() };
        let envelope = Envelope { ticket, ..Envelope::default() };
        DeadLetter { id: id.into(), envelope, body: body.map(Bytes::from), cause: "the\ncause".into() }
    }

    fn keep(letters: &JsonlDeadLetters, letter: DeadLetter) -> Result<(), String> {
        letters.keep(vec![letter]).now_or_never().expect("it waits for nothing")
    }

    #[test]
    fn each_letter_is_a_line_behind_those_of_earlier_runs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("dead.jsonl");
        for body in [Some("{\"id\":\"a\",\n \"n\":1.50}"), Some("{no json\n"), None] {
            let letters = JsonlDeadLetters::append_to(&path).expect("it can be made");
            keep(&letters, letter("a", body)).expect("it can be written");
            assert_eq!((letters.kept(), letters.lost()), (1, 0));
        }
        let text = std::fs::read_to_string(&path).expect("it is there");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        let run = format!("{:032x}", 10);
        let expected = |document: serde_json::Value| match document {
            serde_json::Value::Null => json!({"id": "a", "cause": "the\ncause", "run": run, "sequence": 4}),
            document => json!({"id": "a", "cause": "the\ncause", "run": run, "sequence": 4, "document": document}),
        };
        assert_eq!(lines, [json!({"id": "a", "n": 1.50}), json!("{no json\n"), json!(null)].map(expected));
        assert!(text.contains("\"n\":1.50"), "the text of numbers stays");
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let letters = JsonlDeadLetters::append_to(full).expect("it can be opened");
        let problem = keep(&letters, letter("a", None)).expect_err("there is no room");
        assert!(problem.starts_with("/dev/full: "), "{problem}");
        assert_eq!((letters.kept(), letters.lost()), (0, 1));
    }
}
