//! The simulated world that proves Seriatim's delivery protocol, and the checkers that judge its history.
//!
//! Architecture invariant: checkers read [`history`] only, never the internals of a component or of the world, so that
//! they judge a run against a real cluster as well.

pub mod checkers;
pub mod explain;
pub mod history;
pub mod recorded;
