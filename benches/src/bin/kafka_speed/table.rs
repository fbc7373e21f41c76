//! The document: what was measured, as a person reads it.

use std::fmt::Write as _;

use crate::Measured;
use crate::arrangement::Arrangement;
use crate::measure::{Measurements, Results};
use crate::payload;
use crate::site::PARTITIONS;

/// Least, middle and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => (values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0,
            _ => *values.get(middle)?,
        };
        Some(Spread { least: *values.first()?, median, most: *values.last()? })
    }
}

/// With three digits that count, and commas.
pub fn number(value: f64) -> String {
    let unit = 10_f64.powi((value.max(1.0).log10().floor() as i32 - 2).max(0));
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Ratios of two arrangements, round by round: of rates, and of processor time.
fn ratios(results: &Results, of: Arrangement, to: Arrangement) -> Option<(Spread, Spread)> {
    let (of, to) = (results.get(&of)?, results.get(&to)?);
    let pairs = || of.samples.iter().zip(&to.samples);
    let rate = Spread::of(pairs().map(|(of, to)| of.rate() / to.rate()))?;
    let cost = Spread::of(pairs().map(|(of, to)| of.cost() / to.cost().max(f64::MIN_POSITIVE)))?;
    Some((rate, cost))
}

/// The whole document.
pub fn document(measured: &Measured, results: &Results) -> String {
    let mut out = String::new();
    head(&mut out, measured);
    rates(&mut out, results);
    compared(&mut out, results);
    bytes(&mut out, results);
    out
}

fn head(out: &mut String, measured: &Measured) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let sizes = payload::sizes().ok();
    let (grown, event) = sizes.map_or((0, 0), |sizes| (sizes.grown, sizes.event));
    let lines = payload::lines(0, 1_000);
    let line = lines.iter().map(|line| line.len()).sum::<usize>() / lines.len();
    let source = payload::source_record(0).map_or(0, |record| record.value.len());
    let _ = write!(
        out,
        "# Throughput on a real Kafka, beside bare hops\n\n\
        {} documents of {line} bytes a measurement, {} rounds in turn on one broker (Apache Kafka {}, {PARTITIONS} \
        partitions a topic); broker and all processes on the same machine with {cores} cores. Workers {}, indexers {}. \
        Documents go through four stages (trim, concatenate, rename, set); the index takes everything and keeps \
        nothing.\n\n\
        Bare hops are hand-written programs over rdkafka, in as many processes: they make the same hops with as many \
        bytes (a record of {source} bytes and a header, {grown} more behind the worker, {event} of an event a \
        document, told by the batch of 500), read no document, and commit every second what is acknowledged, as the \
        pipeline does. All producers are idempotent with `acks=all`; linger, batches, queues and prefetch are the \
        same.\n\n",
        number(measured.docs as f64),
        measured.rounds,
        seriatim_kafka_dev::VERSION,
        measured.workers,
        measured.indexers,
    );
}

fn rates(out: &mut String, results: &Results) {
    out.push_str("| what | documents a second: median (least–most) | processor time a document: clients + broker |\n");
    out.push_str("|---|---|---|\n");
    for (arrangement, Measurements { samples, .. }) in results {
        let Some(rate) = Spread::of(samples.iter().map(|sample| sample.rate())) else { continue };
        let each = |of: fn(&crate::site::Processor) -> u64| {
            Spread::of(samples.iter().map(|sample| of(&sample.processor) as f64 / sample.docs.max(1) as f64))
                .map_or(0.0, |spread| spread.median)
        };
        let (clients, broker) = (each(|processor| processor.clients), each(|processor| processor.broker));
        let (median, least, most) = (number(rate.median), number(rate.least), number(rate.most));
        let words = arrangement.words();
        let _ = writeln!(out, "| {words} | {median} ({least}–{most}) | {clients:.1} + {broker:.1} µs |");
    }
}

fn compared(out: &mut String, results: &Results) {
    use Arrangement::{BareCopy, BareDistributed, BareHybrid, Distributed, Hybrid, PlainCopy};
    out.push_str("\n| ratio, round by round | of rates: median (least–most) | of processor time |\n|---|---|---|\n");
    for (words, of, to) in [
        ("bare copy hop to plain copy (0.8 is due)", BareCopy, PlainCopy),
        ("**distributed to bare hops** (the aim is 0.7)", Distributed, BareDistributed),
        ("**hybrid to bare hops** (the aim is 0.7)", Hybrid, BareHybrid),
    ] {
        if let Some((Spread { least, median, most }, cost)) = ratios(results, of, to) {
            let cost = cost.median;
            let _ = writeln!(out, "| {words} | {median:.2} ({least:.2}–{most:.2}) | {cost:.2} |");
        }
    }
}

fn bytes(out: &mut String, results: &Results) {
    if results.values().all(|of| of.bytes.is_none()) {
        return;
    }
    out.push_str("\n| bytes in the broker's log a document | source | destination | events |\n|---|---|---|---|\n");
    for (arrangement, of) in results.iter().filter(|(one, _)| !one.is_copy() && !one.is_one_by_one()) {
        if let Some(bytes) = of.bytes {
            let each = |bytes: u64| bytes / of.docs_in_log.max(1) as u64;
            let (source, dest, events) = (each(bytes.source), each(bytes.dest), each(bytes.events));
            let _ = writeln!(out, "| {} | {source} | {dest} | {events} |", arrangement.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { least: 1.0, median: 2.0, most: 3.0 }));
        assert_eq!(Spread::of([4.0, 2.0]), Some(Spread { least: 2.0, median: 3.0, most: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let read = [(131.6, "132"), (13_862.0, "13,900"), (1_234_567.0, "1,230,000"), (0.4, "0"), (999.6, "1,000")];
        for (value, due) in read {
            assert_eq!(number(value), due);
        }
    }
}
