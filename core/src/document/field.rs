//! One field of a document: text as it was read, or a value as it was set.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::text;
use super::value::{VALUE_LEVELS_MAX, Value, ValueError};

/// No place in a source.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// How a document holds a field.
#[derive(Clone)]
pub(crate) enum Field {
    /// Checked JSON text: the range of the document's source from `start` to `end`. `key` is where its name's quote
    /// opens, as long as the name is written there as the document has it; [`UNKNOWN`] otherwise.
    Source { key: u32, start: u32, end: u32 },
    /// Checked JSON text of another document's source.
    Text(Box<Bytes>),
    /// Set by somebody; at most [`VALUE_LEVELS_MAX`] deep.
    Value(Value),
    /// A string that many documents share.
    Shared(Arc<str>),
    /// Attached children, each the JSON of one.
    Documents(Vec<Bytes>),
}

// A small document's fields fit what an allocator hands out quickly.
const _: () = assert!(size_of::<Field>() <= 32);

impl Field {
    /// The same content under another name.
    pub(crate) fn renamed(self) -> Field {
        match self {
            Field::Source { start, end, .. } => Field::Source { key: UNKNOWN, start, end },
            other => other,
        }
    }

    /// As JSON text that no longer needs `source`, sharing its memory.
    pub(crate) fn detached(&self, source: &Bytes) -> Field {
        match self {
            &Field::Source { start, end, .. } => Field::Text(Box::new(source.slice(start as usize..end as usize))),
            other => other.clone(),
        }
    }

    pub(crate) fn view<'a>(&'a self, source: &'a Bytes) -> Option<FieldRef<'a>> {
        let text = |bytes| std::str::from_utf8(bytes).expect("a document's source was checked when it was read");
        match self {
            &Field::Source { start, end, .. } => Some(FieldRef::Json(text(&source[start as usize..end as usize]))),
            Field::Text(bytes) => Some(FieldRef::Json(text(bytes))),
            Field::Value(value) => Some(FieldRef::Value(value)),
            Field::Shared(string) => Some(FieldRef::Shared(string)),
            Field::Documents(_) => None,
        }
    }

    /// The JSON of each element of a list, of anything else as a list of one.
    pub(crate) fn element_texts(&self, source: &Bytes) -> Vec<Bytes> {
        if let Field::Documents(children) = self {
            return children.clone();
        }
        let owner = if let Field::Text(bytes) = self { bytes } else { source };
        let items = self.view(source).map_or_else(Vec::new, FieldRef::items);
        let text = |item| match item {
            FieldRef::Json(json) => owner.slice_ref(json.as_bytes()),
            other => {
                let mut json = Vec::new();
                other.write_json(&mut json);
                Bytes::from(json)
            }
        };
        items.into_iter().map(text).collect()
    }

    /// Bytes of its JSON, about.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Field::Source { start, end, .. } => (end - start) as usize,
            Field::Text(bytes) => bytes.len(),
            Field::Value(value) => value.weight(),
            Field::Shared(string) => string.len(),
            Field::Documents(children) => children.iter().map(Bytes::len).sum(),
        }
    }

    pub(crate) fn write_json(&self, source: &Bytes, out: &mut Vec<u8>) {
        match self {
            &Field::Source { start, end, .. } => out.extend_from_slice(&source[start as usize..end as usize]),
            Field::Text(bytes) => out.extend_from_slice(bytes),
            Field::Value(value) => value.write_json(out),
            Field::Shared(string) => text::write_string(out, string),
            Field::Documents(children) => {
                out.push(b'[');
                for (at, child) in children.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(child);
                }
                out.push(b']');
            }
        }
    }
}

/// A field, or an element of one, as a reader sees it.
#[derive(Clone, Copy, Debug)]
pub enum FieldRef<'a> {
    /// JSON text that nobody has touched, without space around it.
    Json(&'a str),
    /// A value.
    Value(&'a Value),
    /// A string that many documents share.
    Shared(&'a str),
}

impl<'a> FieldRef<'a> {
    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        matches!(self, FieldRef::Json("null") | FieldRef::Value(Value::Null))
    }

    /// Whether it is a list.
    pub fn is_list(self) -> bool {
        match self {
            FieldRef::Json(json) => json.starts_with('['),
            FieldRef::Value(value) => matches!(value, Value::Array(_)),
            FieldRef::Shared(_) => false,
        }
    }

    /// Whether it is a string.
    pub fn is_string(self) -> bool {
        match self {
            FieldRef::Json(json) => json.starts_with('"'),
            FieldRef::Value(value) => matches!(value, Value::String(_)),
            FieldRef::Shared(_) => true,
        }
    }

    /// Element 0 of a list, `None` when that is empty; anything else itself.
    pub fn first(self) -> Option<FieldRef<'a>> {
        match self {
            FieldRef::Json(json) if json.starts_with('[') => text::first_element(json).map(FieldRef::Json),
            FieldRef::Value(Value::Array(items)) => items.first().map(FieldRef::Value),
            scalar => Some(scalar),
        }
    }

    /// The elements of a list; anything else as a list of one.
    pub fn items(self) -> Vec<FieldRef<'a>> {
        match self {
            FieldRef::Json(json) if json.starts_with('[') => {
                text::elements(json).into_iter().map(FieldRef::Json).collect()
            }
            FieldRef::Value(Value::Array(items)) => items.iter().map(FieldRef::Value).collect(),
            scalar => vec![scalar],
        }
    }

    /// It as text: a string's content, a number's or a truth value's text, the JSON of a list or an object; `None`
    /// for `null`.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match self {
            FieldRef::Json("null") | FieldRef::Value(Value::Null) => None,
            FieldRef::Json(json) if json.starts_with('"') => Some(text::string(json)),
            FieldRef::Json(json) => Some(Cow::Borrowed(json)),
            FieldRef::Value(Value::String(string)) => Some(Cow::Borrowed(string)),
            FieldRef::Shared(string) => Some(Cow::Borrowed(string)),
            FieldRef::Value(value) => Some(Cow::Owned(value.to_json())),
        }
    }

    /// It as a value of its own.
    pub fn to_value(self) -> Result<Value, ValueError> {
        match self {
            FieldRef::Json(json) => text::decode(json, VALUE_LEVELS_MAX),
            FieldRef::Value(value) => Ok(value.clone()),
            FieldRef::Shared(string) => Ok(Value::from(string)),
        }
    }

    /// Appends it as JSON; untouched text as it is.
    pub fn write_json(self, out: &mut Vec<u8>) {
        match self {
            FieldRef::Json(json) => out.extend_from_slice(json.as_bytes()),
            FieldRef::Value(value) => value.write_json(out),
            FieldRef::Shared(string) => text::write_string(out, string),
        }
    }
}
