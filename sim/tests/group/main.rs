//! The group member, seen through the ports: rebalances in-band, fences, evictions, and what commits may do.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod cooperative;
mod eager;
mod growth;
mod mixed;
mod statics;
mod support;
mod watch;
