//! One process of an arrangement, as its driver starts it: a role, the names that it goes by, and what it says.
//!
//! It prints `began` when its clock starts and `took DOCS MICROS` when it stops. It ends when its standard input does,
//! which is at the latest when the driver is gone.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use seriatim_core::messenger::kafka::Topics;
use seriatim_core::transport::ProducerConfig;

use crate::bare::Step;
use crate::{Instant, bare, payload, pipeline};

/// What a process prints when its clock starts.
pub const BEGAN: &str = "began";
/// What it prints before the documents and the microseconds.
pub const TOOK: &str = "took";
/// A process that was asked to end and does not is given up.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    Fill,
    PlainCopy,
    BareCopyAlone,
    BarePublisher,
    BareCopy,
    BareRead,
    BareReadSource,
    Publisher,
    HybridPublisher,
    Worker,
    Indexer,
    WorkerIndexer,
    PatternPublisher,
    PatternWorker,
    PatternIndexer,
}

/// Where and how much.
#[derive(Args, Clone, Debug)]
pub struct Work {
    #[arg(long)]
    pub kafka: String,
    #[arg(long)]
    pub name: String,
    #[arg(long, default_value_t = 0)]
    pub docs: usize,
    #[arg(long, default_value_t = 0)]
    pub warm_up: usize,
    #[arg(long)]
    pub linger: Option<u32>,
    /// A source topic that is there already.
    #[arg(long)]
    pub source: Option<String>,
}

impl Work {
    pub fn linger(&self) -> Duration {
        self.linger.map_or(ProducerConfig::default().linger, |linger| Duration::from_millis(linger.into()))
    }
}

/// Topics and groups.
#[derive(Debug)]
pub struct Names {
    pub pipeline: String,
    pub source: String,
    pub dest: String,
    /// Of bare hops; a run of the pipeline makes its own.
    pub event: String,
    pub fail: String,
    pub worker_group: String,
    pub indexer_group: String,
}

impl Names {
    pub fn of(name: &str) -> Self {
        let topics = Topics::of(name);
        Names {
            pipeline: name.to_owned(),
            source: topics.source.to_string(),
            dest: topics.dest.to_string(),
            event: format!("{name}_event_bare"),
            fail: topics.fail.to_string(),
            worker_group: topics.worker_group(),
            indexer_group: topics.indexer_group(),
        }
    }
}

/// The clock of a process.
#[derive(Debug)]
pub struct Clock {
    is_measured: bool,
    started: Instant,
}

impl Clock {
    pub fn start(is_measured: bool) -> Self {
        if is_measured {
            say(BEGAN);
        }
        Clock { is_measured, started: Instant::now() }
    }

    pub fn stop(self, docs: usize) {
        if self.is_measured {
            say(&format!("{TOOK} {docs} {}", self.started.elapsed().as_micros()));
        }
    }
}

fn say(line: &str) {
    // Whoever listened is gone: so will this process be.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

impl Role {
    /// Plays the role until it is through, or until standard input ends.
    pub fn play(self, work: &Work) -> anyhow::Result<()> {
        let stop = end_of_input()?;
        let mut names = Names::of(&work.name);
        names.source = work.source.clone().unwrap_or(names.source);
        let sizes = payload::sizes()?;
        match self {
            Role::Fill => bare::fill(work, &names),
            Role::PlainCopy => bare::plain_copy(work, &names, work.docs),
            Role::BareCopyAlone => bare::copier(work, &names, sizes, Some(work.docs), &stop),
            Role::BarePublisher => bare::publisher(work, &names),
            Role::BareCopy => bare::copier(work, &names, sizes, None, &stop),
            Role::BareRead => bare::reader(work, &names, sizes, false, &stop),
            Role::BareReadSource => bare::reader(work, &names, sizes, true, &stop),
            Role::Publisher => pipeline::publisher(work, &names, false, &stop),
            Role::HybridPublisher => pipeline::publisher(work, &names, true, &stop),
            Role::Worker => pipeline::worker(work, &names, &stop),
            Role::Indexer => pipeline::indexer(work, &names, &stop),
            Role::WorkerIndexer => pipeline::worker_indexer(work, &names, &stop),
            Role::PatternPublisher => bare::one_by_one_publisher(work, &names),
            Role::PatternWorker => {
                let step = Step { group: &names.worker_group, from: &names.source, to: &names.dest };
                bare::one_by_one(work, &step, &stop)
            }
            Role::PatternIndexer => {
                let step = Step { group: &names.indexer_group, from: &names.dest, to: &names.event };
                bare::one_by_one(work, &step, &stop)
            }
        }
    }
}

/// Set when standard input ends; some time after that the process ends, whatever it does.
fn end_of_input() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::<AtomicBool>::default();
    let asked = stop.clone();
    std::thread::Builder::new().name("end".into()).spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        asked.store(true, Ordering::Relaxed);
        crate::client::pause(STOP_LIMIT);
        std::process::exit(1);
    })?;
    Ok(stop)
}
