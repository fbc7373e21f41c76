//! A backend that writes documents as rows of a CSV file, in the order in which they are indexed.
//!
//! A file of rows has no versions and cannot delete: such writes are rejected, so that nothing disappears unseen.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use futures_util::future::{BoxFuture, FutureExt, ready};
use seriatim_core::document::is_reserved;
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};

/// Bytes written to the file at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// Appends rows to one file.
#[derive(Debug)]
pub struct CsvSink {
    columns: Vec<String>,
    writer: Mutex<csv::Writer<File>>,
}

impl CsvSink {
    /// Creates `path`, or empties it, and writes the header row.
    pub fn create(path: &Path, columns: &[&str]) -> Result<Self, csv::Error> {
        let mut writer = csv::WriterBuilder::new().buffer_capacity(BUFFER_BYTES).from_writer(File::create(path)?);
        writer.write_record(columns)?;
        Ok(CsvSink { columns: columns.iter().map(|&name| name.to_owned()).collect(), writer: Mutex::new(writer) })
    }

    /// Writes out what is buffered.
    pub fn flush(&self) -> std::io::Result<()> {
        self.lock().flush()
    }

    fn lock(&self) -> MutexGuard<'_, csv::Writer<File>> {
        self.writer.lock().expect("no code panics while it holds the file")
    }

    fn write(&self, writer: &mut csv::Writer<File>, op: &IndexOp) -> Result<ItemOutcome, BackendError> {
        let rejected = |reason: String| Ok(ItemOutcome::Rejected { reason });
        let Action::Upsert(body) = &op.action else {
            return rejected("a CSV file cannot delete a row that it has written".into());
        };
        let document = match body.document() {
            Ok(document) => document,
            Err(error) => return rejected(error.to_string()),
        };
        let write = |error: csv::Error| BackendError::UnknownOutcome(format!("writing a row: {error}"));
        for column in &self.columns {
            let field = match column.as_str() {
                "id" => Some(document.id().as_str().into()),
                reserved if is_reserved(reserved) => None,
                column => document.get_str(column),
            };
            writer.write_field(field.as_deref().unwrap_or_default()).map_err(write)?;
        }
        writer.write_record(None::<&[u8]>).map_err(write)?;
        Ok(ItemOutcome::Applied)
    }
}

impl Backend for CsvSink {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        let writer = &mut *self.lock();
        ready(ops.iter().map(|op| self.write(writer, op)).collect()).boxed()
    }
}
