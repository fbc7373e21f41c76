//! Flawed pipelines: each another implementation of a port, with a mistake that somebody has made.
//!
//! They are here to be caught. A checker that has never caught one of them has shown nothing.

mod commit_on_poll;
mod count_ids;
mod hash_order;
pub mod hunt;
mod no_drain;

pub use commit_on_poll::CommitOnPoll;
pub use count_ids::{CountIds, IdLedger};
pub use hash_order::HashOrder;
pub use no_drain::{NoDrain, Undrained};
