//! The way of records into one partition: a queue, numbered batches, and what is to be sent again.
//!
//! Values in, decisions out. Order rests on these rules:
//! - A batch keeps its sequence as long as it may have been appended.
//! - While something is to be repeated nothing newer goes, and it goes only when nothing is out.
//! - Never more than [`IN_FLIGHT_MAX`] batches from the oldest open one on: the broker knows a resend by its last five.
//! - Until the partition took a first batch of an epoch, one is out at a time: Kafka takes any sequence of a producer
//!   that it does not know, so that a second could be appended before the first.
//! - Batches are numbered anew only when nothing is out, from one on that certainly was not appended, behind which
//!   nothing can have been; under a new epoch from 0 on.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::ProducerConfig;

use crate::cluster::protocol::{BATCH_OVERHEAD_BYTES, Record};

/// `max.in.flight.requests.per.connection`: what an idempotent producer may have out.
pub(super) const IN_FLIGHT_MAX: usize = 5;

/// A record that waits for its batch.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) record: Record,
    /// What it takes in a batch, at most.
    pub(super) bytes: usize,
    pub(super) owner: Owner,
    pub(super) enqueued: Instant,
}

/// Which record of which `send_all` this is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) call: u64,
    pub(super) place: usize,
    /// What it counts for in the queue's bound.
    pub(super) bytes: usize,
}

/// Records that were given a sequence and are sent together until they are answered.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) partition: TopicPartition,
    pub(super) epoch: i16,
    pub(super) base_sequence: i32,
    pub(super) records: Arc<[Record]>,
    pub(super) owners: Vec<Owner>,
}

/// What is to be numbered anew once nothing is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renumber {
    /// What lies behind this sequence, from it on.
    From(i32),
    /// Everything, under a new epoch.
    All,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    epoch: i16,
    next_sequence: i32,
    queue: VecDeque<Pending>,
    queue_bytes: usize,
    /// To be sent again, by sequence.
    retry: VecDeque<Batch>,
    /// Base sequences of what is out.
    out: BTreeSet<i32>,
    /// Base sequences from the oldest open batch on, answered or not.
    window: VecDeque<i32>,
    renumber: Option<Renumber>,
    /// The partition took a batch of this epoch.
    is_known: bool,
    pub(super) not_before: Instant,
}

/// The sequence `by` after `sequence`; past `i32::MAX` it goes on at 0.
fn after(sequence: i32, by: usize) -> i32 {
    let by = i32::try_from(by).expect("a batch has at most i32::MAX records");
    if i32::MAX - by < sequence { by - (i32::MAX - sequence) - 1 } else { sequence + by }
}

impl Lane {
    /// Queues a record. Whether the sender has to look at it: it is the first, or it fills a batch.
    pub(super) fn push(&mut self, pending: Pending, config: &ProducerConfig) -> bool {
        let was_full = self.is_full(config);
        self.queue_bytes += pending.bytes;
        self.queue.push_back(pending);
        self.queue.len() == 1 || (!was_full && self.is_full(config))
    }

    fn is_full(&self, config: &ProducerConfig) -> bool {
        self.queue.len() >= config.batch_records_max.max(1) || self.queue_bytes >= config.batch_bytes_max
    }

    /// When the queue's oldest record has waited enough for company; `None` when nothing waits.
    pub(super) fn ripens_at(&self, linger: Duration) -> Option<Instant> {
        self.queue.front().map(|oldest| oldest.enqueued + linger)
    }

    /// Whether what is queued makes a batch.
    pub(super) fn is_ripe(&self, config: &ProducerConfig, now: Instant) -> bool {
        self.is_full(config) || self.ripens_at(config.linger).is_some_and(|at| at <= now)
    }

    /// Whether the partition has something that may go, were its queue `ripe`.
    pub(super) fn may_send(&self, ripe: bool) -> bool {
        if !self.retry.is_empty() {
            return self.out.is_empty();
        }
        let open_max = if self.is_known { IN_FLIGHT_MAX } else { 1 };
        !self.queue.is_empty() && ripe && self.renumber.is_none() && self.window.len() < open_max
    }

    pub(super) fn has_retry(&self) -> bool {
        !self.retry.is_empty()
    }

    /// Takes what goes next: what is to be repeated, or a new batch. Only after [`Lane::may_send`].
    pub(super) fn take(&mut self, partition: &TopicPartition, config: &ProducerConfig) -> Batch {
        let batch = match self.retry.pop_front() {
            Some(batch) => batch,
            None => self.batch(partition, config),
        };
        self.out.insert(batch.base_sequence);
        batch
    }

