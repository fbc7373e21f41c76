//! Both wire forms of an event, there and back.

use proptest::prelude::*;

use super::*;

fn event() -> impl Strategy<Value = Event> {
    let kind = prop::sample::select(vec![EventKind::Create, EventKind::Finish, EventKind::Fail, EventKind::Drop]);
    let ticket = (any::<u128>(), any::<u64>(), any::<u64>(), any::<u32>());
    let position = prop::option::of((any::<String>(), any::<i32>(), any::<i64>(), prop::option::of(any::<String>())));
    let text = prop::option::of(any::<String>());
    (kind, ticket, any::<(bool, bool, bool, u64)>(), (any::<String>(), text), any::<u64>(), position).prop_map(
        |(kind, (run, sequence, attempt, ordinal), marks, (id, message), instant_micros, position)| Event {
            is_parent: marks.0,
            superseded: marks.1,
            unsettled: marks.2,
            digest: marks.3,
            message: message.map(CompactString::from),
            position: position.map(|(topic, partition, offset, key)| EventPosition {
                topic: topic.into(),
                partition,
                offset,
                key: key.map(CompactString::from),
            }),
            ..Event::new(kind, Ticket { run: RunId(run), sequence, attempt, ordinal }, id, instant_micros)
        },
    )
}

/// An event as most are: no text that needs escapes, nothing negative.
fn plain_event() -> impl Strategy<Value = Event> {
    (event(), "[ -!#-\\[\\]-~]{0,20}").prop_map(|(mut event, text)| {
        let text = CompactString::from(text);
        event.message = event.message.map(|_| text.clone());
        event.instant_micros %= 1 << 60;
        if let Some(position) = &mut event.position {
            position.topic = text.as_str().into();
            (position.partition, position.offset) = (position.partition & i32::MAX, position.offset & i64::MAX);
            position.key = position.key.as_ref().map(|_| text.clone());
        }
        event.document_id = text;
        event
    })
}

proptest! {
    #[test]
    fn a_documented_event_survives_json_and_header(event in event()) {
        let (json, header) = (event.to_json(), event.to_header());
        prop_assert_eq!(Event::from_json(&json, Some(&header)), Ok(event));
    }

    /// A byte of a line is changed, dropped or said twice: whatever the short way still reads, JSON reads the same.
    #[test]
    fn the_short_way_and_json_read_the_same(
        events in prop::collection::vec(plain_event(), 1..4),
        at: prop::sample::Index,
        change in 0..3,
        byte in 0x20..0x7fu8,
    ) {
        let batch = encode_batch(&events);
        let lines = std::str::from_utf8(&batch).unwrap().lines();
        for (line, event) in lines.zip(&events) {
            prop_assert_eq!(own::read_line(line, events.last()), Some(event.clone()));
            let (mut bent, at) = (line.as_bytes().to_vec(), at.index(line.len()));
            match change {
                0 => bent[at] = byte,
                1 => drop(bent.remove(at)),
                _ => bent.insert(at, bent[at]),
            }
            let bent = String::from_utf8(bent).unwrap();
            if let Some(short) = own::read_line(&bent, None) {
                // A space before it makes the line none of the short way's own.
                prop_assert_eq!(decode_batch(format!(" {bent}").as_bytes()), Ok(vec![short]));
            }
        }
    }

    #[test]
    fn a_batch_survives(events in prop::collection::vec(event(), 0..20)) {
        prop_assert_eq!(decode_batch(&encode_batch(&events)), Ok(events));
    }
}

fn documented() -> Event {
    let ticket = Ticket { run: RunId(0x3f << 120), sequence: 4, attempt: 9, ordinal: 2 };
    Event {
        message: Some("SUCCEEDED".into()),
        position: Some(EventPosition {
            topic: "p1_source".into(),
            partition: 0,
            offset: 12,
            key: Some("doc-1".into()),
        }),
        ..Event::new(EventKind::Finish, ticket, "doc-1", 1_764_534_000_123_456)
    }
}

