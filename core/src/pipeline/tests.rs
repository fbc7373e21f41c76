//! What a pipeline gives for which documents, and what a failure leaves alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::document::{UpdateMode, Value};
use crate::stages::{ChildSource, DropIf, EmitChildren, FailOn, Fault, SetStatic, SkipIf, SlowOn, Template, Trigger};

fn pipeline(stages: Vec<StageSpec>) -> Pipeline {
    quiet_stage_panics();
    Pipeline::new(&PipelineSpec::new("p", stages))
}

/// One line an output: its JSON, marked `dropped` where it is, or its failure; the last is the parent's.
fn run(pipeline: &mut Pipeline, input: &str) -> Vec<String> {
    pipeline.start(Document::parse(Bytes::copy_from_slice(input.as_bytes())).expect("a document"));
    let mut lines = Vec::new();
    let mut parents = 0;
    while let Some(output) = pipeline.next().now_or_never().expect("nothing waits for ever") {
        assert_eq!(parents, 0, "the parent is the last");
        assert!(lines.len() < 1_000, "there is no end to it");
        parents += u32::from(output.is_parent);
        lines.push(match output.result {
            Ok(document) => {
                assert_eq!(document.id(), &output.id);
                String::from_utf8(document.to_json().to_vec()).expect("JSON is UTF-8")
            }
            Err(failure) => {
                let message = failure.to_string();
                format!("{}: {}", output.id, message.split(" (at ").next().unwrap_or_default())
            }
        });
    }
    assert_eq!(parents, 1, "every document comes out once");
    lines
}

#[track_caller]
fn check(input: &str, stages: Vec<StageSpec>, expect: &[&str]) {
    assert_eq!(run(&mut pipeline(stages), input), expect);
}

fn set(field: &str, value: &str) -> StageSpec {
    SetStatic::spec(&format!("set {field}"), &[(field, Value::from(value))], UpdateMode::Append)
}

/// Runs any list of answers, to misbehave.
struct Script<F>(Option<Document>, u32, F);

impl<F: Fn(&Document, u32) -> Result<Step, StageError> + Send> Stage for Script<F> {
    fn start(&mut self, document: Document) {
        (self.0, self.1) = (Some(document), 0);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        self.1 += 1;
        (self.2)(self.0.as_ref().expect("it was started"), self.1 - 1)
    }
}

fn script(answer: impl Fn(&Document, u32) -> Result<Step, StageError> + Clone + Send + Sync + 'static) -> StageSpec {
    StageSpec::new("script", move || Script(None, 0, answer.clone()))
}

