//! What lies on the wire: the documents, and how many bytes each hop of the pipeline makes of them. Bare hops send as
//! many, without reading any.

use anyhow::Context;
use benches::{line, stages};
use bytes::Bytes;
use futures_util::FutureExt;
use seriatim_core::document::Document;
use seriatim_core::event::{Event, FamilyDigest, encode_batch};
use seriatim_core::identity::{Envelope, RunId, Ticket, Version};
use seriatim_core::pipeline::{Pipeline, PipelineSpec};

/// Of the stages' specification.
pub fn pipeline() -> PipelineSpec {
    PipelineSpec::new("bench", stages())
}

/// The lines of `docs` documents, from number `first`.
pub fn lines(first: usize, docs: usize) -> Vec<Bytes> {
    (first..first + docs).map(line).collect()
}

/// A record of the source topic.
#[derive(Clone, Debug)]
pub struct SourceRecord {
    pub key: String,
    pub value: Bytes,
    pub header: Bytes,
}

/// Bytes that the hops after the first add, a document.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// What the stages make a value longer by, the mean.
    pub grown: usize,
    /// An event, the mean.
    pub event: usize,
}

fn envelope(number: u64) -> Envelope {
    let ticket = Ticket { run: RunId(u128::MAX / 3), sequence: number, attempt: 0, ordinal: 0 };
    // Numbers of the lengths that real ones have.
    let version = Version::from_hlc(1_790_000_000_000_000 + number);
    Envelope { ticket, version, is_parent: true, source_partitions: 4, dest_partitions: 4, ..Envelope::default() }
}

/// What the publisher of a pipeline would send for document `number`.
pub fn source_record(number: usize) -> anyhow::Result<SourceRecord> {
    let envelope = envelope(number as u64);
    let mut document = Document::parse(line(number)).context("the documents that are measured")?;
    document.initialize_run_id(envelope.ticket.run.to_string())?;
    Ok(SourceRecord { key: document.id().to_string(), value: document.to_json(), header: envelope.encode() })
}

/// What the hops after the first add, over some documents.
pub fn sizes() -> anyhow::Result<Sizes> {
    const SAMPLE: usize = 1_000;
    let mut pipeline = Pipeline::new(&pipeline());
    let (mut source, mut dest, mut events) = (0, 0, Vec::new());
    for number in 100_000..100_000 + SAMPLE {
        let record = source_record(number)?;
        source += record.value.len();
        pipeline.start(Document::parse(record.value)?);
        let output = pipeline.next().now_or_never().flatten().context("the stages give one output at once")?;
        dest += output.result.map_err(|failure| anyhow::anyhow!("{failure}"))?.to_json().len();
        let mut envelope = envelope(number as u64);
        envelope.ticket.attempt = u64::MAX / 2 + number as u64;
        envelope.digest = FamilyDigest::default().finish();
        events.push(Event::finished(&envelope, &record.key, 1_790_000_000_000_000));
    }
    Ok(Sizes { grown: dest.saturating_sub(source) / SAMPLE, event: encode_batch(&events).len() / SAMPLE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_make_documents_longer_and_an_event_is_a_line() {
        let sizes = sizes().expect("they can be measured");
        assert!((20..100).contains(&sizes.grown), "{sizes:?}");
        assert!((100..400).contains(&sizes.event), "{sizes:?}");
    }
}
