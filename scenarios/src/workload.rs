//! Operations, the ones that a seed draws, and what the index must hold after them.
//!
//! Some fields are read by the stages of the simulated pipeline and by the simulated index ([`marks`]); everything else
//! passes through untouched. The model knows nothing of delivery: it applies operations in their order.

use std::collections::BTreeMap;

use compact_str::{CompactString, ToCompactString, format_compact};
use serde::{Deserialize, Serialize};
use seriatim_sim::history::document_key;

use crate::draws::{Draws, Stream};
use crate::plan::{PlanError, range};

/// Names of fields that make stages, or the index, act.
pub mod marks {
    /// A number: the document emits so many children, [`child_id`](super::child_id).
    pub const CHILDREN: &str = "children";
    /// `true`: the document is dropped, after it emitted its children.
    pub const DROP: &str = "drop";
    /// `true`: a stage fails on the document, after it emitted its children.
    pub const FAIL: &str = "fail";
    /// `true`: a stage panics on the document, after it emitted its children.
    pub const PANIC: &str = "panic";
    /// A number: a stage takes so many milliseconds over the document.
    pub const SLOW_MS: &str = "slow_ms";
    /// A number: a stage is stuck for so many milliseconds the first time that it meets the document.
    pub const STUCK_MS: &str = "stuck_ms";
    /// `true`: the index refuses the document for good.
    pub const REJECT: &str = "reject";
    /// A number that tells apart all writes of an id: the operation's place in the stream.
    pub const REVISION: &str = "revision";
    /// Text: the index that the document lives in, where there are several. An id may be in two of them.
    pub const INDEX: &str = "index";
    /// Of a child: the id of its parent.
    pub const PARENT: &str = "parent";
    /// What the operation is.
    pub const OP: &str = "op";
}

/// What an operation does to its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// Writes a document that should be new. The index does not mind when it is not.
    Create,
    /// Writes a document whole.
    Update,
    /// Removes a document.
    Delete,
}

impl OpKind {
    /// All, in the order in which messages list them.
    pub const ALL: [OpKind; 3] = [OpKind::Create, OpKind::Update, OpKind::Delete];

    /// Its spelling in `op`.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Create => "create",
            OpKind::Update => "update",
            OpKind::Delete => "delete",
        }
    }
}

/// Fields in their order, each value as JSON text.
pub type Fields = Vec<(CompactString, CompactString)>;

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// Id of the document.
    pub id: String,
    /// What is done.
    pub kind: OpKind,
    /// All fields but `id` and `op`.
    pub fields: Fields,
}

fn json_object<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = Vec::with_capacity(160);
    for (name, value) in fields {
        out.push(if out.is_empty() { b'{' } else { b',' });
        write_json_text(&mut out, name);
        out.push(b':');
        out.extend_from_slice(value.as_bytes());
    }
    out.push(b'}');
    String::from_utf8(out).expect("it was put together of text")
}

fn write_json_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a Vec takes everything");
}

/// `text` as JSON.
fn json_text(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_json_text(&mut out, text);
    String::from_utf8(out).expect("JSON is text")
}

