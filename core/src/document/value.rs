//! An ordered JSON value that keeps the text of numbers.
//!
//! A document's fields become values only when somebody edits them. Objects keep the order of their members; a
//! duplicate name keeps the first place and the last value. Two numbers are equal when their texts are.

use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};

use compact_str::{CompactString, ToCompactString};
use indexmap::IndexMap;

use super::text;

/// How many containers may lie within one another in a [`Value`], the outermost counted.
pub const VALUE_LEVELS_MAX: usize = 128;

/// A fixed hasher: order never depends on it, and runs do not differ by it.
pub(crate) type FixedState = BuildHasherDefault<DefaultHasher>;

/// The members of an object, in order.
pub type Object = IndexMap<CompactString, Value, FixedState>;

/// A JSON value. Dropping, comparing and writing recurse, so values are kept to [`VALUE_LEVELS_MAX`] by whoever stores
/// them.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it was written.
    Number(Number),
    /// A string.
    String(CompactString),
    /// A list.
    Array(Vec<Value>),
    /// An object.
    Object(Box<Object>),
}

/// A number, kept as its JSON text.
#[derive(Clone, PartialEq, Eq)]
pub struct Number(CompactString);

/// Text that is no [`Value`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not one JSON value.
    #[error("not JSON at line {line}, column {column}: {reason}")]
    NotJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the reader stumbled over.
        reason: String,
    },
    /// Containers within containers beyond the limit.
    #[error("nested more than {VALUE_LEVELS_MAX} levels deep: such a value can be passed on but not edited")]
    TooDeep,
}

impl ValueError {
    pub(crate) fn not_json(error: &serde_json::Error) -> Self {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
        ValueError::NotJson { line: error.line(), column: error.column(), reason }
    }
}

impl Number {
    /// The number that `text` is, if it is a JSON number.
    pub fn parse(text: &str) -> Option<Self> {
        let checked = text::check(text).ok()?;
        (checked.len() == text.len() && matches!(text.as_bytes()[0], b'-' | b'0'..=b'9'))
            .then(|| Self::from_checked(text))
    }

    pub(crate) fn from_checked(text: &str) -> Self {
        Number(CompactString::new(text))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its value, when it is a whole number written plainly that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The nearest double.
    pub fn as_f64(&self) -> f64 {
        self.0.parse().expect("a JSON number is a Rust float literal")
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value {
    /// Reads one JSON value.
    pub fn parse(json: &str) -> Result<Self, ValueError> {
        text::decode(text::check(json)?, VALUE_LEVELS_MAX)
    }

    /// Appends it as JSON, without space.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(true) => out.extend_from_slice(b"true"),
            Value::Bool(false) => out.extend_from_slice(b"false"),
            Value::Number(number) => out.extend_from_slice(number.0.as_bytes()),
            Value::String(string) => text::write_string(out, string),
            Value::Array(items) => {
                out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    item.write_json(out);
                }
                out.push(b']');
            }
            Value::Object(object) => {
                out.push(b'{');
                for (at, (name, value)) in object.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    text::write_string(out, name);
                    out.push(b':');
                    value.write_json(out);
                }
                out.push(b'}');
            }
        }
    }

    /// It as JSON text.
    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out);
        String::from_utf8(out).expect("strings and numbers are UTF-8")
    }

    /// The string, when it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(string) = self { Some(string) } else { None }
    }

    /// The member or element that `path` leads to: a name in an object, a position in a list.
    pub fn at(&self, path: &[&str]) -> Option<&Value> {
        path.iter().try_fold(self, |value, step| match value {
            Value::Object(object) => object.get(*step),
            Value::Array(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Puts `value` where `path` leads, making objects on the way where there is nothing or `null`. False, and
    /// nothing changed, when a scalar or a missing list element is in the way. A position equal to the length of a
    /// list appends.
    pub fn put(&mut self, path: &[&str], value: Value) -> bool {
        let Some((step, rest)) = path.split_first() else {
            *self = value;
            return true;
        };
        match self {
            Value::Null => {
                let mut object = Object::default();
                let mut member = Value::Null;
                let done = member.put(rest, value);
                object.insert(CompactString::new(step), member);
                *self = Value::from(object);
                done
            }
            Value::Object(object) => match object.get_mut(*step) {
                Some(member) => member.put(rest, value),
                None => {
                    let mut member = Value::Null;
                    let done = member.put(rest, value);
                    object.insert(CompactString::new(step), member);
                    done
                }
            },
            Value::Array(items) => match step.parse::<usize>() {
                Ok(at) if at < items.len() => items[at].put(rest, value),
                Ok(at) if at == items.len() => {
                    let mut item = Value::Null;
                    let done = item.put(rest, value);
                    items.push(item);
                    done
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Bytes of its JSON, about: escapes are not counted.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Value::Null | Value::Bool(_) => 4,
            Value::Number(number) => number.0.len(),
            Value::String(string) => string.len() + 2,
            Value::Array(items) => 2 + items.iter().map(|item| item.weight() + 1).sum::<usize>(),
            Value::Object(object) => {
                2 + object.iter().map(|(name, item)| name.len() + item.weight() + 4).sum::<usize>()
            }
        }
    }

    /// Whether more than `levels` containers lie within one another. Looks no deeper than that.
    pub(crate) fn is_deeper_than(&self, levels: usize) -> bool {
        match self {
            Value::Array(items) => levels == 0 || items.iter().any(|item| item.is_deeper_than(levels - 1)),
            Value::Object(object) => levels == 0 || object.values().any(|member| member.is_deeper_than(levels - 1)),
            _ => false,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

macro_rules! from {
    ($($from:ty, $value:ident => $into:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $into
            }
        }
    )*};
}

from! {
    bool, value => Value::Bool(value);
    Number, value => Value::Number(value);
    CompactString, value => Value::String(value);
    String, value => Value::String(value.into());
    &str, value => Value::String(value.into());
    std::borrow::Cow<'_, str>, value => Value::String(value.into());
    i32, value => Value::Number(Number(value.to_compact_string()));
    i64, value => Value::Number(Number(value.to_compact_string()));
    u32, value => Value::Number(Number(value.to_compact_string()));
    u64, value => Value::Number(Number(value.to_compact_string()));
    Vec<Value>, value => Value::Array(value);
    Object, value => Value::Object(Box::new(value));
}

impl From<f64> for Value {
    /// `null` for what JSON has no number for.
    fn from(value: f64) -> Self {
        if value.is_finite() { Value::Number(Number(format!("{value:?}").into())) } else { Value::Null }
    }
}
