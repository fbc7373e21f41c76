//! What people read of a hunt: who was caught by what after how many seeds, and which checker cannot be spared.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::{counted, grouped};
use crate::zoo::Animal;
use crate::zoo::hunt::{Bag, Broken, Hunt, Ranges, Searched};

/// Both tables, and what the correct pipeline did.
pub fn tables(hunt: &Hunt, ranges: Ranges) -> String {
    let mut out = format!("{}\n\n{}\n", animals(hunt, ranges), checkers(hunt));
    for (scenario, correct) in &hunt.correct {
        let seeds = counted(correct.seeds, "seed");
        match correct.barks.first_key_value() {
            None => write!(out, "\nThe correct pipeline passes the {seeds} of {scenario} that were searched."),
            Some((seed, broken)) => write!(
                out,
                "\nThe correct pipeline fails {} of {seeds} of {scenario}; the first is {seed}: {}",
                grouped(correct.barks.len() as u64),
                broken.iter().map(|broken| broken.property.as_str()).collect::<Vec<_>>().join(", ")
            ),
        }
        .expect("a String takes everything");
    }
    out
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_NO_BORDERS);
    table.set_header(header);
    table
}

fn animals(hunt: &Hunt, ranges: Ranges) -> String {
    let mut table = table(&["animal", "mistake", "scenario", "caught", "by (ranges)", "median seeds", "worst"]);
    for bag in &hunt.bags {
        let by = bag.by_property().into_iter();
        let by = by.map(|(broken, count)| format!("{}: {} ({count})", broken.checker, broken.property));
        let (median, worst) = bag.median_and_worst().unzip();
        let number = |number: Option<u64>| number.map(grouped).unwrap_or_default();
        table.add_row([
            bag.animal.name.to_owned(),
            bag.animal.mistake.to_owned(),
            bag.animal.scenario.to_owned(),
            format!("{} of {}", bag.catches().count(), ranges.count),
            by.collect::<Vec<_>>().join("\n"),
            number(median),
            number(worst),
        ]);
    }
    table.trim_fmt()
}

fn checkers(hunt: &Hunt) -> String {
    let mut table = table(&["checker", "speaks of", "and alone of (catches)"]);
    for worth in hunt.worth() {
        let of = |animal: &Animal| hunt.bags.iter().find(|bag| bag.animal.name == animal.name);
        let alone = worth.alone.iter().map(|(animal, count)| {
            format!("{} ({count} of {})", animal.name, of(animal).map_or(0, |bag| bag.catches().count()))
        });
        let alone: Vec<String> = alone.collect();
        table.add_row([worth.checker, counted(worth.catches.len() as u64, "animal"), alone.join("\n")]);
    }
    table.trim_fmt()
}

/// The whole hunt as one JSON document.
pub fn as_json(hunt: &Hunt, ranges: Ranges, interrupted: bool) -> Value {
    let correct = |(scenario, correct): (&&str, &crate::zoo::hunt::Barks)| {
        let barks: BTreeMap<String, Vec<Value>> =
            correct.barks.iter().map(|(seed, broken)| (seed.to_string(), broken.iter().map(one).collect())).collect();
        json!({ "scenario": scenario, "seeds": correct.seeds, "barks": barks })
    };
    let checkers = hunt.worth().into_iter().map(|worth| {
        let catches: BTreeMap<&str, usize> =
            worth.catches.iter().map(|(animal, count)| (animal.name, *count)).collect();
        let alone: BTreeMap<&str, usize> = worth.alone.iter().map(|(animal, count)| (animal.name, *count)).collect();
        json!({ "checker": worth.checker, "speaks_of": catches, "alone": alone })
    });
    json!({
        "from": ranges.from,
        "ranges": ranges.count,
        "seeds_per_range": ranges.seeds,
        "interrupted": interrupted,
        "holds": hunt.holds() && !interrupted,
        "toothless": hunt.toothless(),
        "animals": hunt.bags.iter().map(animal).collect::<Vec<_>>(),
        "checkers": checkers.collect::<Vec<_>>(),
        "correct": hunt.correct.iter().map(correct).collect::<Vec<_>>(),
    })
}

fn one(broken: &Broken) -> Value {
    json!({ "checker": broken.checker, "property": broken.property })
}

fn animal(bag: &Bag) -> Value {
    let range = |range: &Searched| match range {
        Searched::Caught { seed, after, broken } => {
            json!({ "seed": seed, "searched": after, "broken": broken.iter().map(one).collect::<Vec<_>>() })
        }
        Searched::Escaped => json!("escaped"),
        Searched::Interrupted => json!("interrupted"),
    };
    let (median, worst) = bag.median_and_worst().unzip();
    json!({
        "animal": bag.animal.name,
        "mistake": bag.animal.mistake,
        "scenario": bag.animal.scenario,
        "properties": bag.animal.properties,
        "caught": bag.catches().count(),
        "median": median,
        "worst": worst,
        "ranges": bag.ranges.iter().map(range).collect::<Vec<_>>(),
    })
}
