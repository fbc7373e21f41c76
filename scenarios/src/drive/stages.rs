//! The pipeline of the scenarios: stages that do what a document's marks say.

use std::time::Duration;

use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::stage::{Condition, Stage, StageError, StageSpec, Step};
use seriatim_core::stages::{Sleeper, sleeper};

use super::PIPELINE;
use crate::workload::{child_document, child_id, marks};

/// Slow, then children, then dropped or failed.
pub(super) fn pipeline<E: Env>(env: E) -> PipelineSpec {
    let sleep = sleeper(env);
    let slow = StageSpec::new("slow", move || Slow { sleep: sleep.clone(), document: None });
    let drop = StageSpec::map("drop", |document| {
        document.mark_dropped();
        Ok(())
    });
    let fail = StageSpec::map("fail", |_| Err(StageError::new("the document says so")));
    PipelineSpec::new(
        PIPELINE,
        vec![
            slow.when([Condition::must_have(&[marks::SLOW_MS])]),
            StageSpec::new("children", Children::default).when([Condition::must_have(&[marks::CHILDREN])]),
            drop.when([Condition::must_hold(&[marks::DROP], &["true"])]),
            fail.when([Condition::must_hold(&[marks::FAIL], &["true"])]),
        ],
    )
}

fn number(document: &Document, name: &str) -> Result<u64, StageError> {
    let text = document.get_str(name).unwrap_or_default();
    text.parse().map_err(|_| StageError::new(format!("`{name}` is `{text}`: it must be a whole number")))
}

/// Takes as many milliseconds as the document says.
struct Slow {
    sleep: Sleeper,
    document: Option<Document>,
}

impl Stage for Slow {
    fn start(&mut self, document: Document) {
        self.document = Some(document);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(document) = self.document.take() else { return Ok(Step::End) };
        let slept = (self.sleep)(Duration::from_millis(number(&document, marks::SLOW_MS)?));
        Ok(Step::Wait(Box::pin(async move {
            slept.await;
            Ok(document)
        })))
    }
}

/// Emits as many children as the document says, the same in every attempt.
#[derive(Default)]
struct Children {
    parent: Option<Document>,
    next: u64,
    count: u64,
}

impl Stage for Children {
    fn start(&mut self, document: Document) {
        *self = Children { parent: Some(document), next: 0, count: 0 };
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(parent) = &self.parent else { return Ok(Step::End) };
        if self.next == 0 {
            self.count = number(parent, marks::CHILDREN)?;
        }
        if self.next == self.count {
            return Ok(self.parent.take().map_or(Step::End, Step::Next));
        }
        let child = child(parent, self.next).map_err(|error| StageError::new(error.to_string()))?;
        self.next += 1;
        Ok(Step::Next(child))
    }
}

fn child(parent: &Document, number: u64) -> Result<Document, seriatim_core::document::DocumentError> {
    let revision = parent.get_str(marks::REVISION).unwrap_or("null".into());
    let json = child_document(parent.id(), number, &revision);
    let mut child = Document::parse(json.into())?;
    debug_assert_eq!(*child.id(), child_id(parent.id(), number));
    if let Some(run) = parent.run_id() {
        child.initialize_run_id(run.clone())?;
    }
    Ok(child)
}
