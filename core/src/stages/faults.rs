//! Stages that fail, panic or take their time on demand, for scenarios and tests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::document::Document;
use crate::env::Env;
use crate::stage::{Stage, StageError, StageSpec, Step};
use crate::stages::Trigger;

/// How to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// By an error.
    Error,
    /// By a panic.
    Panic,
}

/// Fails on demand.
#[derive(Clone, Debug)]
pub struct FailOn;

impl FailOn {
    /// Fails for the documents that `trigger` means.
    pub fn spec(name: &str, trigger: Trigger, fault: Fault) -> StageSpec {
        StageSpec::map(name, move |document| {
            let message = || format!("told to fail for `{}`", document.id());
            match fault {
                _ if !trigger.meets(document) => Ok(()),
                Fault::Error => Err(StageError::new(message())),
                Fault::Panic => panic!("{}", message()),
            }
        })
    }
}

/// Waits: [`Env::sleep`] of whatever environment.
pub type Sleeper = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// The sleeper of `env`.
pub fn sleeper<E: Env>(env: E) -> Sleeper {
    Arc::new(move |duration| {
        let env = env.clone();
        Box::pin(async move { env.sleep(duration).await })
    })
}

/// Takes its time on demand, without holding up its thread.
pub struct SlowOn {
    trigger: Trigger,
    delay: Duration,
    sleeper: Sleeper,
    document: Option<Document>,
}

impl SlowOn {
    /// Holds the documents that `trigger` means for `delay`.
    pub fn spec(name: &str, trigger: Trigger, delay: Duration, sleeper: Sleeper) -> StageSpec {
        StageSpec::new(name, move || SlowOn {
            trigger: trigger.clone(),
            delay,
            sleeper: sleeper.clone(),
            document: None,
        })
    }
}

impl Stage for SlowOn {
    fn start(&mut self, document: Document) {
        self.document = Some(document);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(document) = self.document.take() else { return Ok(Step::End) };
        if !self.trigger.meets(&document) {
            return Ok(Step::Next(document));
        }
        let slept = (self.sleeper)(self.delay);
        Ok(Step::Wait(Box::pin(async move {
            slept.await;
            Ok(document)
        })))
    }
}

impl fmt::Debug for SlowOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlowOn { trigger, delay, document, .. } = self;
        f.debug_struct("SlowOn")
            .field("trigger", trigger)
            .field("delay", delay)
            .field("document", document)
            .finish_non_exhaustive()
    }
}
