//! What is measured: which processes, and what it is called.

use crate::Measured;
use crate::part::Role;

/// Processes that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrangement {
    PlainCopy,
    BareCopy,
    BareDistributed,
    Distributed,
    BareHybrid,
    Hybrid,
    Pattern,
    PatternAtOnce,
}

impl Arrangement {
    /// All, those next to each other that are compared.
    pub const ALL: [Arrangement; 8] = [
        Arrangement::PlainCopy,
        Arrangement::BareCopy,
        Arrangement::BareDistributed,
        Arrangement::Distributed,
        Arrangement::BareHybrid,
        Arrangement::Hybrid,
        Arrangement::Pattern,
        Arrangement::PatternAtOnce,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Arrangement::PlainCopy => "plain-copy",
            Arrangement::BareCopy => "bare-copy",
            Arrangement::BareDistributed => "bare-distributed",
            Arrangement::Distributed => "distributed",
            Arrangement::BareHybrid => "bare-hybrid",
            Arrangement::Hybrid => "hybrid",
            Arrangement::Pattern => "pattern",
            Arrangement::PatternAtOnce => "pattern-linger-0",
        }
    }

    pub const fn words(self) -> &'static str {
        match self {
            Arrangement::PlainCopy => "plain copy: one program, topic to topic, the client's own commits",
            Arrangement::BareCopy => "the copy hop of the bare hops, alone",
            Arrangement::BareDistributed => "bare hops, distributed: publish, consume and produce, consume and tell",
            Arrangement::Distributed => "**the pipeline, distributed**: publisher, worker, indexer",
            Arrangement::BareHybrid => "bare hops, hybrid: publish, consume and tell",
            Arrangement::Hybrid => "**the pipeline, hybrid**: publisher, worker and indexer in one process",
            Arrangement::Pattern => "the documented system's pattern: one record a poll, send and commit awaited",
            Arrangement::PatternAtOnce => "the same with `linger.ms=0`",
        }
    }

    /// Whether it reads what lies on a topic already.
    pub const fn is_copy(self) -> bool {
        matches!(self, Arrangement::PlainCopy | Arrangement::BareCopy)
    }

    pub const fn is_one_by_one(self) -> bool {
        matches!(self, Arrangement::Pattern | Arrangement::PatternAtOnce)
    }

    /// The process whose clock counts, and the others.
    pub fn roles(self, measured: &Measured) -> (Role, Vec<Role>) {
        let times = |role: Role, count: usize| vec![role; count.max(1)];
        let two = |worker, indexer| [times(worker, measured.workers), times(indexer, measured.indexers)].concat();
        match self {
            Arrangement::PlainCopy => (Role::PlainCopy, Vec::new()),
            Arrangement::BareCopy => (Role::BareCopyAlone, Vec::new()),
            Arrangement::BareDistributed => (Role::BarePublisher, two(Role::BareCopy, Role::BareRead)),
            Arrangement::Distributed => (Role::Publisher, two(Role::Worker, Role::Indexer)),
            Arrangement::BareHybrid => (Role::BarePublisher, times(Role::BareReadSource, measured.workers)),
            Arrangement::Hybrid => (Role::HybridPublisher, times(Role::WorkerIndexer, measured.workers)),
            Arrangement::Pattern | Arrangement::PatternAtOnce => {
                (Role::PatternPublisher, two(Role::PatternWorker, Role::PatternIndexer))
            }
        }
    }
}
