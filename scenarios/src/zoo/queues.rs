//! Messengers with a mistake: queues without lanes, records that kill their worker, drops that yield no offset.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use futures_util::future::{Either, select};
use seriatim_core::intake::Claim;
use seriatim_core::messenger::{Emission, IndexerMessenger, MessengerError, Payload, Work, WorkerMessenger};
use tokio::sync::Notify;

use crate::drive::any::{AnyIndexer, AnyWorker};
use crate::drive::{Messengers, Place, Variant};

/// A pipeline whose indexers all take from one queue.
#[derive(Clone, Copy, Debug)]
pub struct SharedIndexQueue;

impl Variant for SharedIndexQueue {
    fn messengers(&self, _: &Place) -> Box<dyn Messengers> {
        #[derive(Default)]
        struct Shared(Table);
        impl Messengers for Shared {
            fn indexer(&self, indexer: AnyIndexer) -> AnyIndexer {
                AnyIndexer::new(Dealt::new(indexer, &self.0))
            }
        }
        Box::new(Shared::default())
    }
}

/// A pipeline whose workers all take from one queue.
#[derive(Clone, Copy, Debug)]
pub struct SharedWorkQueue;

impl Variant for SharedWorkQueue {
    fn messengers(&self, _: &Place) -> Box<dyn Messengers> {
        #[derive(Default)]
        struct Shared(Table);
        impl Messengers for Shared {
            fn worker(&self, worker: AnyWorker) -> AnyWorker {
                AnyWorker::new(Dealt::new(worker, &self.0))
            }
        }
        Box::new(Shared::default())
    }
}

/// The hands among which work is dealt, one piece to each in turn.
type Table = Arc<Mutex<Hands>>;

#[derive(Default)]
struct Hands {
    hands: Vec<(VecDeque<Work>, Arc<Notify>)>,
    turn: usize,
}

impl Hands {
    fn deal(&mut self, work: Vec<Work>) {
        for one in work {
            let turn = self.turn % self.hands.len();
            self.turn += 1;
            self.hands[turn].0.push_back(one);
            self.hands[turn].1.notify_one();
        }
    }
}

/// A messenger whose work goes to whoever's turn it is: what a queue with several takers and no lanes comes to.
struct Dealt<M> {
    inner: M,
    table: Table,
    hand: usize,
    dealt: Arc<Notify>,
}

impl<M> Dealt<M> {
    fn new(inner: M, table: &Table) -> Self {
        let mut hands = table.lock().expect("no code panics while it deals");
        let (hand, dealt) = (hands.hands.len(), Arc::new(Notify::new()));
        hands.hands.push((VecDeque::new(), dealt.clone()));
        drop(hands);
        Dealt { inner, table: table.clone(), hand, dealt }
    }

    fn take(&self, records_max: usize) -> Option<Vec<Work>> {
        let mut hands = self.table.lock().expect("no code panics while it deals");
        let hand = &mut hands.hands[self.hand].0;
        let count = records_max.min(hand.len());
        (count > 0).then(|| hand.drain(..count).collect())
    }
}

macro_rules! dealt_poll {
    ($port:ident) => {
        async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
            loop {
                if let Some(work) = self.take(records_max) {
                    return Ok(Some(work));
                }
                let dealt = self.dealt.clone();
                let polled = {
                    let (poll, dealt) = (pin!($port::poll(&mut self.inner, records_max)), pin!(dealt.notified()));
                    match select(poll, dealt).await {
                        Either::Left((polled, _)) => polled?,
                        Either::Right(((), _)) => continue,
                    }
                };
                let Some(work) = polled else { return Ok(None) };
                self.table.lock().expect("no code panics while it deals").deal(work);
            }
        }
    };
}

impl<M: WorkerMessenger> WorkerMessenger for Dealt<M> {
    dealt_poll!(WorkerMessenger);

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.send(emissions).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Dealt<M> {
    dealt_poll!(IndexerMessenger);

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.complete(outcomes).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

/// A pipeline whose workers never settle a record that left nothing for the indexers.
#[derive(Clone, Copy, Debug)]
pub struct DropsYieldNoOffset;

impl Variant for DropsYieldNoOffset {
    fn messengers(&self, _: &Place) -> Box<dyn Messengers> {
        struct Unsettled;
        impl Messengers for Unsettled {
            fn worker(&self, inner: AnyWorker) -> AnyWorker {
                AnyWorker::new(OnlyOutputsSettle { inner })
            }
        }
        Box::new(Unsettled)
    }
}

struct OnlyOutputsSettle {
    inner: AnyWorker,
}

impl WorkerMessenger for OnlyOutputsSettle {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn send(&mut self, mut emissions: Vec<Emission>) -> Result<(), MessengerError> {
        for emission in emissions.iter_mut().filter(|emission| emission.outputs.is_empty()) {
            // Dropped and not done: its offset is never told to whoever commits.
            emission.claim = Claim::unfenced();
        }
        self.inner.send(emissions).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

/// What a pipeline does with a record that it cannot read, instead of laying it among the dead letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poisoned {
    /// The component that took it ends, and so does the next that takes it.
    Ends,
    /// It is passed over.
    Skips,
}

impl Variant for Poisoned {
    fn messengers(&self, _: &Place) -> Box<dyn Messengers> {
        Box::new(*self)
    }
}

impl Messengers for Poisoned {
    fn worker(&self, inner: AnyWorker) -> AnyWorker {
        AnyWorker::new(Fragile { inner, how: *self })
    }

    fn indexer(&self, inner: AnyIndexer) -> AnyIndexer {
        AnyIndexer::new(Fragile { inner, how: *self })
    }
}

struct Fragile<M> {
    inner: M,
    how: Poisoned,
}

impl<M> Fragile<M> {
    fn read(&self, work: Option<Vec<Work>>) -> Result<Option<Vec<Work>>, MessengerError> {
        let Some(work) = work else { return Ok(None) };
        let is_poison = |one: &Work| matches!(one.payload, Payload::Undecodable { .. });
        let (poison, work): (Vec<Work>, Vec<Work>) = work.into_iter().partition(is_poison);
        if self.how == Poisoned::Ends && !poison.is_empty() {
            return Err(MessengerError::Closed("deserializer"));
        }
        poison.into_iter().for_each(|one| one.claim.done());
        Ok(Some(work))
    }
}

impl<M: WorkerMessenger> WorkerMessenger for Fragile<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let polled = self.inner.poll(records_max).await?;
        self.read(polled)
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.send(emissions).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Fragile<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        let polled = self.inner.poll(records_max).await?;
        self.read(polled)
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.complete(outcomes).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}
