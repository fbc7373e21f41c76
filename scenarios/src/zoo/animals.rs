//! The list of animals: name, mistake, where they live, and what must catch them.

use std::sync::Arc;

use super::clients::{GivesAfterRevocation, KeepsPosition, Repeats, Skips};
use super::commit_on_poll::CommitOnPoll;
use super::commits::{CommitPosition, LateCommit};
use super::count_ids::CountIds;
use super::deaf::Deaf;
use super::flaky::FlakyStage;
use super::ledgers::{
    MisfiledChildren, MixedAttempts, WithoutAcknowledged, WithoutClose, WithoutEarlyEnds, WithoutPending,
};
use super::queues::{DropsYieldNoOffset, Poisoned, SharedIndexQueue, SharedWorkQueue};
use super::reports::{
    AllSuperseded, DigestOfTheAttempt, DoneAtHandOver, DoneWithTheParent, LettersTwice, NoDeadLetter, NoDigest,
    SupersededAsIndexed, WorkerBackwards,
};
use super::twin::TwinChild;
use super::unpinned::Unpinned;
use super::writes::{
    DeletesFirst, ForgottenTombstones, HalvesAtOnce, SendsAndForgets, Unversioned, UnversionedDeletes,
};
use crate::drive::{Variant, run_variant};
use crate::run::Runner;

/// A flawed pipeline, and what must catch it.
#[derive(Debug)]
pub struct Animal {
    /// Its name.
    pub name: &'static str,
    /// The mistake, in a few words.
    pub mistake: &'static str,
    /// The scenario in which it lives: the general one of a mode, so that none is tuned to it.
    pub scenario: &'static str,
    /// The properties of which one must break. Another one alone is not a catch: it would be luck.
    pub properties: &'static [&'static str],
    variant: fn() -> Arc<dyn Variant>,
}

impl Animal {
    /// The flawed pipeline.
    pub fn variant(&self) -> Arc<dyn Variant> {
        (self.variant)()
    }

    /// Runs plans with the flawed pipeline.
    pub fn runner(&self) -> impl Runner + use<> {
        run_variant((self.variant)())
    }
}

macro_rules! animals {
    ($($name:literal, $scenario:literal, [$($property:literal)*], $variant:expr, $mistake:literal;)*) => {
        /// All animals.
        pub const ANIMALS: &[Animal] = &[$(Animal {
            name: $name,
            mistake: $mistake,
            scenario: $scenario,
            properties: &[$($property),*],
            variant: || Arc::new($variant),
        }),*];
    };
}

