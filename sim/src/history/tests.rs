//! Histories are kept, hashed and written whole.

use seriatim_core::identity::{Epoch, Position, RunId, Ticket, TopicPartition, Version};

use super::*;

fn recorder() -> Recorder {
    Recorder::new(Keep::Events, || Instant::from_micros(1_500))
}

fn applied(body: u64) -> What {
    What::IndexApplied {
        sender: Some("indexer-1".into()),
        write: Box::new(IndexWrite {
            index: None,
            id: "doc-1".into(),
            version: Some(Version(1 << 10)),
            kind: WriteKind::Upsert,
            body_hash: body,
            ticket: Ticket { run: RunId(u128::MAX), sequence: 3, attempt: 9, ordinal: 0 },
            position: Some(Position { partition: TopicPartition::new("p_dest", 2), offset: 17, epoch: Epoch(4) }),
        }),
        changed: true,
    }
}

#[test]
fn a_history_survives_lines_of_json() {
    let recorder = recorder();
    let node = recorder.node("index", 0);
    node.record(What::Started);
    node.record(applied(7));
    node.record(What::ProduceResolved { call: 4, outcomes: vec![Ack::Ok((1, 2)), Ack::Unknown("X".into())] });
    let mut lines = Vec::new();
    write_jsonl(&recorder.events(), &mut lines).unwrap();
    assert_eq!(read_jsonl(&lines[..]).unwrap(), recorder.events());
}

#[test]
fn a_sink_gets_each_line_before_record_returns() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let recorder = recorder().with_sink(Box::new(lines.clone()));
    recorder.node("index", 0).record(What::Healed);
    assert_eq!(read_jsonl(&lines.0.lock().unwrap()[..]).unwrap(), recorder.events());
    assert!(recorder.take_sink_error().is_none());
}

#[test]
fn the_hash_is_the_same_in_every_process_and_tells_histories_apart() {
    let first = recorder();
    first.node("index", 0).record(applied(7));
    let second = recorder();
    second.node("index", 0).record(applied(8));
    assert_ne!(first.hash(), second.hash());
    // A literal, so that a change of the hash or of the events' encoding is seen.
    assert_eq!(first.hash(), 8263555555381609314);
    let other_node = recorder();
    other_node.node("index", 1).record(applied(7));
    assert_ne!(first.hash(), other_node.hash());
}

#[test]
fn the_hash_does_not_need_the_events_to_be_kept() {
    let kept = recorder();
    let hashed = Recorder::new(Keep::Hash, || Instant::from_micros(1_500));
    for recorder in [&kept, &hashed] {
        recorder.node("index", 0).record(applied(7));
        recorder.node("index", 0).record(What::Stopped);
    }
    assert_eq!((hashed.hash(), hashed.count(), hashed.events().len()), (kept.hash(), 2, 0));
    let off = Recorder::new(Keep::Nothing, || panic!("asks no clock"));
    off.node("index", 0).record(What::Stopped);
    assert_eq!(off.count(), 0);
}

#[test]
fn a_crashed_life_records_nothing_more_and_the_next_one_does() {
    let recorder = recorder();
    let first = recorder.node("worker-1", 0);
    first.record(What::Crashed);
    first.record(What::Left { consumer: 1 });
    recorder.node("worker-1", 1).record(What::Started);
    recorder.node("worker-2", 0).record(What::Started);
    let whats: Vec<_> = recorder.events().into_iter().map(|event| event.what).collect();
    assert_eq!(whats, [What::Crashed, What::Started, What::Started]);
}

#[test]
fn events_stay_small() {
    assert!(size_of::<Event>() <= 144, "{}", size_of::<Event>());
}
