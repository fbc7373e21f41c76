//! Injects the faults of a plan, each when its trigger comes, and knows which of them hit work in flight.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::env::Instant;
use seriatim_core::index::{Action as WriteAction, IndexOp};
use seriatim_core::messenger::kafka::Topics;
use seriatim_sim::history::{Recorder, What};
use seriatim_sim::{IndexFault, RequestFault, World};

use super::nodes::{self, Cast};
use super::{IDLE_TICK, PIPELINE, SharedProgress, lock};
use crate::draws::{Draws, Stream};
use crate::fault::{Action, Event, Fault, FaultKind, Node, Role, Trigger, Trouble};
use crate::plan::{Mode, Plan};
use crate::run::Strikes;
use crate::workload::marks;

/// How long what happens is gathered before triggers are looked at again.
const TICK: Duration = Duration::from_millis(2);
/// How long a fault may wait for its trigger after the last one struck.
const TRIGGER_LIMIT: Duration = Duration::from_secs(60);
/// Longest time that a graceful stop may take before the process is killed, as an operator would.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// What is to happen later because of a fault.
#[derive(Debug)]
enum Later {
    Restart(String),
    /// Still there after its time: kill it.
    Kill(String),
    Resume(String),
}

pub(super) struct Injector {
    waiting: Vec<Fault>,
    last_strike: Instant,
    later: Vec<(Instant, Later)>,
    strikes: Arc<Mutex<BTreeMap<FaultKind, Strikes>>>,
    index: Arc<Mutex<IndexTrouble>>,
    progress: SharedProgress,
    recorder: Recorder,
    seen_events: u64,
    counts: BTreeMap<Event, u64>,
    started: BTreeMap<Role, u32>,
    groups: Option<[String; 2]>,
}

impl Injector {
    pub(super) fn new(plan: &Plan, world: &World, progress: SharedProgress) -> Self {
        let strikes: Arc<Mutex<BTreeMap<FaultKind, Strikes>>> = Arc::default();
        let index = IndexTrouble { windows: Vec::new(), draws: Draws::new(plan.seeds.index, Stream::Index) };
        let index = Arc::new(Mutex::new(index));
        let started = BTreeMap::from([(Role::Worker, plan.topology.workers), (Role::Indexer, plan.topology.indexers)]);
        let groups = (plan.topology.mode == Mode::Distributed)
            .then(|| nodes::groups(&Topics::of(PIPELINE)).map(|(group, _)| group));
        let injector = Injector {
            waiting: plan.faults.clone(),
            last_strike: Instant::default(),
            later: Vec::new(),
            strikes,
            index,
            progress,
            recorder: world.recorder(),
            seen_events: 0,
            counts: BTreeMap::new(),
            started,
            groups,
        };
        injector.hook(world);
        injector
    }

