//! Which faults strike, where and when.

use crate::draws::Draws;
use crate::fault::{Action, Event, Fault, FaultKind, Hop, Node, Role, Trigger, Trouble};
use crate::plan::{Mode, Topology, Workload};
use crate::scenario::{FaultSet, Scenario};

/// Work that must be in flight when a fault strikes the ripgrep history.
const RIPGREP_IN_FLIGHT: u64 = 64;

/// What faults are drawn for.
pub(super) struct Room<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) topology: &'a Topology,
    pub(super) workload: &'a Workload,
    pub(super) records: u64,
    /// More may never be in flight.
    pub(super) in_flight_max: u64,
}

impl Room<'_> {
    pub(super) fn draw(&self, kinds: &[(FaultKind, u32)], draws: &mut Draws) -> Vec<Fault> {
        let injected = kinds.iter().copied().filter(|(kind, _)| !kind.is_of_documents());
        let injected: Vec<(FaultKind, u32)> = injected.collect();
        if injected.is_empty() {
            return Vec::new();
        }
        let count = match self.scenario.faults {
            FaultSet::All if self.topology.mode == Mode::Hybrid => draws.between(5, 18),
            FaultSet::All => draws.between(2, 12),
            FaultSet::EventsDeleted => 1,
            _ => draws.between(1, 6),
        };
        let mut faults: Vec<Fault> = Vec::new();
        for _ in 0..count {
            let kind = draws.weighted(&injected);
            let action = self.action(kind, draws);
            let trigger = self.trigger(&action, draws);
            // One clock, forward: a process that comes back behind its earlier life cannot outrank it.
            let is_second_clock = self.topology.mode == Mode::Local
                && kind == FaultKind::Clock
                && faults.iter().any(|fault| fault.action.kind() == kind);
            if !is_second_clock {
                faults.push(Fault { trigger, action });
            }
        }
        faults
    }

    /// A consumer, or the only process.
    fn component(&self, draws: &mut Draws) -> Node {
        match self.topology.mode {
            Mode::Local => Node::Process,
            Mode::Distributed if draws.chance(500) => {
                Node::Worker(draws.below(u64::from(self.topology.workers)) as u32)
            }
            Mode::Distributed => Node::Indexer(draws.below(u64::from(self.topology.indexers)) as u32),
            Mode::Hybrid => Node::Pair(draws.below(u64::from(self.topology.pairs)) as u32),
        }
    }

    /// Any node.
    fn node(&self, draws: &mut Draws) -> Node {
        let component = self.component(draws);
        if self.topology.mode != Mode::Local && draws.chance(250) { Node::Publisher } else { component }
    }

    fn action(&self, kind: FaultKind, draws: &mut Draws) -> Action {
        // Sooner and later than a session time-out, or not before the run heals.
        let restart = |draws: &mut Draws| draws.chance(800).then(|| draws.between(50_000, 15_000_000));
        let hybrid = self.topology.mode == Mode::Hybrid;
        let hops: &[Hop] = if hybrid { &[Hop::Source] } else { &[Hop::Source, Hop::Dest] };
        let hop = |draws: &mut Draws| draws.pick(hops);
        let roles: &[Role] = if hybrid { &[Role::Pair] } else { &[Role::Worker, Role::Indexer] };
        // Shorter and longer than a request may take, and than a session.
        let cut = |draws: &mut Draws| draws.pick(&[300_000, 3_000_000, 20_000_000]);
        match kind {
            FaultKind::Crash => Action::Crash { node: self.component(draws), restart_after_micros: restart(draws) },
            FaultKind::Stop => Action::Stop { node: self.component(draws), restart_after_micros: restart(draws) },
            FaultKind::Join => Action::Join { role: draws.pick(roles) },
            // Shorter than a session, longer than it, longer than the polls that may be left out.
            FaultKind::Pause => {
                Action::Pause { node: self.node(draws), for_micros: draws.between(1_000_000, 45_000_000) }
            }
            FaultKind::Grow => Action::Grow { topic: hop(draws), add: draws.between(1, 4) as u32 },
            FaultKind::CutOut | FaultKind::CutInto | FaultKind::CutBoth => {
                let most = cut(draws);
                Action::CutLink {
                    node: self.node(draws),
                    out: kind != FaultKind::CutInto,
                    into: kind != FaultKind::CutOut,
                    for_micros: draws.between(100_000, most),
                }
            }
            // A dead node's requests are behind by so much: without versions they must not outlast its session.
            FaultKind::SlowLink | FaultKind::FullQueue => Action::SlowLink {
                node: self.node(draws),
                extra_micros: draws.between(1_000, if self.scenario.versions { 2_000_000 } else { 200_000 }),
                for_micros: draws.between(100_000, 10_000_000),
            },
            FaultKind::Reset => Action::Reset { node: self.node(draws) },
            FaultKind::LostAnswer => Action::LoseAnswers { node: self.node(draws), count: draws.pick(&[1, 3, 20]) },
            FaultKind::Clock => self.clock(draws),
            FaultKind::Poison => Action::Poison { topic: hop(draws), count: draws.between(1, 5) as u32 },
            FaultKind::SlowEvents => Action::SlowEvents {
                extra_micros: draws.between(1_000, 3_000_000),
                for_micros: draws.between(100_000, 10_000_000),
            },
            FaultKind::DeletedEvents => Action::DeleteEvents,
            FaultKind::IndexThrottle => index(Trouble::Throttle, draws),
            FaultKind::IndexUnavailable => index(Trouble::Unavailable, draws),
            FaultKind::IndexSlow => index(Trouble::Slow, draws),
            FaultKind::IndexTimeoutBefore => index(Trouble::TimeoutBefore, draws),
            FaultKind::IndexTimeoutAfter
            | FaultKind::IndexReject
            | FaultKind::StageError
            | FaultKind::StagePanic
            | FaultKind::StageStuck => index(Trouble::TimeoutAfter, draws),
        }
    }

    fn clock(&self, draws: &mut Draws) -> Action {
        let far = draws.pick(&[50_000, 5_000_000, 3_600_000_000, 20 * 365 * 86_400 * 1_000_000]);
        let ahead = draws.between(1, far) as i64;
        let drift_ppm = draws.pick(&[0, 0, 200, 50_000]);
        if self.topology.mode == Mode::Local {
            return Action::Clock { node: Node::Process, ahead_micros: ahead, drift_ppm };
        }
        let back = draws.chance(500);
        let signed = |value: i64| if back { -value } else { value };
        // Versions come from the publisher's.
        let node = if draws.chance(600) { Node::Publisher } else { self.component(draws) };
        Action::Clock { node, ahead_micros: signed(ahead), drift_ppm: signed(drift_ppm) }
    }

    fn trigger(&self, action: &Action, draws: &mut Draws) -> Trigger {
        // A group of Kafka's makes up its mind in three to six seconds; only then do records flow.
        let local = self.topology.mode == Mode::Local;
        let flows_at = if local { 0 } else { 3_000_000 };
        let after_micros = if draws.chance(400) { 0 } else { flows_at + draws.below(4_000_000) };
        if *self.workload == Workload::Ripgrep {
            let after_micros = after_micros.min(flows_at + 1_000_000);
            return Trigger::InFlight { at_least: RIPGREP_IN_FLIGHT, after_micros };
        }
        let rebalances: &[Event] = match action {
            Action::Index { .. } => &[],
            _ if local => &[],
            _ => &[Event::Revoking, Event::Assigned],
        };
        match draws.below(10) {
            0..=5 => Trigger::InFlight { at_least: draws.pick(&[1, 16, 64]).min(self.in_flight_max), after_micros },
            6 => Trigger::At(draws.below(flows_at + 5_000_000)),
            // Anywhere in the flow, its last records too: either hop takes every record once, or more often.
            7 if !local => Trigger::Nth { event: Event::Taken, n: draws.between(1, 2 * self.records) },
            7 | 8 => {
                let both = [Event::Published, Event::IndexRequest, Event::Produced, Event::Commit];
                Trigger::Nth { event: draws.pick(if local { &both[..2] } else { &both }), n: draws.between(1, 60) }
            }
            // Some strike inside a rebalance, where it hurts.
            _ if rebalances.is_empty() => Trigger::Nth { event: Event::IndexRequest, n: draws.between(1, 10) },
            _ => Trigger::Nth { event: draws.pick(rebalances), n: draws.between(1, 6) },
        }
    }
}

fn index(trouble: Trouble, draws: &mut Draws) -> Action {
    Action::Index { trouble, permille: draws.pick(&[50, 300, 1_000]), for_micros: draws.between(100_000, 3_000_000) }
}
