//! A group under the classic protocol: what each request does in each state.
//!
//! The coordinator knows members and generations. It never knows who owns what, nor whether an offset makes sense.
//! Members are kept in the order of their joining, where Kafka has the order of a hash. How one generation becomes the
//! next is in `rebalance`. Rules: AK `GroupMetadataManager`, `ClassicGroup`; reference/kafka.md, "Classic group".

use std::sync::Arc;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use super::audit::{Audit, GroupState, MemberRemoval};
use super::context::{Context, Timer, TimerKey};
use super::inbox::RequestId;
use super::member::Member;
use super::offsets::{Expiry, GroupOffsets};
use super::protocol::{ErrorCode, JoinGroup, Joined, OffsetCommit, Response};

#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Arc<str>,
    pub(super) state: GroupState,
    pub(super) since: Instant,
    pub(super) generation: i32,
    pub(super) protocol: Arc<str>,
    /// Elected when a join completes; its member may be gone since.
    pub(super) leader: Option<Arc<str>>,
    pub(super) members: Vec<Member>,
    /// Ids that were given with `MEMBER_ID_REQUIRED` and are not used yet.
    pub(super) pending: Vec<Arc<str>>,
    /// Whether the present rebalance began in an empty group.
    pub(super) is_initial: bool,
    /// Whether members came since the initial delay was last extended.
    pub(super) has_newcomers: bool,
    pub(super) phase_timer: Option<TimerKey>,
    had_members: bool,
    pub(super) offsets: GroupOffsets,
}

impl Group {
    pub(super) fn new(name: Arc<str>, now: Instant) -> Self {
        Group {
            name,
            state: GroupState::Empty,
            since: now,
            generation: 0,
            protocol: Arc::default(),
            leader: None,
            members: Vec::new(),
            pending: Vec::new(),
            is_initial: false,
            has_newcomers: false,
            phase_timer: None,
            had_members: false,
            offsets: GroupOffsets::default(),
        }
    }

    /// JoinGroup, its session time-out checked.
    pub(super) fn join(&mut self, cx: &mut Context, request: RequestId, join: JoinGroup) {
        if !self.supports_any(&join) {
            return refuse_join(cx, request, ErrorCode::InconsistentGroupProtocol, join.member_id);
        }
        if join.member_id.is_empty() {
            match &join.instance_id {
                Some(instance) => self.join_static(cx, request, Arc::clone(instance), join),
                None => self.require_member_id(cx, request, &join),
            }
        } else if let Some(place) = self.pending.iter().position(|id| *id == join.member_id) {
            let id = self.pending.remove(place);
            self.add(cx, request, id, join);
        } else {
            self.rejoin(cx, request, join);
        }
    }

    fn supports_any(&self, join: &JoinGroup) -> bool {
        let by_all = |name: &str| self.members.iter().all(|member| member.supports(name));
        join.protocols.iter().any(|protocol| by_all(&protocol.name))
    }

    fn require_member_id(&mut self, cx: &mut Context, request: RequestId, join: &JoinGroup) {
        let id = cx.name_member(&join.client_id);
        self.pending.push(Arc::clone(&id));
        cx.arm(join.session_timeout, Timer::Session(Arc::clone(&self.name), Arc::clone(&id)));
        refuse_join(cx, request, ErrorCode::MemberIdRequired, id);
    }

    fn add(&mut self, cx: &mut Context, request: RequestId, id: Arc<str>, join: JoinGroup) {
        if self.state == GroupState::PreparingRebalance && self.is_initial {
            self.has_newcomers = true;
        }
        self.had_members = true;
        let mut member = Member::new(Arc::clone(&id), join, request);
        member.renew_for(cx, &self.name, cx.config.new_member_timeout);
        self.members.push(member);
        cx.tell(Audit::MemberJoined { group: Arc::clone(&self.name), member: id });
        self.rebalance_or_complete(cx);
    }

