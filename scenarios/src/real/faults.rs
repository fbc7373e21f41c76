//! Strikes the faults of a plan, each when its trigger comes: signals to processes, partitions to topics, brokers
//! killed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::env::{Env, Instant};
use seriatim_core::messenger::kafka::Topics;
use seriatim_core::transport::{Admin, Transport};
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::KafkaTransport;
use seriatim_kafka_dev::Cluster;
use seriatim_sim::history::What;

use super::cast::{Cast, State};
use super::plan::{BrokerFault, RealPlan};
use crate::fault::{Action, Fault, FaultKind, Hop, Node, Trigger};
use crate::run::Strikes;

/// How long a fault may wait for its trigger once nothing else is left to strike.
const TRIGGER_LIMIT: Duration = Duration::from_secs(20);

/// The cluster that a run may break; `None` when it must not be.
pub type Brokers = Option<Arc<Mutex<Cluster>>>;

#[derive(Debug)]
enum Later {
    Start(Node),
    Thaw(Node),
}

pub(super) struct Injector {
    env: TokioEnv,
    transport: KafkaTransport<TokioEnv>,
    topics: Topics,
    waiting: Vec<Fault>,
    broker_faults: Vec<BrokerFault>,
    brokers: Brokers,
    broken: Arc<Mutex<Broken>>,
    later: Vec<(Instant, Later)>,
    /// The first publish: times are counted from there.
    origin: Option<Instant>,
    last_strike: Instant,
    pub(super) strikes: BTreeMap<FaultKind, Strikes>,
}

/// What the cluster has gone through.
#[derive(Debug, Default)]
struct Broken {
    /// Brokers that are down, or on their way back.
    now: u32,
    /// Brokers that were killed.
    killed: u64,
}

impl Injector {
    pub(super) fn new(
        env: TokioEnv,
        transport: KafkaTransport<TokioEnv>,
        topics: Topics,
        real: &RealPlan,
        brokers: Brokers,
    ) -> Self {
        Injector {
            last_strike: env.now(),
            env,
            transport,
            topics,
            waiting: real.plan.faults.clone(),
            broker_faults: real.broker_faults.clone(),
            brokers,
            broken: Arc::default(),
            later: Vec::new(),
            origin: None,
            strikes: BTreeMap::new(),
        }
    }

    /// Whether nothing is left to strike, or what is left has waited too long for its trigger.
    pub(super) fn is_over(&self) -> bool {
        let idle = self.waiting.is_empty() && self.broker_faults.is_empty() && self.later.is_empty();
        idle || self.env.now().since(self.last_strike) > TRIGGER_LIMIT
    }

    /// Brokers that were killed.
    pub(super) fn brokers_killed(&self) -> u64 {
        lock(&self.broken).killed
    }

    /// Strikes what is due.
    pub(super) async fn tick(&mut self, cast: &mut Cast) -> anyhow::Result<()> {
        let now = self.env.now();
        if self.origin.is_none() && cast.gathered.published() > 0 {
            (self.origin, self.last_strike) = (Some(now), now);
        }
        for (node, restart) in cast.reap()? {
            self.later.extend(restart.map(|wait| (now + wait, Later::Start(node))));
        }
        for fault in std::mem::take(&mut self.waiting) {
            if self.is_due(&fault.trigger, cast, now) {
                self.last_strike = now;
                self.strike(&fault.action, cast).await?;
            } else {
                self.waiting.push(fault);
            }
        }
        for fault in std::mem::take(&mut self.broker_faults) {
            match self.origin.is_some_and(|origin| now.since(origin).as_micros() >= u128::from(fault.at_micros)) {
                true => self.break_broker(fault, cast),
                false => self.broker_faults.push(fault),
            }
        }
        for (at, later) in std::mem::take(&mut self.later) {
            if at <= now {
                self.last_strike = now;
                happen(later, cast)?;
            } else {
                self.later.push((at, later));
            }
        }
        Ok(())
    }

    fn is_due(&self, trigger: &Trigger, cast: &Cast, now: Instant) -> bool {
        let Some(origin) = self.origin else { return false };
        let since = now.since(origin).as_micros();
        match *trigger {
            Trigger::At(micros) => since >= u128::from(micros),
            Trigger::InFlight { at_least, after_micros } => {
                cast.gathered.in_flight() >= at_least && since >= u128::from(after_micros)
            }
            Trigger::Nth { event, n } => cast.gathered.count(event) >= n,
        }
    }

