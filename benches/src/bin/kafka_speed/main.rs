//! Throughput of the pipeline on a real Kafka beside bare hops: hand-written programs that make the same hops with as
//! many bytes and read no document. All of it in one run, in turn, several times, on one broker of its own.
//!
//! `cargo run --release -p benches --bin kafka_speed -- [--docs 200000] [--rounds 3] [--markdown FILE]`
//!
//! The driver starts this very program again for every process of an arrangement ([`part`]). What is measured is from
//! the first document that is published, or read, until the last is told of.
#![expect(clippy::disallowed_types, reason = "a measurement reads the clock")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

mod arrangement;
mod bare;
mod client;
mod crew;
mod measure;
mod part;
mod payload;
mod pipeline;
mod site;
mod table;

use std::time::Instant;

use crate::part::{Role, Work};

/// Documents are made by one thread and freed by another, which this allocator is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the pipeline on a real Kafka beside bare hops.
#[derive(Parser, Debug)]
#[command(name = "kafka_speed", about)]
struct Command {
    #[command(flatten)]
    measured: Measured,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What is measured.
#[derive(Args, Debug)]
pub struct Measured {
    /// Documents of one measurement.
    #[arg(long, default_value_t = 200_000)]
    pub docs: usize,
    /// Documents of one measurement of the pattern that goes one by one.
    #[arg(long, default_value_t = 500)]
    pub docs_one_by_one: usize,
    /// How often everything is measured; one more round comes before that and is not counted.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Workers, each a process; pairs of worker and indexer too.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Indexers, each a process.
    #[arg(long, default_value_t = 1)]
    pub indexers: usize,
    /// `linger.ms` of all producers but those of the pattern [default: the pipeline's].
    #[arg(long)]
    pub linger: Option<u32>,
    /// Leaves the round out that is not counted: broker and files are cold then.
    #[arg(long)]
    pub cold: bool,
    /// Only these arrangements, by their names, with commas between.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Writes the document here, too.
    #[arg(long)]
    pub markdown: Option<PathBuf>,
    /// A broker that is there already, `host:port` [default: one is started].
    #[arg(long)]
    pub kafka: Option<String>,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// One process of an arrangement: the driver starts them.
    #[command(hide = true)]
    Part {
        #[arg(value_enum)]
        role: Role,
        #[command(flatten)]
        work: Work,
    },
}

fn main() -> ExitCode {
    let command = Command::parse();
    let done = match command.part {
        Some(Part::Part { role, work }) => role.play(&work).with_context(|| format!("{role:?}")),
        None => measure::measure(&command.measured),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
