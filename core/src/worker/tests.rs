//! When finished outputs leave.

use std::sync::{Arc, Mutex};

use futures_util::future::FutureExt;

use super::*;
use crate::intake::Claim;
use crate::stage::{Stage, StageError, StageSpec, Step};
use crate::testing::Bench;

/// Waits an hour over the document `slow`.
struct Slow(Bench, Option<Document>, bool);

impl Stage for Slow {
    fn start(&mut self, document: Document) {
        (self.1, self.2) = (Some(document), false);
    }

    fn next(&mut self) -> Result<Step, StageError> {
        let Some(document) = self.1.take() else { return Ok(Step::End) };
        if document.id() != "slow" {
            return Ok(Step::Next(document));
        }
        let env = self.0.clone();
        let later = async move {
            env.sleep(Duration::from_secs(3_600)).await;
            Ok(document)
        };
        Ok(Step::Wait(later.boxed()))
    }
}

#[derive(Clone)]
struct Batch(Vec<&'static str>, Arc<Mutex<Vec<CompactString>>>);

impl WorkerMessenger for Batch {
    async fn poll(&mut self, _: usize) -> Result<Option<Vec<Work>>, MessengerError> {
        if self.0.is_empty() {
            std::future::pending::<()>().await;
        }
        let work = |id| Work {
            payload: Payload::Document(Document::new(id).unwrap(), Envelope::default()),
            claim: Claim::unfenced(),
        };
        Ok(Some(std::mem::take(&mut self.0).into_iter().map(work).collect()))
    }

    async fn send(&mut self, emissions: Vec<Emission>) -> Result<(), MessengerError> {
        let outputs = emissions.into_iter().flat_map(|emission| emission.outputs);
        self.1.lock().unwrap().extend(outputs.map(|output| output.document.id().clone()));
        Ok(())
    }

    fn drain(&mut self) {}

    async fn close(&mut self) {}
}

#[test]
fn a_finished_output_does_not_wait_for_a_slow_document_behind_it() {
    let (bench, passed) = (Bench::default(), Arc::default());
    let env = bench.clone();
    let pipeline = PipelineSpec::new("p", vec![StageSpec::new("slow", move || Slow(env.clone(), None, false))]);
    let messenger = Batch(vec!["a", "b", "slow", "c"], Arc::clone(&passed));
    let worker = Worker::new(bench.clone(), messenger, &pipeline, WorkerConfig::default(), Stop::new());
    bench.run(Duration::from_millis(50), worker.run());
    assert_eq!(*passed.lock().unwrap(), ["a", "b"]);
}
