//! Runs a plan: the real pipeline on the nodes of a simulated world, the plan's faults beside it, the checkers after.
//!
//! A run has two phases. While documents flow the faults strike; when nothing is left to strike, or when the
//! publisher has declared its run complete, the world heals: what is down comes back, and everything must come to its
//! end within a bound. A [`Variant`] puts other implementations behind the ports: flawed pipelines are made so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use compact_str::CompactString;
use seriatim_core::intake::Uncovered;
use seriatim_core::publisher::Publisher;
use seriatim_core::runner::ConnectorSummary;
use seriatim_sim::cluster::ClusterConfig;
use seriatim_sim::history::body_hash;
use seriatim_sim::{TraceMode, World, WorldConfig};

use crate::fault::FaultKind;
use crate::plan::{Plan, Workload};
use crate::ripgrep;
use crate::run::{Outcome, RunOptions, RunReport, Runner, Strikes};
use crate::workload::{Expected, Op};

pub mod any;
pub(crate) mod config;
pub(crate) mod faults;
mod judge;
mod links;
mod nodes;
pub(crate) mod operations;
mod poison;
pub(crate) mod recorded;
pub(crate) mod stages;
pub(crate) mod struck;
pub(crate) mod troubles;
pub(crate) mod variant;

pub use variant::{Correct, Messengers, Part, Place, Variant};

/// Name of the pipeline; its topics and groups are called after it.
pub const PIPELINE: &str = "p";
/// Longest virtual time of a run after its last fault.
const HEALED_LIMIT: Duration = Duration::from_secs(1_200);
/// Longest virtual time from completion until nothing lags.
const QUIET_LIMIT: Duration = Duration::from_secs(600);
/// How often the end is looked for once everything has struck.
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Time in which requests of dead processes still arrive.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// Runs plans in the simulated world.
#[derive(Clone, Copy, Debug)]
pub struct Simulated<V>(pub V);

impl<V: Variant + Clone> Runner for Simulated<V> {
    fn run(&self, plan: &Plan, options: &RunOptions) -> RunReport {
        run(plan, options, &(Arc::new(self.0.clone()) as Arc<dyn Variant>))
    }
}

/// Runs plans in the simulated world with `variant`.
pub fn run_variant(variant: Arc<dyn Variant>) -> impl Runner + use<> {
    move |plan: &Plan, options: &RunOptions| run(plan, options, &variant)
}

/// What the nodes of a run and its driver share.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    publisher: Option<Publisher>,
    summaries: Vec<ConnectorSummary>,
    failure: Option<String>,
    /// Of all members of groups.
    uncovered: Uncovered,
}

pub(crate) type SharedProgress = Arc<Mutex<Progress>>;

pub(crate) fn lock(progress: &SharedProgress) -> MutexGuard<'_, Progress> {
    progress.lock().expect("no code panics while it holds the progress")
}

/// What the driver saw that no history holds.
#[derive(Debug, Default)]
struct Driven {
    strikes: BTreeMap<FaultKind, Strikes>,
    /// Why the run did not come to its end, when it did not.
    stuck: Option<String>,
    /// Keys of unreadable records that were not dead-lettered.
    unburied: Vec<String>,
}

fn run(plan: &Plan, options: &RunOptions, variant: &Arc<dyn Variant>) -> RunReport {
    let operations = match operations(plan, options) {
        Ok(operations) => operations,
        Err(words) => return RunReport::of(Outcome::Harness(words)),
    };
    let config = WorldConfig {
        cluster: ClusterConfig {
            brokers: plan.brokers.count,
            metadata_lag: Duration::from_millis(plan.brokers.metadata_lag_ms.into()),
            ..ClusterConfig::default()
        },
        network_seed: Some(plan.seeds.network),
        trace: if options.trace { TraceMode::Full } else { TraceMode::Ring(0) },
        time_limit: Duration::from_secs(24 * 3_600),
        ..WorldConfig::default()
    };
    let config = variant.world(config);
    let progress = SharedProgress::default();
    let expected = Expected::in_indexes(&operations, plan.has_indexes());
    let outcome = seriatim_sim::run(plan.seeds.schedule, config, |world| {
        let (progress, variant) = (progress.clone(), variant.clone());
        async move {
            let driven = drive(&world, plan, operations, &progress, variant).await;
            let documents = world.index_documents();
            (driven, documents)
        }
    });
    judge::report(plan, options, outcome, &expected, &lock(&progress))
}

