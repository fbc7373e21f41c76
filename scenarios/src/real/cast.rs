//! The processes of a run: which there are, what each is told, and what became of its lives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use seriatim_core::env::{Env, Instant};
use seriatim_ingest::env::TokioEnv;
use seriatim_sim::history::{Recorder, What};

use super::gather::Gathered;
use super::plan::RealPlan;
use super::process::{Process, Program, history};
use crate::fault::{Node, Role};
use crate::node::LISTENING;
use crate::node::settings::Pipeline;
use crate::plan::{Mode, Workload};

/// How long an index may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(20);
/// Longest time that a process may take to end in order before it is killed, as an operator would.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often something is looked for.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// What a process is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Up,
    /// Stopped by SIGSTOP.
    Frozen,
    /// Asked to end.
    Stopping {
        /// Killed then.
        until: Instant,
        /// Started again so long after it has ended.
        restart: Option<Duration>,
    },
    /// Ended, and not yet started again.
    Down,
}

#[derive(Debug)]
struct Member {
    process: Process,
    state: State,
    /// When it was frozen last.
    frozen: Option<Instant>,
}

/// Where a run takes place.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) program: Program,
    pub(super) bootstrap: String,
    pub(super) replication: u16,
    /// The pipeline: unique on its cluster.
    pub(super) pipeline: String,
    pub(super) folder: PathBuf,
}

/// The processes of one run.
pub(super) struct Cast {
    env: TokioEnv,
    stage: Stage,
    real: RealPlan,
    index: Process,
    /// Where the index listens.
    pub(super) index_address: String,
    members: BTreeMap<String, Member>,
    /// Files of lives that were killed: their last lines may be cut.
    killed: BTreeSet<PathBuf>,
    /// How often a member was frozen for longer than its session.
    pub(super) outlasted: u64,
    pub(super) gathered: Gathered,
    pub(super) recorder: Recorder,
}

impl Cast {
    /// Starts the index; nothing else yet.
    pub(super) async fn new(env: TokioEnv, stage: Stage, real: RealPlan, recorder: Recorder) -> anyhow::Result<Self> {
        let words = ["index".to_owned(), "--delay-ms".to_owned(), real.index_delay_ms.to_string()];
        let mut index = Process::start(&stage.program, &stage.folder, ("index", 0), words)?;
        let started = env.now();
        let index_address = loop {
            let printed = index.printed();
            if let Some(address) = printed.lines().find_map(|line| line.strip_prefix(LISTENING))
                && printed.ends_with('\n')
            {
                break address.to_owned();
            }
            if !index.is_up() || env.now().since(started) > LISTEN_LIMIT {
                bail!("the index does not listen; it printed: {}", index.last_words());
            }
            env.sleep(TICK).await;
        };
        let mut gathered = Gathered::default();
        gathered.add(history(&stage.folder, "index", 0));
        let (members, killed) = (BTreeMap::new(), BTreeSet::new());
        Ok(Cast { env, stage, real, index, index_address, members, killed, outlasted: 0, gathered, recorder })
    }

    /// Starts everything that consumes.
    pub(super) fn start_consumers(&mut self) -> anyhow::Result<()> {
        let topology = self.real.plan.topology.clone();
        match topology.mode {
            Mode::Hybrid => (0..topology.pairs).try_for_each(|number| self.start(Node::Pair(number))),
            _ => {
                (0..topology.workers).try_for_each(|number| self.start(Node::Worker(number)))?;
                (0..topology.indexers).try_for_each(|number| self.start(Node::Indexer(number)))
            }
        }
    }

    /// Starts a node's next life.
    pub(super) fn start(&mut self, node: Node) -> anyhow::Result<()> {
        let name = node.to_string();
        let life = self.members.get(&name).map_or(0, |member| member.process.life + 1);
        let words = self.words(node)?;
        let process = Process::start(&self.stage.program, &self.stage.folder, (&name, life), words)?;
        self.gathered.add(history(&self.stage.folder, &name, life));
        self.members.insert(name, Member { process, state: State::Up, frozen: None });
        Ok(())
    }

    fn words(&self, node: Node) -> anyhow::Result<Vec<String>> {
        let (topology, knobs) = (&self.real.plan.topology, &self.real.plan.pipeline);
        let hybrid = topology.mode == Mode::Hybrid;
        let (role, number) = match node {
            Node::Publisher => ("publisher", 0),
            Node::Worker(number) => ("worker", number),
            Node::Indexer(number) => ("indexer", number),
            Node::Pair(number) => ("worker-indexer", number),
            Node::Process => bail!("local mode has no processes on a real Kafka"),
        };
        let mut words = vec![role.to_owned()];
        let mut add = |name: &str, value: &str| words.extend([format!("--{name}"), value.to_owned()]);
        add("kafka", &self.stage.bootstrap);
        add("pipeline", &self.stage.pipeline);
        add("replication", &self.stage.replication.to_string());
        if let Some(variant) = &self.real.variant {
            add("variant", variant);
        }
        if matches!(node, Node::Indexer(_) | Node::Pair(_)) {
            add("index", &self.index_address);
        }
        if matches!(node, Node::Pair(_)) {
            add("pairs", &topology.pairs_per_node.to_string());
            add("workers", &topology.workers.to_string());
            add("indexers", &topology.indexers.to_string());
        }
        if node == Node::Publisher {
            add("rate", &self.real.rate.to_string());
            match &self.real.plan.workload {
                Workload::Ripgrep => words.push("--ripgrep".into()),
                _ => words.extend(["--input".to_owned(), operations(&self.stage.folder).display().to_string()]),
            }
            words.extend(hybrid.then(|| "--hybrid".to_owned()));
        }
        words.extend(Pipeline::flags(knobs, number));
        Ok(words)
    }