    /// Whether nothing is left to strike, or what is left has waited too long for its trigger.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let idle = self.waiting.is_empty() && self.later.is_empty() && lock_index(&self.index).windows.is_empty();
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
        for (at, later) in std::mem::take(&mut self.later) {
            if at <= now {
                self.last_strike = now;
                self.happen(later, world);
            } else {
                self.later.push((at, later));
            }
        }
        lock_index(&self.index).windows.retain(|window| now < window.until);
        world.sleep(if self.waiting.is_empty() { IDLE_TICK } else { TICK }).await;
        let rest = self.next_due(now).since(world.now());
        select(pin!(self.recorder.more_than(self.seen_events)), pin!(world.sleep(rest))).await;
    }

    /// When to look again if nothing happens until then.
    fn next_due(&self, now: Instant) -> Instant {
        let triggers = self.waiting.iter().filter_map(|fault| match fault.trigger {
            Trigger::At(micros) | Trigger::InFlight { after_micros: micros, .. } => Some(Instant::from_micros(micros)),
            Trigger::Nth { .. } => None,
        });
        let index = lock_index(&self.index);
        let windows = index.windows.iter().map(|window| window.until);
        let ahead = triggers.chain(self.later.iter().map(|(at, _)| *at)).chain(windows).filter(|at| *at > now);
        ahead.fold(self.last_strike + TRIGGER_LIMIT + TICK, Instant::min)
    }

    /// No more faults: what is down or frozen comes back.
    pub(super) fn heal(&mut self, world: &World) {
        self.waiting.clear();
        lock_index(&self.index).windows.clear();
        for (_, later) in std::mem::take(&mut self.later) {
            if !matches!(later, Later::Kill(_)) {
                self.happen(later, world);
            }
        }
        for (role, count) in self.started.clone() {
            for number in 0..count {
                let name = match role {
                    Role::Worker => Node::Worker(number),
                    Role::Indexer => Node::Indexer(number),
                }
                .to_string();
                if self.groups.is_some() && !world.is_alive(&name) {
                    world.restart(&name);
                }
            }
        }
        self.recorder.record(&"world".into(), 0, What::Healed);
    }

    pub(super) fn into_strikes(self) -> BTreeMap<FaultKind, Strikes> {
        std::mem::take(&mut *self.strikes.lock().expect("no code panics while it counts"))
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
        match &self.groups {
            Some(groups) => groups.iter().map(|group| world.in_flight(group)).sum(),
            None => lock(&self.progress).publisher.as_ref().map_or(0, |publisher| publisher.summary().pending),
        }
    }

    fn strike(&mut self, action: &Action, world: &World, cast: &Cast, now: Instant) {
        let in_flight = self.in_flight(world);
        let target = match action {
            Action::Crash { node, .. } | Action::Stop { node, .. } | Action::Pause { node, .. } => node.to_string(),
            Action::Join { role } => format!("{role:?}").to_lowercase(),
            Action::Index { .. } => "index".to_owned(),
        };
        let after = |micros: u64| now + Duration::from_micros(micros);
        match *action {
            Action::Crash { .. } | Action::Stop { .. } | Action::Pause { .. } if !world.is_alive(&target) => return,
            Action::Crash { restart_after_micros, node } => {
                world.crash(&target);
                // In local mode there is nobody else: a process that stays down would only end the run.
                let restart = restart_after_micros.or((node == Node::Process).then_some(1_000_000));
                // Its requests must have arrived before it runs again.
                let restart = restart.map(|micros| micros.max(100_000));
                self.later.extend(restart.map(|micros| (after(micros), Later::Restart(target.clone()))));
            }
            Action::Stop { restart_after_micros, .. } => {
                world.request_stop(&target);
                self.later.push((now + STOP_LIMIT, Later::Kill(target.clone())));
                let restart = restart_after_micros.map(Duration::from_micros);
                self.later.extend(restart.map(|wait| (now + STOP_LIMIT + wait, Later::Restart(target.clone()))));
            }
            Action::Pause { for_micros, .. } => {
                world.pause(&target);
                self.later.push((after(for_micros), Later::Resume(target.clone())));
            }
            Action::Join { role } => {
                let next = self.started.entry(role).or_default();
                cast.spawn(role, *next);
                *next += 1;
            }
            Action::Index { trouble, permille, for_micros } => {
                let window = Window { trouble, permille, until: after(for_micros), in_flight };
                lock_index(&self.index).windows.push(window);
                // It has struck when it troubles a request.
                return;
            }
        }
        let kind = action.kind();
        *self.strikes.lock().expect("no code panics while it counts").entry(kind).or_default() +=
            Strikes::one(in_flight);
        let what = What::FaultInjected { kind: kind.to_string().into(), target: target.into(), in_flight };
        self.recorder.record(&"world".into(), 0, what);
    }

    fn happen(&mut self, later: Later, world: &World) {
        match later {
            Later::Restart(node) if !world.is_alive(&node) => world.restart(&node),
            Later::Kill(node) if world.is_alive(&node) => world.crash(&node),
            Later::Resume(node) => world.resume(&node),
            Later::Restart(_) | Later::Kill(_) => {}
        }
    }

    fn count_events(&mut self) {
        let (counts, seen) = (&mut self.counts, &mut self.seen_events);
        self.recorder.with_events(|events| {
            let fresh = usize::try_from(*seen).map_or(&[][..], |seen| &events[seen.min(events.len())..]);
            for event in fresh {
                let (event, count) = match &event.what {
                    What::PublishResolved { .. } => (Event::Published, 1),
                    What::Polled { records, .. } => (Event::Taken, records.len()),
                    What::ProduceInvoked { .. } => (Event::Produced, 1),
                    What::BulkInvoked { .. } => (Event::IndexRequest, 1),
                    What::CommitInvoked { .. } => (Event::Commit, 1),
                    What::Revoking { .. } => (Event::Revoking, 1),
                    What::Assigned { .. } => (Event::Assigned, 1),
                    _ => continue,
                };
                *counts.entry(event).or_default() += count as u64;
            }
            *seen = events.len() as u64;
        });
    }

    /// Puts the index's troubles, and the refusals that documents ask for, behind every bulk request.
    fn hook(&self, world: &World) {
        let (index, strikes, recorder) = (self.index.clone(), self.strikes.clone(), self.recorder.clone());
        let clock = world.clone();
        // A field that is `true`: the document asks to be refused.
        let mark = format!("\"{}\":true", marks::REJECT);
        let is_marked = move |op: &IndexOp| match &op.action {
            WriteAction::Upsert(body) => std::str::from_utf8(body).is_ok_and(|body| body.contains(&mark)),
            WriteAction::Delete => false,
        };
        world.on_index(Some(Box::new(move |_, ops| {
            let marked = ops.iter().enumerate().filter(|(_, op)| is_marked(op));
            let refused: Vec<usize> = marked.map(|(place, _)| place).collect();
            let mut fault = IndexFault { refused, ..IndexFault::default() };
            let trouble = lock_index(&index).draw(clock.now(), ops.len(), &mut fault);
            let refuses = (!fault.refused.is_empty()).then_some((FaultKind::IndexReject, ops.len() as u64));
            for (kind, in_flight) in trouble.into_iter().chain(refuses) {
                *strikes.lock().expect("no code panics while it counts").entry(kind).or_default() +=
                    Strikes::one(in_flight.max(1));
                let what = What::FaultInjected { kind: kind.to_string().into(), target: "index".into(), in_flight };
                recorder.record(&"world".into(), 0, what);
            }
            fault
        })));
    }
}

