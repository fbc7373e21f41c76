//! The `node` command: one process of a pipeline on a real Kafka.

use std::process::ExitCode;

/// As in `sim`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    scenarios::node::main()
}
