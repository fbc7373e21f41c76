//! The named scenarios: which faults a run may have, and what is promised of a campaign.
//!
//! They are modes times sets of faults times sources of operations, and a few with a line of defence removed.

use std::sync::LazyLock;

use crate::fault::FaultKind;
use crate::plan::Mode;

/// Which faults a scenario draws from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FaultSet {
    /// Nothing goes wrong.
    None,
    /// Nodes are killed and come back.
    Crashes,
    /// Nodes join, and leave in order.
    Rebalances,
    /// Nodes freeze, longer than their sessions.
    Pauses,
    /// Topics get more partitions.
    Growth,
    /// Links are cut, slow or reset, answers are lost, producers full, the topic of events is slow.
    Network,
    /// The index refuses, throttles, is slow or does not answer.
    Index,
    /// A draw of everything there is.
    All,
    /// The topic of events is deleted under the run, which must say so. In no draw of everything.
    #[value(skip)]
    EventsDeleted,
}

impl FaultSet {
    /// All that a caller may ask for, in the order in which they are listed.
    pub const ALL: [FaultSet; 8] = [
        FaultSet::None,
        FaultSet::Crashes,
        FaultSet::Rebalances,
        FaultSet::Pauses,
        FaultSet::Growth,
        FaultSet::Network,
        FaultSet::Index,
        FaultSet::All,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FaultSet::None => "none",
            FaultSet::Crashes => "crashes",
            FaultSet::Rebalances => "rebalances",
            FaultSet::Pauses => "pauses",
            FaultSet::Growth => "growth",
            FaultSet::Network => "network",
            FaultSet::Index => "index",
            FaultSet::All => "all",
            FaultSet::EventsDeleted => "events-deleted",
        }
    }

    /// Whether one process without Kafka can have any of it.
    pub fn is_local(self) -> bool {
        self == FaultSet::None || self.kinds().iter().any(|kind| kind.is_local())
    }

    /// The kinds in it.
    fn kinds(self) -> Vec<FaultKind> {
        use FaultKind::{
            Clock, Crash, CutBoth, CutInto, CutOut, DeletedEvents, FullQueue, Grow, IndexReject, IndexSlow,
            IndexThrottle, IndexTimeoutAfter, IndexTimeoutBefore, IndexUnavailable, Join, LostAnswer, Pause, Poison,
            Reset, SlowEvents, SlowLink, StageError, StagePanic, StageStuck, Stop,
        };
        match self {
            FaultSet::None => vec![],
            FaultSet::Crashes => vec![Crash],
            FaultSet::Rebalances => vec![Stop, Join],
            FaultSet::Pauses => vec![Pause],
            FaultSet::Growth => vec![Grow],
            FaultSet::Network => vec![CutOut, CutInto, CutBoth, SlowLink, Reset, LostAnswer, SlowEvents, FullQueue],
            FaultSet::Index => {
                vec![IndexReject, IndexThrottle, IndexUnavailable, IndexSlow, IndexTimeoutBefore, IndexTimeoutAfter]
            }
            FaultSet::EventsDeleted => vec![DeletedEvents],
            FaultSet::All => {
                let others = [Clock, Poison, StageError, StagePanic, StageStuck];
                let sets = FaultSet::ALL.into_iter().filter(|set| *set != FaultSet::All);
                sets.flat_map(FaultSet::kinds).chain(others).collect()
            }
        }
    }
}

/// Where a scenario's operations come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Drawn from the seed.
    Generated,
    /// The history of ripgrep's files.
    Ripgrep,
}

/// A family of plans, one per seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What goes wrong in it, and which line of defence is removed.
    pub summary: &'static str,
    /// Where the parts run.
    pub mode: Mode,
    /// Where the operations come from.
    pub source: Source,
    /// What may go wrong.
    pub faults: FaultSet,
    /// Whether index writes carry versions.
    pub versions: bool,
    /// Whether a revocation waits for what is under way.
    pub drain: bool,
}

impl Scenario {
    /// The kinds of faults that its plans are drawn from. A campaign of [`Scenario::promise_seeds`] seeds or more
    /// must have seen each hit work in flight.
    pub fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds = self.faults.kinds();
        kinds.retain(|kind| {
            (self.mode != Mode::Local || kind.is_local())
                && (self.versions || !kind.needs_versions())
                // A refused or failed operation would leave ripgrep's history unlike its tree.
                && (self.source == Source::Generated || !kind.is_of_documents())
        });
        kinds
    }

    /// Seeds from which on a campaign promises that every kind of its scenario hit work in flight. Swarm draws leave
    /// kinds out of single runs, so that fewer promise nothing.
    pub const fn promise_seeds(&self) -> u64 {
        match self.faults {
            FaultSet::All => 100,
            FaultSet::Network | FaultSet::Index => 40,
            _ => 20,
        }
    }

    /// Whether a campaign that is not told which takes this one: every fault there is in every mode, and one for each
    /// line of defence removed. The narrower ones, and the history of ripgrep, whose runs are ten times as long, are
    /// run by name.
    pub const fn by_default(&self) -> bool {
        match (self.source, self.faults) {
            (Source::Generated, FaultSet::All | FaultSet::EventsDeleted) => true,
            (Source::Generated, FaultSet::Rebalances) => !self.versions || !self.drain,
            (Source::Generated, FaultSet::None) => self.versions && matches!(self.mode, Mode::Local),
            _ => false,
        }
    }
}

