//! Reading the outermost object of a document: names, and where the text of each field lies.

use std::fmt;

use bytes::Bytes;
use compact_str::CompactString;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::DocumentError;
use super::field::{Field, FieldRef, UNKNOWN};
use super::fields::Fields;

/// The fields of the object that `source` is, and whether writing them again would only repeat it.
pub(crate) fn read_fields(source: &Bytes) -> Result<(Fields, bool), DocumentError> {
    if u32::try_from(source.len()).is_err() {
        return Err(DocumentError::TooLarge { bytes: source.len() });
    }
    let text = std::str::from_utf8(source).map_err(|error| DocumentError::NotUtf8 { offset: error.valid_up_to() })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = reader.deserialize_map(FieldsVisitor { base: text.as_ptr() as usize });
    read.and_then(|fields| reader.end().map(|()| fields)).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
        match error.classify() {
            serde_json::error::Category::Data => DocumentError::NotObject { reason },
            _ => DocumentError::NotJson { line: error.line(), column: error.column(), reason },
        }
    })
}

/// The start of a field's JSON, for an error.
pub(crate) fn start_of(field: FieldRef<'_>) -> String {
    let mut json = Vec::new();
    field.write_json(&mut json);
    let text = String::from_utf8_lossy(&json);
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

struct FieldsVisitor {
    /// Address of the text, from which positions are reckoned.
    base: usize,
}

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = (Fields, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut fields = Fields::with_capacity(16);
        let mut exact = true;
        while let Some(Name { name, key }) = map.next_key_seed(NameVisitor { base: self.base })? {
            let raw = map.next_value::<&RawValue>()?.get();
            let start = raw.as_ptr() as usize - self.base;
            let field = Field::Source { key, start: place(start), end: place(start + raw.len()) };
            exact &= !fields.set(name, field);
        }
        Ok((fields, exact))
    }
}

/// A name, and where its quote opens in the source if it is written there without escapes.
struct Name {
    name: CompactString,
    key: u32,
}

struct NameVisitor {
    base: usize,
}

impl<'de> DeserializeSeed<'de> for NameVisitor {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, name: &'de str) -> Result<Name, E> {
        let key = place(name.as_ptr() as usize - self.base - 1);
        Ok(Name { name: CompactString::new(name), key })
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Name, E> {
        Ok(Name { name: CompactString::new(name), key: UNKNOWN })
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("the length of the source was checked")
}