#[test]
fn documents_pass_the_stages_that_apply_in_order() {
    check(r#"{"id":"d"}"#, vec![], &[r#"{"id":"d"}"#]);
    check(
        r#"{"id":"d"}"#,
        vec![
            set("x", "1"),
            set("x", "2").when([crate::stage::Condition::must_have(&["y"])]),
            set("x", "3").when([crate::stage::Condition::must_hold(&["x"], &["1"])]),
        ],
        &[r#"{"id":"d","x":["1","3"]}"#],
    );
}

#[test]
fn children_come_first_and_see_only_the_stages_behind() {
    check(
        r#"{"id":"d","run_id":"r"}"#,
        vec![set("a", "1"), EmitChildren::count("emit", 2), set("b", "2"), EmitChildren::count("emit again", 1)],
        &[
            r#"{"id":"d-0-0","run_id":"r"}"#,
            r#"{"id":"d-0","run_id":"r","b":"2"}"#,
            r#"{"id":"d-1-0","run_id":"r"}"#,
            r#"{"id":"d-1","run_id":"r","b":"2"}"#,
            r#"{"id":"d-0","run_id":"r"}"#,
            r#"{"id":"d","run_id":"r","a":"1","b":"2"}"#,
        ],
    );
}

#[test]
fn children_without_a_run_join_their_parents() {
    let stage = script(|document, call| match call {
        0 => Ok(Step::Next(Document::new("c")?)),
        1 => Ok(Step::Next(document.clone())),
        _ => Ok(Step::End),
    });
    check(r#"{"id":"d","run_id":"r"}"#, vec![stage], &[r#"{"id":"c","run_id":"r"}"#, r#"{"id":"d","run_id":"r"}"#]);
}

/// Case 2 of the documents' system.
#[test]
fn a_child_is_dropped_alone() {
    check(
        r#"{"id":"d"}"#,
        vec![EmitChildren::count("emit", 3), DropIf::spec("drop", Trigger::id("d-1")), set("x", "1")],
        &[
            r#"{"id":"d-0","x":"1"}"#,
            r#"{"id":"d-1","___dropped":true}"#,
            r#"{"id":"d-2","x":"1"}"#,
            r#"{"id":"d","x":"1"}"#,
        ],
    );
}

/// Case 3 of the documents' system.
#[test]
fn children_stand_when_their_parent_fails_after_them() {
    let stage = script(|document, call| match call {
        0 | 1 => Ok(Step::Next(document.child(format!("c{call}"))?)),
        _ => Err(StageError::new("no third")),
    });
    check(
        r#"{"id":"d"}"#,
        vec![stage, set("x", "1")],
        &[r#"{"id":"c0","x":"1"}"#, r#"{"id":"c1","x":"1"}"#, "d: stage `script` failed: no third"],
    );
}

#[test]
fn dropped_and_skipped_documents_pass_by_the_rest() {
    let all =
        || vec![DropIf::spec("drop", Trigger::has("bad")), SkipIf::spec("skip", Trigger::has("raw")), set("x", "1")];
    check(r#"{"id":"d","bad":1}"#, all(), &[r#"{"id":"d","bad":1,"___dropped":true}"#]);
    check(r#"{"id":"d","raw":1}"#, all(), &[r#"{"id":"d","raw":1,"___skipped":true}"#]);
    check(r#"{"id":"d"}"#, all(), &[r#"{"id":"d","x":"1"}"#]);
}

#[test]
fn a_failure_or_a_panic_fails_its_own_document_only() {
    for (fault, verb) in [(Fault::Error, "failed"), (Fault::Panic, "panicked")] {
        let stages = || {
            vec![
                EmitChildren::count("emit", 3),
                EmitChildren::count("again", 1).when([crate::stage::Condition::must_have(&["deep"])]),
                FailOn::spec("fault", Trigger::id("d-1"), fault),
                FailOn::spec("parent", Trigger::has("fail"), fault),
            ]
        };
        let child = format!("d-1: stage `fault` {verb}: told to fail for `d-1`");
        let children = [r#"{"id":"d-0"}"#, &child, r#"{"id":"d-2"}"#];
        check(r#"{"id":"d"}"#, stages(), &[&children[..], &[r#"{"id":"d"}"#]].concat());
        let parent = format!("d: stage `parent` {verb}: told to fail for `d`");
        check(r#"{"id":"d","fail":1}"#, stages(), &[&children[..], &[&parent]].concat());
    }
}

#[test]
fn a_stage_is_made_anew_after_a_panic() {
    let made = Arc::new(AtomicU32::new(0));
    let counter = made.clone();
    let spec = StageSpec::new("fragile", move || {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut broken = false;
        crate::stage::OneToOne::new(move |document: &mut Document| {
            assert!(!broken, "an instance that has panicked was used again");
            broken = document.has("panic");
            assert!(!broken, "told to");
            Ok(())
        })
    });
    let mut pipeline = pipeline(vec![spec]);
    let bad = ["d: stage `fragile` panicked: told to"];
    assert_eq!(run(&mut pipeline, r#"{"id":"d","panic":1}"#), bad);
    assert_eq!(run(&mut pipeline, r#"{"id":"e"}"#), [r#"{"id":"e"}"#]);
    assert_eq!(run(&mut pipeline, r#"{"id":"d","panic":1}"#), bad);
    assert_eq!(made.load(Ordering::Relaxed), 2, "made again only when it is needed");
}

#[test]
fn a_factory_that_panics_fails_documents_until_it_works() {
    let made = AtomicU32::new(0);
    let spec = StageSpec::new("fragile", move || {
        assert_ne!(made.fetch_add(1, Ordering::Relaxed), 1, "no second instance");
        crate::stage::OneToOne::new(|document: &mut Document| {
            assert!(!document.has("panic"), "told to");
            Ok(())
        })
    });
    let mut pipeline = pipeline(vec![spec]);
    assert_eq!(run(&mut pipeline, r#"{"id":"d","panic":1}"#), ["d: stage `fragile` panicked: told to"]);
    let failed = run(&mut pipeline, r#"{"id":"e"}"#);
    assert!(failed[0].contains("no second instance"), "{failed:?}");
    assert_eq!(run(&mut pipeline, r#"{"id":"e"}"#), [r#"{"id":"e"}"#]);
}

#[test]
fn a_stage_must_give_its_own_document_last() {
    let gives = |ids: &'static [&'static str]| {
        script(move |document, call| match ids.get(call as usize) {
            None => Ok(Step::End),
            Some(&"d") => Ok(Step::Next(document.clone())),
            Some(id) => Ok(Step::Next(document.child(*id)?)),
        })
    };
    let check = |ids, expect: &[&str]| check(r#"{"id":"d"}"#, vec![gives(ids)], expect);
    check(&["c", "d"], &[r#"{"id":"c"}"#, r#"{"id":"d"}"#]);
    check(&["c", "c", "d"], &[r#"{"id":"c"}"#, r#"{"id":"c"}"#, r#"{"id":"d"}"#]);
    let without = "d: stage `script` failed: it ended without giving its own document `d`: drop it by marking it";
    check(&["c"], &[r#"{"id":"c"}"#, without]);
    check(&[], &[without]);
    let after = |id: &str| {
        format!(
            "d: stage `script` failed: it gave `{id}` after its own document `d`, which must come last and whose id no \
             child may have"
        )
    };
    check(&["c", "d", "e"], &[r#"{"id":"c"}"#, &after("e")]);
    check(&["d", "d"], &[&after("d")]);
}

#[test]
fn too_many_children_fail_their_parent() {
    let endless = script(|document, call| Ok(Step::Next(document.child(format!("c{call}"))?)));
    let spec = PipelineSpec { children_max: 2, ..PipelineSpec::new("p", vec![endless]) };
    let expected = [
        r#"{"id":"c0"}"#,
        r#"{"id":"c1"}"#,
        "d: stage `script` failed: it made more than 2 children of `d`: raise children_max",
    ];
    assert_eq!(run(&mut Pipeline::new(&spec), r#"{"id":"d"}"#), expected);
}

/// Case 8 of the documents' system: 100 levels of 100 children would be 101^100 documents.
#[test]
fn children_are_made_only_when_they_are_asked_for() {
    const LEVELS: u32 = 100;
    static MADE: AtomicU32 = AtomicU32::new(0);
    let level = |level: u32| {
        script(move |document, call| {
            MADE.fetch_add(1, Ordering::Relaxed);
            match call {
                0..100 => Ok(Step::Next(document.child(format!("{level}.{call}"))?)),
                100 => Ok(Step::Next(document.clone())),
                _ => Ok(Step::End),
            }
        })
    };
    let mut pipeline = pipeline((0..LEVELS).map(level).collect());
    pipeline.start(Document::new("d").expect("an id"));
    for taken in 1..=1_000 {
        let output = pipeline.next().now_or_never().flatten().expect("there are more");
        assert!(!output.is_parent && output.result.is_ok());
        assert!(MADE.load(Ordering::Relaxed) <= LEVELS + 3 * taken, "{taken} taken");
        assert!(pipeline.open.len() <= LEVELS as usize);
    }
    // What is left is abandoned.
    MADE.store(0, Ordering::Relaxed);
    pipeline.start(Document::new("e").expect("an id"));
    assert!(pipeline.next().now_or_never().flatten().is_some());
    assert!(MADE.load(Ordering::Relaxed) <= LEVELS + 3);
}

#[test]
fn a_stage_may_wait_and_the_wait_survives_a_cancelled_call() {
    let slept = Arc::new(AtomicU32::new(0));
    let counter = slept.clone();
    let sleeper: crate::stages::Sleeper = Arc::new(move |duration| {
        assert_eq!(duration, Duration::from_secs(3));
        let counter = counter.clone();
        let mut polls = 0;
        Box::pin(std::future::poll_fn(move |_| {
            polls += 1;
            counter.fetch_add(1, Ordering::Relaxed);
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        }))
    });
    let slow = SlowOn::spec("slow", Trigger::id("d-1"), Duration::from_secs(3), sleeper);
    let mut pipeline = pipeline(vec![EmitChildren::count("emit", 2), slow]);
    pipeline.start(Document::new("d").expect("an id"));
    let id = |output: Option<Option<PipelineOutput>>| output.map(|output| output.expect("an output").id.to_string());
    assert_eq!(id(pipeline.next().now_or_never()), Some("d-0".into()));
    assert_eq!(id(pipeline.next().now_or_never()), None);
    assert_eq!(id(pipeline.next().now_or_never()), None);
    assert_eq!(id(pipeline.next().now_or_never()), Some("d-1".into()));
    assert_eq!(id(pipeline.next().now_or_never()), Some("d".into()));
    assert_eq!(slept.load(Ordering::Relaxed), 3);
    assert!(pipeline.next().now_or_never().expect("it is over").is_none());
}

#[test]
fn a_wait_that_fails_or_panics_fails_its_document() {
    let waits = |panics: bool| {
        script(move |_, call| match call {
            0 => Ok(Step::Wait(Box::pin(async move {
                assert!(!panics, "told to");
                Err(StageError::new("no answer"))
            }))),
            _ => unreachable!("it is over after an error"),
        })
    };
    check(r#"{"id":"d"}"#, vec![waits(false)], &["d: stage `script` failed: no answer"]);
    check(r#"{"id":"d"}"#, vec![waits(true)], &["d: stage `script` panicked: told to"]);
}

#[test]
fn a_panic_names_its_place_and_leaves_other_panics_alone() {
    let mut pipeline = pipeline(vec![FailOn::spec("fault", Trigger::Always, Fault::Panic)]);
    pipeline.start(Document::new("d").expect("an id"));
    let output = pipeline.next().now_or_never().flatten().expect("the failure");
    let failure = output.result.expect_err("it panicked");
    assert!(failure.panicked && failure.message.contains("(at ") && failure.message.contains("faults.rs:"));
    assert!(!is_in_stage());
}

#[test]
fn attached_children_and_elements_become_documents() {
    let input = r#"{"id":"d","run_id":"r","lang":"en","parts":[{"n":1,"id":"x","run_id":"other","___dropped":1},"two",[3]],"___children":[{"id":"c0","a":1.0},{"id":"c1"}]}"#;
    let elements = ChildSource::Elements {
        field: "parts".into(),
        id: Template::parse("{id}/{n}{child.n}").expect("a template"),
        value_field: "value".into(),
    };
    check(
        input,
        vec![EmitChildren::attached("attached"), EmitChildren::spec("elements", elements, &["lang"])],
        &[
            r#"{"id":"c0","a":1.0,"run_id":"r"}"#,
            r#"{"id":"c1","run_id":"r"}"#,
            r#"{"id":"d/01","run_id":"r","n":1,"lang":"en"}"#,
            r#"{"id":"d/1","run_id":"r","value":"two","lang":"en"}"#,
            r#"{"id":"d/2","run_id":"r","value":[3],"lang":"en"}"#,
            r#"{"id":"d","run_id":"r","lang":"en","parts":[{"n":1,"id":"x","run_id":"other","___dropped":1},"two",[3]]}"#,
        ],
    );
    check(
        r#"{"id":"d","___children":[{"id":"c0"},{"x":1}]}"#,
        vec![EmitChildren::attached("attached")],
        &[
            r#"{"id":"c0"}"#,
            "d: stage `attached` failed: attached child 1 of document `d`: the document has no `id`: give it a non-empty string",
        ],
    );
}

mod lazily {
    use proptest::prelude::*;

    use super::*;

    /// What the recursion of the documents says: apply(d, stages) = children ++ parent.
    fn model(id: &str, stages: &[(u32, Option<String>)]) -> Vec<String> {
        let Some(((children, fails), rest)) = stages.split_first() else { return vec![format!("ok {id}")] };
        if fails.as_deref() == Some(id) {
            return vec![format!("failed {id}")];
        }
        let mut out: Vec<_> = (0..*children).flat_map(|child| model(&format!("{id}-{child}"), rest)).collect();
        out.extend(model(id, rest));
        out
    }

    proptest! {
        #[test]
        fn the_pipeline_agrees_with_the_recursion(
            stages in prop::collection::vec((0..4u32, prop::option::of("d(-[0-2]){0,2}")), 0..5),
            panics in any::<bool>(),
        ) {
            let fault = if panics { Fault::Panic } else { Fault::Error };
            let specs = stages.iter().flat_map(|(children, fails)| {
                let fail = FailOn::spec("fail", Trigger::id(fails.as_deref().unwrap_or_default()), fault);
                [fail, EmitChildren::count("emit", *children)]
            });
            let mut pipeline = pipeline(specs.collect());
            for _ in 0..2 {
                pipeline.start(Document::new("d").expect("an id"));
                let mut outputs = Vec::new();
                while let Some(output) = pipeline.next().now_or_never().expect("nothing waits") {
                    let outcome = if output.result.is_ok() { "ok" } else { "failed" };
                    outputs.push(format!("{outcome} {}", output.id));
                }
                prop_assert_eq!(outputs, model("d", &stages));
            }
        }
    }
}

#[test]
fn what_is_left_of_a_document_is_abandoned_when_the_next_starts() {
    let mut pipeline = pipeline(vec![EmitChildren::count("emit", 2), EmitChildren::count("again", 2)]);
    pipeline.start(Document::new("old").expect("an id"));
    assert!(pipeline.next().now_or_never().flatten().is_some());
    let ids = ["d-0-0", "d-0-1", "d-0", "d-1-0", "d-1-1", "d-1", "d-0", "d-1", "d"];
    let expected = ids.map(|id| format!(r#"{{"id":"{id}"}}"#));
    assert_eq!(run(&mut pipeline, r#"{"id":"d"}"#), expected);
}

#[test]
fn a_map_that_puts_another_document_in_the_place_of_its_own_gives_a_child_and_fails() {
    let swap = StageSpec::map("swap", |document| {
        *document = Document::new("other")?;
        Ok(())
    });
    check(
        r#"{"id":"a"}"#,
        vec![swap, set("x", "1")],
        &[
            r#"{"id":"other","x":"1"}"#,
            "a: stage `swap` failed: it ended without giving its own document `a`: drop it by marking it",
        ],
    );
}
