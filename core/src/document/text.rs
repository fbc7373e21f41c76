//! JSON text: writing strings, and decoding text that serde_json has already accepted.
//!
//! Nothing here judges untrusted text: callers check it with serde_json first (which walks nested content without
//! recursion), so the reader may rely on the grammar and only has to mind the depth.

use std::borrow::Cow;

use compact_str::CompactString;
use serde_json::value::RawValue;

use super::value::{Number, Object, Value, ValueError};

/// Appends `text` as a JSON string.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[copied..at]);
        copied = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out.push(b'"');
}

/// Checks that `text` is one JSON value, at any depth, and gives it without the space around it.
pub(crate) fn check(text: &str) -> Result<&str, ValueError> {
    serde_json::from_str::<&RawValue>(text).map(RawValue::get).map_err(|error| ValueError::not_json(&error))
}

/// The elements of a checked array, each as text.
pub(crate) fn elements(array: &str) -> Vec<&str> {
    let raw: Vec<&RawValue> = serde_json::from_str(array).expect("the text was checked and is an array");
    raw.into_iter().map(RawValue::get).collect()
}

/// The first element of a checked array.
pub(crate) fn first_element(array: &str) -> Option<&str> {
    let mut reader = Reader { text: array, at: 1 };
    reader.skip_space();
    if reader.peek() == b']' {
        return None;
    }
    let start = reader.at;
    reader.skip_value();
    Some(&array[start..reader.at])
}

/// The content of a checked string, borrowed when it holds no escape. A lone surrogate becomes U+FFFD.
pub(crate) fn string(quoted: &str) -> Cow<'_, str> {
    let inner = &quoted[1..quoted.len() - 1];
    if inner.as_bytes().contains(&b'\\') { Cow::Owned(unescape(inner)) } else { Cow::Borrowed(inner) }
}

/// Decodes a checked value of at most `levels_max` nested containers.
pub(crate) fn decode(text: &str, levels_max: usize) -> Result<Value, ValueError> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    reader.value(levels_max)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> u8 {
        self.text.as_bytes()[self.at]
    }

    fn skip_space(&mut self) {
        while matches!(self.text.as_bytes().get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The string literal that starts here, quotes included.
    fn quoted(&mut self) -> &'a str {
        let (start, bytes) = (self.at, self.text.as_bytes());
        self.at += 1;
        while bytes[self.at] != b'"' {
            self.at += if bytes[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        &self.text[start..self.at]
    }

    /// The literal or number that starts here.
    fn word(&mut self) -> &'a str {
        let start = self.at;
        while !matches!(
            self.text.as_bytes().get(self.at),
            None | Some(b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r')
        ) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// Passes over one value of any depth.
    fn skip_value(&mut self) {
        let mut open = 0usize;
        loop {
            match self.peek() {
                b'"' => drop(self.quoted()),
                b'{' | b'[' => (open, self.at) = (open + 1, self.at + 1),
                b'}' | b']' => (open, self.at) = (open - 1, self.at + 1),
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                _ => drop(self.word()),
            }
            if open == 0 {
                return;
            }
        }
    }

    fn value(&mut self, levels: usize) -> Result<Value, ValueError> {
        Ok(match self.peek() {
            b'"' => Value::String(CompactString::from(string(self.quoted()))),
            b'[' => Value::Array(self.array(levels.checked_sub(1).ok_or(ValueError::TooDeep)?)?),
            b'{' => Value::Object(Box::new(self.object(levels.checked_sub(1).ok_or(ValueError::TooDeep)?)?)),
            _ => match self.word() {
                "null" => Value::Null,
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                number => Value::Number(Number::from_checked(number)),
            },
        })
    }

    /// Stands behind `[` or an element; goes behind `,` (false) or the closing bracket (true).
    fn closes(&mut self, bracket: u8) -> bool {
        self.skip_space();
        let closes = self.peek() == bracket;
        if closes || self.peek() == b',' {
            self.at += 1;
        }
        self.skip_space();
        closes
    }

    fn array(&mut self, levels: usize) -> Result<Vec<Value>, ValueError> {
        let mut items = Vec::new();
        self.at += 1;
        while !self.closes(b']') {
            items.push(self.value(levels)?);
        }
        Ok(items)
    }

    fn object(&mut self, levels: usize) -> Result<Object, ValueError> {
        let mut object = Object::default();
        self.at += 1;
        while !self.closes(b'}') {
            let name = CompactString::from(string(self.quoted()));
            self.skip_space();
            self.at += 1;
            self.skip_space();
            object.insert(name, self.value(levels)?);
        }
        Ok(object)
    }
}

fn unescape(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        match escape {
            b'u' => {
                let unit = hex(rest);
                rest = &rest[4..];
                let low = rest.strip_prefix("\\u").map(hex);
                out.push(match (unit, low) {
                    (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
                        rest = &rest[6..];
                        let code = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                        char::from_u32(code).expect("a surrogate pair is a character")
                    }
                    _ => char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER),
                });
            }
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            other => out.push(char::from(other)),
        }
    }
    out.push_str(rest);
    out
}

/// The four hexadecimal digits that a checked `\u` is followed by.
fn hex(digits: &str) -> u32 {
    u32::from_str_radix(&digits[..4], 16).expect("the text was checked")
}
