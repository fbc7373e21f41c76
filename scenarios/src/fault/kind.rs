//! The kinds of faults that campaigns count.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Action, Trouble};

/// The kinds that campaigns count. A kind that a scenario promises must hit work in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A node was killed.
    Crash,
    /// A node was stopped in order.
    Stop,
    /// A node joined.
    Join,
    /// A node was paused.
    Pause,
    /// A topic got more partitions.
    Grow,
    /// The way out of a node was cut.
    CutOut,
    /// The way into a node was cut.
    CutInto,
    /// Both were.
    CutBoth,
    /// A node's link was slow.
    SlowLink,
    /// A node's connections were reset.
    Reset,
    /// Answers to a node were lost.
    LostAnswer,
    /// A node's wall clock jumped, or began to drift.
    Clock,
    /// A foreign program appended what nobody can read.
    Poison,
    /// The topic of events was slow.
    SlowEvents,
    /// The topic of events was deleted.
    DeletedEvents,
    /// The index refused an item for good. Comes from the workload, since a refusal must be the same every time.
    IndexReject,
    /// The index was too busy for some items.
    IndexThrottle,
    /// The index refused a request whole.
    IndexUnavailable,
    /// The index was slow.
    IndexSlow,
    /// The index did not answer and had applied nothing.
    IndexTimeoutBefore,
    /// The index did not answer and had applied everything.
    IndexTimeoutAfter,
    /// A stage failed on a document. Comes from the workload.
    StageError,
    /// A stage panicked on a document. Comes from the workload.
    StagePanic,
    /// A stage was stuck on a document, the first time that it met it. Comes from the workload.
    StageStuck,
    /// Callers of a producer waited because it was full. Comes from a knob, and from links that are slow.
    FullQueue,
}

impl FaultKind {
    /// The name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Crash => "crash",
            FaultKind::Stop => "stop",
            FaultKind::Join => "join",
            FaultKind::Pause => "pause",
            FaultKind::Grow => "grow",
            FaultKind::CutOut => "cut-out",
            FaultKind::CutInto => "cut-into",
            FaultKind::CutBoth => "cut-both",
            FaultKind::SlowLink => "slow-link",
            FaultKind::Reset => "reset",
            FaultKind::LostAnswer => "lost-answer",
            FaultKind::Clock => "clock",
            FaultKind::Poison => "poison",
            FaultKind::SlowEvents => "slow-events",
            FaultKind::DeletedEvents => "deleted-events",
            FaultKind::IndexReject => "index-reject",
            FaultKind::IndexThrottle => "index-throttle",
            FaultKind::IndexUnavailable => "index-unavailable",
            FaultKind::IndexSlow => "index-slow",
            FaultKind::IndexTimeoutBefore => "index-timeout-before",
            FaultKind::IndexTimeoutAfter => "index-timeout-after",
            FaultKind::StageError => "stage-error",
            FaultKind::StagePanic => "stage-panic",
            FaultKind::StageStuck => "stage-stuck",
            FaultKind::FullQueue => "full-queue",
        }
    }

    /// Whether documents carry it: their marks ask stages or the index for it.
    pub const fn is_of_documents(self) -> bool {
        matches!(self, FaultKind::IndexReject | FaultKind::StageError | FaultKind::StagePanic | FaultKind::StageStuck)
    }

    /// Whether it may take partitions from a member that goes on writing, or leave a request without an answer, so that
    /// the same write comes again: order rests on versions then.
    pub const fn needs_versions(self) -> bool {
        use FaultKind::{
            CutBoth, CutInto, CutOut, IndexSlow, IndexTimeoutAfter, IndexTimeoutBefore, LostAnswer, Pause, Reset,
            StageStuck,
        };
        matches!(
            self,
            CutBoth
                | CutInto
                | CutOut
                | IndexSlow
                | IndexTimeoutAfter
                | IndexTimeoutBefore
                | LostAnswer
                | Pause
                | Reset
                | StageStuck
        )
    }

    /// Whether one process without Kafka can have it.
    pub const fn is_local(self) -> bool {
        use FaultKind::{
            Clock, Crash, IndexReject, IndexSlow, IndexThrottle, IndexTimeoutAfter, IndexTimeoutBefore,
            IndexUnavailable, StageError, StagePanic, StageStuck,
        };
        matches!(
            self,
            Clock
                | Crash
                | IndexReject
                | IndexSlow
                | IndexThrottle
                | IndexTimeoutAfter
                | IndexTimeoutBefore
                | IndexUnavailable
                | StageError
                | StagePanic
                | StageStuck
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Action {
    /// The kind that campaigns count it under.
    pub const fn kind(&self) -> FaultKind {
        match self {
            Action::Crash { .. } => FaultKind::Crash,
            Action::Stop { .. } => FaultKind::Stop,
            Action::Join { .. } => FaultKind::Join,
            Action::Pause { .. } => FaultKind::Pause,
            Action::Grow { .. } => FaultKind::Grow,
            Action::CutLink { out: true, into: true, .. } => FaultKind::CutBoth,
            Action::CutLink { out: true, .. } => FaultKind::CutOut,
            Action::CutLink { .. } => FaultKind::CutInto,
            Action::SlowLink { .. } => FaultKind::SlowLink,
            Action::Reset { .. } => FaultKind::Reset,
            Action::LoseAnswers { .. } => FaultKind::LostAnswer,
            Action::Clock { .. } => FaultKind::Clock,
            Action::Poison { .. } => FaultKind::Poison,
            Action::SlowEvents { .. } => FaultKind::SlowEvents,
            Action::DeleteEvents => FaultKind::DeletedEvents,
            Action::Index { trouble: Trouble::Throttle, .. } => FaultKind::IndexThrottle,
            Action::Index { trouble: Trouble::Unavailable, .. } => FaultKind::IndexUnavailable,
            Action::Index { trouble: Trouble::Slow, .. } => FaultKind::IndexSlow,
            Action::Index { trouble: Trouble::TimeoutBefore, .. } => FaultKind::IndexTimeoutBefore,
            Action::Index { trouble: Trouble::TimeoutAfter, .. } => FaultKind::IndexTimeoutAfter,
        }
    }
}
