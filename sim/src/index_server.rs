//! The search backend as a server of the world: bulk requests outlive their sender and are applied in the order of
//! their arrival, whoever still waits.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seriatim_core::env::Instant;
use seriatim_core::index::memory::MemoryIndex;
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};

use crate::executor::lock;
use crate::history::{Recorder, What};
use crate::network::Host;
use crate::recorded::index_write;
use crate::trace::Trace;

/// What goes wrong with one bulk request; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexFault {
    /// The items at these places are refused for good, whenever the request is applied.
    pub refused: Vec<usize>,
    /// The items at these places are throttled, unless they are refused.
    pub throttled: Vec<usize>,
    /// What happens to the request as a whole.
    pub request: RequestFault,
}

/// What happens to a bulk request as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFault {
    /// It is applied and answered.
    #[default]
    None,
    /// It is refused, nothing applied.
    Unavailable,
    /// Nothing is applied, and no answer comes.
    SilentBeforeApplying,
    /// It is applied, and no answer comes.
    SilentAfterApplying,
    /// It is applied so much later than it arrived; the sender may have given up by then.
    Delay(Duration),
}

/// Decides the fault of each bulk request: the sender's node and the writes.
pub type IndexHook = Box<dyn FnMut(&str, &[IndexOp]) -> IndexFault + Send>;

struct Bulk {
    id: u64,
    sender: Arc<str>,
    ops: Vec<IndexOp>,
    fault: IndexFault,
}

/// The server's state.
pub(crate) struct IndexServer {
    queue: BTreeMap<(Instant, u64), Bulk>,
    memory: MemoryIndex,
    answers: BTreeMap<u64, Answer>,
    next: u64,
    hook: Option<IndexHook>,
}

/// A write as the trace has it.
struct Written<'a> {
    sender: &'a Arc<str>,
    op: &'a IndexOp,
    outcome: &'a ItemOutcome,
}

impl Hash for Written<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let IndexOp { index, id, version, action, .. } = self.op;
        (self.sender, index, id, version, self.outcome).hash(state);
        if let Action::Upsert(body) = action {
            state.write(body);
        }
    }
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IndexOp { id, version, .. } = self.op;
        write!(f, "{} {id} {version:?} {:?}", self.sender, self.outcome)
    }
}

enum Answer {
    Awaited,
    Here(Result<Vec<ItemOutcome>, BackendError>),
}

impl fmt::Debug for IndexServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexServer").field("documents", &self.memory.len()).finish_non_exhaustive()
    }
}

impl IndexServer {
    pub(crate) fn new(tombstone_retention: Duration) -> Self {
        IndexServer {
            queue: BTreeMap::new(),
            memory: MemoryIndex::new(tombstone_retention),
            answers: BTreeMap::new(),
            next: 0,
            hook: None,
        }
    }

    pub(crate) fn take_hook(&mut self) -> Option<IndexHook> {
        self.hook.take()
    }

    pub(crate) fn set_hook(&mut self, hook: Option<IndexHook>) {
        self.hook = hook;
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// The index itself.
    pub(crate) fn memory(&self) -> &MemoryIndex {
        &self.memory
    }

    fn submit(&mut self, arrival: Instant, sender: Arc<str>, ops: Vec<IndexOp>) -> (u64, Instant) {
        let fault = self.hook.as_mut().map_or_else(IndexFault::default, |hook| hook(&sender, &ops));
        let at = if let RequestFault::Delay(late) = fault.request { arrival + late } else { arrival };
        let id = self.next;
        self.next += 1;
        self.answers.insert(id, Answer::Awaited);
        self.queue.insert((at, id), Bulk { id, sender, ops, fault });
        (id, at)
    }

    /// Applies every request that arrived up to `now`.
    pub(crate) fn advance(&mut self, now: Instant, trace: &mut Trace, recorder: &Recorder) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), bulk) = entry.remove_entry();
            let answer = match bulk.fault.request {
                RequestFault::Unavailable => Some(Err(BackendError::Unavailable("503".into()))),
                RequestFault::SilentBeforeApplying => None,
                RequestFault::SilentAfterApplying => {
                    self.apply(at, &bulk, trace, recorder);
                    None
                }
                _ => Some(Ok(self.apply(at, &bulk, trace, recorder))),
            };
            if let (Some(slot), Some(answer)) = (self.answers.get_mut(&bulk.id), answer) {
                *slot = Answer::Here(answer);
            }
        }
    }

    fn apply(&mut self, at: Instant, bulk: &Bulk, trace: &mut Trace, recorder: &Recorder) -> Vec<ItemOutcome> {
        let node: Arc<str> = "index".into();
        let mut outcomes = Vec::with_capacity(bulk.ops.len());
        for (place, op) in bulk.ops.iter().enumerate() {
            let outcome = if bulk.fault.refused.contains(&place) {
                ItemOutcome::Rejected { reason: "mapper_parsing_exception".into() }
            } else if bulk.fault.throttled.contains(&place) {
                ItemOutcome::Throttled
            } else {
                self.write(at, &bulk.sender, op, &node, recorder)
            };
            trace.push(at, &node, &Written { sender: &bulk.sender, op, outcome: &outcome });
            outcomes.push(outcome);
        }
        outcomes
    }

    fn write(
        &mut self,
        at: Instant,
        sender: &Arc<str>,
        op: &IndexOp,
        node: &Arc<str>,
        recorder: &Recorder,
    ) -> ItemOutcome {
        let seen = self.memory.visible_changes();
        let outcome = self.memory.apply_one(at, op);
        if outcome == ItemOutcome::Applied {
            let changed = self.memory.visible_changes() > seen;
            let (sender, write) = (Some(sender.clone()), Box::new(index_write(op)));
            recorder.record(node, 0, What::IndexApplied { sender, write, changed });
        }
        outcome
    }
}