    async fn strike(&mut self, action: &Action, cast: &mut Cast) -> anyhow::Result<()> {
        let state = action.node().map(|node| cast.state(node));
        // What is down, frozen or on its way out already is left alone, but that it may be killed.
        let is_kill = matches!(action, Action::Crash { .. });
        let may = match state {
            None | Some(Some(State::Up)) => true,
            Some(Some(State::Frozen | State::Stopping { .. })) => is_kill,
            Some(Some(State::Down) | None) => false,
        };
        if !may {
            return Ok(());
        }
        if action.node().is_some_and(|node| !cast.is_there(node)) {
            return Ok(());
        }
        let in_flight = cast.gathered.in_flight();
        let now = self.env.now();
        let micros = Duration::from_micros;
        let target = match *action {
            Action::Crash { node, restart_after_micros } => {
                cast.kill(node);
                self.later.retain(|(_, later)| !later.is_of(node));
                self.later.extend(restart_after_micros.map(|wait| (now + micros(wait), Later::Start(node))));
                node.to_string()
            }
            Action::Stop { node, restart_after_micros } => {
                cast.stop(node, restart_after_micros.map(micros));
                node.to_string()
            }
            Action::Pause { node, for_micros } => {
                cast.freeze(node);
                self.later.push((now + micros(for_micros), Later::Thaw(node)));
                node.to_string()
            }
            Action::Join { role } => {
                let node = role.node(cast.started(role));
                cast.start(node)?;
                node.to_string()
            }
            Action::Grow { topic, add } => self.grow(topic, add).await?,
            _ => return Ok(()),
        };
        note(cast, action.kind().name(), &target, in_flight);
        *self.strikes.entry(action.kind()).or_default() += Strikes::one(in_flight);
        Ok(())
    }

    async fn grow(&self, hop: Hop, add: u32) -> anyhow::Result<String> {
        let topic = match hop {
            Hop::Source => &self.topics.source,
            Hop::Dest => &self.topics.dest,
        };
        let admin = self.transport.admin();
        let mut counts = admin.partition_counts(vec![topic.clone()]).await;
        let count = counts.pop().unwrap_or(Ok(0))?;
        admin.create_partitions(topic, count + add).await?;
        Ok(topic.to_string())
    }

    /// Kills a broker, one at a time: more would leave no majority. It comes back by itself.
    fn break_broker(&mut self, fault: BrokerFault, cast: &Cast) {
        let Some(cluster) = self.brokers.clone().filter(|_| lock(&self.broken).now == 0) else { return };
        self.last_strike = self.env.now();
        note(cast, "broker-crash", &format!("broker-{}", fault.broker), cast.gathered.in_flight());
        lock(&self.broken).now += 1;
        let (env, broken) = (self.env.clone(), self.broken.clone());
        self.env.spawn(async move {
            let (node, cluster_of_kill) = (fault.broker, cluster.clone());
            let killed = env.run_blocking(Duration::ZERO, move || lock(&cluster_of_kill).kill(node)).await;
            lock(&broken).killed += u64::from(killed.is_ok());
            env.sleep(Duration::from_micros(fault.down_micros)).await;
            // A node that takes long to come back is waited for below.
            let back = env.run_blocking(Duration::ZERO, move || lock(&cluster).restart(node)).await;
            if killed.and(back).is_ok() {
                lock(&broken).now -= 1;
            }
        });
    }

    /// No more faults: what is down or frozen comes back. The brokers too, within `limit`.
    pub(super) async fn heal(&mut self, cast: &mut Cast, limit: Duration) -> anyhow::Result<()> {
        self.waiting.clear();
        self.broker_faults.clear();
        self.later.clear();
        let started = self.env.now();
        while lock(&self.broken).now > 0 {
            anyhow::ensure!(self.env.now().since(started) < limit, "a broker that was killed did not come back");
            self.env.sleep(Duration::from_millis(100)).await;
        }
        for (node, state) in cast.nodes() {
            match state {
                State::Frozen => cast.thaw(node),
                State::Down if node != Node::Publisher => cast.start(node)?,
                State::Up | State::Down | State::Stopping { .. } => {}
            }
        }
        cast.recorder.record(&"world".into(), 0, What::Healed);
        Ok(())
    }

    /// After the healing: who was still on its way to stop comes back once it has.
    pub(super) fn revive(&mut self, cast: &mut Cast) -> anyhow::Result<()> {
        for (node, _) in cast.reap()? {
            cast.start(node)?;
        }
        Ok(())
    }
}

impl Later {
    fn is_of(&self, of: Node) -> bool {
        matches!(self, Later::Start(node) | Later::Thaw(node) if *node == of)
    }
}

fn happen(later: Later, cast: &mut Cast) -> anyhow::Result<()> {
    match later {
        Later::Start(node) if cast.state(node) == Some(State::Down) => cast.start(node)?,
        Later::Thaw(node) if cast.state(node) == Some(State::Frozen) => cast.thaw(node),
        Later::Start(_) | Later::Thaw(_) => {}
    }
    Ok(())
}

fn note(cast: &Cast, kind: &str, target: &str, in_flight: u64) {
    let what = What::FaultInjected { kind: kind.into(), target: target.into(), in_flight };
    cast.recorder.record(&"world".into(), 0, what);
}

fn lock<T: ?Sized>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
