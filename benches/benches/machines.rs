//! The protocol machines, each over a thousand records.

use std::hint::black_box;
use std::time::Duration;

use benches::line;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use seriatim_core::env::Instant;
use seriatim_core::identity::{Epoch, Position, RunId, Ticket, TopicPartition, Version};
use seriatim_core::machines::batcher::{BatchLimits, Batcher};
use seriatim_core::machines::custody::{Custody, CustodyConfig, Step};
use seriatim_core::machines::hlc::{Hlc, OutputVersions};
use seriatim_core::machines::lanes::Lanes;
use seriatim_core::machines::ledger::{Ledger, LedgerEvent, LedgerEventKind, Outcome, TicketLedger};
use seriatim_core::machines::offsets::OffsetTracker;
use seriatim_core::partitioner::partition;
use seriatim_core::transport::Assignment;

const RECORDS: u64 = 1_000;
const EPOCH: Epoch = Epoch(1);

fn ids() -> Vec<String> {
    (0..RECORDS).map(|number| format!("doc-{number:07}")).collect()
}

/// Taken in order, done in blocks that are turned round, as several workers leave them.
fn turned(offset: i64) -> i64 {
    offset / 10 * 10 + (9 - offset % 10)
}

fn offsets(group: &mut BenchmarkGroup<'_, WallTime>) {
    let partition = TopicPartition::new("t", 0);
    group.bench_function("offsets", |bencher| {
        bencher.iter(|| {
            let mut tracker = OffsetTracker::new();
            tracker.assign(partition.clone(), EPOCH, 0);
            for offset in 0..RECORDS as i64 {
                tracker.taken(&partition, EPOCH, offset);
            }
            for offset in 0..RECORDS as i64 {
                tracker.done(&partition, EPOCH, turned(offset));
            }
            black_box(tracker.committable())
        });
    });
}

fn custody(group: &mut BenchmarkGroup<'_, WallTime>) {
    let partition = TopicPartition::new("t", 0);
    let assignment = Assignment { partition: partition.clone(), epoch: EPOCH, committed: None, start: 0 };
    let position = |offset| Position { partition: partition.clone(), offset, epoch: EPOCH };
    group.bench_function("custody", |bencher| {
        bencher.iter(|| {
            let mut custody = Custody::new(CustodyConfig::default());
            custody.assigned(std::slice::from_ref(&assignment));
            for offset in 0..RECORDS as i64 {
                custody.taken(&position(offset));
            }
            for offset in 0..RECORDS as i64 {
                let position = position(turned(offset));
                let begun = custody.begin(&position);
                custody.settled(&position, begun);
            }
            // The first step sets the time of the commit, the second is behind it.
            custody.step(Instant::default());
            let Step::Commit(commits) = custody.step(Instant::from_micros(10_000_000)) else {
                panic!("there is something to commit");
            };
            commits
        });
    });
}

fn ledger(group: &mut BenchmarkGroup<'_, WallTime>) {
    let (run, ids) = (RunId(7), ids());
    let event = |sequence: u64, ordinal: u32, is_parent: bool| LedgerEvent {
        ticket: Ticket { run, sequence, attempt: sequence ^ 0x5555, ordinal },
        is_parent,
        kind: LedgerEventKind::Terminal(Outcome::Indexed),
        digest: u64::from(is_parent),
    };
    for (name, outputs) in [("ledger", 1), ("ledger of families of 4", 4)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut ledger = TicketLedger::new(run);
                for (sequence, id) in (0..).zip(&ids) {
                    ledger.published(sequence, id);
                }
                for sequence in 0..RECORDS {
                    for ordinal in 0..outputs {
                        ledger.observe(&event(sequence, ordinal, ordinal + 1 == outputs));
                    }
                }
                ledger.acknowledged(RECORDS);
                ledger.close();
                assert!(ledger.is_complete());
                ledger.summary()
            });
        });
    }
}

fn queues(group: &mut BenchmarkGroup<'_, WallTime>) {
    let ids = ids();
    group.bench_function("lanes", |bencher| {
        bencher.iter(|| {
            let mut lanes = Lanes::new(4, RECORDS as usize);
            for id in &ids {
                lanes.push(id.as_bytes(), id.len()).expect("there is room");
            }
            (0..4).map(|lane| lanes.take(lane, RECORDS as usize).len()).sum::<usize>()
        });
    });
    let limits = BatchLimits { items_max: 500, bytes_max: 5 << 20, age_max: Duration::from_millis(100) };
    let bytes = line(0).len();
    group.bench_function("batcher", |bencher| {
        bencher.iter(|| {
            let mut batcher = Batcher::new(limits);
            let pushed = (0..RECORDS).filter_map(|at| batcher.push(at, bytes, Instant::from_micros(at)));
            pushed.map(|batch| batch.len()).sum::<usize>()
        });
    });
}

fn identities(group: &mut BenchmarkGroup<'_, WallTime>) {
    let ids = ids();
    group.bench_function("hlc", |bencher| {
        bencher.iter(|| {
            let mut clock = Hlc::new(0);
            (0..RECORDS).map(|at| clock.next(1_700_000_000_000_000 + at / 3)).fold(0, u64::max)
        });
    });
    group.bench_function("output versions", |bencher| {
        bencher.iter(|| {
            ids.iter()
                .filter_map(|id| OutputVersions::new(Version::from_hlc(5)).next(id))
                .map(|version| version.0)
                .max()
        });
    });
    group.bench_function("partitioner", |bencher| {
        bencher.iter(|| ids.iter().map(|id| partition(id.as_bytes(), 6)).sum::<i32>());
    });
}

fn machines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("machines");
    group.throughput(Throughput::Elements(RECORDS));
    offsets(&mut group);
    custody(&mut group);
    ledger(&mut group);
    queues(&mut group);
    identities(&mut group);
    group.finish();
}

criterion_group!(benches, machines);
criterion_main!(benches);
