//! The `Backend` port: where an indexer writes.

mod body;
pub mod memory;

use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use futures_util::future::BoxFuture;

pub use body::Body;

use crate::identity::{Position, Ticket, Version};

/// What a write does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Replaces the whole document by this one.
    Upsert(Body),
    /// Removes the document.
    Delete,
}

/// One write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOp {
    /// The index; `None` for the one that the backend was made for. The same id in two of them is two documents.
    pub index: Option<CompactString>,
    /// Id in the index.
    pub id: CompactString,
    /// External version; a backend that checks it refuses what is not above the current one. `None` writes
    /// unconditionally.
    pub version: Option<Version>,
    /// What is written.
    pub action: Action,
    /// Whose outcome this is.
    pub ticket: Ticket,
    /// The record that the indexer read it from, where there is one.
    pub position: Option<Position>,
}

/// What became of one write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ItemOutcome {
    /// It is in the index.
    Applied,
    /// The index already has exactly this version: an earlier try or attempt was applied.
    Duplicate,
    /// The index already has a higher version.
    Superseded {
        /// The version that it has.
        current: Version,
    },
    /// The backend is busy; this item alone may be tried again.
    Throttled,
    /// It will never be taken as it stands.
    Rejected {
        /// The backend's reason.
        reason: String,
    },
}

/// A whole batch that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Nothing was applied; the same batch may be sent again.
    #[error("the search backend is not available: {0}")]
    Unavailable(String),
    /// All, some or none may have been applied, or may be later.
    #[error("the search backend did not answer: {0}")]
    UnknownOutcome(String),
}

/// A search backend, shared by the indexers of a process.
pub trait Backend: Send + Sync + 'static {
    /// Writes a batch in order; one outcome an item, in order.
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>>;
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        (**self).bulk(ops)
    }
}