/// All scenarios, in the order in which they are listed and explored.
pub static SCENARIOS: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for source in [Source::Generated, Source::Ripgrep] {
        for mode in Mode::ALL {
            let sets = FaultSet::ALL.into_iter().filter(|set| mode != Mode::Local || set.is_local());
            let sets: Vec<FaultSet> = sets.collect();
            all.extend(sets.iter().map(|set| scenario(source, mode, *set, true, true)));
            all.extend(unversioned(source, mode).iter().map(|set| scenario(source, mode, *set, false, true)));
            if source == Source::Generated && mode != Mode::Local {
                all.push(scenario(source, mode, FaultSet::Rebalances, true, false));
                all.push(scenario(source, mode, FaultSet::EventsDeleted, true, true));
            }
        }
    }
    all
});

/// The sets of faults that a mode runs without versions.
fn unversioned(source: Source, mode: Mode) -> &'static [FaultSet] {
    use FaultSet::{All, Crashes, Growth, None, Rebalances};
    match (source, mode) {
        // A local process has no queue that could rewind: that is shown with a real history.
        (Source::Generated, Mode::Local) => &[],
        (Source::Ripgrep, Mode::Local) => &[None, Crashes, All],
        _ => &[None, Crashes, Rebalances, Growth, All],
    }
}

fn scenario(source: Source, mode: Mode, faults: FaultSet, versions: bool, drain: bool) -> Scenario {
    let prefix = match source {
        Source::Generated => "",
        Source::Ripgrep => "ripgrep-",
    };
    let (defence, removed) = match (versions, drain) {
        (true, true) => ("", ""),
        (false, _) => ("-unversioned", "; without versions"),
        (true, false) => ("-undrained", "; a revocation waits for nothing"),
    };
    // With one set of faults there is nothing else to tell it by.
    let set = match faults {
        FaultSet::None => "-calm",
        FaultSet::Rebalances if !drain => "",
        other => &format!("-{}", other.name()),
    };
    let name = format!("{prefix}{}{defence}{set}", mode.name());
    let summary = format!("{}{removed}", what_goes_wrong(faults, mode));
    // Once a process: they live as long as it does.
    Scenario { name: name.leak(), summary: summary.leak(), mode, source, faults, versions, drain }
}

/// What flows, and where, in words.
pub const fn setting(source: Source, mode: Mode) -> &'static str {
    match (source, mode) {
        (Source::Generated, Mode::Local) => "Generated operations, in one process with several lanes:",
        (Source::Generated, Mode::Distributed) => "Generated operations, workers and indexers over Kafka:",
        (Source::Generated, Mode::Hybrid) => "Generated operations, worker-indexer pairs behind Kafka:",
        (Source::Ripgrep, Mode::Local) => "The history of ripgrep's files, which must end as its tree, in one process:",
        (Source::Ripgrep, Mode::Distributed) => "The history of ripgrep's files, workers and indexers over Kafka:",
        (Source::Ripgrep, Mode::Hybrid) => "The history of ripgrep's files, worker-indexer pairs behind Kafka:",
    }
}

const fn what_goes_wrong(faults: FaultSet, mode: Mode) -> &'static str {
    match (faults, mode) {
        (FaultSet::None, _) => "nothing goes wrong",
        (FaultSet::Crashes, Mode::Local) => "it is killed, the index survives, and the whole input runs again",
        (FaultSet::Crashes, _) => "they are killed and come back",
        (FaultSet::Rebalances, _) => "they join, and leave in order",
        (FaultSet::Pauses, _) => "they freeze, past their sessions and their poll limits",
        (FaultSet::Growth, _) => "topics get more partitions in mid-run, noticed late",
        (FaultSet::Network, _) => "links are cut each way, slow or reset, answers are lost, producers are full",
        (FaultSet::Index, _) => "the index refuses, throttles, is slow and does not answer",
        (FaultSet::All, Mode::Local) => "a draw of every fault that one process can have",
        (FaultSet::All, _) => "a draw of every fault there is",
        (FaultSet::EventsDeleted, _) => "the topic of events is deleted: the run must fail, and say why",
    }
}

/// A name that is no scenario's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no scenario `{name}`{}; `cargo sim list` shows all", did_you_mean(*suggestion))]
pub struct UnknownScenario {
    /// What was asked for.
    pub name: String,
    /// The nearest there is, when one is near.
    pub suggestion: Option<&'static str>,
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// The scenario of that name.
pub fn find(name: &str) -> Result<&'static Scenario, UnknownScenario> {
    if let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name == name) {
        return Ok(scenario);
    }
    if let Some(begins) = SCENARIOS.iter().find(|scenario| !name.is_empty() && scenario.name.starts_with(name)) {
        return Err(UnknownScenario { name: name.to_owned(), suggestion: Some(begins.name) });
    }
    let near = |scenario: &Scenario| edits(name, scenario.name);
    let nearest = SCENARIOS.iter().min_by_key(|scenario| near(scenario));
    let suggestion = nearest.filter(|scenario| near(scenario) <= scenario.name.len() / 3).map(|scenario| scenario.name);
    Err(UnknownScenario { name: name.to_owned(), suggestion })
}

/// Levenshtein's distance.
pub(crate) fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_the_scenario_is() {
        let mut names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SCENARIOS.len());
        for scenario in SCENARIOS.iter() {
            assert_eq!(find(scenario.name), Ok(scenario));
            assert_eq!(scenario.name.contains("unversioned"), !scenario.versions, "{}", scenario.name);
            assert_eq!(scenario.name.contains("undrained"), !scenario.drain, "{}", scenario.name);
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_one_when_one_is_near() {
        let words = |name| find(name).expect_err("no such scenario").to_string();
        assert_eq!(
            words("distributed-al"),
            "there is no scenario `distributed-al` (did you mean `distributed-all`?); `cargo sim list` shows all"
        );
        assert_eq!(words("quux"), "there is no scenario `quux`; `cargo sim list` shows all");
    }

    #[test]
    fn distances_are_levenshteins() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
    }
}