    /// A join of a member that has an id, by state.
    fn rejoin(&mut self, cx: &mut Context, request: RequestId, join: JoinGroup) {
        let place = match self.check_member(&join.member_id, join.instance_id.as_ref()) {
            Ok(place) => place,
            Err(error) => return refuse_join(cx, request, error, join.member_id),
        };
        let is_unchanged = self.members[place].protocols == join.protocols;
        let is_leader = self.leader.as_ref() == Some(&join.member_id);
        match self.state {
            GroupState::Empty | GroupState::Dead => {
                refuse_join(cx, request, ErrorCode::UnknownMemberId, join.member_id);
            }
            GroupState::CompletingRebalance if is_unchanged => {
                let joined = self.joined(&join.member_id);
                cx.answer(request, Response::JoinGroup(joined));
            }
            GroupState::Stable if is_unchanged && !is_leader => {
                let joined = self.joined(&join.member_id);
                cx.answer(request, Response::JoinGroup(joined));
            }
            GroupState::PreparingRebalance | GroupState::CompletingRebalance | GroupState::Stable => {
                let member = &mut self.members[place];
                member.update(join);
                park(cx, &mut member.joining, request);
                self.rebalance_or_complete(cx);
            }
        }
    }

    /// A static member without an id: new, or the successor of the one with its instance id.
    fn join_static(&mut self, cx: &mut Context, request: RequestId, instance: Arc<str>, join: JoinGroup) {
        let id = cx.name_member(&instance);
        let Some(place) = self.members.iter().position(|member| member.instance_id.as_ref() == Some(&instance)) else {
            return self.add(cx, request, id, join);
        };
        let member = &mut self.members[place];
        let old = std::mem::replace(&mut member.id, Arc::clone(&id));
        cx.tell(Audit::MemberRemoved {
            group: Arc::clone(&self.name),
            member: Arc::clone(&old),
            why: MemberRemoval::Replaced,
        });
        cx.tell(Audit::MemberJoined { group: Arc::clone(&self.name), member: Arc::clone(&id) });
        if let Some(parked) = member.joining.take() {
            refuse_join(cx, parked, ErrorCode::FencedInstanceId, Arc::clone(&old));
        }
        if let Some(parked) = member.syncing.take() {
            cx.answer(parked, Response::SyncGroup { error: ErrorCode::FencedInstanceId, assignment: Vec::new() });
        }
        member.update(join);
        member.is_successor = true;
        member.forget_timer();
        member.renew(cx, &self.name);
        let was_leader = self.leader.as_ref() == Some(&old);
        if was_leader {
            self.leader = Some(Arc::clone(&id));
        }
        if self.state == GroupState::Stable && self.vote() == self.protocol {
            // Under its old name the leader does not take itself for one, and leaves the assignment as it is.
            let mut joined = self.joined(&id);
            if was_leader {
                joined.members.clear();
                joined.leader = old;
            }
            cx.answer(request, Response::JoinGroup(joined));
        } else {
            self.members[place].joining = Some(request);
            self.rebalance_or_complete(cx);
        }
    }

