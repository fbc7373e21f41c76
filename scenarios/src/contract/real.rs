//! A real Kafka as a site: rdkafka in this process, and puppets in child processes of their own.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use futures_util::StreamExt as _;
use futures_util::stream;
use seriatim_core::env::Env as _;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::Transport;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};
use seriatim_kafka_dev::{Cluster, Losses};
use tempfile::TempDir;

use super::puppet::{self, Order, Report, Script};
use super::{Lose, NotHere, Puppet, Rule, Site};

/// Rules that run side by side.
const AT_ONCE: usize = 10;

/// The subcommand of `sim` that plays a puppet.
pub const PUPPET_COMMAND: &str = "puppet";

/// Where a real Kafka is, and what there is beside it.
#[derive(Clone, Debug)]
pub struct Place {
    /// `host:port`, with commas between.
    pub bootstrap: String,
    /// The same over a link that loses answers, and how it is told to.
    pub lossy: Option<(String, Losses)>,
    /// Copies of each partition.
    pub replication: u16,
    /// The `sim` command, of which puppets are child processes.
    pub program: PathBuf,
}

impl Place {
    /// A broker of somebody else's.
    pub fn named(bootstrap: String, program: impl Into<PathBuf>) -> Self {
        Place { bootstrap, lossy: None, replication: 1, program: program.into() }
    }

    /// A development cluster.
    pub fn of(cluster: &Cluster, program: impl Into<PathBuf>) -> Self {
        Place {
            bootstrap: cluster.bootstrap(),
            lossy: cluster.lossy_bootstrap().zip(cluster.losses()),
            replication: if cluster.nodes().count() >= 3 { 3 } else { 1 },
            program: program.into(),
        }
    }
}

/// A real Kafka.
#[derive(Clone, Debug)]
pub struct Real {
    env: TokioEnv,
    transport: KafkaTransport<TokioEnv>,
    place: Arc<Place>,
    /// What tells this run's names from those of others.
    run: u64,
    names: Arc<AtomicU64>,
    /// What puppets print.
    folder: Arc<TempDir>,
}

impl Real {
    /// The Kafka at `place`, once it has answered.
    pub async fn connect(place: Place) -> Result<Self> {
        let env = TokioEnv::new();
        let transport = KafkaTransport::connect(env.clone(), KafkaSettings::new(&place.bootstrap)).await?;
        let run = env.random() >> 32;
        let folder = Arc::new(tempfile::tempdir().context("making a folder for what puppets print")?);
        Ok(Real { env, transport, place: Arc::new(place), run, names: Arc::default(), folder })
    }
}

/// Checks `rules` at `place`, some side by side; a result each, in order. `done` hears of each as it ends.
pub fn check(place: Place, rules: &[Rule], mut done: impl FnMut(&Rule, &Result<()>)) -> Result<Vec<Result<()>>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build()?;
    let mut results: Vec<Option<Result<()>>> = rules.iter().map(|_| None).collect();
    runtime.block_on(async {
        let site = Real::connect(place).await?;
        let run = |(number, rule): (usize, Rule)| {
            let site = site.clone();
            async move {
                let runtime = tokio::runtime::Handle::current();
                let ran = tokio::task::spawn_blocking(move || runtime.block_on(super::check(&site, rule.name))).await;
                (number, ran.unwrap_or_else(|panic| Err(panic.into())))
            }
        };
        let mut running = stream::iter(rules.iter().copied().enumerate()).map(run).buffer_unordered(AT_ONCE);
        while let Some((number, result)) = running.next().await {
            done(&rules[number], &result);
            results[number] = Some(result);
        }
        anyhow::Ok(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

impl Site for Real {
    type Env = TokioEnv;
    type Transport = KafkaTransport<TokioEnv>;
    type Puppet = ChildPuppet;

    fn env(&self) -> TokioEnv {
        self.env.clone()
    }

    fn transport(&self) -> Self::Transport {
        self.transport.clone()
    }

    async fn lossy(&self) -> Result<(Self::Transport, Lose)> {
        let Some((bootstrap, losses)) = self.place.lossy.clone() else {
            return Err(NotHere("no link to this broker loses answers").into());
        };
        let transport = KafkaTransport::connect(self.env.clone(), KafkaSettings::new(bootstrap)).await?;
        Ok((transport, Box::new(move |count| losses.set(count))))
    }

    fn fresh(&self, what: &str) -> String {
        format!("contract-{:x}-{}-{what}", self.run, self.names.fetch_add(1, Ordering::Relaxed))
    }

    fn replication(&self) -> u16 {
        self.place.replication
    }

    async fn add_partitions(&self, topic: Arc<str>, partitions: u32) -> Result<()> {
        Ok(self.transport.admin().create_partitions(&topic, partitions).await?)
    }

    async fn delete_records(&self, partition: TopicPartition, before: i64) -> Result<()> {
        self.transport.admin().delete_records(&partition, before).await?;
        Ok(())
    }

    async fn puppet(&self, script: Script) -> Result<ChildPuppet> {
        let path = self.folder.path().join(self.fresh("puppet"));
        ChildPuppet::start(&self.place, &script, &path)
    }
}

/// A member in a child process. Killed when it is dropped.
#[derive(Debug)]
pub struct ChildPuppet {
    child: Child,
    reports: PathBuf,
}

impl ChildPuppet {
    fn start(place: &Place, script: &Script, reports: &Path) -> Result<Self> {
        let out = File::create(reports).with_context(|| format!("making {}", reports.display()))?;
        let mut command = Command::new(&place.program);
        command.args([PUPPET_COMMAND, "--bootstrap", &place.bootstrap, "--script"]);
        command.arg(serde_json::to_string(script)?).stdin(Stdio::piped()).stdout(out).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {}", place.program.display()))?;
        Ok(ChildPuppet { child, reports: reports.to_owned() })
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        // A child that is gone needs none.
        let _ = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &pid]).status();
    }
}

impl Puppet for ChildPuppet {
    fn order(&mut self, order: Order) {
        if let (Some(pipe), Ok(line)) = (&mut self.child.stdin, serde_json::to_string(&order)) {
            // A child that is gone takes no orders.
            let _ = writeln!(pipe, "{line}");
        }
    }

    fn reports(&mut self) -> Vec<Report> {
        let text = fs::read_to_string(&self.reports).unwrap_or_default();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn freeze(&mut self) {
        self.signal("STOP");
    }

    fn thaw(&mut self) {
        self.signal("CONT");
    }
}

impl Drop for ChildPuppet {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Plays the puppet of `script` in this process until it fails for good or its orders end: with whoever started it.
pub fn play(bootstrap: &str, script: Script) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let orders: Arc<Mutex<VecDeque<Order>>> = Arc::default();
    let given = orders.clone();
    runtime.spawn_blocking(move || {
        for line in std::io::stdin().lock().lines() {
            let Some(order) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            given.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        }
        std::process::exit(0);
    });
    let say = |report: Report| {
        if let Ok(line) = serde_json::to_string(&report) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    };
    runtime.block_on(async {
        let env = TokioEnv::new();
        let transport = KafkaTransport::new(env.clone(), KafkaSettings::new(bootstrap))?;
        let take = move || orders.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        puppet::play(env, transport, script, take, say).await;
        anyhow::Ok(())
    })?;
    std::process::exit(0);
}
