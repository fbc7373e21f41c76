//! Index writes with a mistake: in what they say, in their order, or in what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join};
use seriatim_core::env::Env;
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_sim::WorldConfig;

use crate::drive::any::AnyEnv;
use crate::drive::{Place, Variant};

type Answer = Result<Vec<ItemOutcome>, BackendError>;

/// A pipeline whose writes carry no version.
#[derive(Clone, Copy, Debug)]
pub struct Unversioned;

impl Variant for Unversioned {
    fn backend(&self, _: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Stripped { backend, strips: |_| true })
    }
}

/// A pipeline whose upserts carry versions and whose deletes do not.
#[derive(Clone, Copy, Debug)]
pub struct UnversionedDeletes;

impl Variant for UnversionedDeletes {
    fn backend(&self, _: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Stripped { backend, strips: |op| op.action == Action::Delete })
    }
}

struct Stripped {
    backend: Arc<dyn Backend>,
    strips: fn(&IndexOp) -> bool,
}

impl Backend for Stripped {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Answer> {
        let version = |op: &IndexOp| if (self.strips)(op) { None } else { op.version };
        let ops: Vec<IndexOp> = ops.iter().map(|op| IndexOp { version: version(op), ..op.clone() }).collect();
        async move { self.backend.bulk(&ops).await }.boxed()
    }
}

/// A pipeline over an index that forgets its deletes at once.
#[derive(Clone, Copy, Debug)]
pub struct ForgottenTombstones;

impl Variant for ForgottenTombstones {
    fn world(&self, config: WorldConfig) -> WorldConfig {
        WorldConfig { tombstone_retention: Duration::from_millis(1), ..config }
    }
}

/// A pipeline that sends the deletes of a batch before its upserts.
#[derive(Clone, Copy, Debug)]
pub struct DeletesFirst;

impl Variant for DeletesFirst {
    fn backend(&self, _: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Split { backend, at_once: false, first: |op, _| op.action == Action::Delete })
    }
}

/// A pipeline that sends the halves of a batch at the same time.
#[derive(Clone, Copy, Debug)]
pub struct HalvesAtOnce;

impl Variant for HalvesAtOnce {
    fn backend(&self, _: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Split { backend, at_once: true, first: |_, place| place.is_multiple_of(2) })
    }
}

/// Makes two requests of one.
struct Split {
    backend: Arc<dyn Backend>,
    at_once: bool,
    /// Whether the write at a place goes with the first.
    first: fn(&IndexOp, usize) -> bool,
}

impl Split {
    async fn send(&self, ops: &[IndexOp]) -> Answer {
        let is_first: Vec<bool> = ops.iter().enumerate().map(|(place, op)| (self.first)(op, place)).collect();
        let of = |wanted: bool| -> Vec<IndexOp> {
            let chosen = ops.iter().zip(&is_first).filter(|(_, first)| **first == wanted);
            chosen.map(|(op, _)| op.clone()).collect()
        };
        let (first, second) = (of(true), of(false));
        if first.is_empty() || second.is_empty() {
            return self.backend.bulk(ops).await;
        }
        let (first, second) = if self.at_once {
            join(self.backend.bulk(&first), self.backend.bulk(&second)).await
        } else {
            (self.backend.bulk(&first).await, self.backend.bulk(&second).await)
        };
        let (mut first, mut second) = (first?.into_iter(), second?.into_iter());
        Ok(is_first.iter().filter_map(|is_first| if *is_first { first.next() } else { second.next() }).collect())
    }
}

impl Backend for Split {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Answer> {
        self.send(ops).boxed()
    }
}

/// A pipeline over an index client that says "applied" as soon as it has sent, and looks at no answer.
#[derive(Clone, Copy, Debug)]
pub struct SendsAndForgets;

impl Variant for SendsAndForgets {
    fn index(&self, at: &Place, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Forgetful { env: at.env.clone(), backend })
    }
}

struct Forgetful {
    env: AnyEnv,
    backend: Arc<dyn Backend>,
}

impl Backend for Forgetful {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Answer> {
        let (backend, sent) = (self.backend.clone(), ops.to_vec());
        self.env.spawn(async move {
            let _ = backend.bulk(&sent).await;
        });
        let applied = ops.iter().map(|_| ItemOutcome::Applied).collect();
        std::future::ready(Ok(applied)).boxed()
    }
}
