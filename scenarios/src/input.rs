//! Anybody's operations: a JSONL file with `id`, `op` and other fields.
//!
//! A line is read, checked and turned into an [`Op`] by itself. Nothing is guessed and nothing passes silently: a
//! line that is no operation is named by file, line and column with a reason and what to do, and it either ends the
//! reading or is skipped and counted. Only empty lines are passed over without a word.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::workload::{Fields, Op, OpKind};

/// What a bad line does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum OnError {
    /// Ends the reading.
    #[default]
    Stop,
    /// Is counted and passed over.
    Skip,
}

/// Longest id, bytes: as OpenSearch has it.
pub const ID_BYTES_MAX: usize = 512;
/// Largest document, bytes: with its headers it fits into a record of Kafka's default limit.
pub const DOCUMENT_BYTES_MAX: usize = 900_000;
/// Longest line, bytes.
pub const LINE_MAX: u64 = 64 << 20;
/// Skipped lines that are kept to be shown; the rest is only counted.
pub const SHOWN_MAX: usize = 5;

/// Fields that the pipeline keeps for itself.
const RESERVED: [&str; 4] = ["run_id", "___children", "___dropped", "___skipped"];

/// Why a line is no operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// Not UTF-8.
    #[error("not UTF-8 text; convert the file to UTF-8")]
    NotUtf8,
    /// Not JSON.
    #[error("not JSON ({0}); write one JSON object a line")]
    NotJson(String),
    /// JSON, but no object.
    #[error("JSON, but no object; write one JSON object a line")]
    NotObject,
    /// No `id`.
    #[error("no `id`; add a field `id` with the document's id as a string")]
    NoId,
    /// `id` of another type.
    #[error("`id` is {0}, not a string; put it in quotes")]
    IdNotString(String),
    /// `id` is longer than a search index takes.
    #[error("`id` has {0} bytes; a search index takes ids of at most {ID_BYTES_MAX}")]
    IdTooLong(usize),
    /// The document is larger than a record may be.
    #[error("the document has {0} bytes; a record of the simulated Kafka takes at most {DOCUMENT_BYTES_MAX}")]
    TooLarge(usize),
    /// `id` of no length.
    #[error("`id` is empty; give the document an id of at least one character")]
    IdEmpty,
    /// No `op`.
    #[error("no `op`; add a field `op` that is one of {known}", known = known())]
    NoOp,
    /// `op` that is none of the known.
    #[error("unknown op {0}; `op` is one of {known}", known = known())]
    UnknownOp(String),
    /// A field twice that must be there once.
    #[error("`{0}` is given twice; keep one")]
    Twice(&'static str),
    /// A name that belongs to the pipeline.
    #[error("`{0}` is a name that the pipeline keeps for itself; rename the field")]
    Reserved(String),
    /// Too long.
    #[error("longer than {} MiB; split the document", LINE_MAX >> 20)]
    TooLong,
}

fn known() -> String {
    OpKind::ALL.map(|kind| format!("`{}`", kind.name())).join(", ")
}

/// A line that is no operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLine {
    /// The file.
    pub path: PathBuf,
    /// Number of the line, from 1.
    pub line: u64,
    /// Number of the byte in the line, from 1, where it is known.
    pub column: Option<usize>,
    /// What is wrong, and the next step.
    pub reason: Reason,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)?;
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// A file that gives no operations.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be opened or read.
    #[error("cannot read {}: {error}; check the path given to --input", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// It is a directory.
    #[error("{} is a directory; give --input one JSONL file", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// It has nothing in it.
    #[error("{} has no operations; write one JSON object a line with `id` and `op`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line is bad, and bad lines stop.
    #[error("{0}\n(`--on-error skip` leaves bad lines out and goes on)")]
    Line(BadLine),
    /// Every line is bad.
    #[error("every one of the {skipped} lines of {} is bad; the first: {first}", path.display())]
    NothingLeft {
        /// The file.
        path: PathBuf,
        /// How many lines.
        skipped: u64,
        /// The first of them.
        first: BadLine,
    },
}

/// What a file gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Input {
    /// The operations in order.
    pub operations: Vec<Op>,
    /// Bad lines that were passed over.
    pub skipped: u64,
    /// The first [`SHOWN_MAX`] of them.
    pub shown: Vec<BadLine>,
}

