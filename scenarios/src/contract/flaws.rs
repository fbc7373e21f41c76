//! Transports that break the contract, one flaw at a time, so that every rule is seen failing.
//!
//! A flaw is a mistake of a transport or of its configuration that somebody could make; [`Flaw::of`] names the one that
//! breaks a rule. Nothing that must be right uses them.

mod transport;

pub use transport::{Flawed, FlawedAdmin, FlawedAssigned, FlawedGroup, FlawedPoller, FlawedProducer};

/// A way to break the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// Partitions keys by CRC-32, as librdkafka does by default.
    HashesByCrc,
    /// Lets the partitioner choose where a partition was named.
    ForgetsPartitions,
    /// Hands the records of a call over backwards.
    Reverses,
    /// Sends again what it sent, as a retry without sequence numbers may.
    SendsTwice,
    /// Does not wait in a flush.
    FlushesNothing,
    /// Refuses what its queue has no room for.
    RefusesWhenFull,
    /// Sends an empty value for none.
    SendsEmptyForNone,
    /// Sorts headers.
    SortsHeaders,
    /// Loses timestamps.
    LosesTimestamps,
    /// Cuts large values.
    CutsValues,
    /// Takes what is refused for what may succeed later.
    NeverRefuses,
    /// Knows no partitions but those that it knew first.
    KnowsOnlyTheFirst,
    /// Takes a topic that exists for one that it made.
    CreatesAgain,
    /// Tells the offset of the last record for the end.
    EndsOneEarly,
    /// Never looks at metadata again.
    NeverRefreshes,
    /// Loses the metadata of commits.
    LosesMetadata,
    /// Passes commits over that go back, and says that they were taken.
    CommitsOnlyForward,
    /// Refuses commits past some end.
    CommitsOnlyNear,
    /// Says of a fenced commit that it was taken.
    HidesFences,
    /// Stamps commits with the epoch of now.
    CommitsAsOfNow,
    /// Loses the last partition of an assignment.
    DropsPartitions,
    /// Releases a revocation as soon as it comes.
    ReleasesAtOnce,
    /// Names what it retained again, under a new epoch.
    RenewsEpochs,
    /// Gives all ownerships one epoch.
    SharesEpochs,
    /// Takes a release of anything.
    ReleasesAnything,
    /// Goes without a word.
    LeavesInSilence,
    /// Has a session five times as long.
    LivesLonger,
    /// Has a poll limit that never comes.
    NeverEvicts,
    /// Keeps a loss to itself.
    HidesLosses,
    /// Forgets its instance id.
    IsNobody,
    /// Has an instance id of its own.
    IsSomebodyElse,
    /// Starts at the end without a commit.
    StartsAtTheEnd,
    /// Passes over a pause.
    NeverPauses,
    /// Gives more records than asked for.
    GivesMore,
    /// Loses what it had taken when a poll is dropped.
    DropsWithThePoll,
    /// Tells what it fetched for what it gave.
    RunsAhead,
}

impl Flaw {
    /// The flaw that breaks `rule`.
    pub fn of(rule: &str) -> Option<Flaw> {
        Some(match rule {
            "key_to_partition" => Flaw::HashesByCrc,
            "named_partition" => Flaw::ForgetsPartitions,
            "order_in_partition" => Flaw::Reverses,
            "idempotent_retry" => Flaw::SendsTwice,
            "flush_awaits_all" => Flaw::FlushesNothing,
            "full_queue_waits" => Flaw::RefusesWhenFull,
            "tombstones_and_empty_keys" => Flaw::SendsEmptyForNone,
            "headers_in_order" => Flaw::SortsHeaders,
            "timestamp_of_producer" => Flaw::LosesTimestamps,
            "large_records" => Flaw::CutsValues,
            "unknown_topic_refused" => Flaw::NeverRefuses,
            "topic_exists_once" => Flaw::CreatesAgain,
            "watermarks_tell_what_is_kept" => Flaw::EndsOneEarly,
            "growth_seen_by_producer" | "growth_seen_by_consumer" => Flaw::NeverRefreshes,
            "growth_can_be_written_at_once" => Flaw::KnowsOnlyTheFirst,
            "growth_keeps_what_is_retained" | "cooperative_keeps_epochs" => Flaw::RenewsEpochs,
            "commit_with_metadata" => Flaw::LosesMetadata,
            "commit_backwards_is_taken" => Flaw::CommitsOnlyForward,
            "commit_past_the_end_is_taken" => Flaw::CommitsOnlyNear,
            "foreign_commit_is_fenced" => Flaw::HidesFences,
            "late_commit_is_fenced" => Flaw::CommitsAsOfNow,
            "commits_while_draining" | "drain_before_handover" => Flaw::ReleasesAtOnce,
            "every_partition_has_one_owner" => Flaw::DropsPartitions,
            "epochs_rise" => Flaw::SharesEpochs,
            "release_once" => Flaw::ReleasesAnything,
            "leave_hands_over_at_once" => Flaw::LeavesInSilence,
            "dead_member_keeps_its_session" => Flaw::LivesLonger,
            "frozen_member_is_fenced" => Flaw::HidesLosses,
            "poll_limit_evicts" => Flaw::NeverEvicts,
            "drain_past_the_limit" => Flaw::HidesFences,
            "static_restart_moves_nothing" | "static_leave_is_silent" => Flaw::IsNobody,
            "static_death_between_generations" => Flaw::IsNobody,
            "static_twin_fences_the_older" => Flaw::IsSomebodyElse,
            "offset_reset" | "records_deleted_before" | "records_deleted_under_a_reader" => Flaw::StartsAtTheEnd,
            "pause_and_resume" => Flaw::NeverPauses,
            "poll_keeps_its_bounds" => Flaw::GivesMore,
            "cancelled_polls_lose_nothing" => Flaw::DropsWithThePoll,
            "assigned_positions" => Flaw::RunsAhead,
            _ => return None,
        })
    }
}
