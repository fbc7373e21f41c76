//! A search index in memory that checks external versions as strictly as a real one: for local mode and for tests.
//!
//! [`MemoryIndex`] is pure: the time of a call is given to it. [`SharedMemoryIndex`] is the `Backend` around it. What
//! real servers answer is in the table of [`MemoryIndex::apply`]; deletes leave tombstones, which are forgotten after
//! the retention as `index.gc_deletes` forgets them, and with them the protection against late writes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::BoxFuture;

use super::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use crate::env::{Env, Instant};
use crate::identity::Version;

#[cfg(test)]
mod tests;

/// What the index holds of one id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    version: Version,
    /// `None` is a tombstone.
    document: Option<Bytes>,
}

/// When a tombstone is forgotten.
struct Expiry {
    at: Instant,
    index: Option<CompactString>,
    id: CompactString,
    version: Version,
}

/// A search backend in memory: an index without a name, and others by their names.
pub struct MemoryIndex {
    /// By index and by id.
    slots: BTreeMap<Option<CompactString>, BTreeMap<CompactString, Slot>>,
    /// Tombstones by the time that they are forgotten; those written over since are passed over.
    expiries: VecDeque<Expiry>,
    tombstone_retention: Duration,
    documents: usize,
    tombstones: usize,
    visible_changes: u64,
    tombstones_forgotten: u64,
}

impl fmt::Debug for MemoryIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryIndex")
            .field("documents", &self.documents)
            .field("tombstones", &self.tombstones)
            .field("visible_changes", &self.visible_changes)
            .finish_non_exhaustive()
    }
}

impl MemoryIndex {
    /// Longest id, bytes, as in OpenSearch.
    pub const ID_BYTES_MAX: usize = 512;

    /// An empty index that remembers deletes for `tombstone_retention`.
    pub fn new(tombstone_retention: Duration) -> Self {
        MemoryIndex {
            slots: BTreeMap::new(),
            expiries: VecDeque::new(),
            tombstone_retention,
            documents: 0,
            tombstones: 0,
            visible_changes: 0,
            tombstones_forgotten: 0,
        }
    }

    /// Applies a batch in order, one outcome an item. `now` must not go back between calls.
    ///
    /// | version of the write | against the current one, of a document or a tombstone | outcome |
    /// |---|---|---|
    /// | some | nothing there, or higher | `Applied` |
    /// | some | equal | `Duplicate` |
    /// | some | lower | `Superseded` |
    /// | none | any | `Applied`, and the current version rises by one (from nothing: is 1) |
    ///
    /// The last line is how OpenSearch numbers writes without an external version, and what makes the two kinds mix:
    /// a versioned write repeated after an unversioned one is superseded, not taken for a duplicate. Deleting what is
    /// not there is `Applied` and leaves a tombstone. A negative version, an empty id and an id over 512 bytes are
    /// `Rejected`.
    pub fn apply(&mut self, now: Instant, ops: &[IndexOp]) -> Vec<ItemOutcome> {
        ops.iter().map(|op| self.apply_one(now, op)).collect()
    }

    /// [`Self::apply`] of one write.
    pub fn apply_one(&mut self, now: Instant, op: &IndexOp) -> ItemOutcome {
        self.expire(now);
        self.apply_item(now, op)
    }

    fn apply_item(&mut self, now: Instant, op: &IndexOp) -> ItemOutcome {
        if let Some(reason) = refusal(op) {
            return ItemOutcome::Rejected { reason };
        }
        let slots = match self.slots.get_mut(&op.index) {
            Some(slots) => slots,
            None => self.slots.entry(op.index.clone()).or_default(),
        };
        let current = slots.get(&op.id);
        let version = match (op.version, current.map(|slot| slot.version)) {
            (Some(version), Some(current)) if version == current => return ItemOutcome::Duplicate,
            (Some(version), Some(current)) if version < current => return ItemOutcome::Superseded { current },
            (Some(version), _) => version,
            (None, current) => Version(current.unwrap_or_default().0.saturating_add(1)),
        };
        let document = match &op.action {
            Action::Upsert(body) => Some(body.json().clone()),
            Action::Delete => None,
        };
        let before = current.and_then(|slot| slot.document.as_ref());
        self.visible_changes += u64::from(before != document.as_ref());
        self.documents = self.documents + usize::from(document.is_some()) - usize::from(before.is_some());
        let was_tombstone = current.is_some() && before.is_none();
        self.tombstones = self.tombstones + usize::from(document.is_none()) - usize::from(was_tombstone);
        if document.is_none() {
            let at = now + self.tombstone_retention;
            self.expiries.push_back(Expiry { at, index: op.index.clone(), id: op.id.clone(), version });
        }
        slots.insert(op.id.clone(), Slot { version, document });
        ItemOutcome::Applied
    }

