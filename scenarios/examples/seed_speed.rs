//! How many seeds of a fixed shape one core runs in a second: the distributed scenario with all faults, 3 workers, 2
//! indexers, 6 partitions at both hops, 500 records.
//!
//! `cargo run --release -p scenarios --example seed_speed -- [SEEDS]`

use std::time::Duration;

use scenarios::drive::{Correct, Simulated};
use scenarios::fault::{Action, Node};
use scenarios::plan::{Plan, Workload};
use scenarios::run::{Outcome, RunOptions, Stopwatch, run_fresh};
use scenarios::scenario::find;

/// The allocator of the `sim` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seeds = std::env::args().nth(1).map_or(Ok(500), |text| text.parse::<u64>())?;
    let scenario = find("distributed-all")?;
    let (watch, mut virtual_time, mut failed) = (Stopwatch::start(), Duration::ZERO, 0);
    for seed in 0..seeds {
        let plan = shaped(Plan::draw(scenario, seed));
        let report = run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
        virtual_time += report.virtual_time;
        failed += u64::from(report.outcome != Outcome::Pass);
    }
    let wall = watch.elapsed().as_secs_f64();
    let (rate, ratio) = (seeds as f64 / wall, virtual_time.as_secs_f64() / wall);
    println!(
        "{seeds} seeds in {wall:.1} s on one core: {rate:.0} seeds/s, {ratio:.0} times real time, {failed} failed"
    );
    Ok(())
}

/// The same faults on the fixed shape; those of nodes that it does not have go to one that it has.
pub fn shaped(mut plan: Plan) -> Plan {
    plan.topology.workers = 3;
    plan.topology.indexers = 2;
    plan.topology.source_partitions = 6;
    plan.topology.dest_partitions = 6;
    if let Workload::Generated(generated) = &mut plan.workload {
        generated.records = 500;
    }
    for fault in &mut plan.faults {
        if let Action::Crash { node, .. } | Action::Stop { node, .. } | Action::Pause { node, .. } = &mut fault.action {
            *node = match *node {
                Node::Worker(number) => Node::Worker(number % 3),
                Node::Indexer(number) => Node::Indexer(number % 2),
                other => other,
            };
        }
    }
    plan
}
