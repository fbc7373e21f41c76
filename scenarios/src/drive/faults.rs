//! Injects the faults of a plan, each when its trigger comes, and knows which of them hit work in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::env::Instant;
use seriatim_core::messenger::kafka::Topics;
use seriatim_sim::World;
use seriatim_sim::history::{Recorder, What};

use super::links::{self, Links};
use super::nodes::{self, Cast};
use super::poison::Poisoner;
use super::struck::Struck;
use super::troubles::{self, Troubles};
use super::{IDLE_TICK, PIPELINE, SharedProgress, lock};
use crate::fault::{Action, Event, Fault, FaultKind, Hop, Node, Role, Trigger};
use crate::plan::{Mode, Plan};

/// How long what happens is gathered before triggers are looked at again.
const TICK: Duration = Duration::from_millis(2);
/// How long a fault may wait for its trigger after the last one struck.
const TRIGGER_LIMIT: Duration = Duration::from_secs(60);
/// Longest time that a graceful stop may take before the process is killed, as an operator would.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Longest time in which the answers are lost that a fault loses.
const LOSING_LIMIT: Duration = Duration::from_secs(5);

/// What is to happen later because of a fault.
#[derive(Debug)]
enum Later {
    Restart(String),
    /// Still there after its time: kill it.
    Kill(String),
    Resume(String),
    /// Answers to it are lost no more.
    Answer(String),
}

impl Later {
    fn is_kill(&self) -> bool {
        matches!(self, Later::Kill(_))
    }
}

pub(super) struct Injector {
    waiting: Vec<Fault>,
    last_strike: Instant,
    later: Vec<(Instant, Later)>,
    /// Asked to stop, and not started again.
    stopping: BTreeSet<String>,
    struck: Struck,
    troubles: Troubles,
    links: Links,
    poisoner: Poisoner,
    progress: SharedProgress,
    recorder: Recorder,
    seen_events: u64,
    counts: BTreeMap<Event, u64>,
    started: BTreeMap<Role, u32>,
    topics: Topics,
    groups: Vec<String>,
}

impl Injector {
    pub(super) fn new(plan: &Plan, world: &World, cast: &Cast, progress: SharedProgress, struck: Struck) -> Self {
        let topology = &plan.topology;
        let started = match topology.mode {
            Mode::Local => BTreeMap::new(),
            Mode::Distributed => BTreeMap::from([(Role::Worker, topology.workers), (Role::Indexer, topology.indexers)]),
            Mode::Hybrid => BTreeMap::from([(Role::Pair, topology.pairs)]),
        };
        Injector {
            waiting: plan.faults.clone(),
            last_strike: Instant::default(),
            later: Vec::new(),
            stopping: BTreeSet::new(),
            troubles: Troubles::hook(world, plan.seeds.index, struck.clone()),
            struck,
            links: Links::new(nodes::event_topics()),
            poisoner: Poisoner::default(),
            progress,
            recorder: world.recorder(),
            seen_events: 0,
            counts: BTreeMap::new(),
            started,
            topics: Topics::of(PIPELINE),
            groups: cast.groups().into_iter().map(|(group, _)| group).collect(),
        }
    }

    /// Whether nothing is left to strike, or what is left has waited too long for its trigger.
    pub(super) fn is_over(&mut self, world: &World) -> bool {
        let now = world.now();
        let closed = self.troubles.close_due(now) & self.links.close_due(world, now);
        let idle = self.waiting.is_empty() && self.later.is_empty() && closed;
        idle || now.since(self.last_strike) > TRIGGER_LIMIT
    }

    /// Strikes what is due, then lets time pass until something more may be.
    pub(super) async fn tick(&mut self, world: &World, cast: &Cast) {
        let now = world.now();
        self.count_events();
        for fault in std::mem::take(&mut self.waiting) {
            if self.is_due(&fault.trigger, world, now) {
                self.last_strike = now;
                self.strike(&fault.action, world, cast, now);
            } else {
                self.waiting.push(fault);
            }
        }
        if self.happen_due(world, now) {
            self.last_strike = now;
        }
        let due = self.next_due(now);
        if !self.waiting.iter().any(|fault| watches_events(&fault.trigger, now)) {
            // Only time is waited for. Meanwhile the run may end.
            return world.sleep(due.since(now).min(IDLE_TICK)).await;
        }
        world.sleep(TICK).await;
        let rest = due.since(world.now());
        select(pin!(self.recorder.more_than(self.seen_events)), pin!(world.sleep(rest))).await;
    }

    /// When to look again if nothing happens until then.
    fn next_due(&self, now: Instant) -> Instant {
        let triggers = self.waiting.iter().filter_map(|fault| match fault.trigger {
            Trigger::At(micros) | Trigger::InFlight { after_micros: micros, .. } => Some(Instant::from_micros(micros)),
            Trigger::Nth { .. } => None,
        });
        let windows = self.troubles.next_end().into_iter().chain(self.links.next_end());
        let ahead = triggers.chain(self.later.iter().map(|(at, _)| *at)).chain(windows).filter(|at| *at > now);
        ahead.fold(self.last_strike + TRIGGER_LIMIT + TICK, Instant::min)
    }

