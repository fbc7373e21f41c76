//! `cargo sim contract`, and the child processes that it starts.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use seriatim_kafka_dev::{Cluster, Options, testing};

use super::Terminal;
use crate::contract::puppet::Script;
use crate::contract::table::{Column, Table, Verdict};
use crate::contract::{Rule, find, real, simulated};
use crate::report;
use crate::run::Exit;

/// Seeds of each rule in the simulated cluster.
const SEEDS: u64 = 5;

#[derive(Args, Debug)]
pub(super) struct Contract {
    /// Checks a real broker and a real cluster of three too: Kafka is started for it, with Java 17 and Maven.
    #[arg(long)]
    real: bool,
    /// Only this rule; may be given several times.
    #[arg(long, value_name = "RULE")]
    only: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Writes the table here, as a document.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl Contract {
    pub(super) fn execute(self, terminal: &mut Terminal<'_>) -> anyhow::Result<Exit> {
        let rules = find(&self.only)?;
        let mut columns = vec![simulated(&rules)];
        if self.real {
            for (name, nodes) in [("real, 1 node", 1), ("real, 3 nodes", 3)] {
                columns.push(on_nodes(name, nodes, &rules, terminal)?);
            }
        }
        let table = Table { rules, columns };
        if self.json {
            terminal.say(table.json());
        } else {
            terminal.say(table.text());
        }
        if let Some(path) = &self.markdown {
            std::fs::write(path, table.markdown()).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(if table.holds() { Exit::Pass } else { Exit::Failed })
    }
}

/// Every rule in a few worlds; the first that breaks it speaks.
fn simulated(rules: &[Rule]) -> Column {
    let check = |rule: &Rule| (0..SEEDS).try_for_each(|seed| simulated::check(seed, rule.name, None));
    Column { name: "simulated".into(), verdicts: rules.iter().map(|rule| Verdict::of(&check(rule))).collect() }
}

fn on_nodes(name: &str, nodes: u32, rules: &[Rule], terminal: &mut Terminal<'_>) -> anyhow::Result<Column> {
    let program = std::env::current_exe().context("finding this program, of which members are child processes")?;
    let named = testing::named_broker().filter(|_| nodes == 1);
    let mut started = None;
    let place = match named {
        Some(bootstrap) => real::Place::named(bootstrap, program),
        None => {
            terminal.complain(format_args!("{name}: starting Kafka"));
            let cluster = Cluster::start(&Options { nodes, lossy: true, ..Options::default() })?;
            real::Place::of(started.insert(cluster), program)
        }
    };
    let mut ended = 0;
    let results = real::check(place, rules, |rule, result| {
        ended += 1;
        let word = if result.is_ok() { "holds" } else { "does not hold" };
        let of = report::counted(rules.len() as u64, "rule");
        terminal.complain(format_args!("{name}: {} {word} ({ended} of {of})", rule.name));
    })?;
    Ok(Column { name: name.into(), verdicts: results.iter().map(Verdict::of).collect() })
}

#[derive(Args, Debug)]
pub(super) struct Puppet {
    /// The brokers.
    #[arg(long)]
    bootstrap: String,
    /// What it plays, as JSON.
    #[arg(long, value_parser = parse_script)]
    script: Script,
}

fn parse_script(text: &str) -> Result<Script, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl Puppet {
    pub(super) fn execute(self) -> anyhow::Result<Exit> {
        real::play(&self.bootstrap, self.script)?;
        Ok(Exit::Pass)
    }
}
