//! The measurement on a real Kafka, with few documents: that every arrangement runs to its end and is told of. What it
//! measures then means nothing.

use std::process::{Command, Output};

use seriatim_kafka_dev::testing;

fn kafka_speed(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kafka_speed")).args(words).output().expect("the program starts")
}

#[test]
fn every_arrangement_runs_to_its_end_and_is_in_the_document() {
    let Some(kafka) = testing::broker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("throughput.md").display().to_string();
    let few = ["--docs", "2000", "--docs-one-by-one", "10", "--rounds", "1", "--cold"];
    let words = [&["--kafka", kafka, "--markdown", path.as_str()][..], &few[..]].concat();
    let ended = kafka_speed(&words);
    let complaints = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{complaints}");
    let document = std::fs::read_to_string(&path).expect("the document");
    for row in [
        "| plain copy",
        "| the copy hop of the bare hops",
        "| bare hops, distributed",
        "| **the pipeline, distributed**",
        "| bare hops, hybrid",
        "| **the pipeline, hybrid**",
        "| the documented system's pattern",
        "| the same with `linger.ms=0`",
        "| bare copy hop to plain copy",
        "| **distributed to bare hops**",
        "| **hybrid to bare hops**",
    ] {
        let line = document.lines().find(|line| line.starts_with(row));
        let line = line.unwrap_or_else(|| panic!("no row begins `{row}`:\n{document}"));
        let figure = line.split('|').nth(2).and_then(|cell| cell.split_whitespace().next()).unwrap_or_default();
        assert!(figure.replace(',', "").parse::<f64>().is_ok_and(|figure| figure > 0.0), "{line}");
    }
}

#[test]
fn an_arrangement_that_there_is_not_is_refused_with_those_that_there_are() {
    let ended = kafka_speed(&["--kafka", "127.0.0.1:1", "--only", "distributed,hybird"]);
    let complaints = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
    assert!(complaints.contains("hybird") && complaints.contains("bare-hybrid"), "{complaints}");
}
