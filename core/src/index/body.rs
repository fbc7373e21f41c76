//! What an upsert writes: a document, and its JSON for the backends that want that.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::document::{Document, DocumentError};

/// The content of an upsert. A backend that stores JSON reads it as bytes, which are written when they are first asked
/// for ([`Document::to_index_json`]); one that stores fields takes the [`Body::document`] and spares both sides the
/// text.
#[derive(Clone)]
pub struct Body {
    document: Option<Document>,
    json: OnceLock<Bytes>,
}

impl Body {
    /// Its JSON, as it has to be in the index.
    pub fn json(&self) -> &Bytes {
        self.json.get_or_init(|| self.document.as_ref().map_or_else(Bytes::new, Document::to_index_json))
    }

    /// It as a document, which may have fields that are reserved and do not belong into the index.
    pub fn document(&self) -> Result<Document, DocumentError> {
        match &self.document {
            Some(document) => Ok(document.clone()),
            None => Document::parse(self.json().clone()),
        }
    }

    /// Bytes of its JSON, about.
    pub fn weight(&self) -> usize {
        match (self.json.get(), &self.document) {
            (Some(json), _) => json.len(),
            (None, Some(document)) => document.json_weight(),
            (None, None) => 0,
        }
    }
}

impl From<Document> for Body {
    fn from(document: Document) -> Self {
        Body { document: Some(document), json: OnceLock::new() }
    }
}

impl From<Bytes> for Body {
    fn from(json: Bytes) -> Self {
        Body { document: None, json: json.into() }
    }
}

impl Deref for Body {
    type Target = [u8];

    /// Its JSON.
    fn deref(&self) -> &[u8] {
        self.json()
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for Body {}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self))
    }
}
