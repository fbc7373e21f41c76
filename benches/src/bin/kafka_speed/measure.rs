//! The measurement: everything in turn, round after round.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context;

use crate::Measured;
use crate::arrangement::Arrangement;
use crate::crew::{Sample, perform};
use crate::part::{Names, Role, Work};
use crate::site::{Bytes, Site};
use crate::table;

/// Documents before the clock starts.
const WARM_UP: usize = 2_000;
/// The same of what goes one by one.
const WARM_UP_ONE_BY_ONE: usize = 20;

/// What was measured of one arrangement.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    pub samples: Vec<Sample>,
    /// In the broker's log at the end of the last, warm-up and all.
    pub bytes: Option<Bytes>,
    pub docs_in_log: usize,
}

/// By arrangement.
pub type Results = BTreeMap<Arrangement, Measurements>;

/// Measures, prints the document, and writes it where it was asked for.
pub fn measure(measured: &Measured) -> anyhow::Result<()> {
    let names = Arrangement::ALL.map(Arrangement::name);
    if let Some(unknown) = measured.only.iter().find(|only| !names.contains(&only.as_str())) {
        anyhow::bail!("--only {unknown}: give one of {}", names.join(", "));
    }
    let is_wanted = |one: &Arrangement| measured.only.is_empty() || measured.only.iter().any(|only| only == one.name());
    let wanted: Vec<_> = Arrangement::ALL.into_iter().filter(is_wanted).collect();
    let site = Site::open(measured)?;
    let filled = Names::of("speed-filled");
    // A broker that is there already may have it from a run that was cut short.
    let _ = site.remove(&filled);
    if wanted.iter().any(|one| one.is_copy()) {
        site.make(&filled)?;
        let work = work(&site, &filled, measured.docs, 0);
        perform(Role::Fill, &[], &work, None).context("filling the topic that is copied")?;
    }
    let mut results = Results::new();
    for round in usize::from(measured.cold)..=measured.rounds {
        for arrangement in &wanted {
            let done = one(&site, measured, *arrangement, round, &filled);
            let (sample, bytes, docs_in_log) = done.with_context(|| arrangement.name())?;
            let counted = if round == 0 { "warm-up" } else { "round" };
            eprintln!(
                "{counted} {round} of {}: {}: {} docs/s, {:.1} µs of processor time a document",
                measured.rounds,
                arrangement.name(),
                table::number(sample.rate()),
                sample.cost()
            );
            if round > 0 {
                let of = results.entry(*arrangement).or_default();
                of.samples.push(sample);
                (of.bytes, of.docs_in_log) = (bytes, docs_in_log);
            }
        }
    }
    site.remove(&filled)?;
    let document = table::document(measured, &results);
    println!("{document}");
    if let Some(path) = &measured.markdown {
        fs::write(path, &document).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn work(site: &Site, names: &Names, docs: usize, warm_up: usize) -> Work {
    let (kafka, name) = (site.kafka.clone(), names.pipeline.clone());
    Work { kafka, name, docs, warm_up, linger: None, source: None }
}

/// One measurement, on topics of its own.
fn one(
    site: &Site,
    measured: &Measured,
    arrangement: Arrangement,
    round: usize,
    filled: &Names,
) -> anyhow::Result<(Sample, Option<Bytes>, usize)> {
    let names = Names::of(&format!("speed-{round}-{}-{}", arrangement.name(), std::process::id()));
    let (docs, warm_up) = match arrangement {
        one if one.is_one_by_one() => (measured.docs_one_by_one, WARM_UP_ONE_BY_ONE),
        one if one.is_copy() => (measured.docs, 0),
        _ => (measured.docs, WARM_UP.min(measured.docs)),
    };
    let mut work = work(site, &names, docs, warm_up);
    work.source = arrangement.is_copy().then(|| filled.source.clone());
    work.linger = match arrangement {
        Arrangement::PatternAtOnce => Some(0),
        Arrangement::Pattern => None,
        _ => measured.linger,
    };
    site.make(&names)?;
    let (clocked, others) = arrangement.roles(measured);
    let sample = perform(clocked, &others, &work, site.broker)?.context("its process said no time")?;
    let bytes = site.bytes(&names);
    site.remove(&names)?;
    Ok((sample, bytes, work.docs + work.warm_up))
}
