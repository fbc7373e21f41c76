//! What can be wrong with a document.

use std::sync::Arc;

use compact_str::CompactString;

use super::value::ValueError;

/// Why a document could not be read or edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are not UTF-8.
    #[error("the document is not UTF-8 from byte {offset} on")]
    NotUtf8 {
        /// First bad byte.
        offset: usize,
    },
    /// The text is not JSON.
    #[error("the document is not JSON at line {line}, column {column}: {reason}")]
    NotJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the reader stumbled over.
        reason: String,
    },
    /// The JSON is not an object.
    #[error("the document is not a JSON object: {reason}")]
    NotObject {
        /// What it is.
        reason: String,
    },
    /// More text than a document may have.
    #[error("the document has {bytes} bytes: 4 GiB is the most")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// There is no `id`.
    #[error("the document has no `id`: give it a non-empty string")]
    NoId,
    /// The `id` is something else than a string.
    #[error("the document's `id` is {found}: it must be a string")]
    IdNotString {
        /// The start of its JSON.
        found: String,
    },
    /// The `id` is empty.
    #[error("the document's `id` is empty")]
    IdEmpty,
    /// The `run_id` is something else than a string.
    #[error("the `run_id` of document `{id}` is {found}: it must be a string")]
    RunIdNotString {
        /// The document.
        id: CompactString,
        /// The start of its JSON.
        found: String,
    },
    /// The run id is set already.
    #[error("document `{id}` belongs to run `{run_id}` already")]
    RunIdSet {
        /// The document.
        id: CompactString,
        /// Its run.
        run_id: Arc<str>,
    },
    /// An edit of a name that is not the editor's.
    #[error("`{name}` is reserved: a stage cannot set, rename or remove it")]
    Reserved {
        /// The name.
        name: CompactString,
    },
    /// A field whose content cannot be edited.
    #[error("field `{field}`: {error}")]
    Field {
        /// The field.
        field: CompactString,
        /// Why.
        error: ValueError,
    },
    /// A path into a field that ends at a scalar or beyond a list.
    #[error("field `{field}`: nothing can be put at `{path}`: a scalar or the end of a list is in the way")]
    NoSuchPlace {
        /// The field.
        field: CompactString,
        /// The path within it, joined by dots.
        path: String,
    },
    /// `___children` is not a list.
    #[error("`___children` of document `{id}` is not a list")]
    ChildrenNotList {
        /// The document.
        id: CompactString,
    },
    /// An attached child that is not a document.
    #[error("attached child {index} of document `{id}`: {error}")]
    Child {
        /// The parent.
        id: CompactString,
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        error: Box<DocumentError>,
    },
}
