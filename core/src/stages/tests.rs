//! What each stage makes of a document.

use futures_util::FutureExt;

use super::*;
use crate::document::{UpdateMode, Value};
use crate::pipeline::{Pipeline, PipelineSpec};

#[track_caller]
fn check(input: &str, stage: StageSpec, expect: &str) {
    let mut pipeline = Pipeline::new(&PipelineSpec::new("p", vec![stage]));
    pipeline.start(Document::parse(format!(r#"{{"id":"d",{input}}}"#).into()).expect("a document"));
    let output = pipeline.next().now_or_never().flatten().expect("an output");
    let text = match output.result {
        Ok(document) => String::from_utf8(document.to_json().to_vec()).expect("JSON is UTF-8"),
        Err(failure) => failure.to_string(),
    };
    let expected = if expect.starts_with('"') { format!(r#"{{"id":"d",{expect}}}"#) } else { expect.to_owned() };
    assert_eq!(text, expected);
}

#[test]
fn static_values_are_set() {
    let spec = |mode| SetStatic::spec("s", &[("x", Value::from(7)), ("y", Value::from("why"))], mode);
    check(r#""x":1"#, spec(UpdateMode::Overwrite), r#""x":7,"y":"why""#);
    check(r#""x":1"#, spec(UpdateMode::Append), r#""x":[1,7],"y":"why""#);
    check(r#""x":1"#, spec(UpdateMode::Skip), r#""x":1,"y":"why""#);
    let reserved = SetStatic::spec("s", &[("run_id", Value::Null)], UpdateMode::Overwrite);
    check(r#""x":1"#, reserved, "stage `s` failed: `run_id` is reserved: a stage cannot set, rename or remove it");
}

#[test]
fn fields_are_renamed_and_copied() {
    let input = r#""a": 1.0,"b":[2, 3],"c":4"#;
    let rename = |mode| RenameFields::spec("s", &[("a", "x"), ("b", "c"), ("n", "m")], mode);
    check(input, rename(UpdateMode::Overwrite), r#""x":1.0,"c":[2, 3]"#);
    check(input, rename(UpdateMode::Append), r#""x":1.0,"c":[4,2,3]"#);
    check(input, rename(UpdateMode::Skip), r#""x":1.0,"c":4"#);
    check(input, RenameFields::spec("s", &[("a", "a")], UpdateMode::Append), r#""a": 1.0,"b":[2, 3],"c":4"#);
    let copy = |mode| CopyFields::spec("s", &[("a", "x"), ("b", "c"), ("n", "m")], mode);
    check(input, copy(UpdateMode::Overwrite), r#""a": 1.0,"b":[2, 3],"c":[2, 3],"x":1.0"#);
    check(input, copy(UpdateMode::Append), r#""a": 1.0,"b":[2, 3],"c":[4,2,3],"x":1.0"#);
    check(input, copy(UpdateMode::Skip), r#""a": 1.0,"b":[2, 3],"c":4,"x":1.0"#);
}

#[test]
fn strings_are_trimmed_and_nothing_else_is_touched() {
    let spec = || TrimWhitespace::spec("s", &["a", "b", "c", "n"]);
    check(r#""a":" x\t","b":["y ",1, " z"],"d":" w ""#, spec(), r#""a":"x","b":["y",1,"z"],"d":" w ""#);
    check(r#""a":"\u0078","b":[ 1, "y" ],"c":{"a": " x "}"#, spec(), r#""a":"\u0078","b":[ 1, "y" ],"c":{"a": " x "}"#);
}

#[test]
fn fields_are_joined() {
    let spec = |format| Concatenate::spec("s", "name", Template::parse(format).expect("a template"));
    check(r#""a":["Ada","x"],"b":1.50"#, spec("{a} {b}"), r#""a":["Ada","x"],"b":1.50,"name":"Ada 1.50""#);
    check(r#""a":"{b}","name":1"#, spec("{{{a}}}{b}!"), r#""a":"{b}","name":"{{b}}!""#);
}

#[test]
fn bad_templates_are_refused() {
    let check = |text: &str, expect: &str| assert_eq!(Template::parse(text).unwrap_err().to_string(), expect);
    check("a{b", "the `{` at byte 1 of `a{b` is not closed: write `{{` for a brace");
    check("a}b", "the `}` at byte 1 of `a}b` closes nothing: write `}}` for a brace");
    check("{}", "the place at byte 0 of `{}` names no field");
}

#[test]
fn triggers_look_at_presence_values_and_ids() {
    let document = Document::parse(r#"{"id":"d","a":["x",1.0],"b":null}"#.into()).unwrap();
    for (trigger, expect) in [
        (Trigger::Always, true),
        (Trigger::has("b"), true),
        (Trigger::has("n"), false),
        (Trigger::holds("a", "1.0"), true),
        (Trigger::holds("a", "1"), false),
        (Trigger::holds("b", "null"), false),
        (Trigger::id("d"), true),
        (Trigger::id("e"), false),
    ] {
        assert_eq!(trigger.meets(&document), expect, "{trigger:?}");
    }
}