    pub(super) fn sync(
        &mut self,
        cx: &mut Context,
        request: RequestId,
        (generation, member_id, instance_id): (i32, Arc<str>, Option<Arc<str>>),
        assignments: Vec<(Arc<str>, Vec<TopicPartition>)>,
    ) {
        let refuse = |cx: &mut Context, error| {
            cx.answer(request, Response::SyncGroup { error, assignment: Vec::new() });
        };
        let place = match self.check_generation(&member_id, instance_id.as_ref(), generation) {
            Ok(place) => place,
            Err(error) => return refuse(cx, error),
        };
        let member = &mut self.members[place];
        match self.state {
            GroupState::Empty | GroupState::Dead => refuse(cx, ErrorCode::UnknownMemberId),
            GroupState::PreparingRebalance => refuse(cx, ErrorCode::RebalanceInProgress),
            GroupState::CompletingRebalance => {
                member.owes_sync = false;
                park(cx, &mut member.syncing, request);
                if self.leader.as_ref() == Some(&member_id) {
                    self.assign(cx, assignments);
                }
            }
            GroupState::Stable => {
                member.owes_sync = false;
                member.renew(cx, &self.name);
                let assignment = member.assignment.clone();
                if std::mem::take(&mut member.is_successor) {
                    self.tell_assigned(cx, place);
                }
                cx.answer(request, Response::SyncGroup { error: ErrorCode::None, assignment });
            }
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        cx: &mut Context,
        generation: i32,
        member_id: &Arc<str>,
        instance_id: Option<&Arc<str>>,
    ) -> ErrorCode {
        let place = match self.check_generation(member_id, instance_id, generation) {
            Ok(place) => place,
            Err(error) => return error,
        };
        match self.state {
            GroupState::Empty | GroupState::Dead => ErrorCode::UnknownMemberId,
            GroupState::PreparingRebalance => {
                self.members[place].renew(cx, &self.name);
                ErrorCode::RebalanceInProgress
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.members[place].renew(cx, &self.name);
                ErrorCode::None
            }
        }
    }

    pub(super) fn leave(
        &mut self,
        cx: &mut Context,
        member_id: &Arc<str>,
        instance_id: Option<&Arc<str>>,
    ) -> ErrorCode {
        if let Some(place) = self.pending.iter().position(|id| id == member_id) {
            self.pending.remove(place);
            self.complete_if_all_joined(cx);
            return ErrorCode::None;
        }
        let by_instance = instance_id.filter(|_| member_id.is_empty());
        let found = match by_instance {
            Some(instance) => {
                let is_it = |member: &Member| member.instance_id.as_ref() == Some(instance);
                self.members.iter().position(is_it).ok_or(ErrorCode::UnknownMemberId)
            }
            None => self.check_member(member_id, instance_id),
        };
        match found {
            Ok(place) => {
                self.remove_and_rebalance(cx, place, MemberRemoval::Left);
                ErrorCode::None
            }
            Err(error) => error,
        }
    }

    /// Whether `commit` may commit at all. Renews the session of its member.
    pub(super) fn accept_commit(&mut self, cx: &mut Context, commit: &OffsetCommit) -> ErrorCode {
        let is_empty = self.state == GroupState::Empty;
        if commit.generation < 0 && is_empty {
            return ErrorCode::None;
        }
        if commit.generation < 0 && commit.member_id.is_empty() && commit.instance_id.is_none() {
            return ErrorCode::UnknownMemberId;
        }
        match self.check_generation(&commit.member_id, commit.instance_id.as_ref(), commit.generation) {
            Err(error) => error,
            Ok(_) if self.state == GroupState::CompletingRebalance => ErrorCode::RebalanceInProgress,
            Ok(place) => {
                self.members[place].renew(cx, &self.name);
                ErrorCode::None
            }
        }
    }

    pub(super) fn expire_offsets(&mut self, cx: &mut Context) {
        let expiry = match self.state {
            GroupState::Empty if self.had_members => Expiry::Since(self.since),
            GroupState::Empty => Expiry::SinceCommit,
            GroupState::Stable => Expiry::Unsubscribed(
                self.members.iter().flat_map(|member| member.subscription(&self.protocol).topics).collect(),
            ),
            _ => Expiry::Never,
        };
        self.offsets.expire(cx, &self.name, &expiry);
    }

    /// Whether the group is empty and keeps nothing, and so is dead.
    pub(super) fn die_if_useless(&mut self, cx: &mut Context) -> bool {
        let is_useless = self.state == GroupState::Empty && self.offsets.is_empty();
        if is_useless {
            self.enter(cx, GroupState::Dead);
        }
        is_useless
    }

    /// The place of a member. Static ids first, then the member.
    fn check_member(&self, id: &Arc<str>, instance_id: Option<&Arc<str>>) -> Result<usize, ErrorCode> {
        if let Some(instance) = instance_id {
            let holder = self.members.iter().find(|member| member.instance_id.as_ref() == Some(instance));
            match holder {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(holder) if holder.id != *id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        self.members.iter().position(|member| member.id == *id).ok_or(ErrorCode::UnknownMemberId)
    }

    fn check_generation(
        &self,
        id: &Arc<str>,
        instance_id: Option<&Arc<str>>,
        generation: i32,
    ) -> Result<usize, ErrorCode> {
        let place = self.check_member(id, instance_id)?;
        if generation == self.generation { Ok(place) } else { Err(ErrorCode::IllegalGeneration) }
    }
}

/// Parks `request` in `place`. One that was parked there is never answered, as on a real broker.
fn park(cx: &mut Context, place: &mut Option<RequestId>, request: RequestId) {
    if let Some(replaced) = place.replace(request) {
        cx.inbox.abandon(replaced);
    }
}

pub(super) fn refuse_join(cx: &mut Context, request: RequestId, error: ErrorCode, member_id: Arc<str>) {
    let joined = Joined {
        error,
        generation: -1,
        protocol: Arc::default(),
        leader: Arc::default(),
        member_id,
        members: Vec::new(),
    };
    cx.answer(request, Response::JoinGroup(joined));
}
