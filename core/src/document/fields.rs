//! The fields of a document, in order: a list, with an index by name once it is long.
//!
//! Most documents have few fields, and for those a scan beats any hash; the index is ordered, so that no choice of
//! names can make it slow.

use std::collections::BTreeMap;

use compact_str::CompactString;

use super::field::Field;

/// Fields that are found by scanning.
const SCANNED_MAX: usize = 24;

#[derive(Clone)]
struct Entry {
    /// Of the name: differs for most names that differ, so that a scan seldom compares text.
    tag: u32,
    name: CompactString,
    field: Field,
}

#[derive(Clone, Default)]
pub(crate) struct Fields {
    entries: Vec<Entry>,
    /// Where each name is, once there are more than [`SCANNED_MAX`]; empty before.
    index: BTreeMap<CompactString, usize>,
}

impl Fields {
    pub(crate) fn with_capacity(fields: usize) -> Self {
        Fields { entries: Vec::with_capacity(fields), index: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CompactString, &Field)> {
        self.entries.iter().map(|entry| (&entry.name, &entry.field))
    }

    fn position(&self, name: &str) -> Option<usize> {
        if self.index.is_empty() {
            let tag = tag(name);
            self.entries.iter().position(|entry| entry.tag == tag && entry.name == name)
        } else {
            self.index.get(name).copied()
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Field> {
        self.position(name).map(|at| &self.entries[at].field)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Field> {
        self.position(name).map(|at| &mut self.entries[at].field)
    }

    /// Sets a field, in its place or at the end. Whether it was there.
    pub(crate) fn set(&mut self, name: CompactString, field: Field) -> bool {
        if let Some(before) = self.get_mut(&name) {
            *before = field;
            return true;
        }
        if !self.index.is_empty() {
            self.index.insert(name.clone(), self.entries.len());
        }
        self.entries.push(Entry { tag: tag(&name), name, field });
        if self.index.is_empty() && self.entries.len() > SCANNED_MAX {
            self.reindex();
        }
        false
    }

    /// Sets a field that was not there, before all others.
    pub(crate) fn set_first(&mut self, name: CompactString, field: Field) {
        debug_assert!(!self.contains(&name));
        self.entries.insert(0, Entry { tag: tag(&name), name, field });
        self.reindex();
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(at) = self.position(name) else { return false };
        self.entries.remove(at);
        if !self.index.is_empty() {
            self.index.remove(name);
            self.index.values_mut().filter(|place| **place > at).for_each(|place| *place -= 1);
        }
        true
    }

    /// Renames a field in its place; no other may have the new name.
    pub(crate) fn rename(&mut self, from: &str, to: CompactString) {
        debug_assert!(!self.contains(&to));
        let Some(at) = self.position(from) else { return };
        if self.index.remove(from).is_some() {
            self.index.insert(to.clone(), at);
        }
        self.entries[at].tag = tag(&to);
        let entry = &mut self.entries[at];
        entry.name = to;
        entry.field = std::mem::replace(&mut entry.field, Field::Documents(Vec::new())).renamed();
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.entries.retain(|entry| keep(&entry.name));
        self.reindex();
    }

    fn reindex(&mut self) {
        self.index.clear();
        if self.entries.len() > SCANNED_MAX {
            self.index = self.entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at)).collect();
        }
    }
}

fn tag(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    u32::from_le_bytes([bytes.len() as u8, byte(0), byte(bytes.len() / 2), byte(bytes.len().wrapping_sub(1))])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: usize) -> Field {
        Field::Value((number as u64).into())
    }

    fn listed(fields: &Fields) -> Vec<(String, String)> {
        let text = |field: &Field| {
            let mut out = Vec::new();
            field.write_json(&bytes::Bytes::new(), &mut out);
            String::from_utf8(out).unwrap()
        };
        fields.iter().map(|(name, field)| (name.to_string(), text(field))).collect()
    }

    proptest! {
        /// Against a plain list of pairs, on both sides of the length where the index begins.
        #[test]
        fn fields_are_an_ordered_map(steps in prop::collection::vec((0..12u8, 0..40u8, 0..40u8), 0..120)) {
            let mut fields = Fields::default();
            let mut model: Vec<(String, String)> = Vec::new();
            for (number, (step, a, b)) in steps.into_iter().enumerate() {
                let (a, b) = (format!("f{a}"), format!("f{b}"));
                let at = model.iter().position(|(name, _)| *name == a);
                match step {
                    0 => {
                        prop_assert_eq!(fields.remove(&a), at.is_some());
                        at.map(|at| model.remove(at));
                    }
                    1 if a != b => {
                        if at.is_some() {
                            fields.remove(&b);
                            model.retain(|(name, _)| *name != b);
                            fields.rename(&a, b.as_str().into());
                            model.iter_mut().filter(|(name, _)| *name == a).for_each(|(name, _)| *name = b.clone());
                        }
                    }
                    2 if number % 7 == 0 => {
                        fields.retain(|name| name > a.as_str());
                        model.retain(|(name, _)| *name > a);
                    }
                    3 if at.is_none() => {
                        fields.set_first(a.as_str().into(), field(number));
                        model.insert(0, (a.clone(), number.to_string()));
                    }
                    _ => {
                        prop_assert_eq!(fields.set(a.as_str().into(), field(number)), at.is_some());
                        match at {
                            Some(at) => model[at].1 = number.to_string(),
                            None => model.push((a.clone(), number.to_string())),
                        }
                    }
                }
                prop_assert_eq!(listed(&fields), model.clone());
                prop_assert_eq!(fields.contains(&a), model.iter().any(|(name, _)| *name == a));
                prop_assert_eq!(fields.get_mut(&b).is_some(), model.iter().any(|(name, _)| *name == b));
            }
        }
    }
}
