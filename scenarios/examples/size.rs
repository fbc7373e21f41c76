//! What a simulated run costs against its size: records, nodes and partitions, everything else fixed, checkers
//! included. Exits with 1 when from 10^3 to 10^5 records the cost grows beyond 1.3 times linear, or when a run fails.
//!
//! `cargo run --release -p scenarios --example size -- [MOST_RECORDS]`

use std::process::ExitCode;

use scenarios::drive::{Correct, Simulated};
use scenarios::plan::{Knobs, Plan, Workload};
use scenarios::run::{Outcome, RunOptions, RunReport, run_fresh};
use scenarios::scenario::{UnknownScenario, find};

/// The allocator of the `sim` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Records that each size is run for, in as many runs as that takes.
const RECORDS_EACH: u32 = 30_000;
/// What the cost of a record may grow by from the first of these to the second.
const FROM: u32 = 1_000;
const UP_TO: u32 = 100_000;
const GROWTH_MAX: f64 = 1.3;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let most = std::env::args().nth(1).map_or(Ok(UP_TO), |text| text.parse::<u32>())?;
    let mut fine = true;
    println!(
        "{:>9} {:>8} {:>9} {:>11} {:>10} {:>10} {:>10}",
        "records", "workers", "indexers", "partitions", "ms", "us/record", "to linear"
    );
    let mut first = None;
    for records in [100, 1_000, 10_000, 100_000].into_iter().filter(|records| *records <= most) {
        let (cost, passed) = measure((3, 2, 6), records)?;
        if records == FROM {
            first = Some(cost);
        }
        let growth = first.map(|first| cost / first);
        fine &= passed && (records != UP_TO || growth.is_none_or(|growth| growth <= GROWTH_MAX));
        row((3, 2, 6), records, cost, growth);
    }
    for nodes in [1, 4, 16, 64] {
        let shape = (nodes, nodes, 64);
        let (cost, passed) = measure(shape, 1_000)?;
        fine &= passed;
        row(shape, 1_000, cost, None);
    }
    for partitions in [1, 4, 16, 64, 256] {
        let shape = (3, 2, partitions);
        let (cost, passed) = measure(shape, 1_000)?;
        fine &= passed;
        row(shape, 1_000, cost, None);
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row((workers, indexers, partitions): (u32, u32, u32), records: u32, cost: f64, growth: Option<f64>) {
    let growth = growth.map_or_else(|| "-".to_owned(), |growth| format!("{growth:.2}"));
    let ms = cost * f64::from(records) / 1_000.0;
    println!("{records:>9} {workers:>8} {indexers:>9} {partitions:>11} {ms:>10.1} {cost:>10.1} {growth:>10}");
}

/// Processor time of this process so far, so that neighbours on the machine do not count. Linux only.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').ok_or("/proc/self/stat has no name")?.1;
    // The 14th and the 15th field, in hundredths: user and system time.
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

/// Microseconds of processor time a record, and whether the runs passed.
fn measure(shape: (u32, u32, u32), records: u32) -> Result<(f64, bool), Box<dyn std::error::Error>> {
    let plan = plan(shape, records)?;
    plan.validate()?;
    let run = || run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
    let before = cpu_seconds()?;
    let reports: Vec<RunReport> = (0..(RECORDS_EACH / records).clamp(3, 30)).map(|_| run()).collect();
    let seconds = cpu_seconds()? - before;
    for report in reports.iter().filter(|report| report.outcome != Outcome::Pass) {
        println!("failed: {:?}", report.outcome);
    }
    let passed = reports.iter().all(|report| report.outcome == Outcome::Pass);
    Ok((seconds * 1e6 / (reports.len() as f64 * f64::from(records)), passed))
}

fn plan((workers, indexers, partitions): (u32, u32, u32), records: u32) -> Result<Plan, UnknownScenario> {
    let mut plan = Plan::draw(find("distributed-calm")?, 1);
    plan.topology.workers = workers;
    plan.topology.indexers = indexers;
    plan.topology.source_partitions = partitions;
    plan.topology.dest_partitions = partitions;
    plan.pauses.clear();
    plan.pipeline = Knobs {
        max_pending: 1_000,
        max_in_flight: 500,
        poll_max: 100,
        batch_size: 50,
        batch_age_micros: 50_000,
        ..plan.pipeline
    };
    if let Workload::Generated(generated) = &mut plan.workload {
        generated.records = records;
        generated.ids = records / 10;
    }
    Ok(plan)
}
