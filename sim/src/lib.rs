//! The simulated world: a Kafka cluster as a state machine, and what surrounds it.

mod executor;

pub mod cluster;
pub mod rng;