/// Reads a whole file.
pub fn read(path: &Path, on_error: OnError) -> Result<Input, InputError> {
    let unreadable = |error| InputError::Unreadable { path: path.to_owned(), error };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(InputError::Directory { path: path.to_owned() });
    }
    read_lines(path, BufReader::new(file), on_error)
}

/// Reads lines from anything; `path` is only said in messages.
pub fn read_lines(path: &Path, mut lines: impl BufRead, on_error: OnError) -> Result<Input, InputError> {
    let mut input = Input::default();
    let mut text = Vec::new();
    let mut line = 0;
    loop {
        text.clear();
        let unreadable = |error| InputError::Unreadable { path: path.to_owned(), error };
        if lines.by_ref().take(LINE_MAX + 1).read_until(b'\n', &mut text).map_err(unreadable)? == 0 {
            break;
        }
        line += 1;
        let parsed = if text.len() as u64 > LINE_MAX {
            lines.skip_until(b'\n').map_err(unreadable)?;
            Err((None, Reason::TooLong))
        } else {
            parse(if line == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text) } else { &text })
        };
        match parsed {
            Ok(None) => {}
            Ok(Some(op)) => input.operations.push(op),
            Err((column, reason)) => {
                let bad = BadLine { path: path.to_owned(), line, column, reason };
                if on_error == OnError::Stop {
                    return Err(InputError::Line(bad));
                }
                input.skipped += 1;
                if input.shown.len() < SHOWN_MAX {
                    input.shown.push(bad);
                }
            }
        }
    }
    match (input.operations.is_empty(), input.shown.first()) {
        (false, _) => Ok(input),
        (true, None) => Err(InputError::Empty { path: path.to_owned() }),
        (true, Some(first)) => {
            Err(InputError::NothingLeft { path: path.to_owned(), skipped: input.skipped, first: first.clone() })
        }
    }
}

type Bad = (Option<usize>, Reason);

/// One line; `None` when it is empty.
fn parse(line: &[u8]) -> Result<Option<Op>, Bad> {
    let text = std::str::from_utf8(line).map_err(|error| (Some(error.valid_up_to() + 1), Reason::NotUtf8))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let fields: Pairs = serde_json::from_str(text).map_err(|error| {
        if error.is_data() {
            return (None, Reason::NotObject);
        }
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
        (Some(error.column().max(1)), Reason::NotJson(reason))
    })?;
    operation(fields.0).map(Some).map_err(|reason| (None, reason))
}

fn operation(pairs: Vec<(String, Box<RawValue>)>) -> Result<Op, Reason> {
    let (mut id, mut kind) = (None, None);
    let mut fields = Fields::with_capacity(pairs.len().saturating_sub(2));
    for (name, value) in pairs {
        let text = value.get();
        match name.as_str() {
            "id" if id.is_some() => return Err(Reason::Twice("id")),
            "op" if kind.is_some() => return Err(Reason::Twice("op")),
            "id" => match serde_json::from_str::<String>(text) {
                Ok(text) if text.is_empty() => return Err(Reason::IdEmpty),
                Ok(text) if text.len() > ID_BYTES_MAX => return Err(Reason::IdTooLong(text.len())),
                Ok(text) => id = Some(text),
                Err(_) => return Err(Reason::IdNotString(shortened(text))),
            },
            "op" => {
                let spelt: Option<String> = serde_json::from_str(text).ok();
                let found = OpKind::ALL.into_iter().find(|kind| spelt.as_deref() == Some(kind.name()));
                kind = Some(found.ok_or_else(|| Reason::UnknownOp(shortened(text)))?);
            }
            reserved if RESERVED.contains(&reserved) => return Err(Reason::Reserved(name)),
            // Of a name given twice the last value counts, in the first's place.
            _ => match fields.iter_mut().find(|(known, _)| *known == name) {
                Some((_, old)) => *old = text.into(),
                None => fields.push((name.into(), text.into())),
            },
        }
    }
    let op = Op { id: id.ok_or(Reason::NoId)?, kind: kind.ok_or(Reason::NoOp)?, fields };
    let bytes = op.document().len();
    if bytes > DOCUMENT_BYTES_MAX { Err(Reason::TooLarge(bytes)) } else { Ok(op) }
}

/// A value short enough for a message.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An object's members in order, repeated names and all.
struct Pairs(Vec<(String, Box<RawValue>)>);

