//! How many small documents a core reads, edits and writes in a second: `cargo run --release -p seriatim-core --example
//! document_speed`.
#![expect(clippy::disallowed_types, reason = "it measures wall-clock time")]

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use seriatim_core::document::Document;

/// The best batch is reported: on a busy machine the others measure its neighbours.
const BATCHES: u32 = 100;
const BATCH: u32 = 10_000;

type Case = fn(&Bytes) -> Bytes;

fn main() {
    let source = Bytes::from(source());
    println!("a document of {} bytes", source.len());
    let cases: [(&str, Case); 3] =
        [("parse, 1 read, 3 sets, serialise", edit), ("parse, 1 read", read), ("parse, serialise untouched", pass)];
    for (name, case) in cases {
        let batch = |_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(case(black_box(&source)));
            }
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        };
        let nanos = (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min);
        println!("{name}: {nanos:.0} ns, {:.0} k documents/s", 1e6 / nanos);
    }
}

fn source() -> String {
    let fields = r#""id":"doc-000001","run_id":"3f0c5a7e91d24b6c8a0f1e2d3c4b5a69","title":"A title of middling length","tags":["x","y","z"],"price":12.50,"nested":{"a":{"b":[1,2,3]},"c":null},"author":"Someone \"Quoted\" Else","year":2024"#;
    let filler = 288 - fields.len() - r#"{,"body":""}"#.len();
    format!(r#"{{{fields},"body":"{}"}}"#, "b".repeat(filler))
}

fn edit(source: &Bytes) -> Bytes {
    let mut document = Document::parse(source.clone()).expect("the source is a document");
    black_box(document.get_str("title"));
    document.set("language", "en").expect("not reserved");
    document.set("year", 2025).expect("not reserved");
    document.set("checked", true).expect("not reserved");
    document.to_json()
}

fn read(source: &Bytes) -> Bytes {
    let document = Document::parse(source.clone()).expect("the source is a document");
    black_box(document.get_str("title"));
    Bytes::new()
}

fn pass(source: &Bytes) -> Bytes {
    Document::parse(source.clone()).expect("the source is a document").to_json()
}
