//! Why a plan cannot be run, and what to write instead.

use crate::fault::Node;

/// A plan that cannot be run, or a text that is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A value out of its range.
    #[error("{place} is {value}: {reason}; give {low} to {high}")]
    Range {
        /// Path of the value in the plan.
        place: &'static str,
        /// What was given.
        value: u64,
        /// Why it cannot be.
        reason: &'static str,
        /// Lowest that can.
        low: u64,
        /// Highest that can.
        high: u64,
    },
    /// A fault that names a node which never exists in this plan.
    #[error("faults[{index}] names {node}, which this plan never starts: it has {known}")]
    UnknownNode {
        /// Number of the fault, from 0.
        index: usize,
        /// The node.
        node: Node,
        /// Those that there are.
        known: String,
    },
    /// A fault that the mode has no room for.
    #[error("faults[{index}] ({action}) has no meaning in {mode} mode, {reason}: use {instead}")]
    NoPlace {
        /// Number of the fault, from 0.
        index: usize,
        /// What it would do.
        action: String,
        /// The mode's name.
        mode: &'static str,
        /// What the mode has not.
        reason: &'static str,
        /// What to write.
        instead: &'static str,
    },
    /// A fault that never strikes.
    #[error("faults[{index}] can never strike: {reason}")]
    NeverStrikes {
        /// Number of the fault, from 0.
        index: usize,
        /// Why.
        reason: &'static str,
    },
    /// Two values that contradict each other.
    #[error("{place}: {reason}")]
    Contradiction {
        /// Path of the value in the plan.
        place: &'static str,
        /// What is wrong and what to write.
        reason: String,
    },
    /// Text that is no plan.
    #[error("not a plan: {0}")]
    Toml(String),
}

/// Refuses a value outside `low..=high`.
pub(crate) fn range(
    place: &'static str,
    value: impl Into<u64>,
    (low, high): (u64, u64),
    reason: &'static str,
) -> Result<(), PlanError> {
    let value = value.into();
    if (low..=high).contains(&value) { Ok(()) } else { Err(PlanError::Range { place, value, reason, low, high }) }
}
