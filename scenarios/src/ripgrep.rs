//! Real input that comes with the program: the history of ripgrep's files as operations, and the tree they must end in.
//!
//! Both come from the public repository BurntSushi/ripgrep: the history along its first parents, and, apart from
//! it, the list of the files at the end. The tree is not derived from the history, so that it can judge it. `cargo
//! sim pack` made the compact history from JSONL with `seq`, `id`, `op`, `commit`, `date` and, for what exists
//! after it, `blob` and `size`: tables of ids and commits, then one row an operation, all numbers as LEB128. The
//! tree is plain JSONL.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::workload::{Expected, Fields, Op, OpKind};

const HISTORY: &[u8] = include_bytes!("../data/ripgrep-history.bin");
const TREE: &str = include_str!("../data/ripgrep-tree.jsonl");
const MAGIC: &[u8] = b"seriatim history 1\n";
const BLOB_LEN: usize = 20;

/// How many operations the history has.
pub const OPERATIONS: u64 = 5_397;

/// The history's operations. Unpacked once a process; pure data, so runs share it.
pub fn history() -> Arc<Vec<Op>> {
    static UNPACKED: OnceLock<Arc<Vec<Op>>> = OnceLock::new();
    UNPACKED.get_or_init(|| Arc::new(unpack(HISTORY).expect("the shipped history is whole"))).clone()
}

/// The files at the end: id to blob (40 hex digits).
pub fn tree() -> BTreeMap<String, String> {
    parse_tree(TREE).expect("the shipped tree is whole")
}

/// Reads a tree: JSONL with `id` and `blob`.
pub fn parse_tree(text: &str) -> Result<BTreeMap<String, String>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Entry {
        id: String,
        blob: String,
    }
    text.lines().map(|line| serde_json::from_str(line).map(|Entry { id, blob }| (id, blob))).collect()
}

/// The first id on which a final index (id to document, as JSON) and a tree disagree, in words.
pub fn unlike_index(index: &BTreeMap<String, String>, tree: &BTreeMap<String, String>) -> Option<String> {
    let blob = |document: &String| -> Option<String> {
        let document: serde_json::Value = serde_json::from_str(document).ok()?;
        document.get("blob")?.as_str().map(str::to_owned)
    };
    let ids: std::collections::BTreeSet<&String> = index.keys().chain(tree.keys()).collect();
    ids.into_iter().find_map(|id| match (index.get(id), tree.get(id)) {
        (Some(document), Some(wanted)) if blob(document).as_ref() == Some(wanted) => None,
        (Some(document), Some(wanted)) => Some(format!("`{id}` is {document}; the tree has blob {wanted}")),
        (Some(_), None) => Some(format!("`{id}` is in the index and not in the tree")),
        (None, _) => Some(format!("`{id}` is in the tree and not in the index")),
    })
}

/// The first id on which a history, applied in order, and a tree disagree, in words.
pub fn unlike(history: &[Op], tree: &BTreeMap<String, String>) -> Option<String> {
    unlike_index(&Expected::after(history).index, tree)
}

/// A history that cannot be packed or unpacked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PackError {
    /// An operation without the fields of this shape.
    #[error(
        "operation {0}: {1}; pack takes `seq` (1, 2, 3…), `commit` and `date`, and `blob` (40 hex digits) and `size` unless it is a delete"
    )]
    Shape(usize, String),
    /// Bytes that were not written by pack.
    #[error("not a packed history: {0}")]
    Damaged(&'static str),
}

#[derive(Default)]
struct Table {
    rows: Vec<String>,
    numbers: BTreeMap<String, u64>,
}

