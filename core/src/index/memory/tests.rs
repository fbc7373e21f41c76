//! The index in memory: versions and tombstones, against a model.

use std::future::Future;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::identity::Ticket;

const RETENTION: Duration = Duration::from_micros(10);

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

fn upsert(id: &str, version: impl Into<Option<i64>>, document: &'static str) -> IndexOp {
    let action = Action::Upsert(Bytes::from_static(document.as_bytes()).into());
    let (version, ticket) = (version.into().map(Version), Ticket::default());
    IndexOp { index: None, id: id.into(), version, action, ticket, position: None }
}

fn delete(id: &str, version: impl Into<Option<i64>>) -> IndexOp {
    IndexOp { action: Action::Delete, ..upsert(id, version, "") }
}

fn view(index: &MemoryIndex) -> Vec<(String, String)> {
    let text = |document: &Bytes| String::from_utf8_lossy(document).into_owned();
    index.documents().map(|(id, _, document)| (id.to_owned(), text(document))).collect()
}

#[test]
fn a_forgotten_tombstone_lets_a_late_write_win() {
    let mut index = MemoryIndex::new(RETENTION);
    let outcomes = index.apply(at(0), &[upsert("doc", 10, "a"), delete("doc", 20), delete("never", 5)]);
    assert_eq!(outcomes, vec![ItemOutcome::Applied; 3]);
    assert_eq!(index.tombstones().collect::<Vec<_>>(), [("doc", Version(20)), ("never", Version(5))]);
    let late = index.apply(at(9), &[upsert("doc", 15, "late"), delete("doc", 20)]);
    assert_eq!(late, vec![ItemOutcome::Superseded { current: Version(20) }, ItemOutcome::Duplicate]);
    assert_eq!((index.visible_changes(), index.tombstones_forgotten()), (2, 0));
    assert_eq!(index.apply(at(10), &[upsert("doc", 15, "late")]), vec![ItemOutcome::Applied]);
    assert_eq!((index.get("doc").map(|(version, _)| version), index.tombstones_forgotten()), (Some(Version(15)), 2));
}

#[test]
fn one_id_in_two_indexes_is_two_documents() {
    let mut index = MemoryIndex::new(RETENTION);
    let elsewhere = |op| IndexOp { index: Some("books".into()), ..op };
    let ops = [upsert("doc", 10, "a"), elsewhere(upsert("doc", 5, "b")), elsewhere(upsert("other", 5, "c"))];
    assert_eq!(index.apply(at(0), &ops), vec![ItemOutcome::Applied; 3]);
    assert_eq!(index.apply(at(1), &[delete("doc", 20)]), vec![ItemOutcome::Applied]);
    assert_eq!((index.get("doc"), view(&index), index.len()), (None, Vec::new(), 2));
    assert_eq!(index.documents_in("books").map(|(id, ..)| id).collect::<Vec<_>>(), ["doc", "other"]);
    index.expire(at(11));
    assert_eq!((index.tombstones_forgotten(), index.len()), (1, 2));
}

#[test]
fn unversioned_writes_apply_and_outrank_what_they_replaced() {
    let mut index = MemoryIndex::new(RETENTION);
    let ops = [upsert("doc", 10, "a"), upsert("doc", None, "b"), upsert("doc", 10, "a"), upsert("doc", 12, "c")];
    let superseded = ItemOutcome::Superseded { current: Version(11) };
    let expected = vec![ItemOutcome::Applied, ItemOutcome::Applied, superseded, ItemOutcome::Applied];
    assert_eq!(index.apply(at(0), &ops), expected);
    index.apply(at(1), &[delete("doc", None)]);
    assert_eq!((index.len(), index.tombstones().next()), (0, Some(("doc", Version(13)))));
}

#[test]
fn what_no_index_takes_is_rejected_alone() {
    let mut index = MemoryIndex::new(RETENTION);
    let ops = [upsert("", 1, "a"), upsert(&"x".repeat(513), 1, "a"), upsert("doc", -1, "a"), upsert("doc", 0, "a")];
    let outcomes = index.apply(at(0), &ops);
    assert!(outcomes[..3].iter().all(|outcome| matches!(outcome, ItemOutcome::Rejected { .. })), "{outcomes:?}");
    assert_eq!((&outcomes[3], index.len()), (&ItemOutcome::Applied, 1));
}

#[derive(Clone)]
struct Fixed(Instant);

