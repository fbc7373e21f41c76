//! The pipeline of Seriatim and the ports it stands on.
//!
//! Connectors publish documents, workers enrich them through stages, indexers write them in batches to a search
//! backend, and a publisher knows when the run is complete. Everything here is deterministic given its ports: time,
//! tasks, blocking work and randomness come through [`env::Env`], Kafka through [`transport::Transport`], the search
//! backend through [`index::Backend`].
//!
//! Architecture invariant: this crate knows no Kafka client, no simulator, no clock, no thread, no file and no socket.
#![deny(missing_debug_implementations)]

pub mod connector;
pub mod document;
pub mod env;
pub mod event;
pub mod identity;
pub mod index;
pub mod indexer;
pub mod intake;
pub mod machines;
pub mod messenger;
pub mod partitioner;
pub mod pipeline;
pub mod publisher;
pub mod runner;
pub mod stage;
pub mod stages;
pub mod stop;
#[cfg(test)]
mod testing;
pub mod transport;
pub mod worker;
