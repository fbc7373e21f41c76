//! Protocol decisions as pure state machines: values in, decisions out, no `async`.
//!
//! Each is carried by a loop elsewhere and knows neither the loop, nor a clock, nor a port: time is an argument. Each
//! has a property test against a model of a page.

pub mod batcher;
pub mod custody;
pub mod hlc;
pub mod lanes;
pub mod ledger;
pub mod offsets;
pub mod retry;
mod runs;
pub mod sub_batches;
