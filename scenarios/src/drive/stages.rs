//! The pipeline of the scenarios: stages that do what a document's marks say.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::stage::{Condition, Stage, StageError, StageSpec, Step};
use seriatim_core::stages::{Sleeper, sleeper};

use super::PIPELINE;
use super::struck::Struck;
use crate::fault::FaultKind;
use crate::workload::{child_document, child_id, marks};

/// What the stages of a run share over all nodes and lives.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    struck: Struck,
    /// Ids and revisions that a stage was stuck on: what it waited for has come back.
    met: Arc<Mutex<BTreeSet<(String, u64)>>>,
}

impl Trouble {
    pub(crate) fn new(struck: Struck) -> Self {
        Trouble { struck, met: Arc::default() }
    }

    /// The document itself is what is in flight.
    fn strikes(&self, kind: FaultKind) {
        self.struck.note(kind, "stage", 1);
    }

    fn is_first(&self, document: &Document) -> Result<bool, StageError> {
        let place = (document.id().to_string(), number(document, marks::REVISION)?);
        Ok(self.met.lock().expect("no code panics while it inserts").insert(place))
    }
}

/// Slow, then children, then dropped or failed.
pub(crate) fn pipeline<E: Env>(env: E, trouble: Trouble) -> PipelineSpec {
    let sleep = sleeper(env);
    let (own, stuck) = (sleep.clone(), trouble.clone());
    let stuck = StageSpec::new("stuck", move || Slow {
        sleep: own.clone(),
        document: None,
        mark: marks::STUCK_MS,
        once: Some(stuck.clone()),
    });
    let slow =
        StageSpec::new("slow", move || Slow { sleep: sleep.clone(), document: None, mark: marks::SLOW_MS, once: None });
    let drop = StageSpec::map("drop", |document| {
        document.mark_dropped();
        Ok(())
    });
    let fails = trouble.clone();
    let fail = StageSpec::map("fail", move |_| {
        fails.strikes(FaultKind::StageError);
        Err(StageError::new("the document says so"))
    });
    let panic = StageSpec::map("panic", move |_| {
        trouble.strikes(FaultKind::StagePanic);
        panic!("the document says so")
    });
    PipelineSpec::new(
        PIPELINE,
        vec![
            stuck.when([Condition::must_have(&[marks::STUCK_MS])]),
            slow.when([Condition::must_have(&[marks::SLOW_MS])]),
            StageSpec::new("children", Children::default).when([Condition::must_have(&[marks::CHILDREN])]),
            drop.when([Condition::must_hold(&[marks::DROP], &["true"])]),
            fail.when([Condition::must_hold(&[marks::FAIL], &["true"])]),
            panic.when([Condition::must_hold(&[marks::PANIC], &["true"])]),
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
    mark: &'static str,
    /// Only the first time that a document is met.
    once: Option<Trouble>,
}

impl Stage for Slow {
    fn start(&mut self, document: Document) {
        self.document = Some(document);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(document) = self.document.take() else { return Ok(Step::End) };
        if let Some(trouble) = &self.once {
            if !trouble.is_first(&document)? {
                return Ok(Step::Next(document));
            }
            trouble.strikes(FaultKind::StageStuck);
        }
        let slept = (self.sleep)(Duration::from_millis(number(&document, self.mark)?));
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