    /// What `node` is at; `None` before it was ever started.
    pub(super) fn state(&self, node: Node) -> Option<State> {
        self.members.get(&node.to_string()).map(|member| member.state)
    }

    /// Whether its process is there, frozen or not: what ended since it was looked for cannot be struck.
    pub(super) fn is_there(&mut self, node: Node) -> bool {
        self.members.get_mut(&node.to_string()).is_some_and(|member| member.process.is_up())
    }

    /// How many of that role were ever started.
    pub(super) fn started(&self, role: Role) -> u32 {
        (0..).take_while(|number| self.state(role.node(*number)).is_some()).count() as u32
    }

    /// Kills `node` where it stands.
    pub(super) fn kill(&mut self, node: Node) {
        let Some(member) = self.members.get_mut(&node.to_string()) else { return };
        member.process.kill();
        member.state = State::Down;
        self.killed.insert(history(&self.stage.folder, &member.process.name, member.process.life));
        let name = member.process.name.as_str().into();
        self.recorder.record(&name, member.process.life, What::Crashed);
    }

    /// Asks `node` to end in order.
    pub(super) fn stop(&mut self, node: Node, restart: Option<Duration>) {
        let until = self.env.now() + STOP_LIMIT;
        let signal = self.real.stop_signal.name();
        if let Some(member) = self.members.get_mut(&node.to_string()) {
            member.process.signal(signal);
            member.process.signal("CONT");
            member.state = State::Stopping { until, restart };
        }
    }

    /// Freezes `node`.
    pub(super) fn freeze(&mut self, node: Node) {
        let now = self.env.now();
        if let Some(member) = self.members.get_mut(&node.to_string()) {
            member.process.signal("STOP");
            (member.state, member.frozen) = (State::Frozen, Some(now));
        }
    }

    /// Lets `node` go on.
    pub(super) fn thaw(&mut self, node: Node) {
        let (now, session) = (self.env.now(), Duration::from_millis(self.real.plan.pipeline.session_timeout_ms));
        if let Some(member) = self.members.get_mut(&node.to_string()) {
            member.process.signal("CONT");
            member.state = State::Up;
            let long = member.frozen.take().is_some_and(|since| now.since(since) > session);
            // A publisher has no session.
            self.outlasted += u64::from(long && node != Node::Publisher);
        }
    }

    /// Looks who ended. Gives those that were asked to, with the time until their next life; fails when one ended by
    /// itself. The publisher may.
    pub(super) fn reap(&mut self) -> anyhow::Result<Vec<(Node, Option<Duration>)>> {
        let now = self.env.now();
        let (mut ended, mut late) = (Vec::new(), Vec::new());
        for (name, member) in &mut self.members {
            let node: Node = name.parse().context("a node's name")?;
            if member.state == State::Down || member.process.is_up() {
                if matches!(member.state, State::Stopping { until, .. } if until < now) {
                    late.push(node);
                }
                continue;
            }
            match std::mem::replace(&mut member.state, State::Down) {
                State::Stopping { restart, .. } => ended.push((node, restart)),
                _ if node == Node::Publisher => {}
                _ => bail!("{name} ended by itself; it printed: {}", member.process.last_words()),
            }
        }
        for node in late {
            let restart = match self.state(node) {
                Some(State::Stopping { restart, .. }) => restart,
                _ => None,
            };
            self.kill(node);
            ended.push((node, restart));
        }
        Ok(ended)
    }

    /// The nodes that were ever started, and what they are at.
    pub(super) fn nodes(&self) -> Vec<(Node, State)> {
        let known = self.members.iter().filter_map(|(name, member)| Some((name.parse().ok()?, member.state)));
        known.collect()
    }

    /// What a node printed last.
    pub(super) fn last_words(&self, node: Node) -> String {
        self.members.get(&node.to_string()).map(|member| member.process.last_words()).unwrap_or_default()
    }

    /// Ends everybody but the index in order. False when somebody had to be killed.
    pub(super) async fn end_members(&mut self) -> bool {
        let mut in_order = true;
        for (node, state) in self.nodes() {
            if state != State::Down {
                self.stop(node, None);
            }
        }
        loop {
            let killed = self.killed.len();
            // Who ended by itself now ended all the same.
            let _ = self.reap();
            in_order &= killed == self.killed.len();
            if self.nodes().iter().all(|(_, state)| *state == State::Down) {
                return in_order;
            }
            self.env.sleep(TICK).await;
        }
    }

    /// Ends the index. False when it did not end.
    pub(super) async fn end_index(&mut self) -> bool {
        self.index.signal("TERM");
        let started = self.env.now();
        while self.index.is_up() && self.env.now().since(started) < STOP_LIMIT {
            self.env.sleep(TICK).await;
        }
        !self.index.is_up()
    }

    /// All histories put together. Everybody has ended.
    pub(super) fn into_events(self) -> anyhow::Result<Vec<seriatim_sim::history::Event>> {
        let Cast { gathered, recorder, killed, .. } = self;
        gathered.merge(recorder.take(), |path: &Path| killed.contains(path))
    }
}

/// Where a run's operations are.
pub(super) fn operations(folder: &Path) -> PathBuf {
    folder.join("operations.jsonl")
}
