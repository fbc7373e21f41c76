//! The named scenarios: which faults a run may have, and what is promised of a campaign.

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
    /// A draw of everything there is.
    All,
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
    /// What it shows, in a sentence.
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
        use FaultKind::{Crash, IndexReject, IndexThrottle, IndexTimeoutAfter, IndexTimeoutBefore, Join, Pause, Stop};
        let mut kinds = match (self.faults, self.mode) {
            (FaultSet::None, _) => Vec::new(),
            (FaultSet::Crashes, _) => vec![Crash],
            (FaultSet::Rebalances, Mode::Distributed) => vec![Stop, Join],
            // One process has no group to rebalance.
            (FaultSet::Rebalances, Mode::Local) => Vec::new(),
            (FaultSet::All, Mode::Local) => vec![Crash],
            (FaultSet::All, Mode::Distributed) => vec![Crash, Stop, Join],
        };
        if self.faults == FaultSet::All {
            kinds.push(IndexThrottle);
            // A request without an answer is sent again; without versions its first copy may land after a later write.
            if self.versions {
                kinds.extend([IndexTimeoutBefore, IndexTimeoutAfter]);
            }
            // A member that sleeps past its session wakes up as a stranger; without versions its writes may rewind.
            if self.versions && self.mode == Mode::Distributed {
                kinds.push(Pause);
            }
            // A refused operation would leave ripgrep's history unlike its tree.
            if self.source == Source::Generated {
                kinds.push(IndexReject);
            }
        }
        kinds
    }

    /// Seeds from which on a campaign promises that every kind of its scenario hit work in flight. Swarm draws leave
    /// kinds out of single runs, so that fewer promise nothing.
    pub const fn promise_seeds(&self) -> u64 {
        if matches!(self.faults, FaultSet::All) { 40 } else { 20 }
    }

    /// Whether a campaign that is not told which takes this one. Of the history of ripgrep, whose runs are ten times as
    /// long, those with every fault there is; the narrower ones are run by name.
    pub const fn by_default(&self) -> bool {
        match self.source {
            Source::Generated => true,
            Source::Ripgrep => self.versions && matches!(self.faults, FaultSet::All),
        }
    }
}

macro_rules! scenario {
    ($name:literal, $mode:ident, $source:ident, $faults:ident, versions: $versions:literal, drain: $drain:literal,
     $summary:literal) => {
        Scenario {
            name: $name,
            summary: $summary,
            mode: Mode::$mode,
            source: Source::$source,
            faults: FaultSet::$faults,
            versions: $versions,
            drain: $drain,
        }
    };
}

/// All scenarios, in the order in which they are listed and explored.
#[rustfmt::skip]
pub const SCENARIOS: &[Scenario] = &[
    scenario!("local-calm", Local, Generated, None, versions: true, drain: true,
        "One process, several lanes, nothing goes wrong."),
    scenario!("local-crashes", Local, Generated, Crashes, versions: true, drain: true,
        "The process is killed; the index survives and the whole input runs again."),
    scenario!("local-all", Local, Generated, All, versions: true, drain: true,
        "Crashes, and an index that throttles, refuses and does not answer."),
    scenario!("distributed-calm", Distributed, Generated, None, versions: true, drain: true,
        "Workers and indexers over Kafka, nothing goes wrong."),
    scenario!("distributed-crashes", Distributed, Generated, Crashes, versions: true, drain: true,
        "Workers and indexers are killed and come back."),
    scenario!("distributed-rebalances", Distributed, Generated, Rebalances, versions: true, drain: true,
        "Workers and indexers join, and leave in order."),
    scenario!("distributed-all", Distributed, Generated, All, versions: true, drain: true,
        "The general scenario: a draw of every fault there is."),
    scenario!("distributed-unversioned-crashes", Distributed, Generated, Crashes, versions: false, drain: true,
        "Crashes without versions on index writes: replay may rewind, the end must still be right."),
    scenario!("distributed-unversioned-rebalances", Distributed, Generated, Rebalances, versions: false, drain: true,
        "Planned rebalances without versions: the drain alone keeps strict order."),
    scenario!("distributed-undrained", Distributed, Generated, Rebalances, versions: true, drain: false,
        "Rebalances that wait for nothing: the versions alone keep the index right."),
    scenario!("ripgrep-local-calm", Local, Ripgrep, None, versions: true, drain: true,
        "The history of ripgrep's files in one process; the index must end as its tree."),
    scenario!("ripgrep-local-crashes", Local, Ripgrep, Crashes, versions: true, drain: true,
        "The same, killed in the middle and run again."),
    scenario!("ripgrep-local-all", Local, Ripgrep, All, versions: true, drain: true,
        "The same, with every fault that local mode has."),
    scenario!("ripgrep-local-unversioned-calm", Local, Ripgrep, None, versions: false, drain: true,
        "The history of ripgrep's files in one process without versions; the index must end as its tree."),
    scenario!("ripgrep-local-unversioned-crashes", Local, Ripgrep, Crashes, versions: false, drain: true,
        "The same without versions, killed in the middle and run again."),
    scenario!("ripgrep-local-unversioned-all", Local, Ripgrep, All, versions: false, drain: true,
        "The same without versions, with every fault that needs no versions."),
    scenario!("ripgrep-distributed-calm", Distributed, Ripgrep, None, versions: true, drain: true,
        "The history of ripgrep's files over Kafka; the index must end as its tree."),
    scenario!("ripgrep-distributed-crashes", Distributed, Ripgrep, Crashes, versions: true, drain: true,
        "The same, with workers and indexers killed."),
    scenario!("ripgrep-distributed-rebalances", Distributed, Ripgrep, Rebalances, versions: true, drain: true,
        "The same, with workers and indexers that join and leave."),
    scenario!("ripgrep-distributed-all", Distributed, Ripgrep, All, versions: true, drain: true,
        "The same, with every fault."),
    scenario!("ripgrep-distributed-unversioned-calm", Distributed, Ripgrep, None, versions: false, drain: true,
        "The history of ripgrep's files over Kafka without versions; the index must end as its tree."),
    scenario!("ripgrep-distributed-unversioned-crashes", Distributed, Ripgrep, Crashes, versions: false, drain: true,
        "The same without versions, with workers and indexers killed."),
    scenario!("ripgrep-distributed-unversioned-rebalances", Distributed, Ripgrep, Rebalances, versions: false, drain: true,
        "The same without versions, with workers and indexers that join and leave."),
    scenario!("ripgrep-distributed-unversioned-all", Distributed, Ripgrep, All, versions: false, drain: true,
        "The same without versions, with every fault that needs no versions."),
];

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
        for scenario in SCENARIOS {
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
