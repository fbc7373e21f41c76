//! Named scenarios over the simulation, and the command that explores them.
//!
//! A [`scenario`] and a seed give a [`plan`] ([`draw`]); a [`run::Runner`] runs it and reports; [`explore`] runs
//! many and adds up; [`command`] is what a person types. [`workload`] holds the operations and the model of the
//! final index, [`input`] reads anybody's, [`ripgrep`] brings real ones. [`contract`] holds what any transport must do.
//!
//! Nothing here may look inside a component: verdicts come from the checkers of `seriatim-sim` over histories, and from
//! the model.

pub mod command;
pub mod contract;
pub mod draw;
pub mod draws;
pub mod drive;
pub mod explore;
pub mod fault;
pub mod input;
pub mod interrupt;
pub mod node;
pub mod plan;
pub mod progress;
pub mod real;
pub mod report;
pub mod ripgrep;
pub mod run;
pub mod scenario;
pub mod workload;
pub mod zoo;