    /// Forgets the tombstones whose time has come by `now`. Every [`Self::apply`] does it first.
    pub fn expire(&mut self, now: Instant) {
        while let Some(Expiry { index, id, version, .. }) = self.expiries.pop_front_if(|expiry| expiry.at <= now) {
            let Some(slots) = self.slots.get_mut(&index) else { continue };
            if slots.get(&id).is_some_and(|slot| slot.document.is_none() && slot.version == version) {
                slots.remove(&id);
                self.tombstones -= 1;
                self.tombstones_forgotten += 1;
            }
        }
    }

    /// The document with this id in the index without a name, and its version.
    pub fn get(&self, id: &str) -> Option<(Version, &Bytes)> {
        let slot = self.slots.get(&None)?.get(id)?;
        Some((slot.version, slot.document.as_ref()?))
    }

    /// What a reader of the index without a name sees, in the order of ids.
    pub fn documents(&self) -> impl Iterator<Item = (&str, Version, &Bytes)> + '_ {
        self.slots_of(None).filter_map(|(id, slot)| Some((id.as_str(), slot.version, slot.document.as_ref()?)))
    }

    /// What a reader of the index called `index` sees, in the order of ids.
    pub fn documents_in(&self, index: &str) -> impl Iterator<Item = (&str, Version, &Bytes)> + '_ {
        let slots = self.slots_of(Some(index.into()));
        slots.filter_map(|(id, slot)| Some((id.as_str(), slot.version, slot.document.as_ref()?)))
    }

    /// The indexes that were ever written to, in the order of their names; that without a name first.
    pub fn indexes(&self) -> impl Iterator<Item = Option<&str>> + '_ {
        self.slots.keys().map(Option::as_deref)
    }

    /// Deleted ids that the index without a name remembers, with the versions of their deletes, in the order of ids.
    pub fn tombstones(&self) -> impl Iterator<Item = (&str, Version)> + '_ {
        let tombstones = self.slots_of(None).filter(|(_, slot)| slot.document.is_none());
        tombstones.map(|(id, slot)| (id.as_str(), slot.version))
    }

    fn slots_of(&self, index: Option<CompactString>) -> impl Iterator<Item = (&CompactString, &Slot)> + '_ {
        self.slots.get(&index).into_iter().flatten()
    }

    /// Documents that a reader sees, in all indexes.
    pub fn len(&self) -> usize {
        self.documents
    }

    /// Whether a reader sees nothing.
    pub fn is_empty(&self) -> bool {
        self.documents == 0
    }

    /// Writes that changed what a reader sees: a document came, went or got other content.
    pub fn visible_changes(&self) -> u64 {
        self.visible_changes
    }

    /// Tombstones that were forgotten. From the first one on, a late write of an old owner may win.
    pub fn tombstones_forgotten(&self) -> u64 {
        self.tombstones_forgotten
    }
}

/// Why an index never takes this write.
fn refusal(op: &IndexOp) -> Option<String> {
    match (op.id.len(), op.version) {
        _ if op.index.as_deref() == Some("") => Some("the name of the index is empty".into()),
        (0, _) => Some("the id is empty".into()),
        (length, _) if length > MemoryIndex::ID_BYTES_MAX => {
            Some(format!("the id has {length} bytes, the limit is {}", MemoryIndex::ID_BYTES_MAX))
        }
        (_, Some(version)) if version.0 < 0 => Some(format!("version {} is negative", version.0)),
        _ => None,
    }
}

/// A [`MemoryIndex`] as a backend. Clones share it.
pub struct SharedMemoryIndex<E> {
    env: E,
    index: Arc<Mutex<MemoryIndex>>,
}

impl<E: Env> SharedMemoryIndex<E> {
    /// Shares `index`, with the time of `env`.
    pub fn new(env: E, index: MemoryIndex) -> Self {
        SharedMemoryIndex { env, index: Arc::new(Mutex::new(index)) }
    }

    /// The index, locked: not to be held across an await.
    pub fn lock(&self) -> MutexGuard<'_, MemoryIndex> {
        // A panic leaves an index that was changed item by item, so still a whole one.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone> Clone for SharedMemoryIndex<E> {
    fn clone(&self) -> Self {
        SharedMemoryIndex { env: self.env.clone(), index: self.index.clone() }
    }
}

impl<E> fmt::Debug for SharedMemoryIndex<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedMemoryIndex").field(&self.index).finish()
    }
}

impl<E: Env> Backend for SharedMemoryIndex<E> {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        Box::pin(async move {
            let now = self.env.now();
            Ok(self.lock().apply(now, ops))
        })
    }
}