fn lock_index(index: &Mutex<IndexTrouble>) -> std::sync::MutexGuard<'_, IndexTrouble> {
    index.lock().expect("no code panics while it holds the troubles")
}

#[derive(Debug)]
struct Window {
    trouble: Trouble,
    permille: u32,
    until: Instant,
    /// Records in flight when it opened.
    in_flight: u64,
}

#[derive(Debug)]
struct IndexTrouble {
    windows: Vec<Window>,
    draws: Draws,
}

impl IndexTrouble {
    /// Troubles one request, if a window is open and the coin falls so.
    fn draw(&mut self, now: Instant, items: usize, fault: &mut IndexFault) -> Option<(FaultKind, u64)> {
        self.windows.retain(|window| now < window.until);
        let IndexTrouble { windows, draws } = self;
        let window = windows.iter().find(|window| draws.chance(window.permille))?;
        let in_flight = window.in_flight;
        let kind = match window.trouble {
            Trouble::TimeoutBefore => {
                fault.request = RequestFault::SilentBeforeApplying;
                FaultKind::IndexTimeoutBefore
            }
            Trouble::TimeoutAfter => {
                fault.request = RequestFault::SilentAfterApplying;
                FaultKind::IndexTimeoutAfter
            }
            Trouble::Throttle => {
                fault.throttled = (0..items).filter(|_| draws.chance(500)).collect();
                FaultKind::IndexThrottle
            }
        };
        Some((kind, in_flight))
    }
}