impl Op {
    /// The document that the publisher sends: `id`, `op`, then the fields. A delete is the document whose `op` is
    /// `delete`.
    pub fn document(&self) -> String {
        let id = json_text(&self.id);
        let op = format!("\"{}\"", self.kind.name());
        let head = [("id", id.as_str()), (marks::OP, op.as_str())];
        json_object(head.into_iter().chain(self.fields.iter().map(|(name, value)| (name.as_str(), &**value))))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| &**value)
    }

    /// Its document's name among those of all indexes.
    fn key(&self, indexes: bool) -> String {
        let index = self.field(marks::INDEX).filter(|_| indexes);
        document_key(index.map(|name| name.trim_matches('"')), &self.id).into()
    }

    /// Whether the field is `true`.
    pub fn is_marked(&self, mark: &str) -> bool {
        self.field(mark) == Some("true")
    }

    /// How many children the document emits.
    pub fn children(&self) -> u64 {
        self.field(marks::CHILDREN).and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// The id of the `number`-th child of `parent`. It holds the parent's id whole, so a child has one parent.
pub fn child_id(parent: &str, number: u64) -> String {
    format!("{parent}#child-{number}")
}

/// The JSON of the `number`-th child of a document with `revision` (JSON text). Stages must build exactly this.
pub fn child_document(parent: &str, number: u64, revision: &str) -> String {
    let (id, parent) = (json_text(&child_id(parent, number)), json_text(parent));
    json_object([("id", id.as_str()), (marks::PARENT, parent.as_str()), (marks::REVISION, revision)].into_iter())
}

/// A drawn workload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generated {
    /// Operations.
    pub records: u32,
    /// Ids among which they are spread, unevenly: the lower, the busier.
    pub ids: u32,
    /// Deletes, out of a thousand operations on ids that exist.
    pub delete_permille: u32,
    /// Documents with children, out of a thousand.
    pub children_permille: u32,
    /// Most children of one document.
    pub children_max: u32,
    /// Dropped documents, out of a thousand.
    pub drop_permille: u32,
    /// Failing documents, out of a thousand.
    pub fail_permille: u32,
    /// Slow documents, out of a thousand.
    pub slow_permille: u32,
    /// Slowest, milliseconds.
    pub slow_ms_max: u32,
    /// Documents that the index refuses, out of a thousand.
    pub reject_permille: u32,
    /// Documents on which a stage panics, out of a thousand.
    #[serde(default, skip_serializing_if = "is_none")]
    pub panic_permille: u32,
    /// Documents on which a stage is stuck once, out of a thousand.
    #[serde(default, skip_serializing_if = "is_none")]
    pub stuck_permille: u32,
    /// The longest of these, milliseconds.
    #[serde(default, skip_serializing_if = "is_none")]
    pub stuck_ms_max: u32,
    /// Indexes among which ids are spread, each over two; children live in none of them. 0 for one without a name.
    #[serde(default, skip_serializing_if = "is_none")]
    pub indexes: u32,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Generated {
    /// Most operations of a drawn workload.
    pub const RECORDS_MAX: u64 = 10_000_000;

    pub(crate) fn validate(&self) -> Result<(), PlanError> {
        range("workload.records", self.records, (1, Self::RECORDS_MAX), "a run without records shows nothing")?;
        range("workload.ids", self.ids, (1, Self::RECORDS_MAX), "every operation needs an id")?;
        range("workload.children_max", self.children_max, (0, 1_000), "more share no version space")?;
        let counted = "it counts out of a thousand";
        range("workload.delete_permille", self.delete_permille, (0, 1_000), counted)?;
        range("workload.children_permille", self.children_permille, (0, 1_000), counted)?;
        range("workload.drop_permille", self.drop_permille, (0, 1_000), counted)?;
        range("workload.fail_permille", self.fail_permille, (0, 1_000), counted)?;
        range("workload.slow_permille", self.slow_permille, (0, 1_000), counted)?;
        range("workload.reject_permille", self.reject_permille, (0, 1_000), counted)?;
        range("workload.panic_permille", self.panic_permille, (0, 1_000), counted)?;
        range("workload.stuck_permille", self.stuck_permille, (0, 1_000), counted)?;
        range("workload.stuck_ms_max", self.stuck_ms_max, (0, 300_000), "the run waits for it")?;
        range("workload.indexes", self.indexes, (0, 100), "each has a batch of its own")
    }

    /// The operations that `seed` draws.
    pub fn operations(&self, seed: u64) -> Vec<Op> {
        let mut draws = Draws::new(seed, Stream::Workload);
        // Of each id in its first index, and in its second.
        let mut exists = vec![[false; 2]; self.ids as usize];
        (0..self.records).map(|revision| self.operation(u64::from(revision), &mut exists, &mut draws)).collect()
    }

    fn operation(&self, revision: u64, exists: &mut [[bool; 2]], draws: &mut Draws) -> Op {
        // Two draws, one inside the other: half of the operations fall on a sixth of the ids.
        let bound = draws.below(u64::from(self.ids)) + 1;
        let number = draws.below(bound) as usize;
        let deletes = draws.chance(self.delete_permille);
        let second = usize::from(self.indexes > 1 && draws.chance(300));
        let exists = &mut exists[number][second];
        let kind = match (*exists, deletes) {
            (true, true) => OpKind::Delete,
            (true, false) => OpKind::Update,
            // Now and then an id that was never there is deleted: a tombstone from nothing.
            (false, true) if draws.chance(200) => OpKind::Delete,
            (false, _) => OpKind::Create,
        };
        *exists = kind != OpKind::Delete;
        let mut fields: Fields = vec![(marks::REVISION.into(), revision.to_compact_string())];
        let mut mark = |name: &'static str, value: CompactString| fields.push((CompactString::const_new(name), value));
        if self.indexes > 0 {
            mark(marks::INDEX, format_compact!("\"index-{}\"", (number + second) % self.indexes as usize));
        }
        if kind != OpKind::Delete && draws.chance(self.children_permille) {
            mark(marks::CHILDREN, draws.between(1, u64::from(self.children_max.max(1))).to_compact_string());
        }
        if kind != OpKind::Delete && draws.chance(self.reject_permille) {
            mark(marks::REJECT, "true".into());
        }
        if draws.chance(self.drop_permille) {
            mark(marks::DROP, "true".into());
        } else if draws.chance(self.fail_permille) {
            mark(marks::FAIL, "true".into());
        } else if self.panic_permille > 0 && draws.chance(self.panic_permille) {
            mark(marks::PANIC, "true".into());
        }
        if draws.chance(self.slow_permille) {
            mark(marks::SLOW_MS, draws.between(1, u64::from(self.slow_ms_max.max(1))).to_compact_string());
        }
        if self.stuck_permille > 0 && draws.chance(self.stuck_permille) {
            mark(marks::STUCK_MS, draws.between(1, u64::from(self.stuck_ms_max.max(1))).to_compact_string());
        }
        Op { id: format!("doc-{number:03}"), kind, fields }
    }
}

/// How the parents of a workload must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Operations.
    pub published: u64,
    /// Taken by the index (or superseded there).
    pub indexed: u64,
    /// Dropped by a stage.
    pub dropped: u64,
    /// Failed in a stage, or refused by the index.
    pub failed: u64,
    /// Children, all of which are taken by the index.
    pub children: u64,
}