impl<'de> serde::Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &[u8], on_error: OnError) -> Result<Input, InputError> {
        read_lines(Path::new("ops.jsonl"), text, on_error)
    }

    const BAD: &[u8] = b"\xef\xbb\xbf{\"id\":\"a\",\"op\":\"create\",\"n\":1.50,\"n\":{\"deep\":[1, 2]}}\r\n\n   \n\
        nonsense\n\
        {\"id\":\"a\",\n\
        [1,2]\n\
        {\"op\":\"create\"}\n\
        {\"id\":7,\"op\":\"create\"}\n\
        {\"id\":\"\",\"op\":\"create\"}\n\
        {\"id\":\"a\"}\n\
        {\"id\":\"a\",\"op\":\"upsert\"}\n\
        {\"id\":\"a\",\"op\":\"create\",\"id\":\"b\"}\n\
        {\"id\":\"a\",\"op\":\"create\",\"op\":\"delete\"}\n\
        {\"id\":\"a\",\"op\":\"create\",\"run_id\":\"x\"}\n\
        {\"id\":\"\xff\",\"op\":\"create\"}\n\
        {\"id\":null,\"op\":\"create\"}\n\
        {\"id\":\"a\",\"op\":\"delete\"} trailing\n\
        {\"id\":\"\\u00e9\",\"op\":\"delete\"}";

    #[test]
    fn every_bad_line_is_named_with_its_place_reason_and_next_step() {
        let messages: Vec<String> = BAD
            .split(|byte| *byte == b'\n')
            .enumerate()
            .filter_map(|(index, line)| {
                let (column, reason) = parse(line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)).err()?;
                Some(BadLine { path: "ops.jsonl".into(), line: index as u64 + 1, column, reason }.to_string())
            })
            .collect();
        insta::assert_snapshot!(messages.join("\n"));
    }

    #[test]
    fn skip_counts_the_bad_and_goes_on_with_the_rest() {
        let input = from(BAD, OnError::Skip).expect("two lines are good");
        assert_eq!(input.skipped, 14);
        assert_eq!(input.shown.iter().map(|bad| bad.line).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
        let documents: Vec<String> = input.operations.iter().map(Op::document).collect();
        assert_eq!(documents, [r#"{"id":"a","op":"create","n":{"deep":[1, 2]}}"#, r#"{"id":"é","op":"delete"}"#]);
    }

    #[test]
    fn an_id_and_a_document_too_large_for_the_pipeline_are_bad_lines() {
        let message = |id: usize, text: usize| {
            let line = format!(r#"{{"id":"{}","op":"create","text":"{}"}}"#, "i".repeat(id), "x".repeat(text));
            from(line.as_bytes(), OnError::Stop).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(message(ID_BYTES_MAX, 800_000), Ok(()));
        let long = message(ID_BYTES_MAX + 1, 0).expect_err("513 bytes");
        assert!(long.starts_with("ops.jsonl:1: `id` has 513 bytes; a search index takes ids of at most 512"), "{long}");
        let large = message(1, DOCUMENT_BYTES_MAX).expect_err("too large");
        assert!(
            large.contains("the document has 900034 bytes; a record") && large.contains("at most 900000"),
            "{large}"
        );
    }

    #[test]
    fn stop_ends_at_the_first_bad_line() {
        let error = from(BAD, OnError::Stop).expect_err("line 4 is bad");
        assert!(error.to_string().starts_with("ops.jsonl:4:2: not JSON (expected ident)"), "{error}");
    }

    #[test]
    fn a_file_that_gives_nothing_is_an_error_that_says_which() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = |path: &Path| {
            let text = read(path, OnError::Skip).expect_err("nothing to read").to_string();
            text.replace(&folder.path().display().to_string(), "FOLDER")
        };
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let empty = write("empty.jsonl", "\n\n");
        let bad = write("bad.jsonl", "{}\n7\n");
        let all =
            [message(&folder.path().join("missing.jsonl")), message(folder.path()), message(&empty), message(&bad)];
        insta::assert_snapshot!(all.join("\n"));
    }

    #[test]
    fn a_line_longer_than_the_limit_is_refused_without_losing_the_next() {
        let long = io::repeat(b'x').take(LINE_MAX + 10).chain(&b"\n{\"id\":\"a\",\"op\":\"create\"}\n"[..]);
        let input = read_lines(Path::new("ops.jsonl"), BufReader::new(long), OnError::Skip).expect("one line is good");
        assert_eq!((input.operations.len(), input.skipped, input.shown[0].line), (1, 1, 1));
        assert_eq!(input.shown[0].reason, Reason::TooLong);
    }
}
