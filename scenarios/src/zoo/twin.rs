//! A stage that gives a child twice. The index ends right, since the twin carries the same; the books do not.

use seriatim_core::document::Document;
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::stage::{Condition, Stage, StageError, StageSpec, Step};

use crate::drive::Variant;
use crate::workload::{child_document, marks};

/// A pipeline whose documents with children have one of them twice.
#[derive(Clone, Copy, Debug)]
pub struct TwinChild;

impl Variant for TwinChild {
    fn pipeline(&self, mut spec: PipelineSpec) -> PipelineSpec {
        let twin = StageSpec::new("twin", Twin::default);
        spec.stages.insert(0, twin.when([Condition::must_have(&[marks::CHILDREN])]));
        spec
    }
}

/// Gives the first child ahead of the stage that gives all of them.
#[derive(Default)]
struct Twin {
    waiting: Vec<Document>,
}

impl Stage for Twin {
    fn start(&mut self, document: Document) {
        let revision = document.get_str(marks::REVISION).unwrap_or("null".into());
        let child = Document::parse(child_document(document.id(), 0, &revision).into()).ok();
        let child = child.and_then(|mut child| {
            document.run_id().is_none_or(|run| child.initialize_run_id(run.clone()).is_ok()).then_some(child)
        });
        self.waiting = [document].into_iter().chain(child).collect();
    }

    fn next(&mut self) -> Result<Step, StageError> {
        Ok(self.waiting.pop().map_or(Step::End, Step::Next))
    }
}
