//! The history of one real process: a file of JSON lines, each handed to the operating system before what it tells of.
//!
//! A line is written when a call is invoked, before the call, and when it is resolved; a process that is killed leaves
//! all that it began. Times are microseconds of the machine's wall clock, which the processes of one machine share and
//! which is never let back, so that histories can be put together by time. Numbers of calls begin at the process's own.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use seriatim_core::env::{Env, Instant};
use seriatim_sim::history::{Keep, NodeRecorder, Recorder};

/// Calls of one process, and more: processes are numbered by their ids, calls within them.
const CALLS_OF_A_PROCESS: u64 = 1 << 40;

/// Whose history it is.
#[derive(Clone, Debug)]
pub struct Life {
    /// Name of the node.
    pub node: String,
    /// Which life of it.
    pub incarnation: u32,
}

/// The wall clock, never let back.
pub fn clock(env: impl Env) -> impl Fn() -> Instant + Send + Sync + 'static {
    let latest = AtomicU64::new(0);
    move || {
        let now = env.wall_micros();
        Instant::from_micros(latest.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

/// A recorder that appends to `path`; without one, of nothing.
pub fn recorder(path: Option<&Path>, env: impl Env) -> anyhow::Result<Recorder> {
    let clock = clock(env);
    let Some(path) = path else { return Ok(Recorder::new(Keep::Nothing, clock)) };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("cannot write the history {}; does its folder exist?", path.display()))?;
    let first = u64::from(std::process::id()) * CALLS_OF_A_PROCESS + 1;
    // A file without a buffer of its own: each line is one write.
    Ok(Recorder::new(Keep::Hash, clock).with_sink(Box::new(file)).numbered_from(first))
}

impl Life {
    /// Its recorder.
    pub fn recorder(&self, recorder: &Recorder) -> NodeRecorder {
        recorder.node(self.node.as_str(), self.incarnation)
    }
}

/// Fails when a line could not be written: such a history must not be judged.
pub(super) fn is_whole(recorder: &Recorder) -> anyhow::Result<()> {
    recorder.take_sink_error().map_or(Ok(()), |error| Err(error).context("the history could not be written"))
}
