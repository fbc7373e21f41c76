//! The pipeline: stages in a row, pulled one output at a time.
//!
//! [`Pipeline::start`] gives it a document, [`Pipeline::next`] takes what becomes of it: children first, the document
//! itself last. It goes depth first and lazily: at any moment there is at most one open cursor a stage, whatever the
//! number of children. A child passes only the stages behind the one that made it; a document that is dropped or
//! skipped passes none of the rest. An error or a panic ends the path of its own document only: what was given before
//! stands, brothers and parents go on. Every document that enters a stage comes out exactly once, as itself or as a
//! failure.
//!
//! It never decides what an output means for completion or for commits: that is the worker's.

mod panics;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use futures_util::future::BoxFuture;

pub use panics::{is_in_stage, quiet_stage_panics};

use crate::document::Document;
use crate::stage::{Stage, StageError, StageSpec, Step};

/// How many children one stage may make of one document, unless told otherwise.
pub const CHILDREN_MAX: u32 = 1_000_000;

/// A pipeline as it is configured.
#[derive(Clone, Debug)]
pub struct PipelineSpec {
    /// Name; its topics are called after it.
    pub name: Arc<str>,
    /// Its stages, in order.
    pub stages: Vec<StageSpec>,
    /// How many children one stage may make of one document; one more fails the document.
    pub children_max: u32,
}

impl PipelineSpec {
    /// A pipeline of these stages.
    pub fn new(name: impl Into<Arc<str>>, stages: Vec<StageSpec>) -> Self {
        PipelineSpec { name: name.into(), stages, children_max: CHILDREN_MAX }
    }
}

/// Why a document did not come through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage `{stage}` {}: {message}", if *panicked { "panicked" } else { "failed" })]
pub struct StageFailure {
    /// The stage.
    pub stage: Arc<str>,
    /// What it said.
    pub message: String,
    /// Whether it panicked.
    pub panicked: bool,
}

/// What became of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOutput {
    /// Its id.
    pub id: CompactString,
    /// Whether it is the document that the pipeline was started with; always the last output.
    pub is_parent: bool,
    /// The document, perhaps dropped or skipped, or why there is none.
    pub result: Result<Document, StageFailure>,
}

/// One worker's instance of a pipeline.
pub struct Pipeline {
    stages: Vec<Instance>,
    children_max: u32,
    /// Run of the document that it was started with: children that have none join it.
    run_id: Option<Arc<str>>,
    /// Open cursors; their stages rise.
    open: Vec<Cursor>,
    /// The document to go on with, before any cursor.
    moving: Option<Moving>,
}

struct Instance {
    spec: StageSpec,
    /// `None` after a panic, until it is needed again.
    stage: Option<Box<dyn Stage>>,
}

/// A document on its way to the next stage.
struct Moving {
    document: Document,
    /// The first stage that it has not passed.
    stage: usize,
    is_parent: bool,
}

/// A stage at work on a document.
struct Cursor {
    stage: usize,
    id: CompactString,
    is_parent: bool,
    children: u32,
    /// The document itself, out of the stage again; it goes on when the stage has ended.
    done: Option<Document>,
    /// What the stage waits for. Kept here, so that a cancelled `next` can be called again.
    waiting: Option<BoxFuture<'static, Result<Document, StageError>>>,
}

enum Given {
    Document(Document),
    End,
}

impl Pipeline {
    /// An instance of `spec`: every factory is called once.
    pub fn new(spec: &PipelineSpec) -> Self {
        let instance = |spec: &StageSpec| Instance { spec: spec.clone(), stage: Some((spec.factory)()) };
        let stages = spec.stages.iter().map(instance).collect();
        Pipeline { stages, children_max: spec.children_max, run_id: None, open: Vec::new(), moving: None }
    }

    /// Begins with a document. What was left of another one is abandoned.
    pub fn start(&mut self, document: Document) {
        self.open.clear();
        self.run_id = document.run_id().cloned();
        self.moving = Some(Moving { document, stage: 0, is_parent: true });
    }

    /// The next output; `None` after the parent. May be cancelled and called again.
    pub async fn next(&mut self) -> Option<PipelineOutput> {
        loop {
            if let Some(moving) = self.moving.take() {
                if let Some(output) = self.enter_next_stage(moving) {
                    return Some(output);
                }
                continue;
            }
            let cursor = self.open.last_mut()?;
            let instance = &mut self.stages[cursor.stage];
            let given = pull(cursor, instance).await;
            match given.and_then(|given| self.take(given)) {
                Ok(moving) => self.moving = moving,
                Err(failure) => return Some(self.fail(failure)),
            }
        }
    }

