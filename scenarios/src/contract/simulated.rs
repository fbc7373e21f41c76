//! The simulated cluster as a site. Its transport is wrapped for a flaw; without one the wrapper changes nothing.

use anyhow::{Result, anyhow};
use seriatim_core::identity::TopicPartition;
use seriatim_sim::cluster::ClusterConfig;
use seriatim_sim::{SimEnv, SimTransport, World, WorldConfig};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::flaws::{Flaw, Flawed};
use super::puppet::{self, Order, Report, Script};
use super::{Lose, Puppet, Site};

/// A simulated cluster.
#[derive(Clone, Debug)]
pub struct Simulated {
    world: World,
    flaw: Option<Flaw>,
    names: Arc<AtomicU64>,
}

const HERE: &str = "rule";

impl Simulated {
    /// A site in `world`, whose transports have `flaw`.
    pub fn new(world: World, flaw: Option<Flaw>) -> Self {
        Simulated { world, flaw, names: Arc::default() }
    }

    fn transport_at(&self, node: &str) -> Flawed<SimTransport, SimEnv> {
        let node = self.world.node(node);
        Flawed::new(node.transport(), node.env(), self.flaw)
    }
}

/// Checks `rule` in a world of its own, against transports that have `flaw`.
pub fn check(seed: u64, rule: &str, flaw: Option<Flaw>) -> Result<()> {
    let cluster = ClusterConfig {
        initial_rebalance_delay: Duration::ZERO,
        metadata_lag: Duration::from_millis(300),
        ..ClusterConfig::default()
    };
    let config = WorldConfig { cluster, ..WorldConfig::default() };
    let outcome =
        seriatim_sim::run(seed, config, |world| async move { super::check(&Simulated::new(world, flaw), rule).await });
    outcome.result.map_err(|failure| anyhow!("{failure}"))?
}

impl Site for Simulated {
    type Env = SimEnv;
    type Transport = Flawed<SimTransport, SimEnv>;
    type Puppet = SimulatedPuppet;

    fn env(&self) -> SimEnv {
        self.world.node(HERE).env()
    }

    fn transport(&self) -> Self::Transport {
        self.transport_at(HERE)
    }

    async fn lossy(&self) -> Result<(Self::Transport, Lose)> {
        let (name, world) = (self.fresh("lossy"), self.world.clone());
        let transport = self.transport_at(&name);
        Ok((transport, Box::new(move |count| world.lose_answers(&name, count))))
    }

    fn fresh(&self, what: &str) -> String {
        format!("{what}-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    fn replication(&self) -> u16 {
        1
    }

    async fn add_partitions(&self, topic: Arc<str>, partitions: u32) -> Result<()> {
        self.world.grow_topic(&topic, partitions);
        Ok(())
    }

    async fn delete_records(&self, partition: TopicPartition, before: i64) -> Result<()> {
        self.world.delete_records(&partition, before);
        Ok(())
    }

    async fn puppet(&self, script: Script) -> Result<SimulatedPuppet> {
        let (name, flaw) = (self.fresh("puppet"), self.flaw);
        let (orders, reports) = (Queue::default(), Reports::default());
        let (taken, said) = (orders.clone(), reports.clone());
        self.world.spawn(&name, move |node| {
            let (taken, said) = (taken.clone(), said.clone());
            let transport = Flawed::new(node.transport(), node.env(), flaw);
            let take = move || lock(&taken).pop_front();
            puppet::play(node.env(), transport, script.clone(), take, move |report| lock(&said).push(report))
        });
        Ok(SimulatedPuppet { world: self.world.clone(), name, orders, reports })
    }
}

type Queue = Arc<Mutex<VecDeque<Order>>>;
type Reports = Arc<Mutex<Vec<Report>>>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member on a node of its own.
#[derive(Debug)]
pub struct SimulatedPuppet {
    world: World,
    name: String,
    orders: Queue,
    reports: Reports,
}

impl Puppet for SimulatedPuppet {
    fn order(&mut self, order: Order) {
        lock(&self.orders).push_back(order);
    }

    fn reports(&mut self) -> Vec<Report> {
        lock(&self.reports).clone()
    }

    fn kill(&mut self) {
        self.world.crash(&self.name);
    }

    fn freeze(&mut self) {
        self.world.pause(&self.name);
    }

    fn thaw(&mut self) {
        self.world.resume(&self.name);
    }
}
