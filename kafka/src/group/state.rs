//! What a group member knows: partitions and their epochs, events to be polled, events not yet released.
//!
//! Pure bookkeeping: nothing here calls librdkafka, which is called without this lock held.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Assignment, Polled, RebalanceId, TransportError};

/// The next epoch: of every member in this process, so that no two ownerships have the same. 0 is for consumers by
/// assignment.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

/// Partitions with the epochs that end.
pub(super) type Going = Vec<(TopicPartition, Epoch)>;

/// A partition that this member owns.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) epoch: Epoch,
    pub(super) is_paused: bool,
    /// A release of it has begun: commits are refused from here on.
    pub(super) is_ending: bool,
}

/// An event that was raised and not yet released.
#[derive(Debug)]
pub(super) struct Unreleased {
    pub(super) partitions: Going,
    pub(super) is_revocation: bool,
}

/// What librdkafka waits for since its callback returned without it: one call, for everything that goes.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Partitions of the callbacks. An eager member gives everything up, whatever these are.
    pub(super) partitions: Vec<TopicPartition>,
    /// librdkafka is of no use any more, and another takes its place: it does not believe that what stays of a
    /// cooperative member that was thrown out is gone too, or it went on without waiting.
    pub(super) begins_anew: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The poller is gone or the member left.
    pub(super) is_closed: bool,
    pub(super) fatal: Option<TransportError>,
    /// Told by the next poll, once.
    pub(super) error: Option<TransportError>,
    pub(super) owned: BTreeMap<TopicPartition, Owned>,
    pub(super) events: VecDeque<Polled>,
    pub(super) unreleased: BTreeMap<RebalanceId, Unreleased>,
    next_event: u64,
    pub(super) owed: Option<Owed>,
    /// An assignment that librdkafka has announced and that is to be taken over.
    pub(super) announced: Option<Vec<TopicPartition>>,
    /// Partitions of commits that wait for their turn or for their answer.
    pub(super) commits_out: BTreeMap<u64, Vec<TopicPartition>>,
    pub(super) next_commit: u64,
    /// Which partition is served first; moves on.
    pub(super) turn: usize,
}

impl State {
    /// Whether `epoch` of `partition` is the current ownership, and not being released.
    pub(super) fn is_current(&self, partition: &TopicPartition, epoch: Epoch) -> bool {
        self.owned.get(partition).is_some_and(|owned| owned.epoch == epoch && !owned.is_ending)
    }

    /// Whether nothing may be delivered: a revocation is not released yet. All partitions wait, not only its own.
    pub(super) fn is_held(&self) -> bool {
        self.unreleased.values().any(|event| event.is_revocation)
    }

