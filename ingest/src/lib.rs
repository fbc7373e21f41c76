//! What a real ingest needs: the tokio [`env::TokioEnv`], connectors and search backends.
//!
//! Architecture invariant: this crate knows no simulator.
#![deny(missing_debug_implementations)]

pub mod csv_sink;
pub mod dead_letters;
pub mod env;
pub mod jsonl;
