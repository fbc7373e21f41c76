//! One process of the system: started under a guard, so that it never outlives whoever started it, frozen or not.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use seriatim_kafka_dev::GUARD;

/// The last lines that a process printed are shown when it failed.
const TAIL_LINES: usize = 12;

/// How processes are started: a program and the words before the role, as `sim node`.
#[derive(Clone, Debug)]
pub struct Program(pub Vec<OsString>);

impl Program {
    /// This very program, whose command `node` is a process of the pipeline.
    pub fn of_this() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("the program does not know where it lies")?;
        Ok(Program(vec![own.into(), "node".into()]))
    }
}

/// A process in one of its lives.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) life: u32,
    guard: Child,
    output: PathBuf,
}

impl Process {
    /// Starts the `life`-th life of `name`, which writes its history and what it prints to `folder`.
    pub(super) fn start(
        program: &Program,
        folder: &Path,
        (name, life): (&str, u32),
        words: impl IntoIterator<Item = String>,
    ) -> anyhow::Result<Self> {
        let output = folder.join(format!("{name}.{life}.out"));
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(&output).arg("");
        guard.args(&program.0).args(words);
        guard.arg("--history").arg(history(folder, name, life));
        guard.args(["--name", name, "--life", &life.to_string()]);
        // Out of the terminal's process group: an interrupt there is the driver's to obey.
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let guard = guard.spawn().with_context(|| format!("cannot start `sh` for {name}"))?;
        Ok(Process { name: name.to_owned(), life, guard, output })
    }

    /// Sends it the signal called `name`.
    pub(super) fn signal(&mut self, name: &str) {
        if let Some(pipe) = self.guard.stdin.as_mut() {
            // A guard that is gone has nobody to tell.
            let _ = pipe.write_all(format!("{name}\n").as_bytes());
        }
    }

    /// Whether it still runs.
    pub(super) fn is_up(&mut self) -> bool {
        matches!(self.guard.try_wait(), Ok(None))
    }

    /// Kills it and waits until it is gone.
    pub(super) fn kill(&mut self) {
        // The guard kills when its pipe closes, whatever it was told before.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }

    /// All that it printed.
    pub(super) fn printed(&self) -> String {
        fs::read(&self.output).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last that it printed.
    pub(super) fn last_words(&self) -> String {
        let printed = self.printed();
        let lines: Vec<&str> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a life's history is.
pub(super) fn history(folder: &Path, name: &str, life: u32) -> PathBuf {
    folder.join(format!("{name}.{life}.jsonl"))
}
