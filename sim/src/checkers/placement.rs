//! Where records lie: at each hop, equal keys of one run lie in one partition, however many the topic has by now; so do
//! its dead letters, whose topic does not grow.
//!
//! Only there is order per key order per partition. Judged by the records that are known to lie somewhere, so that it
//! does not matter who chose the partition: the pipeline, or, of a dead letter, its producer's partitioner.

use seriatim_core::identity::RunId;

use super::facts::{At, Role};
use super::keyed::Keyed;
use super::{History, Violation};

const CHECKER: &str = "placement";

pub(super) fn check(history: &History<'_>, found: &mut Vec<Violation>) {
    // The first partition in which a key of a run is seen, and the event that says so.
    let mut homes: Keyed<(&str, RunId, &[u8]), (i32, At)> = Keyed::default();
    for (partition, records) in &history.index.records {
        if !matches!(Role::of(&partition.topic), Role::Source | Role::Dest | Role::Fail) {
            continue;
        }
        for (offset, known) in records.range(..) {
            let (Some(ticket), Some(key)) = (known.ticket, &known.key) else { continue };
            let home = homes.entry((&*partition.topic, ticket.run, &**key)).or_insert((partition.partition, known.at));
            if home.0 != partition.partition {
                let id = String::from_utf8_lossy(key);
                let words = format!(
                    "key {id} of run {:?} lies in partition {} of {} and, at {offset}, in {}",
                    ticket.run, home.0, partition.topic, partition.partition
                );
                let violation = Violation::new(CHECKER, "key-moved", words, [home.1, known.at]);
                found.push(violation.on(partition).about(&*id));
            }
        }
    }
}
