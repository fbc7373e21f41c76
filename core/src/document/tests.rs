//! What a document reads, keeps and writes, against a list of pairs.

use proptest::prelude::*;

use super::*;

fn parse(json: &str) -> Document {
    Document::parse(Bytes::copy_from_slice(json.as_bytes())).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn json(document: &Document) -> String {
    String::from_utf8(document.to_json().to_vec()).unwrap()
}

/// The document as it is written field by field, with nothing passed through whole.
fn rewritten(document: &Document) -> String {
    let mut document = document.clone();
    document.content_mut();
    json(&document)
}

#[test]
fn what_is_no_document_is_refused_by_name() {
    let check = |source: &[u8], expect: &str| {
        let error = Document::parse(Bytes::copy_from_slice(source)).unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    check(b"{\"id\":\"a\",\n \"b\":tru}", "the document is not JSON at line 2, column 9: expected ident");
    check(b"{\"id\":\"a\"} x", "the document is not JSON at line 1, column 12: trailing characters");
    check(b"", "the document is not JSON at line 1, column 0: EOF while parsing a value");
    check(b"{\"id\":\"\xff\"}", "the document is not UTF-8 from byte 7 on");
    check(b"[1]", "the document is not a JSON object: invalid type: sequence, expected an object");
    check(b"{}", "the document has no `id`: give it a non-empty string");
    check(b"{\"id\":7}", "the document's `id` is 7: it must be a string");
    check(b"{\"id\":null}", "the document's `id` is null: it must be a string");
    check(b"{\"id\":\"\"}", "the document's `id` is empty");
    check(b"{\"id\":\"a\",\"run_id\":{}}", "the `run_id` of document `a` is {}: it must be a string");
    assert_eq!(Document::new(""), Err(DocumentError::IdEmpty));
}

#[test]
fn untouched_fields_stay_byte_for_byte() {
    let source = r#" { "id" : "a", "n":1.50e+2, "big": 123456789012345678901234567890, "s":"\u0041\/", "o": { "b" : [ 1, 2 ] } } "#;
    let mut document = parse(source);
    assert_eq!(json(&document), source, "an untouched document is passed through");
    document.set("new", "x\ny").unwrap();
    let expected = r#"{"id" : "a","n":1.50e+2,"big": 123456789012345678901234567890,"s":"\u0041\/","o": { "b" : [ 1, 2 ] },"new":"x\ny"}"#;
    assert_eq!(json(&document), expected);
    document.set_nested("o", &["b", "1"], 7).unwrap();
    document.set_nested("o", &["c", "d"], "e").unwrap();
    assert_eq!(document.get_str("o").unwrap(), r#"{"b":[1,7],"c":{"d":"e"}}"#);
    assert_eq!(document.get_nested("o", &["b", "0"]).unwrap(), Some(Value::from(1)));
    let error = document.set_nested("n", &["x"], 1).unwrap_err();
    assert_eq!(error.to_string(), "field `n`: nothing can be put at `x`: a scalar or the end of a list is in the way");
    assert_eq!(document.get_str("n").unwrap(), "1.50e+2");
}

#[test]
fn fields_share_the_memory_of_their_source() {
    let source = Bytes::from(r#"{"id":"a","x":"shared"}"#.to_owned());
    let document = Document::parse(source.clone()).unwrap();
    let Some(FieldRef::Json(text)) = document.get("x") else { panic!("the field is untouched") };
    assert!(source.as_ptr_range().contains(&text.as_ptr()));
    assert_eq!(document.to_json().as_ptr(), source.as_ptr());
}

#[test]
fn of_a_duplicate_the_first_place_and_the_last_value_count() {
    let document = parse(r#"{"x":1,"id":"a","y":2,"x":3,"id":"b"}"#);
    assert_eq!(document.id(), "b");
    assert_eq!(json(&document), r#"{"x":3,"id":"b","y":2}"#);
    let value = Value::parse(r#"{"x":1,"y":2,"x":3}"#).unwrap();
    assert_eq!(value.to_json(), r#"{"x":3,"y":2}"#);
}

#[test]
fn reserved_names_are_refused_and_ids_are_set_once() {
    let mut document = parse(r#"{"id":"a","x":1}"#);
    for name in RESERVED {
        let refused = Err(DocumentError::Reserved { name: name.into() });
        assert_eq!(document.set(name, 1), refused);
        assert_eq!(document.set_or_add(name, 1), refused);
        assert_eq!(document.set_nested(name, &[], 1), refused);
        assert_eq!(document.update(name, UpdateMode::Append, vec![Value::Null]), refused);
        assert_eq!(document.rename("x", name).map(drop), refused);
        assert_eq!(document.rename(name, "y").map(drop), refused);
        assert_eq!(document.remove(name).map(drop), refused);
        let other = document.clone();
        assert_eq!(document.copy_from(&other, "x", name).map(drop), refused);
    }
    document.retain(|_| false);
    document.initialize_run_id("r").unwrap();
    assert_eq!(json(&document), r#"{"id":"a","run_id":"r"}"#);
    let again = document.initialize_run_id("s").unwrap_err();
    assert_eq!(again.to_string(), "document `a` belongs to run `r` already");
    assert_eq!(document.child("c").unwrap().run_id().map(|run| &**run), Some("r"));
    assert_eq!(document.fields().count(), 0);
}

#[test]
fn an_original_stays_as_it_was_whatever_becomes_of_the_document() {
    let read = || parse(r#"{"id": "a", "x": [1, 2] , "y":"\u0078"}"#);
    let mut joined = read();
    joined.initialize_run_id("r").unwrap();
    let mut edited = joined.clone();
    edited.set("x", 3).unwrap();
    for document in [read(), joined, edited, Document::new("b").unwrap()] {
        let (before, original) = (document.to_json(), document.original());
        let mut later = document;
        later.set("y", "z").unwrap();
        assert_eq!(original.to_json(), before);
        assert_ne!(later.to_json(), before);
    }
}

#[test]
fn reading_a_field_takes_the_first_of_a_list_and_wraps_a_scalar() {
    let check = |field: &str, first: Option<&str>, list: &str| {
        let source = format!(r#"{{"id":"a","x":{field}}}"#);
        let mut document = parse(&source);
        for _ in 0..2 {
            assert_eq!(document.get_str("x").as_deref(), first, "{source}");
            assert_eq!(Value::Array(document.get_list("x").unwrap().unwrap()).to_json(), list, "{source}");
            document.edit("x", |_| ()).unwrap();
        }
    };
    check(r#""a\n\ud83d\ude00\ud800""#, Some("a\n😀\u{fffd}"), r#"["a\n😀�"]"#);
    check("1.0", Some("1.0"), "[1.0]");
    check("true", Some("true"), "[true]");
    check("null", None, "[null]");
    check("[]", None, "[]");
    check("[ ]", None, "[]");
    check("[ [1,\"]\"] , 2]", Some("[1,\"]\"]"), "[[1,\"]\"],2]");
    check("[null,2]", None, "[null,2]");
    check(r#"{"b":[{"c":"}"}]}"#, Some(r#"{"b":[{"c":"}"}]}"#), r#"[{"b":[{"c":"}"}]}]"#);
    assert_eq!(parse(r#"{"id":"a"}"#).get_list("x"), Ok(None));
}

#[test]
fn edits_follow_their_mode_and_keep_the_order() {
    let check = |edit: fn(&mut Document) -> Result<(), DocumentError>, expect: &str| {
        let mut document = parse(r#"{"id":"a","x":1,"y":[1,2],"z":"z"}"#);
        edit(&mut document).unwrap();
        assert_eq!(json(&document), format!(r#"{{"id":"a",{expect}}}"#));
    };
    check(|d| d.set("x", "n"), r#""x":"n","y":[1,2],"z":"z""#);
    check(|d| d.set_or_add("x", 2), r#""x":[1,2],"y":[1,2],"z":"z""#);
    check(|d| d.set_or_add("y", 3), r#""x":1,"y":[1,2,3],"z":"z""#);
    check(|d| d.set_or_add("n", 3), r#""x":1,"y":[1,2],"z":"z","n":3"#);
    check(|d| d.update("x", UpdateMode::Overwrite, vec![5.into(), 6.into()]), r#""x":[5,6],"y":[1,2],"z":"z""#);
    check(|d| d.update("x", UpdateMode::Append, vec![5.into(), 6.into()]), r#""x":[1,5,6],"y":[1,2],"z":"z""#);
    check(|d| d.update("n", UpdateMode::Append, vec![5.into()]), r#""x":1,"y":[1,2],"z":"z","n":5"#);
    check(|d| d.update("x", UpdateMode::Skip, vec![5.into()]), r#""x":1,"y":[1,2],"z":"z""#);
    check(|d| d.update("n", UpdateMode::Skip, vec![5.into()]), r#""x":1,"y":[1,2],"z":"z","n":5"#);
    check(|d| d.update("x", UpdateMode::Overwrite, vec![]), r#""x":1,"y":[1,2],"z":"z""#);
    check(|d| d.rename("x", "n").map(drop), r#""n":1,"y":[1,2],"z":"z""#);
    check(|d| d.rename("z", "x").map(drop), r#""y":[1,2],"x":"z""#);
    check(|d| d.rename("n", "x").map(drop), r#""x":1,"y":[1,2],"z":"z""#);
    check(|d| d.remove("y").map(drop), r#""x":1,"z":"z""#);
    check(
        |d| d.set_or_add_all(&parse(r#"{"id":"b","run_id":"r","y":[3,4],"n":{ }}"#)),
        r#""x":1,"y":[1,2,3,4],"z":"z","n":{ }"#,
    );
}

#[test]
fn a_clone_does_not_see_later_edits() {
    let before = parse(r#"{"id":"a","x":1}"#);
    let mut after = before.clone();
    assert_eq!(after, before);
    after.set("x", 2).unwrap();
    assert_ne!(after, before);
    assert_eq!(json(&before), r#"{"id":"a","x":1}"#);
}

#[test]
fn children_are_attached_and_read_back() {
    let mut document = parse(r#"{"id":"a","___children":[{"id":"c1"}, {"id":"c2","x":[1]}]}"#);
    let child = document.child("c3").unwrap();
    document.add_child(&child).unwrap();
    let ids: Vec<_> = document.children().unwrap().iter().map(|child| child.id().clone()).collect();
    assert_eq!(ids, ["c1", "c2", "c3"]);
    assert_eq!(json(&document), r#"{"id":"a","___children":[{"id":"c1"},{"id":"c2","x":[1]},{"id":"c3"}]}"#);
    document.remove_children();
    assert_eq!(json(&document), r#"{"id":"a"}"#);
    let no_list = parse(r#"{"id":"a","___children":7}"#).children().unwrap_err();
    assert_eq!(no_list.to_string(), "`___children` of document `a` is not a list");
    let no_id = parse(r#"{"id":"a","___children":[{"id":"b"},{}]}"#).children().unwrap_err();
    assert_eq!(
        no_id.to_string(),
        "attached child 1 of document `a`: the document has no `id`: give it a non-empty string"
    );
}

#[test]
fn marks_are_a_matter_of_presence() {
    let document = parse(r#"{"id":"a","___dropped":false,"___skipped":null}"#);
    assert!(document.is_dropped() && document.is_skipped());
    let mut document = parse(r#"{"id":"a"}"#);
    assert!(!document.is_dropped() && !document.is_skipped());
    document.mark_dropped();
    document.mark_skipped();
    assert_eq!(json(&document), r#"{"id":"a","___dropped":true,"___skipped":true}"#);
}

#[test]
fn an_object_without_an_id_is_given_one() {
    let document = Document::parse_with_id(Bytes::from_static(b"{\"x\": 1}"), "n").unwrap();
    assert_eq!(json(&document), r#"{"id":"n","x": 1}"#);
    let document = Document::parse_with_id(Bytes::from_static(b"{\"x\": 1,\"id\":5}"), "n").unwrap();
    assert_eq!(json(&document), r#"{"x": 1,"id":"n"}"#);
}

/// 2 MiB of stack is what a test thread has: recursion over 100,000 levels would end the process.
#[test]
fn a_deep_document_passes_but_cannot_be_edited_inside() {
    const LEVELS: usize = 100_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = |levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
        let mut document = parse(&format!(r#"{{"id":"a","deep":{}}}"#, deep(LEVELS)));
        document.set("x", 1).unwrap();
        assert_eq!(json(&document), format!(r#"{{"id":"a","deep":{},"x":1}}"#, deep(LEVELS)));
        assert_eq!(document.get("deep").unwrap().items().len(), 1);
        assert!(document.get_str("deep").is_some());
        let error = document.set_nested("deep", &["0"], 1).unwrap_err();
        let expected = "field `deep`: nested more than 128 levels deep: such a value can be passed on but not edited";
        assert_eq!(error.to_string(), expected);
        let other = document.clone();
        assert!(document.copy_from(&other, "deep", "copy").unwrap());
        assert!(document.rename("deep", "moved").unwrap());

        let mut edge = parse(&format!(r#"{{"id":"a","x":{}}}"#, deep(VALUE_LEVELS_MAX)));
        edge.edit("x", |_| ()).unwrap();
        let value = Value::parse(&deep(VALUE_LEVELS_MAX)).unwrap();
        assert!(edge.edit("x", |x| *x = Value::from(vec![value.clone()])).is_err(), "one level too many");
        assert!(edge.set_or_add("x", value).is_err(), "one level too many");
        assert!(edge.get_str("x").is_some());
        assert!(Value::parse(&deep(VALUE_LEVELS_MAX + 1)).is_err());
    }
}

#[test]
fn a_wide_document_is_read_edited_and_written_in_linear_time() {
    const FIELDS: usize = 100_000;
    let fields: Vec<_> = (0..FIELDS).map(|at| format!(r#""f{at}":{at}"#)).collect();
    let source = format!(r#"{{"id":"a",{}}}"#, fields.join(","));
    let mut document = parse(&source);
    assert_eq!(rewritten(&document), source);
    for at in 0..FIELDS {
        document.set(&format!("f{at}"), 1).unwrap();
        document.set_or_add("all", at as u64).unwrap();
    }
    assert_eq!(document.get_list("all").unwrap().unwrap().len(), FIELDS);
    document.retain(|name| name == "f99999");
    assert_eq!(json(&document), r#"{"id":"a","f99999":1}"#);
}

fn value() -> impl Strategy<Value = Value> {
    let number = "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(|text| Value::Number(Number::parse(&text).expect("the pattern is JSON's"))),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6).prop_map(|members| {
                let members = members.into_iter().map(|(name, value)| (CompactString::from(name), value));
                Value::from(members.collect::<Object>())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn a_document_survives_its_json(fields in prop::collection::vec((any::<String>(), value()), 0..8)) {
        let mut document = Document::new("a").unwrap();
        for (name, value) in &fields {
            if !is_reserved(name) {
                document.set(name, value.clone()).unwrap();
            }
        }
        let text = json(&document);
        let read = parse(&text);
        prop_assert_eq!(&read, &document);
        prop_assert_eq!(rewritten(&read), text.clone());
        // Decoding every field and encoding it again changes nothing either: order and number text are kept.
        let mut edited = read.clone();
        let names: Vec<_> = edited.fields().map(|(name, _)| name.clone()).collect();
        for name in &names {
            edited.edit(name, |_| ()).unwrap();
        }
        prop_assert_eq!(json(&edited), text.clone());
        // A reader that is not ours agrees on the content.
        let ours: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let theirs: serde_json::Value = serde_json::from_slice(&edited.to_json()).unwrap_or_default();
        prop_assert_eq!(ours, theirs);
    }

    /// However fields are spaced, escaped, repeated and edited, what is written is what a plain list of pairs holds.
    #[test]
    fn what_is_written_is_what_was_read_and_edited(
        source in prop::collection::vec((0..8u8, 0..99u8, any::<(bool, bool, bool)>()), 0..12),
        edits in prop::collection::vec((0..5u8, 0..8u8, 0..8u8), 0..6),
    ) {
        let mut text = r#"{"id":"a""#.to_owned();
        let mut model = vec![("id".to_owned(), "\"a\"".to_owned())];
        let put = |model: &mut Vec<(String, String)>, name: &str, value: String| {
            match model.iter_mut().find(|(other, _)| other == name) {
                Some(found) => found.1 = value,
                None => model.push((name.to_owned(), value)),
            }
        };
        for (name, value, (escaped, before, after)) in source {
            let space = |yes| if yes { " " } else { "" };
            let written = if escaped { format!("\\u0066{name}") } else { format!("f{name}") };
            text.push_str(&format!(r#"{},{}"{written}":{value}"#, space(after), space(before)));
            put(&mut model, &format!("f{name}"), value.to_string());
        }
        text.push('}');
        let mut document = parse(&text);
        for (edit, from, to) in edits {
            let (from, to) = (format!("f{from}"), format!("f{to}"));
            let found = model.iter().find(|(name, _)| *name == from).map(|(_, value)| value.clone());
            match edit {
                0 => document.set(&from, 100).map(|()| put(&mut model, &from, "100".into())).unwrap(),
                1 => {
                    document.remove(&from).unwrap();
                    model.retain(|(name, _)| *name != from);
                }
                2 => {
                    document.rename(&from, &to).unwrap();
                    if found.is_some() && from != to {
                        model.retain(|(name, _)| *name != to);
                        model.iter_mut().filter(|(name, _)| *name == from).for_each(|(name, _)| *name = to.clone());
                    }
                }
                _ => {
                    let other = document.clone();
                    prop_assert_eq!(document.copy(&from, &to).unwrap(), found.is_some());
                    if edit == 3 {
                        document.copy_from(&other, &from, &to).unwrap();
                    }
                    found.into_iter().for_each(|value| put(&mut model, &to, value));
                }
            }
        }
        for written in [json(&document), rewritten(&document)] {
            let read = Value::parse(&written).unwrap();
            let Value::Object(read) = read else { panic!("an object was written") };
            let read: Vec<_> = read.iter().map(|(name, value)| (name.to_string(), value.to_json())).collect();
            prop_assert_eq!(&read, &model, "{}", written);
            prop_assert_eq!(written.matches("\":").count(), model.len());
        }
    }

    #[test]
    fn strings_decode_as_another_reader_decodes_them(text in any::<String>(), escaped in any::<Vec<u16>>()) {
        let units = String::from_utf16_lossy(&escaped);
        let escaped: String = units.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        for json in [serde_json::to_string(&text).unwrap(), format!("\"\\b\\f\\/{escaped}\"")] {
            let theirs: String = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(Value::parse(&json).unwrap(), Value::from(theirs));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>(), text in "[\\[\\]{}:,\"\\\\u0-9aid. ]{0,40}") {
        let _ = Document::parse(bytes.into());
        let ours = Value::parse(&text);
        prop_assert_eq!(ours.is_ok(), serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok());
        let _ = Document::parse(format!("{{\"id\":\"a\",{text}}}").into());
    }
}