impl Table {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.rows.len() as u64;
        self.rows.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    fn write(&self, out: &mut Vec<u8>) {
        put(out, self.rows.len() as u64);
        for row in &self.rows {
            put(out, row.len() as u64);
            out.extend_from_slice(row.as_bytes());
        }
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The compact form of a history of this shape.
pub fn pack(operations: &[Op]) -> Result<Vec<u8>, PackError> {
    let (mut ids, mut commits) = (Table::default(), Table::default());
    let mut rows = Vec::new();
    let mut last_commit = 0;
    for (index, op) in operations.iter().enumerate() {
        let shape = |what: &str| PackError::Shape(index, what.to_owned());
        let names: Vec<&str> = op.fields.iter().map(|(name, _)| name.as_str()).collect();
        let text = |at: usize| serde_json::from_str::<String>(&op.fields[at].1).map_err(|_| shape("not a string"));
        let is_delete = op.kind == OpKind::Delete;
        let wanted: &[&str] =
            if is_delete { &["seq", "commit", "date"] } else { &["seq", "commit", "date", "blob", "size"] };
        if names != wanted {
            return Err(PackError::Shape(index, format!("its fields are {names:?}")));
        }
        if *op.fields[0].1 != *(index + 1).to_string() {
            return Err(shape("`seq` does not count from 1"));
        }
        let commit = commits.number(&format!("{} {}", text(1)?, text(2)?));
        if commit < last_commit {
            return Err(shape("its commit comes back after another"));
        }
        put(&mut rows, ids.number(&op.id) << 2 | op.kind as u64);
        put(&mut rows, commit - last_commit);
        last_commit = commit;
        if !is_delete {
            rows.extend_from_slice(&blob_bytes(&text(3)?).ok_or_else(|| shape("`blob` is not 40 hex digits"))?);
            put(&mut rows, op.fields[4].1.parse().map_err(|_| shape("`size` is not a number"))?);
        }
    }
    let mut out = MAGIC.to_vec();
    ids.write(&mut out);
    commits.write(&mut out);
    put(&mut out, operations.len() as u64);
    out.extend_from_slice(&rows);
    Ok(out)
}

fn blob_bytes(hex: &str) -> Option<[u8; BLOB_LEN]> {
    let mut out = [0; BLOB_LEN];
    if hex.len() != 2 * BLOB_LEN || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(out)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], PackError> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(PackError::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn number(&mut self) -> Result<u64, PackError> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(PackError::Damaged("a number is too long"))
    }

    fn text(&mut self) -> Result<&'a str, PackError> {
        let length = self.number()? as usize;
        std::str::from_utf8(self.take(length)?).map_err(|_| PackError::Damaged("a text is not UTF-8"))
    }

    fn table(&mut self) -> Result<Vec<&'a str>, PackError> {
        (0..self.number()?).map(|_| self.text()).collect()
    }
}

/// The operations of a compact history.
pub fn unpack(bytes: &[u8]) -> Result<Vec<Op>, PackError> {
    let mut reader = Reader(bytes.strip_prefix(MAGIC).ok_or(PackError::Damaged("its first line is another"))?);
    let ids = reader.table()?;
    let commits = reader.table()?;
    let count = reader.number()?;
    let mut commit = 0;
    let mut operations = Vec::new();
    for seq in 1..=count {
        let head = reader.number()?;
        let id = *ids.get((head >> 2) as usize).ok_or(PackError::Damaged("an id is not in the table"))?;
        let kind = *OpKind::ALL.get((head & 3) as usize).ok_or(PackError::Damaged("an op is unknown"))?;
        commit += reader.number()? as usize;
        let stamp = commits.get(commit).ok_or(PackError::Damaged("a commit is not in the table"))?;
        let (hash, date) = stamp.split_once(' ').ok_or(PackError::Damaged("a commit has no date"))?;
        let quoted = |text: &str| serde_json::Value::from(text).to_string().into();
        let mut fields: Fields = vec![
            ("seq".into(), seq.to_string().into()),
            ("commit".into(), quoted(hash)),
            ("date".into(), quoted(date)),
        ];
        if kind != OpKind::Delete {
            let blob: String = reader.take(BLOB_LEN)?.iter().map(|byte| format!("{byte:02x}")).collect();
            fields.push(("blob".into(), quoted(&blob)));
            fields.push(("size".into(), reader.number()?.to_string().into()));
        }
        operations.push(Op { id: id.to_owned(), kind, fields });
    }
    if reader.0.is_empty() { Ok(operations) } else { Err(PackError::Damaged("something follows its end")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_applied_in_order_gives_exactly_the_tree() {
        let history = history();
        assert_eq!(history.len() as u64, OPERATIONS);
        let count = |kind| history.iter().filter(|op| op.kind == kind).count();
        assert_eq!(OpKind::ALL.map(count), [469, 4_696, 232]);
        assert_eq!(tree().len(), 237);
        assert_eq!(unlike(&history, &tree()), None);
        // Any loss or reordering that matters shows.
        assert!(unlike(&history[..history.len() - 1], &tree()).is_some());
        let reversed: Vec<Op> = history.iter().rev().cloned().collect();
        assert!(unlike(&reversed, &tree()).is_some());
    }

    #[test]
    fn packing_what_was_unpacked_gives_the_same_bytes() {
        assert_eq!(pack(&history()).as_deref(), Ok(HISTORY));
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        for end in (0..HISTORY.len()).step_by(HISTORY.len() / 50) {
            assert!(unpack(&HISTORY[..end]).is_err(), "{end}");
        }
        let mut other = HISTORY.to_vec();
        other[0] ^= 1;
        assert_eq!(unpack(&other), Err(PackError::Damaged("its first line is another")));
        let longer = [HISTORY, b"x"].concat();
        assert_eq!(unpack(&longer), Err(PackError::Damaged("something follows its end")));
    }

    #[test]
    fn an_operation_of_another_shape_is_named() {
        let mut ops = history()[..3].to_vec();
        ops[1].fields[0].1 = "9".into();
        assert_eq!(pack(&ops), Err(PackError::Shape(1, "`seq` does not count from 1".into())));
        ops[1].fields.remove(0);
        assert!(pack(&ops).expect_err("no seq").to_string().contains("its fields are"));
    }
}
