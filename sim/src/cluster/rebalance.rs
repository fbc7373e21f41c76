//! How one generation of a group becomes the next.
//!
//! PreparingRebalance waits for joins, CompletingRebalance for the leader's assignment. Each wait ends by its last
//! member or by its timer; nobody is waited for longer than the longest rebalance time-out of the members.

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::identity::TopicPartition;

use super::audit::{Audit, GroupState, MemberRemoval};
use super::context::{Context, Phase, Timer};
use super::group::{Group, refuse_join};
use super::member::Member;
use super::protocol::{ErrorCode, Joined, JoinedMember, Response};

impl Group {
    /// After a member came or changed.
    pub(super) fn rebalance_or_complete(&mut self, cx: &mut Context) {
        match self.state {
            GroupState::Empty | GroupState::CompletingRebalance | GroupState::Stable => self.prepare(cx),
            GroupState::PreparingRebalance => self.complete_if_all_joined(cx),
            GroupState::Dead => {}
        }
    }

    fn prepare(&mut self, cx: &mut Context) {
        if self.state == GroupState::CompletingRebalance {
            for member in &mut self.members {
                member.assignment.clear();
            }
            self.answer_syncs(cx, ErrorCode::RebalanceInProgress);
        }
        self.is_initial = self.state == GroupState::Empty;
        self.has_newcomers = false;
        let timeout = self.rebalance_timeout();
        if self.is_initial {
            let delay = cx.config.initial_rebalance_delay;
            self.wait(cx, delay, Phase::Initial { delay, remaining: timeout.saturating_sub(delay) });
        } else {
            self.wait(cx, timeout, Phase::Join);
        }
        self.enter(cx, GroupState::PreparingRebalance);
        self.complete_if_all_joined(cx);
    }

    /// Completes the joining when nobody is missing. An initial rebalance waits for its delay all the same.
    pub(super) fn complete_if_all_joined(&mut self, cx: &mut Context) {
        let all_joined = self.pending.is_empty() && self.members.iter().all(|member| member.joining.is_some());
        if self.state == GroupState::PreparingRebalance && !self.is_initial && all_joined {
            self.complete_join(cx);
        }
    }

    /// The phase's timer fired.
    pub(super) fn phase_over(&mut self, cx: &mut Context, phase: Phase) {
        self.phase_timer = None;
        match phase {
            Phase::Initial { delay, remaining } if self.has_newcomers && !remaining.is_zero() => {
                self.has_newcomers = false;
                let next = cx.config.initial_rebalance_delay.min(remaining);
                self.wait(cx, next, Phase::Initial { delay: next, remaining: remaining.saturating_sub(delay) });
            }
            Phase::Initial { .. } | Phase::Join => self.complete_join(cx),
            Phase::Sync => {
                let mut is_missing = false;
                while let Some(place) = self.members.iter().position(|member| member.owes_sync) {
                    self.remove(cx, place, MemberRemoval::SyncTimedOut);
                    is_missing = true;
                }
                if is_missing {
                    self.prepare(cx);
                }
            }
        }
    }

    fn complete_join(&mut self, cx: &mut Context) {
        let is_missing = |member: &Member| member.joining.is_none() && member.instance_id.is_none();
        while let Some(place) = self.members.iter().position(is_missing) {
            self.remove(cx, place, MemberRemoval::JoinTimedOut);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Static members only, none of them back: wait on, until they come or their sessions end.
            let timeout = self.rebalance_timeout();
            self.wait(cx, timeout, Phase::Join);
            return;
        }
        self.generation += 1;
        if self.members.is_empty() {
            self.stop_waiting(cx);
            self.protocol = Arc::default();
            self.enter(cx, GroupState::Empty);
            return;
        }
        self.protocol = self.vote();
        self.enter(cx, GroupState::CompletingRebalance);
        for place in 0..self.members.len() {
            if let Some(request) = self.members[place].joining.take() {
                let joined = self.joined(&self.members[place].id);
                cx.answer(request, Response::JoinGroup(joined));
            }
            let member = &mut self.members[place];
            member.is_new = false;
            member.owes_sync = true;
            member.renew(cx, &self.name);
        }
        let timeout = self.rebalance_timeout();
        self.wait(cx, timeout, Phase::Sync);
    }

    /// Keeps the leader unless it did not join; then the first who did. Whether there is one.
    fn elect_leader(&mut self) -> bool {
        let joins = |id: &Arc<str>| self.members.iter().any(|member| member.id == *id && member.joining.is_some());
        if self.leader.as_ref().is_some_and(joins) {
            return true;
        }
        match self.members.iter().find(|member| member.joining.is_some()) {
            Some(member) => {
                self.leader = Some(Arc::clone(&member.id));
                true
            }
            None => false,
        }
    }

