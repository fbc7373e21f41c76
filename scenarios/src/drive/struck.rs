//! Which faults struck, and what was in flight then: counted for the report and written into the history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim_sim::history::{Recorder, What};

use crate::fault::FaultKind;
use crate::run::Strikes;

/// The strikes of one run. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    strikes: Arc<Mutex<BTreeMap<FaultKind, Strikes>>>,
    recorder: Recorder,
}

impl Struck {
    /// No strikes yet; what strikes is written to `recorder`.
    pub(crate) fn new(recorder: Recorder) -> Self {
        Struck { strikes: Arc::default(), recorder }
    }

    /// Notes a strike on `target` with so many records in flight.
    pub(super) fn note(&self, kind: FaultKind, target: &str, in_flight: u64) {
        self.count(kind, in_flight);
        let what = What::FaultInjected { kind: kind.name().into(), target: target.into(), in_flight };
        self.recorder.record(&"world".into(), 0, what);
    }

    /// Counts a strike that the history has already.
    pub(super) fn count(&self, kind: FaultKind, in_flight: u64) {
        *self.lock().entry(kind).or_default() += Strikes::one(in_flight);
    }

    pub(super) fn take(&self) -> BTreeMap<FaultKind, Strikes> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FaultKind, Strikes>> {
        self.strikes.lock().expect("no code panics while it counts")
    }
}
