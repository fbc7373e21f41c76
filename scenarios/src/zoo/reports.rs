//! What leaves a component, with a mistake: dead letters, outcomes and digests that are told wrong, claims that are
//! done too early, batches in the wrong order.

use seriatim_core::event::EventKind;
use seriatim_core::identity::Ticket;
use seriatim_core::intake::Claim;
use seriatim_core::messenger::{Emission, IndexerMessenger, MessengerError, Work, WorkerMessenger};

use crate::drive::any::{AnyIndexer, AnyWorker};
use crate::drive::{Messengers, Place, Variant};

/// What becomes of a hand-over.
type Twist = fn(Vec<Emission>) -> Vec<Emission>;

macro_rules! twists {
    ($($(#[$doc:meta])* $name:ident: worker $worker:expr, indexer $indexer:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            impl Variant for $name {
                fn messengers(&self, _: &Place) -> Box<dyn Messengers> {
                    Box::new(Twists { worker: $worker, indexer: $indexer })
                }
            }
        )*
    };
}

twists! {
    /// A pipeline whose failed documents are told and not kept.
    NoDeadLetter: worker no_letter, indexer no_letter;
    /// A pipeline whose failed documents are kept twice.
    LettersTwice: worker letters_twice, indexer letters_twice;
    /// A pipeline in which no two attempts at a record come to the same digest.
    DigestOfTheAttempt: worker digest_of_the_attempt, indexer digest_of_the_attempt;
    /// A pipeline that tells no digest.
    NoDigest: worker no_digest, indexer no_digest;
    /// A pipeline that takes a write that lost for one that was applied.
    SupersededAsIndexed: worker unchanged, indexer superseded_as_indexed;
    /// A pipeline that takes every write for one that lost.
    AllSuperseded: worker unchanged, indexer all_superseded;
    /// A pair whose claims do not wait for its indexers.
    DoneAtHandOver: worker done_at_hand_over, indexer unchanged;
    /// A pair whose claims wait for parents only.
    DoneWithTheParent: worker done_with_the_parent, indexer unchanged;
    /// A pipeline whose workers hand the newest record of a batch over first.
    WorkerBackwards: worker backwards, indexer unchanged;
}

fn unchanged(emissions: Vec<Emission>) -> Vec<Emission> {
    emissions
}

/// Those of foreign records stay.
fn no_letter(mut emissions: Vec<Emission>) -> Vec<Emission> {
    for emission in &mut emissions {
        emission.dead_letters.retain(|letter| letter.envelope.ticket == Ticket::default());
    }
    emissions
}

fn letters_twice(mut emissions: Vec<Emission>) -> Vec<Emission> {
    for emission in &mut emissions {
        let again = emission.dead_letters.clone();
        emission.dead_letters.extend(again);
    }
    emissions
}

fn digest_of_the_attempt(mut emissions: Vec<Emission>) -> Vec<Emission> {
    let events = emissions.iter_mut().flat_map(|emission| &mut emission.events);
    for event in events.filter(|event| event.digest != 0) {
        event.digest = event.ticket.attempt | 1;
    }
    emissions
}

fn no_digest(mut emissions: Vec<Emission>) -> Vec<Emission> {
    for event in emissions.iter_mut().flat_map(|emission| &mut emission.events) {
        event.digest = 0;
    }
    emissions
}

fn superseded_as_indexed(mut emissions: Vec<Emission>) -> Vec<Emission> {
    for event in emissions.iter_mut().flat_map(|emission| &mut emission.events) {
        event.superseded = false;
    }
    emissions
}

fn all_superseded(mut emissions: Vec<Emission>) -> Vec<Emission> {
    let events = emissions.iter_mut().flat_map(|emission| &mut emission.events);
    for event in events.filter(|event| event.kind == EventKind::Finish) {
        event.superseded = true;
    }
    emissions
}

fn done_at_hand_over(mut emissions: Vec<Emission>) -> Vec<Emission> {
    for emission in &mut emissions {
        std::mem::replace(&mut emission.claim, Claim::unfenced()).done();
    }
    emissions
}

fn done_with_the_parent(emissions: Vec<Emission>) -> Vec<Emission> {
    let mut apart = Vec::with_capacity(2 * emissions.len());
    for mut emission in emissions {
        let outputs = std::mem::take(&mut emission.outputs);
        let (parents, children) = outputs.into_iter().partition(|output| output.envelope.is_parent);
        let (events, dead_letters) = (Vec::new(), Vec::new());
        apart.push(Emission { claim: Claim::unfenced(), outputs: children, events, dead_letters });
        emission.outputs = parents;
        apart.push(emission);
    }
    apart
}

fn backwards(mut emissions: Vec<Emission>) -> Vec<Emission> {
    emissions.reverse();
    emissions
}

struct Twists {
    worker: Twist,
    indexer: Twist,
}

impl Messengers for Twists {
    fn worker(&self, inner: AnyWorker) -> AnyWorker {
        AnyWorker::new(Twisted { inner, twist: self.worker })
    }

    fn indexer(&self, inner: AnyIndexer) -> AnyIndexer {
        AnyIndexer::new(Twisted { inner, twist: self.indexer })
    }
}

struct Twisted<M> {
    inner: M,
    twist: Twist,
}

impl<M: WorkerMessenger> WorkerMessenger for Twisted<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.send((self.twist)(emissions)).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

impl<M: IndexerMessenger> IndexerMessenger for Twisted<M> {
    async fn poll(&mut self, records_max: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        self.inner.poll(records_max).await
    }

    async fn complete(&mut self, outcomes: Vec<Emission>) -> Result<(), MessengerError> {
        self.inner.complete((self.twist)(outcomes)).await
    }

    fn drain(&mut self) {
        self.inner.drain();
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}
