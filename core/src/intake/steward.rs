//! The steward: carries out what custody decides, one request at a time, so that no commit can overtake another.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::Cell;
use crate::env::Env;
use crate::machines::custody::{Custody, Step};
use crate::transport::{Admin, ErrorKind, Group, TransportError};

/// How long the answer to a request is awaited.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The answer to a request. `None` when it takes too long, or once custody is such that it must not be waited for.
async fn answered<E: Env, F: Future>(
    env: &E,
    cell: &Cell,
    request: F,
    is_in_the_way: impl Fn(&Custody) -> bool,
) -> Option<F::Output> {
    let mut request = pin!(request);
    let until = env.now() + ANSWER_LIMIT;
    loop {
        let until = {
            let state = cell.lock();
            if state.end.is_some() || is_in_the_way(&state.custody) {
                return None;
            }
            state.custody.drain_deadline().map_or(until, |deadline| deadline.min(until))
        };
        let wait = until.since(env.now());
        if wait.is_zero() {
            return None;
        }
        let (decide, sleep) = (pin!(cell.decide.notified()), pin!(env.sleep(wait)));
        if let Either::Left((answer, _)) = select(request.as_mut(), select(decide, sleep)).await {
            return Some(answer);
        }
    }
}

/// Reads what the group has committed: a late commit of somebody else may have moved it back.
pub(super) struct ReadBack<A> {
    pub(super) admin: A,
    pub(super) group: String,
    pub(super) interval: Duration,
}

impl<A: Admin> ReadBack<A> {
    async fn run(&self, cell: &Cell) {
        let owned = cell.lock().custody.at_rest();
        if owned.is_empty() {
            return;
        }
        let partitions = owned.iter().map(|(partition, _)| partition.clone()).collect();
        // Without an answer it is read the next time.
        let Ok(committed) = self.admin.committed(self.group.clone(), partitions).await else { return };
        let mut state = cell.lock();
        for ((partition, epoch), committed) in owned.iter().zip(committed) {
            state.custody.read_back(partition, *epoch, committed.map_or(0, |committed| committed.offset));
        }
    }
}

/// Leaves the group, with every event given back that this consumer was given: a client may wait for it.
async fn leave<G: Group>(group: &G, cell: &Cell) {
    give_back(group, cell).await;
    group.leave().await;
    // What came meanwhile.
    give_back(group, cell).await;
}

async fn give_back<G: Group>(group: &G, cell: &Cell) {
    let events = cell.abandon();
    for event in events {
        // An error means that the consumer is gone.
        let _ = group.release(event).await;
    }
}

/// Carries out what the custody decides.
pub(super) async fn steward<E: Env, G: Group, A: Admin>(env: E, group: G, read_back: ReadBack<A>, cell: Arc<Cell>) {
    let mut read_at = env.now() + read_back.interval;
    loop {
        if env.now() >= read_at {
            // Whoever goes does not wait for it: who comes next reads it too.
            answered(&env, &cell, read_back.run(&cell), Custody::is_departing).await;
            read_at = env.now() + read_back.interval;
        }
        let Some(step) = cell.next_step(env.now()) else {
            return leave(&group, &cell).await;
        };
        match step {
            Step::Commit(commits) => {
                let answer = answered(&env, &cell, group.commit(commits.clone()), Custody::has_lost).await;
                let results = answer.unwrap_or_else(|| {
                    let late = || TransportError::new(ErrorKind::UnknownOutcome, "REQUEST_TIMED_OUT", "committing");
                    commits.iter().map(|_| Err(late())).collect()
                });
                cell.lock().custody.committed(&commits, &results, env.now());
            }
            Step::Release(event) => {
                // An error means that the consumer is gone; the poll task hears of it too.
                let _ = group.release(event).await;
            }
            Step::Leave => {
                leave(&group, &cell).await;
                cell.finish(Ok(()));
                return;
            }
            Step::Wait(until) => {
                let until = until.map_or(read_at, |until| until.min(read_at));
                let (decide, sleep) = (pin!(cell.decide.notified()), pin!(env.sleep(until.since(env.now()))));
                select(decide, sleep).await;
            }
        }
    }
}