    /// The protocol with the most votes: each member's first among those that all support. The first voted wins a tie.
    pub(super) fn vote(&self) -> Arc<str> {
        let mut votes: Vec<(&Arc<str>, usize)> = Vec::new();
        for member in &self.members {
            let by_all = |name: &str| self.members.iter().all(|other| other.supports(name));
            let Some(choice) = member.protocols.iter().map(|known| &known.name).find(|name| by_all(name)) else {
                continue;
            };
            match votes.iter_mut().find(|(name, _)| *name == choice) {
                Some((_, count)) => *count += 1,
                None => votes.push((choice, 1)),
            }
        }
        let most = votes.iter().map(|(_, count)| *count).max();
        votes.iter().find(|(_, count)| Some(*count) == most).map(|(name, _)| Arc::clone(name)).unwrap_or_default()
    }

    /// The answer to `id`'s join in the present generation.
    pub(super) fn joined(&self, id: &Arc<str>) -> Joined {
        let describe = |member: &Member| JoinedMember {
            member_id: Arc::clone(&member.id),
            instance_id: member.instance_id.clone(),
            subscription: member.subscription(&self.protocol),
        };
        let is_leader = self.leader.as_ref() == Some(id);
        Joined {
            error: ErrorCode::None,
            generation: self.generation,
            protocol: Arc::clone(&self.protocol),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: Arc::clone(id),
            members: if is_leader { self.members.iter().map(describe).collect() } else { Vec::new() },
        }
    }

    /// The leader's assignment takes effect. Members that it leaves out get nothing.
    pub(super) fn assign(&mut self, cx: &mut Context, mut assignments: Vec<(Arc<str>, Vec<TopicPartition>)>) {
        self.enter(cx, GroupState::Stable);
        for place in 0..self.members.len() {
            let member = &mut self.members[place];
            let given = assignments.iter_mut().find(|(id, _)| *id == member.id);
            member.assignment = given.map(|(_, partitions)| std::mem::take(partitions)).unwrap_or_default();
            member.is_successor = false;
            self.tell_assigned(cx, place);
        }
        self.answer_syncs(cx, ErrorCode::None);
    }

    /// What the member at `place` has from now on. A successor has what it found.
    pub(super) fn tell_assigned(&self, cx: &mut Context, place: usize) {
        let member = &self.members[place];
        cx.tell(Audit::Assigned {
            group: Arc::clone(&self.name),
            member: Arc::clone(&member.id),
            generation: self.generation,
            partitions: member.assignment.clone(),
        });
    }

    fn answer_syncs(&mut self, cx: &mut Context, error: ErrorCode) {
        for member in &mut self.members {
            if let Some(request) = member.syncing.take() {
                cx.answer(request, Response::SyncGroup { error, assignment: member.assignment.clone() });
                member.renew(cx, &self.name);
            }
        }
    }

    /// A session timer fired: of a member, or of an id that was not used.
    pub(super) fn session_over(&mut self, cx: &mut Context, id: &Arc<str>) {
        if let Some(place) = self.pending.iter().position(|pending| pending == id) {
            self.pending.remove(place);
            self.complete_if_all_joined(cx);
        } else if let Some(place) = self.members.iter().position(|member| member.id == *id)
            && self.members[place].expires(cx, &self.name)
        {
            self.remove_and_rebalance(cx, place, MemberRemoval::SessionExpired);
        }
    }

    pub(super) fn remove_and_rebalance(&mut self, cx: &mut Context, place: usize, why: MemberRemoval) {
        self.remove(cx, place, why);
        match self.state {
            GroupState::Stable | GroupState::CompletingRebalance => self.prepare(cx),
            GroupState::PreparingRebalance => self.complete_if_all_joined(cx),
            GroupState::Empty | GroupState::Dead => {}
        }
    }

    fn remove(&mut self, cx: &mut Context, place: usize, why: MemberRemoval) {
        let member = self.members.remove(place);
        if let Some(parked) = member.joining {
            refuse_join(cx, parked, ErrorCode::UnknownMemberId, Arc::clone(&member.id));
        }
        if let Some(parked) = member.syncing {
            cx.inbox.abandon(parked);
        }
        cx.tell(Audit::MemberRemoved { group: Arc::clone(&self.name), member: member.id, why });
    }

    fn rebalance_timeout(&self) -> Duration {
        let longest = self.members.iter().map(|member| member.rebalance_timeout).max();
        longest.unwrap_or_default().max(Duration::from_millis(1))
    }

    fn wait(&mut self, cx: &mut Context, time: Duration, phase: Phase) {
        self.stop_waiting(cx);
        self.phase_timer = Some(cx.arm(time, Timer::Phase(Arc::clone(&self.name), phase)));
    }

    fn stop_waiting(&mut self, cx: &mut Context) {
        if let Some(timer) = self.phase_timer.take() {
            cx.cancel(timer);
        }
    }

    pub(super) fn enter(&mut self, cx: &mut Context, state: GroupState) {
        self.state = state;
        self.since = cx.now;
        cx.tell(Audit::GroupState {
            group: Arc::clone(&self.name),
            state,
            generation: self.generation,
            members: self.members.len() as u32,
        });
    }
}
