//! The Kafka cluster as a state machine: requests and time in, answers out.
//!
//! A plain struct, called synchronously. It has no IO, no tasks, no clock and no randomness, and it never looks at who
//! calls it: what it answers, and when, follows from the requests and their arrival times alone, however often and by
//! whom [`Cluster::advance`] is called. A request outlives its sender: nothing takes a submitted request back.
//!
//! The shapes are in [`protocol`]; logs in `log`, groups in `group`, committed offsets in `offsets`; what was applied
//! is told through [`audit`]. The network, connections and their deaths belong to the world around it.

pub mod audit;
pub mod protocol;

mod error;
