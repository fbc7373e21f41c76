//! A search index of its own process: core's index in memory, behind a socket on loopback.
//!
//! It is there for runs of several processes on one machine and promises what an index promises, no more: a request
//! that arrived is applied whoever waits for it, and a client that lost its connection does not know. It keeps nothing
//! on disk. The server writes `IndexApplied` into its history before it answers.

mod client;
mod server;
mod wire;

pub use client::RemoteIndex;
pub use server::{IndexServer, Serving};
pub use wire::Stored;

#[cfg(test)]
mod tests;