animals! {
    "commit-on-poll", "distributed-all", ["commit-ahead" "sink-lost-write"], CommitOnPoll,
        "indexers commit what they polled before it is indexed";
    "commit-position", "distributed-all", ["commit-ahead" "sink-lost-write"], CommitPosition,
        "commits the highest offset read instead of the low-water mark";
    "no-drain", "distributed-all", ["effect-after-release" "write-order" "write-overlap"], Deaf::ToRevocations,
        "does not drain on revoke";
    "late-commit", "distributed-all", ["commit-unowned" "commit-regression"], LateCommit,
        "a queued commit of an old owner is sent after its release";
    "zombie", "distributed-all", ["effect-after-release"], Deaf::ToLosses,
        "never hears that its partitions were lost, and goes on writing";
    "shared-index-queue", "local-all", ["write-order" "write-overlap"], SharedIndexQueue,
        "several indexers take from one queue";
    "shared-index-queue-of-a-pair", "hybrid-all", ["write-order" "write-overlap"], SharedIndexQueue,
        "several indexers of a pair take from one queue";
    "shared-work-queue", "local-all", ["write-order" "write-overlap"], SharedWorkQueue,
        "several workers take from one queue without lanes";
    "unversioned", "distributed-all", ["final-index" "write-after-completion"], Unversioned,
        "writes without versions, while owners may be paused";
    "unversioned-deletes", "distributed-all", ["final-index" "sink-nonmonotonic"], UnversionedDeletes,
        "upserts carry versions, deletes do not";
    "forgotten-tombstones", "distributed-all", ["final-index" "sink-nonmonotonic"], ForgottenTombstones,
        "the index forgets deletes sooner than a late write may come";
    "deletes-first", "distributed-all", ["write-order"], DeletesFirst,
        "sends the deletes of a batch before its upserts";
    "halves-at-once", "distributed-all", ["write-overlap" "write-order"], HalvesAtOnce,
        "sends two halves of a batch at the same time";
    "sends-and-forgets", "distributed-all", ["sink-lost-write" "write-after-completion" "final-index"], SendsAndForgets,
        "an index client that says applied before it is";
    "count-ids", "distributed-all", ["completed-early" "completed-never" "write-after-completion"], CountIds::Bag,
        "a ledger that counts ids";
    "set-of-ids", "distributed-all", ["completed-early"], CountIds::Set,
        "a ledger that is a set of ids";
    "no-early-ends", "distributed-all", ["completed-never"], WithoutEarlyEnds,
        "a ledger that drops the end of a child whose CREATE it has not seen";
    "mixed-attempts", "distributed-all", ["counted-early" "completed-early"], MixedAttempts,
        "a ledger that counts the ends of a record, of whichever attempts";
    "without-close", "distributed-all", ["run-failed" "completed-early"], WithoutClose,
        "complete as soon as all is acknowledged and nothing pends";
    "without-acknowledged", "distributed-all", ["completed-early"], WithoutAcknowledged,
        "a publish pends once it is acknowledged; complete once through and nothing pends";
    "without-pending", "distributed-all", ["completed-early"], WithoutPending,
        "complete once through and all is acknowledged";
    "without-pending-local", "local-all", ["completed-early" "sink-unseen"], WithoutPending,
        "the same in one process, which ends then";
    "misfiled-children", "distributed-all", ["summary-mismatch"], MisfiledChildren,
        "a summary that tells indexed children as failed";
    "twin-child", "distributed-all", ["run-totals"], TwinChild,
        "a stage that gives a child twice";
    "unpinned", "distributed-all", ["key-moved"], Unpinned,
        "places records by the partition count of the moment";
    "drops-yield-no-offset", "distributed-all", ["lag-left" "stuck"], DropsYieldNoOffset,
        "dropped documents never settle their records";
    "poison-kills", "distributed-all", ["completed-never" "stuck" "poison-unburied"], Poisoned::Ends,
        "a record that cannot be read ends its worker, uncommitted";
    "poison-skipped", "distributed-all", ["record-vanished"], Poisoned::Skips,
        "a record that cannot be read is passed over without a dead letter";
    "skips", "distributed-all", ["poll-skip"], Skips,
        "a client that loses a record between two fetches";
    "repeats", "distributed-all", ["nonmonotonic-poll"], Repeats,
        "a client that gives a record twice";
    "keeps-position", "distributed-all", ["epoch-start"], KeepsPosition,
        "a client that keeps its position over a rebalance";
    "gives-after-revocation", "distributed-all", ["poll-unowned"], GivesAfterRevocation,
        "a client that empties its queue after it told of a revocation";
    "no-dead-letter", "distributed-all", ["dead-letter-missing"], NoDeadLetter,
        "tells that a document failed, and leaves no dead letter";
    "letters-twice", "distributed-all", ["dead-letter-twice"], LettersTwice,
        "leaves two dead letters of what failed";
    "digest-of-the-attempt", "distributed-all", ["ambiguous-family"], DigestOfTheAttempt,
        "a digest of a family that another attempt does not come to";
    "no-digest", "distributed-all", ["digest-missing"], NoDigest,
        "tells no digest of what an attempt gave, so that nobody can see that two differ";
    "flaky-stage", "distributed-all", ["outcome-conflict"], FlakyStage::default(),
        "a stage that drops one document in a while, whichever it is";
    "superseded-as-indexed", "distributed-all", ["summary-mismatch"], SupersededAsIndexed,
        "tells what was superseded as indexed";
    "all-superseded", "distributed-all", ["summary-mismatch"], AllSuperseded,
        "tells all that was indexed as superseded";
    "done-at-hand-over", "hybrid-all", ["commit-ahead"], DoneAtHandOver,
        "a pair's record is done when it waits for the indexer";
    "done-with-the-parent", "hybrid-all", ["commit-ahead"], DoneWithTheParent,
        "a pair's record is done when its parent is, whatever its children do";
    "worker-backwards", "distributed-all", ["write-order"], WorkerBackwards,
        "a worker hands over the newest of a batch first";
    "worker-of-a-pair-backwards", "hybrid-all", ["write-order"], WorkerBackwards,
        "a worker of a pair hands over the newest of a batch first";
}
