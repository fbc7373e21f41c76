//! The simulated world that proves Seriatim's delivery protocol, and the checkers that judge its history.
//!
//! [`run`] makes a [`World`] from one seed: a Kafka cluster, a search backend, processes on nodes of their own, a
//! network between them and a clock that jumps. Programs meet it through the ports of `seriatim_core` alone, so that
//! the same program runs against a real cluster.
//!
//! Architecture invariant: checkers read [`history`] only, never the internals of a component or of the world, so that
//! they judge a run against a real cluster as well.

mod client;
mod env;
mod executor;
mod index_server;
mod network;
mod trace;
mod world;

pub mod checkers;
pub mod cluster;
pub mod explain;
pub mod history;
pub mod recorded;
pub mod rng;

pub use client::{SimAdmin, SimAssigned, SimGroup, SimPoller, SimProducer, SimTransport, UnfencedCommit};
pub use env::SimEnv;
pub use index_server::{IndexFault, RequestFault, SimIndex};
pub use trace::{TraceLine, TraceMode};
pub use world::{Node, RunFailure, RunOutcome, World, WorldConfig, run};
