//! A document as it was before the stages, for the dead letter that it may become.

use std::sync::Arc;

use bytes::Bytes;

use super::Document;

/// A document as it was at some time, kept without hindering or repeating edits of the document itself.
#[derive(Debug)]
pub(crate) enum Original {
    /// As it was read, and the run that it joined.
    Read { source: Bytes, run_id: Option<Arc<str>> },
    /// Edited before.
    Edited(Document),
}

impl Original {
    pub(crate) fn to_json(&self) -> Bytes {
        match self {
            Original::Read { source, run_id: None } => source.clone(),
            Original::Read { source, run_id: Some(run_id) } => {
                let mut document = Document::parse(source.clone()).expect("it was read before");
                document.initialize_run_id(run_id.clone()).expect("it joined the run after it was read");
                document.to_json()
            }
            Original::Edited(document) => document.to_json(),
        }
    }
}
