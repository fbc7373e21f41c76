//! What a broker refuses in the middle of a run of real processes: it is told, and the run ends all the same. Without
//! Java this is skipped, and standard error says so.

mod nodes;

use std::fs;

use nodes::{Running, make_topics, run, unique, words};
use scenarios::node::LISTENING;
use seriatim_kafka_dev::testing;

#[test]
fn a_record_that_a_topic_does_not_take_is_a_dead_letter_and_the_run_ends() {
    let Some(bootstrap) = testing::broker() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let pipeline = unique("large");
    // One document is too large for the source topic; another for the destination alone.
    let limits: [(&str, &[(&str, &str)]); 3] =
        [("source", &[("max.message.bytes", "20000")]), ("dest", &[("max.message.bytes", "8000")]), ("fail", &[])];
    make_topics(bootstrap, &pipeline, &limits);
    let operation = |number: usize| {
        let bytes = [(7, 30_000), (13, 12_000)].iter().find(|(at, _)| *at == number).map_or(10, |(_, bytes)| *bytes);
        format!("{{\"id\": \"doc-{number}\", \"op\": \"create\", \"text\": \"{}\"}}\n", "x".repeat(bytes))
    };
    let input = folder.path().join("ops.jsonl");
    fs::write(&input, (0..20).map(operation).collect::<String>()).expect("written");

    let index = Running::start(folder.path(), "index", &words("index", &[]));
    let address = index.says(LISTENING);
    let common = [("kafka", bootstrap), ("pipeline", pipeline.as_str())];
    let with = |more: &[(&'static str, &str)]| -> Vec<(&str, String)> {
        common.iter().chain(more).map(|(name, value)| (*name, (*value).to_owned())).collect()
    };
    let flags = |role: &str, more: &[(&'static str, &str)]| {
        let pairs = with(more);
        words(role, &pairs.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    };
    let worker = Running::start(folder.path(), "worker", &flags("worker", &[]));
    let indexer = Running::start(folder.path(), "indexer", &flags("indexer", &[("index", &address)]));
    let input = input.display().to_string();
    let ended = run(folder.path(), 60, &flags("publisher", &[("input", &input)]));
    assert_eq!(ended.status, Some(0), "{}\n{}\n{}", ended.err, worker.printed(), indexer.printed());
    // librdkafka sends batches, and a broker refuses one as a whole: those beside a large one may fail with it.
    let count = |end: &str| -> u32 {
        let before = ended.out.split(end).next().expect("a part");
        before.rsplit(|letter: char| !letter.is_ascii_digit()).next().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let (indexed, failed) = (count(" indexed"), count(" failed"));
    assert!(failed >= 2 && indexed + failed == 20, "{}", ended.out);
    for word in ["20 published, 20 complete", "`max.message.bytes` of the topic): MESSAGE_TOO_LARGE"] {
        assert!(ended.out.contains(word), "`{word}` is not in: {}", ended.out);
    }
    for process in [worker, indexer] {
        let printed = process.stop();
        assert!(!printed.contains("error"), "{printed}");
    }
}