impl Env for Fixed {
    fn now(&self) -> Instant {
        self.0
    }
    fn wall_micros(&self) -> u64 {
        self.0.as_micros()
    }
    fn random(&self) -> u64 {
        0
    }
    fn sleep(&self, _: Duration) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
    fn spawn<F: Future<Output = ()> + Send + 'static>(&self, _: F) {}
    fn run_blocking<R: Send + 'static>(
        &self,
        _: Duration,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> impl Future<Output = R> + Send {
        std::future::ready(work())
    }
}

#[test]
fn clones_of_a_backend_share_one_index() {
    let backend = SharedMemoryIndex::new(Fixed(at(5)), MemoryIndex::new(RETENTION));
    let ops = [upsert("doc", 1, "a")];
    let unpolled = backend.bulk(&ops);
    assert!(backend.lock().is_empty(), "nothing happens before the future is polled");
    assert_eq!(unpolled.now_or_never(), Some(Ok(vec![ItemOutcome::Applied])));
    assert_eq!(backend.clone().bulk(&ops).now_or_never(), Some(Ok(vec![ItemOutcome::Duplicate])));
}

const IDS: [&str; 3] = ["a", "b", "c"];
const BODIES: [&str; 2] = ["x", "y"];

fn op() -> impl Strategy<Value = (u64, IndexOp)> {
    let version = prop::option::weighted(0.9, 0..12i64);
    (0..4u64, 0..3usize, version, prop::option::of(0..2usize)).prop_map(|(passed, id, version, body)| {
        let op = match body {
            Some(body) => upsert(IDS[id], version, BODIES[body]),
            None => delete(IDS[id], version),
        };
        (passed, op)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The model keeps the last applied write of each id and when it was made, and judges each write from that.
    #[test]
    fn writes_follow_the_table(ops in prop::collection::vec(op(), 0..60)) {
        let mut index = MemoryIndex::new(RETENTION);
        let mut model: BTreeMap<String, (i64, Option<Bytes>, Instant)> = BTreeMap::new();
        let (mut now, mut forgotten) = (at(0), 0);
        for (passed, op) in ops {
            now = now + Duration::from_micros(passed);
            let before = model.len();
            model.retain(|_, (_, document, since)| document.is_some() || now.since(*since) < RETENTION);
            forgotten += (before - model.len()) as u64;
            let current = model.get(op.id.as_str()).map(|(version, ..)| *version);
            let expected = match (op.version, current) {
                (Some(new), Some(current)) if new.0 == current => ItemOutcome::Duplicate,
                (Some(new), Some(current)) if new.0 < current => ItemOutcome::Superseded { current: Version(current) },
                _ => ItemOutcome::Applied,
            };
            let (seen, changes) = (view(&index), index.visible_changes());
            if expected == ItemOutcome::Applied {
                let version = op.version.map_or(current.unwrap_or(0) + 1, |version| version.0);
                let document = if let Action::Upsert(body) = &op.action { Some(body.json().clone()) } else { None };
                model.insert(op.id.to_string(), (version, document, now));
            }
            prop_assert_eq!(index.apply(now, &[op]), vec![expected]);
            let changed = u64::from(view(&index) != seen);
            prop_assert_eq!(index.visible_changes(), changes + changed);
            let documents = model.iter().filter_map(|(id, (version, document, _))| {
                Some((id.as_str(), Version(*version), document.as_ref()?))
            });
            prop_assert!(index.documents().eq(documents));
            let deleted = model.iter().filter(|(_, (_, document, _))| document.is_none());
            prop_assert!(index.tombstones().eq(deleted.map(|(id, (version, ..))| (id.as_str(), Version(*version)))));
            prop_assert_eq!(index.len(), index.documents().count());
            prop_assert_eq!(index.tombstones_forgotten(), forgotten);
        }
    }

    /// Invariant 10: with versions and lasting tombstones, the order of arrival does not matter.
    #[test]
    fn the_highest_version_wins_in_any_order(
        shuffled in Just((1..9i64).collect::<Vec<_>>()).prop_shuffle(),
        repeats in prop::collection::vec(0..8usize, 0..8),
    ) {
        let write = |version: i64| if version % 4 == 0 { delete("doc", version) } else { upsert("doc", version, "x") };
        let ops = |versions: &[i64]| versions.iter().map(|version| write(*version)).collect::<Vec<_>>();
        let (mut arrived, mut index) = (shuffled.clone(), MemoryIndex::new(RETENTION));
        arrived.extend(repeats.iter().map(|at| shuffled[*at]));
        index.apply(at(0), &ops(&arrived));
        prop_assert_eq!(index.tombstones().collect::<Vec<_>>(), vec![("doc", Version(8))]);
        index.apply(at(0), &ops(&[9]));
        prop_assert_eq!(index.get("doc").map(|(version, _)| version), Some(Version(9)));
    }
}