/// What must be true after a workload, however it was delivered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// The index: id to document, as JSON.
    pub index: BTreeMap<String, String>,
    /// How the parents end.
    pub totals: Totals,
}

impl Expected {
    /// Applies `operations` in order. An operation that is dropped, fails or is refused leaves what was there before,
    /// but its children are written all the same, since they came first; nothing removes a child.
    pub fn after(operations: &[Op]) -> Expected {
        Expected::in_indexes(operations, false)
    }

    /// The same, where the mark [`marks::INDEX`] names the index of a document if `indexes` says so.
    pub fn in_indexes(operations: &[Op], indexes: bool) -> Expected {
        let (mut index, mut totals) = (BTreeMap::new(), Totals::default());
        for op in operations {
            totals.published += 1;
            for number in 0..op.children() {
                index.insert(child_id(&op.id, number), (op, Some(number)));
                totals.children += 1;
            }
            if op.is_marked(marks::DROP) {
                totals.dropped += 1;
            } else if op.is_marked(marks::FAIL)
                || op.is_marked(marks::PANIC)
                || (op.kind != OpKind::Delete && op.is_marked(marks::REJECT))
            {
                totals.failed += 1;
            } else {
                totals.indexed += 1;
                match op.kind {
                    OpKind::Create | OpKind::Update => index.insert(op.key(indexes), (op, None)),
                    OpKind::Delete => index.remove(&op.key(indexes)),
                };
            }
        }
        // Most were written over: only what is left is put into words.
        let document = |(op, child): (&Op, Option<u64>)| match child {
            Some(number) => child_document(&op.id, number, op.field(marks::REVISION).unwrap_or("null")),
            None => op.document(),
        };
        Expected { index: index.into_iter().map(|(key, last)| (key, document(last))).collect(), totals }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn op(id: &str, kind: OpKind, fields: &[(&str, &str)]) -> Op {
        Op { id: id.into(), kind, fields: fields.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect() }
    }

    fn busy() -> Generated {
        Generated {
            records: 600,
            ids: 40,
            delete_permille: 150,
            children_permille: 200,
            children_max: 3,
            drop_permille: 50,
            fail_permille: 50,
            slow_permille: 50,
            slow_ms_max: 20,
            reject_permille: 30,
            panic_permille: 30,
            stuck_permille: 10,
            stuck_ms_max: 20,
            indexes: 3,
        }
    }

    #[test]
    fn the_model_keeps_the_last_indexed_operation_and_every_child() {
        use OpKind::{Create, Delete, Update};
        let expected = Expected::after(&[
            op("a", Create, &[("revision", "0"), ("children", "2")]),
            op("b", Create, &[("revision", "1")]),
            op("a", Update, &[("revision", "2"), ("fail", "true"), ("children", "1")]),
            op("b", Delete, &[("revision", "3"), ("drop", "true")]),
            op("c", Create, &[("revision", "4"), ("reject", "true")]),
            op("d", Create, &[("revision", "5")]),
            op("d", Delete, &[("revision", "6")]),
            op("b", Update, &[("revision", "7"), ("panic", "true")]),
        ]);
        let lines: Vec<&str> = expected.index.values().map(String::as_str).collect();
        assert_eq!(
            lines,
            [
                r#"{"id":"a","op":"create","revision":0,"children":2}"#,
                r##"{"id":"a#child-0","parent":"a","revision":2}"##,
                r##"{"id":"a#child-1","parent":"a","revision":0}"##,
                r#"{"id":"b","op":"create","revision":1}"#,
            ]
        );
        assert_eq!(expected.totals, Totals { published: 8, indexed: 4, dropped: 1, failed: 3, children: 3 });
    }

    #[test]
    fn a_drawn_workload_is_repeatable_skewed_and_has_everything_asked_for() {
        let ops = busy().operations(3);
        assert_eq!(ops, busy().operations(3));
        assert_ne!(ops, busy().operations(4));
        let on = |id: &str| ops.iter().filter(|op| op.id == id).count();
        assert!(on("doc-000") > 30, "{}", on("doc-000"));
        for mark in [marks::DROP, marks::FAIL, marks::PANIC, marks::REJECT] {
            assert!(ops.iter().any(|op| op.is_marked(mark)), "{mark}");
        }
        for kind in OpKind::ALL {
            assert!(ops.iter().any(|op| op.kind == kind), "{kind:?}");
        }
        assert!(ops.iter().any(|op| op.children() > 1));
        let of = |id: &str| ops.iter().filter(|op| op.id == id).map(|op| op.key(true)).collect::<BTreeSet<_>>();
        assert_eq!(of("doc-000"), ["index-0/doc-000".into(), "index-1/doc-000".into()].into());
        assert_eq!(of("doc-002"), ["index-0/doc-002".into(), "index-2/doc-002".into()].into());
        assert!(ops.iter().all(|op| op.kind != OpKind::Delete || (op.children() == 0 && !op.is_marked(marks::REJECT))));
    }
}
