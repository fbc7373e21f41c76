//! Documents and the pipeline: reading, editing, writing, one document at a time.

use benches::{line, stages};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::FutureExt;
use seriatim_core::document::Document;
use seriatim_core::pipeline::{Pipeline, PipelineSpec};
use seriatim_core::stages::EmitChildren;

/// Documents are freed by other threads than made them; this is what `local_speed` measures with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn edit(document: &mut Document) {
    document.set("full_name", "Ada Lovelace").expect("not reserved");
    document.rename("title", "title_t").expect("not reserved");
    document.set("source", "bench").expect("not reserved");
}

fn documents(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("documents");
    group.throughput(Throughput::Elements(1));
    let line = line(1_234);
    group.bench_function("parse", |bencher| bencher.iter(|| Document::parse(line.clone()).expect("a document")));
    let read = || Document::parse(line.clone()).expect("a document");
    group.bench_function("edit", |bencher| {
        bencher.iter_batched_ref(read, edit, BatchSize::SmallInput);
    });
    let mut edited = read();
    edit(&mut edited);
    group.bench_function("to_json", |bencher| bencher.iter(|| edited.to_json()));
    group.bench_function("to_index_json", |bencher| bencher.iter(|| edited.to_index_json()));
    group.finish();
}

/// Sends one document through; says how many outputs it gave.
fn pass(pipeline: &mut Pipeline, document: Document) -> usize {
    pipeline.start(document);
    let mut outputs = 0;
    while let Some(output) = pipeline.next().now_or_never().expect("no stage waits") {
        assert!(output.result.is_ok());
        outputs += 1;
    }
    outputs
}

fn pipeline(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pipeline");
    let read = || Document::parse(line(1_234)).expect("a document");
    let mut light = Pipeline::new(&PipelineSpec::new("light", stages()));
    group.throughput(Throughput::Elements(1));
    group.bench_function("four stages", |bencher| {
        bencher.iter_batched(read, |document| pass(&mut light, document), BatchSize::SmallInput);
    });
    let mut family = vec![EmitChildren::count("children", 100)];
    family.extend(stages());
    let mut family = Pipeline::new(&PipelineSpec::new("family", family));
    group.throughput(Throughput::Elements(101));
    group.bench_function("a family of 101", |bencher| {
        bencher.iter_batched(read, |document| pass(&mut family, document), BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, documents, pipeline);
criterion_main!(benches);
