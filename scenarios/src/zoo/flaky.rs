//! A stage whose answer hangs on more than its document: attempts at one record differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use seriatim_core::pipeline::PipelineSpec;
use seriatim_core::stage::StageSpec;

use crate::drive::Variant;

/// Documents between two that are dropped.
const NOW_AND_THEN: u64 = 5;

/// A pipeline that drops a document in a while.
#[derive(Clone, Debug, Default)]
pub struct FlakyStage(Arc<AtomicU64>);

impl Variant for FlakyStage {
    fn pipeline(&self, mut spec: PipelineSpec) -> PipelineSpec {
        let met = self.0.clone();
        spec.stages.push(StageSpec::map("flaky", move |document| {
            if met.fetch_add(1, Ordering::Relaxed).is_multiple_of(NOW_AND_THEN) {
                document.mark_dropped();
            }
            Ok(())
        }));
        spec
    }
}
