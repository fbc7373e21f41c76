//! A member of a group: what it said when it joined, its parked answers and its session.

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;

use super::context::{Context, Timer};
use super::inbox::RequestId;
use super::protocol::{GroupProtocol, JoinGroup, Subscription};

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: Arc<str>,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) rebalance_timeout: Duration,
    pub(super) protocols: Vec<GroupProtocol>,
    pub(super) assignment: Vec<TopicPartition>,
    /// Its parked JoinGroup.
    pub(super) joining: Option<RequestId>,
    /// Its parked SyncGroup.
    pub(super) syncing: Option<RequestId>,
    /// Whether its SyncGroup of this generation is still missing.
    pub(super) owes_sync: bool,
    /// Whether its first join was not answered yet: only then may it expire while it is parked.
    pub(super) is_new: bool,
    /// Whether it took the place of another with its instance id, and has not asked for the assignment yet.
    pub(super) is_successor: bool,
    session_timeout: Duration,
    deadline: Instant,
    /// Time of the timer that counts. A renewal only moves `deadline`; the timer is armed again when it fires early.
    armed_at: Option<Instant>,
}

impl Member {
    /// A member that joins with `request` parked.
    pub(super) fn new(id: Arc<str>, join: JoinGroup, request: RequestId) -> Self {
        Member {
            id,
            instance_id: join.instance_id,
            rebalance_timeout: join.rebalance_timeout,
            protocols: join.protocols,
            assignment: Vec::new(),
            joining: Some(request),
            syncing: None,
            owes_sync: false,
            is_new: true,
            is_successor: false,
            session_timeout: join.session_timeout,
            deadline: Instant::default(),
            armed_at: None,
        }
    }

    /// Takes over what a further join says.
    pub(super) fn update(&mut self, join: JoinGroup) {
        self.rebalance_timeout = join.rebalance_timeout;
        self.session_timeout = join.session_timeout;
        self.protocols = join.protocols;
    }

    /// What it said under `protocol`.
    pub(super) fn subscription(&self, protocol: &str) -> Subscription {
        let said = self.protocols.iter().find(|known| &*known.name == protocol);
        said.map(|said| said.subscription.clone()).unwrap_or_default()
    }

    pub(super) fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|known| &*known.name == protocol)
    }

    pub(super) fn renew(&mut self, cx: &mut Context, group: &Arc<str>) {
        self.renew_for(cx, group, self.session_timeout);
    }

    pub(super) fn renew_for(&mut self, cx: &mut Context, group: &Arc<str>, timeout: Duration) {
        self.deadline = cx.now + timeout;
        if self.armed_at.is_none_or(|armed| armed > self.deadline) {
            cx.arm(timeout, Timer::Session(Arc::clone(group), Arc::clone(&self.id)));
            self.armed_at = Some(self.deadline);
        }
    }

    /// The timer that was armed went by a former id of this member: the next renewal arms another.
    pub(super) fn forget_timer(&mut self) {
        self.armed_at = None;
    }

    /// One of its session timers fired. Whether the member is gone.
    pub(super) fn expires(&mut self, cx: &mut Context, group: &Arc<str>) -> bool {
        if self.armed_at != Some(cx.now) {
            return false;
        }
        self.armed_at = None;
        if cx.now < self.deadline {
            self.renew_for(cx, group, self.deadline.since(cx.now));
            return false;
        }
        self.is_new || (self.joining.is_none() && self.syncing.is_none())
    }
}
