//! Processes of a pipeline for tests: those that run until they are stopped, and those that end in seconds.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use seriatim_core::env::Env as _;
use seriatim_core::transport::{NewTopic, Transport as _};
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};
use seriatim_kafka_dev::GUARD;

const NODE: &str = env!("CARGO_BIN_EXE_node");
const STEP: Duration = Duration::from_millis(50);

/// Looks until there is something to be seen, for `seconds`.
pub fn until<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..seconds * 1_000 / STEP.as_millis() as u64 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(STEP);
    }
    panic!("not in {seconds} s: {what}");
}

/// A name that no other test uses, nor an earlier run.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{:08x}", NEXT.fetch_add(1, Ordering::Relaxed), TokioEnv::new().random() >> 32)
}

/// A process that runs until it is dropped; under a guard, so that it never outlives this one.
pub struct Running {
    guard: Child,
    output: PathBuf,
}

impl Running {
    pub fn start(folder: &Path, name: &str, words: &[String]) -> Self {
        let output = folder.join(format!("{name}.out"));
        File::create(&output).expect("a file");
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(&output).arg("").arg(NODE).args(words);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Running { guard: guard.spawn().expect("a shell"), output }
    }

    pub fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// The rest of the line that begins so, once it is printed.
    pub fn says(&self, beginning: &str) -> String {
        until(20, beginning, || {
            let printed = self.printed();
            printed.lines().find_map(|line| line.strip_prefix(beginning)).map(str::to_owned)
        })
    }

    /// What it printed, once it has ended by itself.
    pub fn ended(mut self, seconds: u64) -> String {
        until(seconds, "its end", || self.guard.try_wait().expect("a child"));
        self.printed()
    }

    /// Asks it to end, and waits.
    pub fn stop(mut self) -> String {
        if let Some(pipe) = self.guard.stdin.as_mut() {
            pipe.write_all(b"TERM\n").expect("the guard listens");
        }
        self.ended(20)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The guard kills when its pipe closes.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// How a process ended, which must be within `seconds`.
pub struct Ended {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn run(folder: &Path, seconds: u64, words: &[String]) -> Ended {
    let file = |end: &str| folder.join(unique(end));
    let (out, err) = (file("out"), file("err"));
    let mut child = Command::new(NODE)
        .args(words)
        .stdin(Stdio::null())
        .stdout(File::create(&out).expect("a file"))
        .stderr(File::create(&err).expect("a file"))
        .spawn()
        .expect("it can be started");
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    for _ in 0..seconds * 1_000 / STEP.as_millis() as u64 {
        if let Some(status) = child.try_wait().expect("a child") {
            return Ended { status: status.code(), out: text(&out), err: text(&err) };
        }
        std::thread::park_timeout(STEP);
    }
    let _ = child.kill();
    let _ = child.wait();
    panic!("{words:?} did not end in {seconds} s; it said:\n{}{}", text(&out), text(&err));
}

impl Ended {
    /// It ended with status 2 and one message, which holds all of `words`.
    pub fn refused(&self, words: &[&str]) {
        let err = &self.err;
        assert_eq!(self.status, Some(2), "{err}");
        assert_eq!(err.lines().filter(|line| !line.trim().is_empty()).count(), 1, "one message: {err}");
        for word in words {
            assert!(err.contains(word), "`{word}` is not in: {err}");
        }
    }
}

/// `--name value` for each pair, after the role.
pub fn words(role: &str, pairs: &[(&str, &str)]) -> Vec<String> {
    let flags = pairs.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]);
    std::iter::once(role.to_owned()).chain(flags).collect()
}

/// Makes the topics of `pipeline`, with settings of their own.
pub fn make_topics(bootstrap: &str, pipeline: &str, settings: &[(&str, &[(&str, &str)])]) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    runtime.block_on(async {
        let transport = KafkaTransport::new(TokioEnv::new(), KafkaSettings::new(bootstrap)).expect("good settings");
        let made = async {
            for (end, settings) in settings {
                let name: Arc<str> = format!("{pipeline}_{end}").into();
                let new = NewTopic { name, partitions: 2, replication: 1 };
                transport.admin().create_topic(new, settings).await.expect("a new topic");
            }
        };
        tokio::time::timeout(Duration::from_secs(30), made).await.expect("topics in 30 s");
    });
    runtime.shutdown_background();
}
