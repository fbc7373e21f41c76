//! Stages that edit fields in place.

use compact_str::CompactString;

use crate::document::{Document, UpdateMode, Value};
use crate::stage::{StageError, StageSpec};
use crate::stages::Template;

/// Gives fields fixed values.
#[derive(Clone, Debug)]
pub struct SetStatic;

impl SetStatic {
    /// Gives each field its value.
    pub fn spec(name: &str, values: &[(&str, Value)], mode: UpdateMode) -> StageSpec {
        let values: Vec<_> = values.iter().map(|(field, value)| ((*field).to_owned(), value.clone())).collect();
        StageSpec::map(name, move |document| {
            for (field, value) in &values {
                match mode {
                    UpdateMode::Overwrite => document.set(field, value.clone())?,
                    mode => document.update(field, mode, vec![value.clone()])?,
                }
            }
            Ok(())
        })
    }
}

/// Renames fields.
#[derive(Clone, Debug)]
pub struct RenameFields;

impl RenameFields {
    /// Renames `(from, to)`, one pair after another; `mode` says what becomes of a field that has the new name. The old
    /// name goes in any case.
    pub fn spec(name: &str, names: &[(&str, &str)], mode: UpdateMode) -> StageSpec {
        let names = owned(names);
        StageSpec::map(name, move |document| {
            for (from, to) in &names {
                if mode == UpdateMode::Overwrite || !document.has(to) {
                    document.rename(from, to)?;
                } else if from != to && document.has(from) {
                    merge(document, from, to, mode)?;
                    document.remove(from)?;
                }
            }
            Ok(())
        })
    }
}

/// Copies fields.
#[derive(Clone, Debug)]
pub struct CopyFields;

impl CopyFields {
    /// Copies `(from, to)`, one pair after another; `mode` says what becomes of a field that is there.
    pub fn spec(name: &str, names: &[(&str, &str)], mode: UpdateMode) -> StageSpec {
        let names = owned(names);
        StageSpec::map(name, move |document| {
            for (from, to) in &names {
                if mode == UpdateMode::Overwrite || !document.has(to) {
                    document.copy(from, to)?;
                } else {
                    merge(document, from, to, mode)?;
                }
            }
            Ok(())
        })
    }
}

fn merge(document: &mut Document, from: &str, to: &str, mode: UpdateMode) -> Result<(), StageError> {
    let values = document.get_list(from)?.unwrap_or_default();
    Ok(document.update(to, mode, values)?)
}

/// Takes the white space from both ends of strings.
#[derive(Clone, Debug)]
pub struct TrimWhitespace;

impl TrimWhitespace {
    /// Trims the strings in `fields`, also in lists; fields without need stay untouched.
    pub fn spec(name: &str, fields: &[&str]) -> StageSpec {
        let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
        StageSpec::map(name, move |document| {
            for field in &fields {
                let Some(content) = document.get(field) else { continue };
                if content.is_string() {
                    let trimmed = content.text().and_then(|text| trimmed(&text));
                    if let Some(trimmed) = trimmed {
                        document.set(field, trimmed)?;
                    }
                    continue;
                }
                let items = content.items();
                let mut texts = items.into_iter().filter(|item| item.is_string()).filter_map(|item| item.text());
                if texts.any(|text| trimmed(&text).is_some()) {
                    document.edit(field, trim)?;
                }
            }
            Ok(())
        })
    }
}

fn trim(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.trim().into(),
        Value::Array(items) => items.iter_mut().filter(|item| item.as_str().is_some()).for_each(trim),
        _ => {}
    }
}

/// `text` without the space around it, if there is any.
fn trimmed(text: &str) -> Option<CompactString> {
    let trimmed = text.trim();
    (trimmed.len() < text.len()).then(|| trimmed.into())
}

/// Joins fields into one text.
#[derive(Clone, Debug)]
pub struct Concatenate;

impl Concatenate {
    /// Sets `field` to `format`, as `{first_name} {last_name}`, with the first value of each field in its place, and
    /// nothing for a field that is absent.
    pub fn spec(name: &str, field: &str, format: Template) -> StageSpec {
        let field = field.to_owned();
        StageSpec::map(name, move |document| {
            let text = format.render(|name| document.get_str(name));
            Ok(document.set(&field, text)?)
        })
    }
}

fn owned(names: &[(&str, &str)]) -> Vec<(String, String)> {
    names.iter().map(|&(from, to)| (from.to_owned(), to.to_owned())).collect()
}
