//! The shared light work: JSON lines in, four stages, CSV out, everything in this process.
//!
//! `cargo run --release -p seriatim-ingest --example local_speed -- INPUT OUTPUT [WORKERS]` prints documents a second
//! and the peak memory of the process.
#![expect(clippy::disallowed_types, reason = "a measurement reads the clock")]

use std::path::Path;
use std::sync::Arc;

use seriatim_core::connector::Connector;
use seriatim_core::document::UpdateMode;
use seriatim_core::messenger::local::{LocalConfig, LocalMessengers};
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::runner::{LocalOptions, run_together};
use seriatim_core::stages::{Concatenate, RenameFields, SetStatic, Template, TrimWhitespace};
use seriatim_ingest::csv_sink::CsvSink;
use seriatim_ingest::env::TokioEnv;
use seriatim_ingest::jsonl::{JsonlConnector, OnBadLine};

/// Documents are made by one thread and freed by another, which this allocator is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const COLUMNS: [&str; 9] = ["id", "title_t", "full_name", "category_s", "sku", "price", "text", "source", "version"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, rest @ ..] = arguments.as_slice() else {
        return Err("usage: local_speed INPUT OUTPUT [WORKERS]".into());
    };
    let workers = rest.first().map_or(Ok(1), |workers| workers.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let started = std::time::Instant::now();
    let summary = runtime.block_on(run(Path::new(input), Path::new(output), workers))?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{summary}");
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = peak.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned();
    println!("{seconds:.2} s by the wall, {peak}");
    Ok(())
}

async fn run(input: &Path, output: &Path, workers: usize) -> Result<String, Box<dyn std::error::Error>> {
    let env = TokioEnv::new();
    let stages = vec![
        TrimWhitespace::spec("trim", &["title", "text"]),
        Concatenate::spec("concat", "full_name", Template::parse("{first_name} {last_name}")?),
        RenameFields::spec("rename", &[("title", "title_t"), ("category", "category_s")], UpdateMode::Overwrite),
        SetStatic::spec("static", &[("source", "bench".into()), ("version", "v1".into())], UpdateMode::Overwrite),
    ];
    let sink = Arc::new(CsvSink::create(output, &COLUMNS)?);
    let messengers = LocalMessengers::new(env.clone(), &LocalConfig { workers, ..LocalConfig::default() });
    let options = LocalOptions { workers, ..LocalOptions::default() };
    let connector = JsonlConnector::new(env.clone(), "jsonl", input, OnBadLine::Stop);
    let mut connectors: Vec<Box<dyn Connector>> = vec![Box::new(connector)];
    let pipeline = Arc::new(PipelineSpec::new("bench", stages));
    let (summaries, outcome) = run_together(&env, &messengers, pipeline, sink.clone(), &mut connectors, &options).await;
    outcome?;
    sink.flush()?;
    Ok(summaries.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}