    /// The next batch from the queue.
    fn batch(&mut self, partition: &TopicPartition, config: &ProducerConfig) -> Batch {
        let (mut records, mut owners, mut bytes) = (Vec::new(), Vec::new(), BATCH_OVERHEAD_BYTES);
        while records.len() < config.batch_records_max.max(1)
            && let Some(next) = self.queue.front()
            && (records.is_empty() || bytes + next.bytes <= config.batch_bytes_max)
            && let Some(pending) = self.queue.pop_front()
        {
            bytes += pending.bytes;
            self.queue_bytes -= pending.bytes;
            records.push(pending.record);
            owners.push(pending.owner);
        }
        let base_sequence = self.next_sequence;
        self.next_sequence = after(base_sequence, records.len());
        self.window.push_back(base_sequence);
        Batch { partition: partition.clone(), epoch: self.epoch, base_sequence, records: records.into(), owners }
    }

    /// An answer to `batch` came, or it is known that none will.
    pub(super) fn answered(&mut self, batch: &Batch) {
        self.out.remove(&batch.base_sequence);
    }

    /// The partition has the batch.
    pub(super) fn appended(&mut self) {
        self.is_known = true;
        self.tidy();
    }

    /// Whether an earlier batch than `batch` is open: it came before its time.
    pub(super) fn overtook(&self, batch: &Batch) -> bool {
        self.out.first().is_some_and(|first| *first < batch.base_sequence)
            || self.retry.front().is_some_and(|first| first.base_sequence < batch.base_sequence)
            || self.renumber.is_some()
    }

    /// `batch` is to be sent again as it is.
    pub(super) fn again(&mut self, batch: Batch) {
        self.keep(batch);
        self.tidy();
    }

    fn keep(&mut self, batch: Batch) {
        let place = self.retry.partition_point(|other| other.base_sequence < batch.base_sequence);
        self.retry.insert(place, batch);
    }

    /// `batch` was not appended and does not follow what the partition has: all that is open goes again, in order,
    /// under a new epoch. False when there is none left.
    pub(super) fn bump(&mut self, batch: Batch) -> bool {
        self.renumber = Some(Renumber::All);
        self.again(batch);
        self.epoch < i16::MAX
    }

    /// `batch` is too large as a whole: its halves go, in order. Gives it back when it is one record.
    pub(super) fn split(&mut self, mut batch: Batch) -> Result<(), Batch> {
        if batch.records.len() < 2 {
            return Err(batch);
        }
        let half = batch.records.len() / 2;
        let later = Batch {
            partition: batch.partition.clone(),
            epoch: batch.epoch,
            base_sequence: after(batch.base_sequence, half),
            records: batch.records[half..].into(),
            owners: batch.owners.split_off(half),
        };
        batch.records = batch.records[..half].into();
        if let Some(place) = self.window.iter().position(|base| *base == batch.base_sequence) {
            self.window.insert(place + 1, later.base_sequence);
        }
        self.keep(later);
        self.keep(batch);
        self.tidy();
        Ok(())
    }

    /// `batch` was not appended and never will be: what lies behind it takes its numbers.
    pub(super) fn refused(&mut self, batch: &Batch) {
        let from = batch.base_sequence;
        self.renumber = Some(match self.renumber {
            Some(Renumber::All) => Renumber::All,
            Some(Renumber::From(earlier)) => Renumber::From(earlier.min(from)),
            None => Renumber::From(from),
        });
        self.tidy();
    }

    /// Takes everything that is not out: its partition is gone.
    pub(super) fn abandon(&mut self) -> Vec<Owner> {
        let batches = std::mem::take(&mut self.retry);
        if let Some(first) = batches.front() {
            self.refused(first);
        }
        self.is_known = false;
        self.queue_bytes = 0;
        let queued = self.queue.drain(..).map(|pending| pending.owner).collect::<Vec<_>>();
        let owners = batches.into_iter().flat_map(|batch| batch.owners).chain(queued).collect();
        self.tidy();
        owners
    }

    /// Forgets the answered batches that no open one stands before, and numbers anew what has to be.
    fn tidy(&mut self) {
        if self.out.is_empty()
            && let Some(renumber) = self.renumber.take()
        {
            self.number_anew(renumber);
        }
        while let Some(first) = self.window.front()
            && !self.out.contains(first)
            && self.retry.iter().all(|batch| batch.base_sequence != *first)
        {
            self.window.pop_front();
        }
    }

    fn number_anew(&mut self, renumber: Renumber) {
        let mut next = match renumber {
            Renumber::From(sequence) => sequence,
            Renumber::All => {
                self.epoch += 1;
                self.is_known = false;
                0
            }
        };
        for batch in &mut self.retry {
            if renumber == Renumber::All || batch.base_sequence > next {
                batch.epoch = self.epoch;
                batch.base_sequence = next;
                next = after(next, batch.records.len());
            }
        }
        self.next_sequence = next;
        self.window = self.retry.iter().map(|batch| batch.base_sequence).collect();
    }
}

#[cfg(test)]
pub(super) mod tests;
