//! Flawed pipelines: each overrides one port ([`Variant`](crate::drive::Variant)) with a mistake that somebody made.
//!
//! They are here to be caught. A checker that has never caught one of them has shown nothing. [`ANIMALS`] lists them,
//! [`hunt`] looks for them.

mod animals;
mod clients;
mod commit_on_poll;
mod commits;
mod count_ids;
mod deaf;
mod flaky;
mod hash_order;
pub mod hunt;
mod ledgers;
mod queues;
mod reports;
mod twin;
mod unpinned;
mod writes;

pub use animals::{ANIMALS, Animal};
pub(crate) use deaf::Deaf;
pub use hash_order::HashOrder;
