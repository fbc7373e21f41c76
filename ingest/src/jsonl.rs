//! A connector that reads a file of JSON documents, one a line.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::publisher::Publisher;

/// Bytes read at once: whole lines, at least this many.
const CHUNK_BYTES: usize = 64 * 1024;
/// A longer line is refused: it would be held in memory whole.
const LINE_BYTES_MAX: usize = 64 << 20;

/// What to do with a line that is no document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadLine {
    /// End with an error that names it. What was published before comes to its end.
    #[default]
    Stop,
    /// Count it, keep the first few reasons, and go on.
    Skip,
}

/// Reads `path`, one document a line; empty lines are passed over.
#[derive(Debug)]
pub struct JsonlConnector<E> {
    env: E,
    name: String,
    path: PathBuf,
    on_bad_line: OnBadLine,
    skipped: Skipped,
}

/// Lines that were skipped.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// How many.
    pub lines: u64,
    /// The first few, in words.
    pub first: Vec<String>,
}

const SKIPPED_KEPT: usize = 5;

impl<E: Env> JsonlConnector<E> {
    /// A connector called `name` that reads `path`.
    pub fn new(env: E, name: impl Into<String>, path: impl Into<PathBuf>, on_bad_line: OnBadLine) -> Self {
        JsonlConnector { env, name: name.into(), path: path.into(), on_bad_line, skipped: Skipped::default() }
    }

    /// What was skipped so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    async fn read(&mut self, publisher: &Publisher) -> Result<(), ConnectorError> {
        let mut lines = Lines::open(&self.path)?;
        loop {
            let (back, chunk) = self.env.run_blocking(Duration::from_millis(1), move || lines.chunk()).await;
            lines = back;
            let Some(chunk) = chunk? else { return Ok(()) };
            let mut documents = Vec::with_capacity(chunk.len());
            let mut stopped = Ok(());
            for (number, line) in chunk {
                match Document::parse(line) {
                    Ok(document) => documents.push(document),
                    Err(error) => stopped = self.bad(format!("{}:{number}: {error}", self.path.display())),
                }
                if stopped.is_err() {
                    break;
                }
            }
            publisher.publish_all(documents).await.map_err(|error| ConnectorError(error.to_string()))?;
            stopped?;
        }
    }

    fn bad(&mut self, reason: String) -> Result<(), ConnectorError> {
        if self.on_bad_line == OnBadLine::Stop {
            return Err(ConnectorError(format!("{reason}; mend the line, or skip bad lines")));
        }
        self.skipped.lines += 1;
        if self.skipped.first.len() < SKIPPED_KEPT {
            self.skipped.first.push(reason);
        }
        Ok(())
    }
}

impl<E: Env> Connector for JsonlConnector<E> {
    fn name(&self) -> &str {
        &self.name
    }

    fn pre_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        let opened = Lines::open(&self.path).map(|_| ());
        futures_util::future::ready(opened).boxed()
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        self.read(publisher).boxed()
    }
}

/// The lines of a file, in chunks that share one buffer.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    next_number: u64,
}

type Chunk = Vec<(u64, Bytes)>;

impl Lines {
    fn open(path: &Path) -> Result<Self, ConnectorError> {
        let named = |problem: String| ConnectorError(format!("{}: {problem}", path.display()));
        let file = File::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => named("there is no such file".into()),
            _ => named(error.to_string()),
        })?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(named("this is a folder; name a file of JSON lines".into()));
        }
        Ok(Lines { path: path.to_owned(), reader: BufReader::with_capacity(CHUNK_BYTES, file), next_number: 1 })
    }

    /// The next lines; `None` at the end. Gives itself back, so that it can cross to a blocking thread.
    fn chunk(mut self) -> (Self, Result<Option<Chunk>, ConnectorError>) {
        let chunk = self.read_chunk();
        (self, chunk)
    }

    fn read_chunk(&mut self) -> Result<Option<Chunk>, ConnectorError> {
        let mut buffer = Vec::with_capacity(CHUNK_BYTES + 4_096);
        let mut ends = Vec::new();
        while buffer.len() < CHUNK_BYTES {
            let start = buffer.len();
            let read = self
                .reader
                .read_until(b'\n', &mut buffer)
                .map_err(|error| ConnectorError(format!("{}:{}: {error}", self.path.display(), self.next_number)))?;
            if read == 0 {
                break;
            }
            if read > LINE_BYTES_MAX {
                let problem = format!("a line of {read} bytes; at most {LINE_BYTES_MAX} are taken");
                return Err(ConnectorError(format!("{}:{}: {problem}", self.path.display(), self.next_number)));
            }
            ends.push((self.next_number, start, buffer.len()));
            self.next_number += 1;
        }
        if ends.is_empty() {
            return Ok(None);
        }
        let buffer = Bytes::from(buffer);
        let lines = ends.into_iter().map(|(number, start, end)| (number, trimmed(&buffer, start, end)));
        Ok(Some(lines.filter(|(_, line)| !line.is_empty()).collect()))
    }
}

fn trimmed(buffer: &Bytes, start: usize, end: usize) -> Bytes {
    let line = buffer[start..end].trim_ascii();
    buffer.slice_ref(line)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(content: &[u8]) -> Result<Vec<(u64, String)>, ConnectorError> {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(content).expect("it can be written");
        let mut lines = Lines::open(file.path())?;
        let mut all = Vec::new();
        while let Some(chunk) = lines.read_chunk()? {
            all.extend(chunk.into_iter().map(|(number, line)| (number, String::from_utf8_lossy(&line).into_owned())));
        }
        Ok(all)
    }

    #[test]
    fn lines_are_numbered_and_empty_ones_passed_over() {
        let all = lines(b"{\"a\":1}\r\n\n  \n{\"b\":2}").expect("readable");
        assert_eq!(all, [(1, "{\"a\":1}".to_owned()), (4, "{\"b\":2}".to_owned())]);
        let many = "x\n".repeat(300_000);
        let all = lines(many.as_bytes()).expect("readable");
        assert_eq!((all.len(), all[299_999].0), (300_000, 300_000));
    }

    #[test]
    fn a_missing_file_and_a_folder_are_named() {
        let missing = Lines::open(Path::new("/no/such/file.jsonl")).expect_err("there is none");
        assert_eq!(missing.to_string(), "/no/such/file.jsonl: there is no such file");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = Lines::open(folder.path()).expect_err("a folder");
        assert!(error.to_string().ends_with("this is a folder; name a file of JSON lines"), "{error}");
    }
}
