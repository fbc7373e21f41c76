//! The work that is measured: documents of the shared light work, and the four stages that they pass.
//!
//! `cargo bench -p benches` measures everything; `cargo bench -p benches --bench documents -- parse` one part. The
//! benches read the real clock, outside of any simulated run. Nothing here decides whether something is right.

use std::fmt::Write as _;

use bytes::Bytes;
use seriatim_core::document::UpdateMode;
use seriatim_core::stage::StageSpec;
use seriatim_core::stages::{Concatenate, RenameFields, SetStatic, Template, TrimWhitespace};

const WORDS: [&str; 8] = ["amber", "brisk", "cedar", "delta", "ember", "fable", "grove", "haste"];

/// Columns of the CSV file that the light work ends in.
pub const COLUMNS: [&str; 9] =
    ["id", "title_t", "full_name", "category_s", "sku", "price", "text", "source", "version"];

/// Document `number` as a line of JSON, about 260 bytes, with space around two fields.
pub fn line(number: usize) -> Bytes {
    let word = |at: usize| WORDS[(number.wrapping_mul(31) + at * 7 + number / 8) % WORDS.len()];
    let words = |from: usize, count: usize| (from..from + count).map(word).collect::<Vec<_>>().join(" ");
    let mut out = String::with_capacity(320);
    write!(
        out,
        r#"{{"id": "doc-{number:07}", "title": "  {} ", "first_name": "{}", "last_name": "{}", "category": "c{}", "sku": "SKU-{:05}-X", "price": "{}.{:02}", "text": " {}  "}}"#,
        words(0, 4),
        word(4),
        word(5),
        number % 40,
        number % 100_000,
        number % 1_000,
        number % 100,
        words(6, 14),
    )
    .expect("writing to a string cannot fail");
    out.into()
}

/// The four stages of the light work.
pub fn stages() -> Vec<StageSpec> {
    let full_name = Template::parse("{first_name} {last_name}").expect("a template");
    vec![
        TrimWhitespace::spec("trim", &["title", "text"]),
        Concatenate::spec("concat", "full_name", full_name),
        RenameFields::spec("rename", &[("title", "title_t"), ("category", "category_s")], UpdateMode::Overwrite),
        SetStatic::spec("static", &[("source", "bench".into()), ("version", "v1".into())], UpdateMode::Overwrite),
    ]
}

#[cfg(test)]
mod tests {
    use seriatim_core::document::Document;
    use seriatim_core::pipeline::{Pipeline, PipelineSpec};

    use super::*;

    #[test]
    fn the_light_work_is_what_it_says() {
        let mut pipeline = Pipeline::new(&PipelineSpec::new("light", stages()));
        let document = Document::parse(line(41)).expect("a document");
        pipeline.start(document);
        let output = futures_util::FutureExt::now_or_never(pipeline.next()).flatten().expect("an output");
        let output = output.result.expect("no stage fails");
        assert!((250..=320).contains(&line(41).len()), "{}", line(41).len());
        for column in COLUMNS {
            let text = output.get_str(column).unwrap_or_default();
            assert!(!text.is_empty() && text == text.trim(), "{column}: {text:?}");
        }
    }
}
