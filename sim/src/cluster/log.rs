//! The log of one partition, and the state of its idempotent producers.
//!
//! One replica, so that the high watermark is the end. Offsets are never taken back and a batch never changes; a reader
//! shares it. Rules: AK `ProducerAppendInfo`, `ProducerStateEntry`, `UnifiedLog`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::protocol::{BATCH_OVERHEAD_BYTES, BatchSlice, ErrorCode, ProducerId, Record};

/// Batches remembered per producer, to know a resend by (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`).
const BATCHES_REMEMBERED: usize = 5;

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Append {
    /// Offset of the batch's first record.
    pub(super) base_offset: i64,
    /// Whether it was there already.
    pub(super) duplicate: bool,
}

#[derive(Clone, Debug)]
struct Batch {
    base_offset: i64,
    records: Arc<[Record]>,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    first_sequence: i32,
    last_sequence: i32,
    base_offset: i64,
}

#[derive(Clone, Debug)]
struct ProducerState {
    epoch: i16,
    /// The last batches of `epoch`, oldest first.
    batches: VecDeque<Remembered>,
}

/// The log of one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct PartitionLog {
    batches: VecDeque<Batch>,
    start: i64,
    end: i64,
    producers: BTreeMap<i64, ProducerState>,
}

/// The sequence `by` after `sequence`; it wraps to 0 past `i32::MAX`.
pub(super) fn sequence_after(sequence: i32, by: usize) -> i32 {
    ((i64::from(sequence) + by as i64) % (i64::from(i32::MAX) + 1)) as i32
}

impl PartitionLog {
    pub(super) fn start(&self) -> i64 {
        self.start
    }

    pub(super) fn high_watermark(&self) -> i64 {
        self.end
    }

    /// Appends a batch, or finds it.
    pub(super) fn append(
        &mut self,
        producer: Option<ProducerId>,
        base_sequence: i32,
        records: Arc<[Record]>,
        bytes_max: usize,
    ) -> Result<Append, ErrorCode> {
        if records.is_empty() {
            return Err(ErrorCode::InvalidRequest);
        }
        let bytes = BATCH_OVERHEAD_BYTES + records.iter().map(Record::bytes_max).sum::<usize>();
        if bytes > bytes_max {
            return Err(ErrorCode::MessageTooLarge);
        }
        if let Some(producer) = producer {
            if base_sequence < 0 {
                return Err(ErrorCode::InvalidRequest);
            }
            let last_sequence = sequence_after(base_sequence, records.len() - 1);
            if let Some(base_offset) = self.check_sequence(producer, base_sequence, last_sequence)? {
                return Ok(Append { base_offset, duplicate: true });
            }
            self.remember(producer, base_sequence, last_sequence);
        }
        let base_offset = self.end;
        self.end += records.len() as i64;
        self.batches.push_back(Batch { base_offset, records });
        Ok(Append { base_offset, duplicate: false })
    }

    /// The original offset of a batch that is here already, `None` for one that comes next.
    fn check_sequence(&self, producer: ProducerId, first: i32, last: i32) -> Result<Option<i64>, ErrorCode> {
        let Some(state) = self.producers.get(&producer.id) else {
            return Ok(None);
        };
        if producer.epoch < state.epoch {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        if producer.epoch > state.epoch {
            return if first == 0 { Ok(None) } else { Err(ErrorCode::OutOfOrderSequenceNumber) };
        }
        let same = |batch: &&Remembered| batch.first_sequence == first && batch.last_sequence == last;
        if let Some(batch) = state.batches.iter().find(same) {
            return Ok(Some(batch.base_offset));
        }
        match state.batches.back() {
            Some(batch) if first != sequence_after(batch.last_sequence, 1) => Err(ErrorCode::OutOfOrderSequenceNumber),
            _ => Ok(None),
        }
    }

    fn remember(&mut self, producer: ProducerId, first_sequence: i32, last_sequence: i32) {
        let state = self.producers.entry(producer.id).or_insert_with(|| ProducerState {
            epoch: producer.epoch,
            batches: VecDeque::with_capacity(BATCHES_REMEMBERED),
        });
        if state.epoch != producer.epoch {
            state.epoch = producer.epoch;
            state.batches.clear();
        } else if state.batches.len() == BATCHES_REMEMBERED {
            state.batches.pop_front();
        }
        state.batches.push_back(Remembered { first_sequence, last_sequence, base_offset: self.end });
    }

    /// At most `records_max` records from `offset`, appended to `into`; their number.
    pub(super) fn read(&self, offset: i64, records_max: usize, into: &mut Vec<BatchSlice>) -> Result<usize, ErrorCode> {
        if offset < self.start || offset > self.end {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        if offset == self.end {
            return Ok(0);
        }
        let first = self.batches.partition_point(|batch| batch.base_offset + batch.records.len() as i64 <= offset);
        let mut taken = 0;
        for batch in self.batches.range(first..) {
            if taken == records_max {
                break;
            }
            let from = usize::try_from(offset - batch.base_offset).unwrap_or(0);
            let count = (batch.records.len() - from).min(records_max - taken);
            taken += count;
            into.push(BatchSlice {
                base_offset: batch.base_offset,
                records: Arc::clone(&batch.records),
                range: from..from + count,
            });
        }
        Ok(taken)
    }

    /// Moves the start to `offset`, −1 being the high watermark; the start after it. Never back.
    pub(super) fn delete_before(&mut self, offset: i64) -> Result<i64, ErrorCode> {
        let offset = if offset == -1 { self.end } else { offset };
        if offset < 0 || offset > self.end {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        self.start = self.start.max(offset);
        while self.batches.front().is_some_and(|batch| batch.base_offset + batch.records.len() as i64 <= self.start) {
            self.batches.pop_front();
        }
        Ok(self.start)
    }
}