/// The example of the documents; its run id completed, and its instant to the microsecond.
const DOCUMENTED: &str = r#"{"type":"FINISH","documentId":"doc-1","message":"SUCCEEDED","runId":"3f000000000000000000000000000000","instant":1764534000.123456000,"topic":"p1_source","partition":0,"offset":12,"key":"doc-1"}"#;

#[test]
fn the_documented_json_is_written_to_the_letter() {
    assert_eq!(documented().to_json(), DOCUMENTED);
    let create = Event::new(EventKind::Create, documented().ticket, "c\"1", 5);
    let expected =
        r#"{"type":"CREATE","documentId":"c\"1","runId":"3f000000000000000000000000000000","instant":0.000005000}"#;
    assert_eq!(create.to_json(), expected);
}

#[test]
fn the_documented_json_is_read_with_nanoseconds_and_with_nulls() {
    let header = documented().to_header();
    let nanoseconds = DOCUMENTED.replace("456000", "456789");
    assert_eq!(Event::from_json(nanoseconds.as_bytes(), Some(&header)), Ok(documented()));
    let nulls = r#"{"type":"DROP","documentId":"d","message":null,"runId":"3f000000000000000000000000000000",
        "instant":7,"topic":null,"partition":null,"offset":null,"key":null}"#;
    let expected = Event::new(EventKind::Drop, documented().ticket, "d", 7_000_000);
    assert_eq!(Event::from_json(nulls.as_bytes(), Some(&header)), Ok(expected));
}

#[test]
fn what_is_not_an_event_is_refused_by_name() {
    let header = documented().to_header();
    let check = |from: &str, to: &str, expect: &str| {
        let error = Event::from_json(DOCUMENTED.replace(from, to).as_bytes(), Some(&header)).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    };
    check("\"type\"", "\"colour\":1,\"type\"", "unknown field `colour`");
    check("\"type\"", "\"ticket\":[1,2,3],\"type\"", "unknown field `ticket`");
    check("\"type\"", "\"digest\":1,\"type\"", "unknown field `digest`");
    check("FINISH", "FINISHED", "unknown variant `FINISHED`");
    check("3f0", "4f0", "header says 3f000000000000000000000000000000");
    check("3f0", "zz0", "32 hexadecimal digits");
    check("1764534000.123456000", "-3", "seconds since 1970");
    check("1764534000.123456000", "1.7e9", "seconds since 1970");
    check("\"offset\":12,", "", "go together");
    let short = Event::from_json(DOCUMENTED.as_bytes(), Some(b"x"));
    assert_eq!(short, Err(EventError::HeaderLength { length: 1 }));
    assert_eq!(Event::from_json(DOCUMENTED.as_bytes(), None), Err(EventError::NoHeader));
    let mut batch = encode_batch(&[documented()]).to_vec();
    batch.extend_from_slice(DOCUMENTED.as_bytes());
    let expected = EventError::NotAnEvent { line: 2, reason: "missing field `ticket`".into() };
    assert_eq!(decode_batch(&batch), Err(expected));
}

#[test]
fn the_digest_tells_order_ids_and_kinds_apart_and_never_changes() {
    let digest = |outputs: &[(u32, &str, EventKind)]| {
        let mut digest = FamilyDigest::default();
        outputs.iter().for_each(|&(ordinal, id, kind)| digest.add(ordinal, id, kind));
        digest.finish()
    };
    let all = [
        digest(&[]),
        digest(&[(0, "a", EventKind::Finish)]),
        digest(&[(1, "a", EventKind::Finish)]),
        digest(&[(0, "a", EventKind::Drop)]),
        digest(&[(0, "b", EventKind::Finish)]),
        digest(&[(0, "a", EventKind::Finish), (1, "b", EventKind::Finish)]),
        digest(&[(0, "b", EventKind::Finish), (1, "a", EventKind::Finish)]),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{all:x?}");
    }
    assert_eq!(all[0], 0xcbf2_9ce4_8422_2325, "workers of two editions may meet in one run");
    assert_eq!(all[1], 0xbf3a_4fdc_0097_d459, "workers of two editions may meet in one run");
}