fn operations(plan: &Plan, options: &RunOptions) -> Result<Arc<Vec<Op>>, String> {
    match (&options.operations, &plan.workload) {
        (Some(operations), _) => Ok(operations.clone()),
        (None, Workload::Generated(generated)) => Ok(Arc::new(generated.operations(plan.seeds.workload))),
        (None, Workload::Ripgrep) => Ok(ripgrep::history()),
        (None, Workload::File(path)) => Err(format!("the operations of {} were not read", path.display())),
    }
}

async fn drive(
    world: &World,
    plan: &Plan,
    operations: Arc<Vec<Op>>,
    progress: &SharedProgress,
    variant: Arc<dyn Variant>,
) -> Driven {
    let struck = struck::Struck::new(world.recorder());
    let trouble = stages::Trouble::new(struck.clone());
    let cast = nodes::Cast::new(world, plan, operations, progress.clone(), variant, trouble);
    cast.start().await;
    let main_node = cast.main_node();
    let mut faults = faults::Injector::new(plan, world, &cast, progress.clone(), struck.clone());
    let mut driven = Driven::default();
    while !world.has_exited(main_node) && !faults.is_over(world) {
        faults.tick(world, &cast).await;
    }
    faults.heal(world);
    let healed_at = world.now();
    while !world.has_exited(main_node) && driven.stuck.is_none() {
        world.sleep(IDLE_TICK).await;
        faults.revive(world);
        if world.now().since(healed_at) > HEALED_LIMIT {
            driven.stuck = Some(describe_stuck(world, progress));
        }
    }
    let groups = cast.groups();
    if !groups.is_empty() && driven.stuck.is_none() {
        let lag = |world: &World| {
            let lags = groups.iter().map(|(group, topic)| (group, world.lag(group, topic)));
            let lags: Vec<String> =
                lags.filter(|(_, lag)| *lag > 0).map(|(group, lag)| format!("{group} lags by {lag}")).collect();
            (!lags.is_empty()).then(|| lags.join(", "))
        };
        // Who took over from a lost owner may do again what that owner had committed: no lag shows it. So it is looked
        // at again once everything has arrived.
        let waits_from = world.now();
        while driven.stuck.is_none() {
            let revived = |world: &World| {
                faults.revive(world);
                lag(world)
            };
            if let Err(pending) = world.quiet(QUIET_LIMIT, revived).await {
                driven.stuck = Some(format!("the run is over, and {pending}"));
            }
            world.sleep(SETTLE_TIME).await;
            if lag(world).is_none() || world.now().since(waits_from) > QUIET_LIMIT {
                break;
            }
        }
    } else {
        world.sleep(SETTLE_TIME).await;
    }
    driven.unburied = poison::unburied(world, &cast.dead_letters(), faults.end());
    driven.strikes = struck.take();
    driven
}

fn describe_stuck(world: &World, progress: &SharedProgress) -> String {
    let progress = lock(progress);
    let pending = progress.publisher.as_ref().map(|publisher| publisher.describe_pending(3)).unwrap_or_default();
    let limit = HEALED_LIMIT.as_secs();
    format!("{limit} s after the last fault, at {}, the run is not complete: {}", world.now(), pending.join("; "))
}

/// Hashes of the documents that the index must hold.
fn hashes(index: &BTreeMap<String, String>) -> BTreeMap<CompactString, u64> {
    index.iter().map(|(id, body)| (CompactString::from(id.as_str()), body_hash(body.as_bytes()))).collect()
}