    /// Starts the next stage that applies, or gives the document out behind the last.
    fn enter_next_stage(&mut self, Moving { mut document, stage, is_parent }: Moving) -> Option<PipelineOutput> {
        let passes = document.is_dropped() || document.is_skipped();
        let mut rest = (stage..self.stages.len()).filter(|_| !passes);
        let id = document.id().clone();
        let Some(stage) = rest.find(|&stage| self.stages[stage].spec.applies_to(&document)) else {
            return Some(PipelineOutput { id, is_parent, result: Ok(document) });
        };
        let mapped = self.stages[stage].map(&mut document);
        if let Some(Ok(())) = &mapped
            && *document.id() == id
        {
            self.moving = Some(Moving { document, stage: stage + 1, is_parent });
            return None;
        }
        self.open.push(Cursor { stage, id, is_parent, children: 0, done: None, waiting: None });
        if let Some(mapped) = mapped {
            // It failed, or put another document in the place of this one.
            return match mapped.and_then(|()| self.take(Given::Document(document))) {
                Ok(moving) => {
                    self.moving = moving;
                    None
                }
                Err(failure) => Some(self.fail(failure)),
            };
        }
        match self.stages[stage].run(|stage| stage.start(document)) {
            Ok(()) => None,
            Err(failure) => Some(self.fail(failure)),
        }
    }

    /// Decides where what the innermost stage gave goes on.
    fn take(&mut self, given: Given) -> Result<Option<Moving>, StageFailure> {
        let children_max = self.children_max;
        let cursor = self.open.last_mut().expect("a cursor gave it");
        let failed = |message| Err(self.stages[cursor.stage].failure(message));
        match (given, &cursor.done) {
            (Given::Document(extra), Some(_)) => failed(format!(
                "it gave `{}` after its own document `{}`, which must come last and whose id no child may have",
                extra.id(),
                cursor.id
            )),
            (Given::Document(document), None) if *document.id() == cursor.id => {
                cursor.done = Some(document);
                Ok(None)
            }
            (Given::Document(_), None) if cursor.children == children_max => {
                failed(format!("it made more than {children_max} children of `{}`: raise children_max", cursor.id))
            }
            (Given::Document(mut document), None) => {
                cursor.children += 1;
                if let (None, Some(run_id)) = (document.run_id(), &self.run_id) {
                    document.initialize_run_id(run_id.clone()).expect("it has no run");
                }
                Ok(Some(Moving { document, stage: cursor.stage + 1, is_parent: false }))
            }
            (Given::End, None) => {
                failed(format!("it ended without giving its own document `{}`: drop it by marking it", cursor.id))
            }
            (Given::End, Some(_)) => {
                let cursor = self.open.pop().expect("it was there");
                let document = cursor.done.expect("it was there");
                Ok(Some(Moving { document, stage: cursor.stage + 1, is_parent: cursor.is_parent }))
            }
        }
    }

    /// Ends the path of the innermost document.
    fn fail(&mut self, failure: StageFailure) -> PipelineOutput {
        let cursor = self.open.pop().expect("a stage at work failed");
        PipelineOutput { id: cursor.id, is_parent: cursor.is_parent, result: Err(failure) }
    }
}

/// The next output of a stage at work.
async fn pull(cursor: &mut Cursor, instance: &mut Instance) -> Result<Given, StageFailure> {
    if cursor.waiting.is_none() {
        match instance.run(|stage| stage.next())? {
            Ok(Step::Next(document)) => return Ok(Given::Document(document)),
            Ok(Step::End) => return Ok(Given::End),
            Ok(Step::Wait(later)) => cursor.waiting = Some(later),
            Err(error) => return Err(instance.failure(error.message)),
        }
    }
    let later = cursor.waiting.as_mut().expect("it was set above");
    let outcome = panics::catch_future(later).await;
    let later = cursor.waiting.take();
    match outcome {
        Ok(Ok(document)) => Ok(Given::Document(document)),
        Ok(Err(error)) => Err(instance.failure(error.message)),
        Err(message) => {
            let _ = panics::catch(|| drop(later));
            Err(instance.after_panic(message))
        }
    }
}

impl Instance {
    /// Runs a call of the stage. After a panic the instance is given up.
    fn run<R>(&mut self, call: impl FnOnce(&mut dyn Stage) -> R) -> Result<R, StageFailure> {
        let (spec, stage) = (&self.spec, &mut self.stage);
        let outcome = panics::catch(|| call(&mut **stage.get_or_insert_with(|| (spec.factory)())));
        outcome.map_err(|message| self.after_panic(message))
    }

    /// Runs the stage as a map, if that is what it is.
    fn map(&mut self, document: &mut Document) -> Option<Result<(), StageFailure>> {
        let mapped = self.run(|stage| Some(stage.as_map()?.map(document)));
        let mapped = mapped.transpose()?;
        Some(mapped.and_then(|mapped| mapped.map_err(|error| self.failure(error.message))))
    }

    fn failure(&self, message: String) -> StageFailure {
        StageFailure { stage: self.spec.name.clone(), message, panicked: false }
    }

    fn after_panic(&mut self, message: String) -> StageFailure {
        let broken = self.stage.take();
        // Its `Drop` may panic too; the message of the first panic is the one that tells.
        let _ = panics::catch(|| drop(broken));
        StageFailure { stage: self.spec.name.clone(), message, panicked: true }
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.iter().map(|cursor| (&self.stages[cursor.stage].spec.name, &cursor.id));
        f.debug_map().entries(open).finish()
    }
}