    /// Whether nobody can use this member any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed || self.fatal.is_some()
    }

    fn raise(&mut self, is_revocation: bool, partitions: Going) -> RebalanceId {
        let event = RebalanceId(self.next_event);
        self.next_event += 1;
        self.unreleased.insert(event, Unreleased { partitions, is_revocation });
        event
    }

    /// librdkafka wants `going` back, and will wait for it. True when the application has nothing to do for that, so
    /// that librdkafka may have it at once.
    pub(super) fn revoke(&mut self, going: Vec<TopicPartition>, is_lost: bool, deadline: Instant) -> bool {
        let with_epoch = |partition: &TopicPartition| Some((partition.clone(), self.owned.get(partition)?.epoch));
        let partitions: Going = going.iter().filter_map(with_epoch).collect();
        self.owed.get_or_insert_default().partitions.extend(going);
        if partitions.is_empty() {
            return self.unreleased.is_empty();
        }
        let event = self.raise(!is_lost, partitions.clone());
        if is_lost {
            for (partition, _) in &partitions {
                self.owned.remove(partition);
            }
        }
        self.events.push_back(match is_lost {
            true => Polled::Lost { event, partitions },
            false => Polled::Revoking { event, partitions, deadline },
        });
        false
    }

    /// The coordinator has thrown this member out. True when librdkafka waits in a revocation and will not say so: what
    /// is owned is gone.
    pub(super) fn thrown_out(&mut self, is_cooperative: bool) -> bool {
        let Some(owed) = &mut self.owed else { return false };
        owed.begins_anew |= is_cooperative;
        self.lose()
    }

    /// librdkafka announces an assignment. When it waited for a revocation to be given back, it did so no longer: it
    /// rejoins when its topics have changed, whatever it waits for. Others may have by now what is owned here, and the
    /// call that it was owed would end what it now has: it is given up as a whole.
    pub(super) fn announce(&mut self, partitions: Vec<TopicPartition>) {
        self.announced.get_or_insert_default().extend(partitions);
        if let Some(owed) = &mut self.owed {
            owed.begins_anew = true;
            self.lose();
        }
    }

    /// What is to be taken over.
    pub(super) fn take_announced(&mut self) -> Option<Vec<TopicPartition>> {
        if self.owed.as_ref().is_some_and(|owed| owed.begins_anew) { None } else { self.announced.take() }
    }

    /// What is owned is gone.
    fn lose(&mut self) -> bool {
        if self.owned.is_empty() {
            return false;
        }
        let owned = std::mem::take(&mut self.owned);
        let partitions: Going = owned.into_iter().map(|(partition, owned)| (partition, owned.epoch)).collect();
        let event = self.raise(false, partitions.clone());
        self.events.push_back(Polled::Lost { event, partitions });
        true
    }

    /// Ends the member for good.
    pub(super) fn fail(&mut self, error: TransportError) {
        self.lose();
        self.fatal.get_or_insert(error);
    }

    /// Takes new partitions over, and announces them; none of them too. Gives their epochs, in order.
    pub(super) fn assign(&mut self, mut assignments: Vec<Assignment>) -> Vec<Epoch> {
        for new in &mut assignments {
            new.epoch = Epoch(NEXT_EPOCH.fetch_add(1, Ordering::Relaxed));
            let owned = Owned { epoch: new.epoch, is_paused: false, is_ending: false };
            self.owned.insert(new.partition.clone(), owned);
        }
        let epochs = assignments.iter().map(|new| new.epoch).collect();
        self.events.push_back(Polled::Assigned(assignments));
        epochs
    }

    /// Begins the release of `event`: commits of its partitions are refused from here on. `None` when there is no such
    /// event.
    pub(super) fn begin_release(&mut self, event: RebalanceId) -> Option<Going> {
        let partitions = self.unreleased.get(&event)?.partitions.clone();
        for (partition, epoch) in &partitions {
            if let Some(owned) = self.owned.get_mut(partition).filter(|owned| owned.epoch == *epoch) {
                owned.is_ending = true;
            }
        }
        Some(partitions)
    }

    /// Ends the release of `event`. What librdkafka is owed, when this was the last.
    pub(super) fn end_release(&mut self, event: RebalanceId) -> Option<Owed> {
        for (partition, epoch) in self.unreleased.remove(&event)?.partitions {
            if self.owned.get(&partition).is_some_and(|owned| owned.epoch == epoch) {
                self.owned.remove(&partition);
            }
        }
        if self.unreleased.is_empty() { self.owed.take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim_core::transport::ErrorKind;

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new("topic", number)
    }

    fn assigned(state: &mut State, numbers: &[i32]) -> Vec<Epoch> {
        let new = |number: &i32| Assignment {
            partition: partition(*number),
            epoch: Epoch::default(),
            committed: None,
            start: 0,
        };
        let epochs = state.assign(numbers.iter().map(new).collect());
        let Some(Polled::Assigned(new)) = state.events.pop_back() else { panic!("an assignment is announced") };
        assert_eq!(new.iter().map(|new| new.epoch).collect::<Vec<_>>(), epochs);
        epochs
    }

    fn partitions(numbers: &[i32]) -> Vec<TopicPartition> {
        numbers.iter().map(|number| partition(*number)).collect()
    }

    const DEADLINE: Instant = Instant::from_micros(1);

    #[test]
    fn an_epoch_is_never_given_twice_and_a_retained_one_stays() {
        let (mut one, mut two) = (State::default(), State::default());
        let mut epochs = assigned(&mut one, &[0, 1]);
        epochs.extend(assigned(&mut two, &[2]));
        assert!(!one.revoke(partitions(&[1]), false, DEADLINE));
        assert!(one.is_current(&partition(0), epochs[0]) && one.is_current(&partition(1), epochs[1]));
        one.begin_release(RebalanceId(0)).expect("it was raised");
        assert!(one.is_current(&partition(0), epochs[0]) && !one.is_current(&partition(1), epochs[1]));
        one.end_release(RebalanceId(0));
        epochs.extend(assigned(&mut one, &[1]));
        assert!(one.is_current(&partition(0), epochs[0]), "retained");
        let mut distinct = epochs.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), epochs.len());
    }

    #[test]
    fn everything_is_held_until_a_revocation_is_released_and_librdkafka_gets_it_whole() {
        let mut state = State::default();
        assigned(&mut state, &[0, 1, 2]);
        assert!(!state.revoke(partitions(&[0, 2]), false, DEADLINE));
        assert!(state.is_held());
        assert_eq!(state.begin_release(RebalanceId(0)).map(|going| going.len()), Some(2));
        let owed = state.end_release(RebalanceId(0)).expect("librdkafka waits for it");
        assert_eq!(owed.partitions, partitions(&[0, 2]));
        assert!(!state.is_held() && state.owned.contains_key(&partition(1)));
    }

    #[test]
    fn a_loss_upon_a_revocation_is_an_event_of_its_own_and_both_go_before_librdkafka_may_rejoin() {
        let mut state = State::default();
        let epochs = assigned(&mut state, &[0, 1]);
        assert!(!state.revoke(partitions(&[0, 1]), false, DEADLINE));
        assert!(state.thrown_out(true));
        assert!(!state.is_current(&partition(0), epochs[0]));
        assert!(!state.thrown_out(true), "there is nothing left to lose");
        state.begin_release(RebalanceId(0)).expect("the revocation");
        assert!(state.end_release(RebalanceId(0)).is_none(), "the loss is not released yet");
        state.begin_release(RebalanceId(1)).expect("the loss");
        let owed = state.end_release(RebalanceId(1)).expect("librdkafka waits for it");
        assert_eq!((owed.partitions.len(), owed.begins_anew), (2, true));
    }

    #[test]
    fn a_member_that_is_thrown_out_otherwise_is_told_by_librdkafka_itself() {
        let mut state = State::default();
        assigned(&mut state, &[0, 1]);
        assert!(!state.thrown_out(true) && state.events.is_empty() && state.owned.len() == 2);
    }

    #[test]
    fn an_assignment_upon_a_revocation_is_not_taken_over_and_what_was_owned_is_lost() {
        let mut state = State::default();
        let epochs = assigned(&mut state, &[0, 1]);
        assert!(!state.revoke(partitions(&[0]), false, DEADLINE));
        state.announce(partitions(&[2]));
        assert!(epochs.iter().zip([0, 1]).all(|(epoch, number)| !state.is_current(&partition(number), *epoch)));
        assert_eq!(state.take_announced(), None);
        assert!(matches!(state.events.back(), Some(Polled::Lost { partitions, .. }) if partitions.len() == 2));
        assert!(state.end_release(RebalanceId(0)).is_none(), "the loss is not released yet");
        assert!(state.end_release(RebalanceId(1)).expect("the consumer ends").begins_anew);
        assert_eq!(state.take_announced(), Some(partitions(&[2])), "to be answered when the consumer is closed");
    }

    #[test]
    fn a_revocation_of_nothing_is_no_event() {
        let mut state = State::default();
        assert!(state.revoke(Vec::new(), false, DEADLINE), "librdkafka may have it at once");
        assert!(state.events.is_empty() && !state.is_held());
    }

    #[test]
    fn an_event_that_was_never_raised_or_is_released_already_is_none() {
        let mut state = State::default();
        assigned(&mut state, &[0]);
        assert!(state.begin_release(RebalanceId(0)).is_none());
        state.revoke(partitions(&[0]), true, DEADLINE);
        assert!(state.begin_release(RebalanceId(0)).is_some());
        state.end_release(RebalanceId(0));
        assert!(state.begin_release(RebalanceId(0)).is_none());
    }

    #[test]
    fn a_member_that_fails_has_lost_what_it_owned() {
        let mut state = State::default();
        let epochs = assigned(&mut state, &[0]);
        state.fail(TransportError::new(ErrorKind::Fatal, "FENCED_INSTANCE_ID", "being a member"));
        assert!(state.is_over() && !state.is_current(&partition(0), epochs[0]));
    }
}