/// The search backend as one process reaches it, over a connection of its own. Inert once the process is dead.
///
/// A request on a connection that stands is sent, and when no answer comes its outcome is unknown: at the time-out, or
/// at once when the connection is reset. Without a connection one is made first, which takes both directions of the
/// link; where one is cut the request was certainly not sent, and the index is unavailable.
#[derive(Clone, Debug)]
pub struct SimIndex {
    host: Host,
    /// Resets of the node's connections when this one was made; `None` without one. Clones share it.
    connected: Arc<Mutex<Option<u64>>>,
}

impl SimIndex {
    pub(crate) fn new(host: Host) -> Self {
        SimIndex { host, connected: Arc::default() }
    }

    async fn request(&self, ops: Vec<IndexOp>) -> Result<Vec<ItemOutcome>, BackendError> {
        let host = &self.host;
        if !host.enter() {
            std::future::pending::<()>().await;
        }
        let give_up_at = host.now() + host.shared.config.request_timeout;
        let age = host.resets();
        if *lock(&self.connected) != Some(age) {
            self.connect(age, give_up_at).await?;
        }
        let answer = self.exchange(ops, age, give_up_at).await;
        if matches!(answer, Err(BackendError::UnknownOutcome(_))) {
            *lock(&self.connected) = None;
        }
        answer
    }

    async fn connect(&self, age: u64, give_up_at: Instant) -> Result<(), BackendError> {
        let link = &self.host.life.link;
        if link.cut_out.load(Relaxed) || link.cut_in.load(Relaxed) {
            self.host.sleep_unless_reset(age, give_up_at).await;
            return Err(BackendError::Unavailable("no connection could be made".into()));
        }
        *lock(&self.connected) = Some(age);
        Ok(())
    }

    /// Sends a request and waits for its answer.
    async fn exchange(
        &self,
        ops: Vec<IndexOp>,
        age: u64,
        give_up_at: Instant,
    ) -> Result<Vec<ItemOutcome>, BackendError> {
        let (host, link) = (&self.host, &self.host.life.link);
        let (id, answer_at) = {
            let inner = &mut *host.shared.lock();
            let (there, back) = (host.latency(inner), host.latency(inner));
            if link.cut_out.load(Relaxed) {
                (None, give_up_at)
            } else {
                let (id, at) = inner.index.submit(host.now() + there, host.life.node.clone(), ops);
                inner.nudge(at + host.shared.patience());
                (Some(id), at + back)
            }
        };
        let ticket = Awaited { host: host.clone(), id };
        let reset = || Err(BackendError::UnknownOutcome("the connection was reset".into()));
        if !host.sleep_unless_reset(age, answer_at.min(give_up_at)).await {
            return reset();
        }
        if answer_at <= give_up_at && !link.cut_in.load(Relaxed) {
            if take_lost_answer(host) {
                return reset();
            }
            if let Some(answer) = ticket.take() {
                return answer;
            }
        }
        if !host.sleep_unless_reset(age, give_up_at).await {
            return reset();
        }
        Err(BackendError::UnknownOutcome(format!("no answer within {:?}", host.shared.config.request_timeout)))
    }
}

fn take_lost_answer(host: &Host) -> bool {
    let lose = host.life.link.lose_answers.load(Relaxed);
    host.life.link.lose_answers.store(lose.saturating_sub(1), Relaxed);
    lose > 0
}

/// The place of an answer; given up when dropped.
struct Awaited {
    host: Host,
    id: Option<u64>,
}

impl Awaited {
    fn take(&self) -> Option<Result<Vec<ItemOutcome>, BackendError>> {
        let id = self.id?;
        let mut inner = self.host.shared.current();
        match inner.index.answers.remove(&id)? {
            Answer::Here(answer) => Some(answer),
            Answer::Awaited => None,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.host.shared.lock().index.answers.remove(&id);
        }
    }
}

impl Backend for SimIndex {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        Box::pin(self.request(ops.to_vec()))
    }
}