    /// No more faults: what is down, frozen, cut or slow comes back.
    pub(super) fn heal(&mut self, world: &World) {
        self.waiting.clear();
        self.troubles.close_all();
        self.links.close_all(world);
        let (kills, later) = std::mem::take(&mut self.later).into_iter().partition(|(_, later)| later.is_kill());
        self.later = kills;
        later.into_iter().for_each(|(_, later)| self.happen(later, world));
        for (role, count) in self.started.clone() {
            for number in 0..count {
                let name = role.node(number).to_string();
                if !world.is_alive(&name) {
                    self.restart(&name, world);
                }
            }
        }
        self.recorder.record(&"world".into(), 0, What::Healed);
    }

    /// After the healing: what was still on its way to stop comes back once it has.
    pub(super) fn revive(&mut self, world: &World) {
        self.happen_due(world, world.now());
        let ended: Vec<String> = self.stopping.iter().filter(|name| !world.is_alive(name)).cloned().collect();
        ended.iter().for_each(|name| self.restart(name, world));
    }

    /// What was to happen by now. Whether anything was.
    fn happen_due(&mut self, world: &World, now: Instant) -> bool {
        let mut any = false;
        // One at a time: what happens may call off what was to follow.
        while let Some(place) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, later) = self.later.remove(place);
            self.happen(later, world);
            any = true;
        }
        any
    }

    fn restart(&mut self, name: &str, world: &World) {
        world.restart(name);
        self.stopped(name);
    }

    /// The process that was asked to stop is no more: the next one is nobody's to kill.
    fn stopped(&mut self, name: &str) {
        self.stopping.remove(name);
        self.later.retain(|(_, later)| !matches!(later, Later::Kill(node) if node == name));
    }

    /// Everything has struck: the keys of the unreadable records.
    pub(super) fn end(mut self) -> Vec<String> {
        self.count_events();
        self.poisoner.into_keys()
    }

    fn is_due(&self, trigger: &Trigger, world: &World, now: Instant) -> bool {
        match *trigger {
            Trigger::At(micros) => now.as_micros() >= micros,
            Trigger::InFlight { at_least, after_micros } => {
                now.as_micros() >= after_micros && self.in_flight(world) >= at_least
            }
            Trigger::Nth { event, n } => self.counts.get(&event).is_some_and(|count| *count >= n),
        }
    }

    /// Records polled and not committed; in local mode, published and not complete.
    fn in_flight(&self, world: &World) -> u64 {
        if self.groups.is_empty() {
            return lock(&self.progress).publisher.as_ref().map_or(0, |publisher| publisher.summary().pending);
        }
        self.groups.iter().map(|group| world.in_flight(group)).sum()
    }

    /// Whether the node has been started and lives.
    fn is_alive(&self, node: Node, world: &World) -> bool {
        let is_started = match node.role() {
            None => true,
            Some((role, number)) => self.started.get(&role).is_some_and(|count| number < *count),
        };
        is_started && world.is_alive(&node.to_string())
    }

    fn strike(&mut self, action: &Action, world: &World, cast: &Cast, now: Instant) {
        if action.node().is_some_and(|node| !self.is_alive(node, world)) {
            return;
        }
        let in_flight = self.in_flight(world);
        let target = match action {
            Action::Join { role } => format!("{role:?}").to_lowercase(),
            Action::Grow { topic, .. } | Action::Poison { topic, .. } => topic.name().to_owned(),
            Action::SlowEvents { .. } | Action::DeleteEvents => "events".to_owned(),
            other => other.node().map_or_else(|| "index".to_owned(), |node| node.to_string()),
        };
        let after = |micros: u64| now + Duration::from_micros(micros);
        match *action {
            Action::Crash { .. } | Action::Stop { .. } | Action::Pause { .. } => {
                self.strike_process(action, &target, world, now);
            }
            Action::Join { role } => {
                let next = self.started.entry(role).or_default();
                cast.spawn(role, *next);
                *next += 1;
            }
            Action::Grow { topic, add } => {
                let topic = self.topic(topic);
                let count = world.partitions(&topic).len() as u32;
                world.grow_topic(&topic, count + add);
            }
            Action::CutLink { out, into, for_micros, .. } => {
                let (node, until) = (Some(target.clone()), after(for_micros));
                self.links.open(world, links::Window { node, out, into, until, ..links::Window::default() });
            }
            Action::SlowLink { extra_micros, for_micros, .. } => {
                let (node, extra) = (Some(target.clone()), Duration::from_micros(extra_micros));
                let until = after(for_micros);
                self.links.open(world, links::Window { node, extra, until, ..links::Window::default() });
            }
            Action::SlowEvents { extra_micros, for_micros } => {
                let (extra, until) = (Duration::from_micros(extra_micros), after(for_micros));
                self.links.open(world, links::Window { extra, until, ..links::Window::default() });
            }
            Action::Reset { .. } => world.reset_connections(&target),
            Action::LoseAnswers { count, .. } => {
                world.lose_answers(&target, count);
                self.later.push((now + LOSING_LIMIT, Later::Answer(target.clone())));
            }
            Action::Clock { ahead_micros, drift_ppm, .. } => world.set_wall_clock(&target, ahead_micros, drift_ppm),
            Action::Poison { topic, count } => self.poisoner.poison(world, &self.topic(topic), count),
            Action::DeleteEvents if world.delete_topics(&nodes::event_topics()) == 0 => return,
            Action::DeleteEvents => {}
            Action::Index { trouble, permille, for_micros } => {
                let until = after(for_micros);
                self.troubles.open(troubles::Window { trouble, permille, until, in_flight });
                // It has struck when it troubles a request.
                return;
            }
        }
        self.struck.note(action.kind(), &target, in_flight);
    }

    /// Kills, stops or freezes a process.
    fn strike_process(&mut self, action: &Action, target: &str, world: &World, now: Instant) {
        let after = |micros: u64| now + Duration::from_micros(micros);
        match *action {
            Action::Crash { restart_after_micros, node } => {
                world.crash(target);
                self.stopped(target);
                // In local mode there is nobody else: a process that stays down would only end the run.
                let restart = restart_after_micros.or((node == Node::Process).then_some(1_000_000));
                // Its requests must have arrived before it runs again.
                let restart = restart.map(|micros| micros.max(100_000));
                self.later.extend(restart.map(|micros| (after(micros), Later::Restart(target.to_owned()))));
            }
            Action::Stop { restart_after_micros, .. } => {
                world.request_stop(target);
                self.stopping.insert(target.to_owned());
                self.later.push((now + STOP_LIMIT, Later::Kill(target.to_owned())));
                let restart = restart_after_micros.map(Duration::from_micros);
                self.later.extend(restart.map(|wait| (now + STOP_LIMIT + wait, Later::Restart(target.to_owned()))));
            }
            Action::Pause { for_micros, .. } => {
                world.pause(target);
                self.later.push((after(for_micros), Later::Resume(target.to_owned())));
            }
            _ => {}
        }
    }

    fn topic(&self, hop: Hop) -> std::sync::Arc<str> {
        match hop {
            Hop::Source => self.topics.source.clone(),
            Hop::Dest => self.topics.dest.clone(),
        }
    }

    fn happen(&mut self, later: Later, world: &World) {
        match later {
            Later::Restart(node) if !world.is_alive(&node) => self.restart(&node, world),
            Later::Kill(node) if world.is_alive(&node) => world.crash(&node),
            Later::Resume(node) => world.resume(&node),
            Later::Answer(node) => world.lose_answers(&node, 0),
            Later::Restart(_) | Later::Kill(_) => {}
        }
    }

    fn count_events(&mut self) {
        let (counts, seen, struck) = (&mut self.counts, &mut self.seen_events, &self.struck);
        self.recorder.with_events(|events| {
            let fresh = usize::try_from(*seen).map_or(&[][..], |seen| &events[seen.min(events.len())..]);
            for event in fresh {
                match &event.what {
                    // The producer says so itself.
                    What::FaultInjected { kind, in_flight, .. } if **kind == *FaultKind::FullQueue.name() => {
                        struck.count(FaultKind::FullQueue, *in_flight);
                    }
                    what => {
                        if let Some((event, count)) = occurrence(what) {
                            *counts.entry(event).or_default() += count;
                        }
                    }
                }
            }
            *seen = events.len() as u64;
        });
    }
}

/// What of it a trigger counts, and how often it happened at once.
pub(crate) fn occurrence(what: &What) -> Option<(Event, u64)> {
    Some(match what {
        What::PublishResolved { .. } => (Event::Published, 1),
        What::Polled { records, .. } => (Event::Taken, records.len() as u64),
        What::ProduceInvoked { .. } => (Event::Produced, 1),
        What::BulkInvoked { .. } => (Event::IndexRequest, 1),
        What::CommitInvoked { .. } => (Event::Commit, 1),
        What::Revoking { .. } => (Event::Revoking, 1),
        What::Assigned { .. } => (Event::Assigned, 1),
        _ => return None,
    })
}

/// Whether what happens may be what a trigger waits for, rather than time alone.
fn watches_events(trigger: &Trigger, now: Instant) -> bool {
    match *trigger {
        Trigger::At(_) => false,
        Trigger::InFlight { after_micros, .. } => now.as_micros() >= after_micros,
        Trigger::Nth { .. } => true,
    }
}
