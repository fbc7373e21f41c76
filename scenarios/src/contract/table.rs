//! Every rule of the contract × every site: holds, or fails with words.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::{NotHere, Rule};

/// How a rule ended at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It is broken, in this way.
    Fails(String),
    /// It cannot be checked there, for this reason.
    NotRun(String),
}

impl Verdict {
    /// The verdict of a check.
    pub fn of(result: &Result<()>) -> Self {
        match result {
            Ok(()) => Verdict::Holds,
            Err(error) if error.is::<NotHere>() => Verdict::NotRun(error.to_string()),
            Err(error) => Verdict::Fails(format!("{error:#}")),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Fails(_) => "fails",
            Verdict::NotRun(_) => "not run",
        }
    }

    fn words(&self) -> Option<&str> {
        match self {
            Verdict::Holds => None,
            Verdict::Fails(words) | Verdict::NotRun(words) => Some(words),
        }
    }
}

/// All verdicts of one site.
#[derive(Clone, Debug)]
pub struct Column {
    /// The site.
    pub name: String,
    /// One a rule, in order.
    pub verdicts: Vec<Verdict>,
}

/// Rules and their verdicts.
#[derive(Clone, Debug)]
pub struct Table {
    /// The rules.
    pub rules: Vec<Rule>,
    /// The sites.
    pub columns: Vec<Column>,
}

impl Table {
    /// Whether no rule is broken anywhere.
    pub fn holds(&self) -> bool {
        let fails = |verdict: &Verdict| matches!(verdict, Verdict::Fails(_));
        !self.columns.iter().flat_map(|column| &column.verdicts).any(fails)
    }

    /// Everything that does not simply hold, a line each.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (place, rule) in self.rules.iter().enumerate() {
            for column in &self.columns {
                if let Some(words) = column.verdicts[place].words() {
                    remarks.push(format!("{}, {}: {words}", rule.name, column.name));
                }
            }
        }
        remarks
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        let width = self.rules.iter().map(|rule| rule.name.len()).max().unwrap_or(0);
        let mut text = format!("{:width$}", "rule");
        for column in &self.columns {
            let _ = write!(text, "  {}", column.name);
        }
        for (place, rule) in self.rules.iter().enumerate() {
            let _ = write!(text, "\n{:width$}", rule.name);
            for column in &self.columns {
                let _ = write!(text, "  {:columns$}", column.verdicts[place].word(), columns = column.name.len());
            }
            text.truncate(text.trim_end().len());
        }
        for remark in self.remarks() {
            let _ = write!(text, "\n\n{remark}");
        }
        text
    }

    /// As a document.
    pub fn markdown(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let mut text = String::from(
            "# The contract of the transport port\n\nMade by `cargo sim contract --real --markdown \
             scenarios/results/contract.md`. Each rule has been seen failing against a transport that breaks it \
             (`scenarios/tests/contract.rs`).\n\n",
        );
        let _ = writeln!(text, "| rule | what it says | {} |", names.join(" | "));
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(names.len()));
        for (place, rule) in self.rules.iter().enumerate() {
            let words: Vec<&str> = self.columns.iter().map(|column| column.verdicts[place].word()).collect();
            let _ = writeln!(text, "| `{}` | {} | {} |", rule.name, rule.words, words.join(" | "));
        }
        for remark in self.remarks() {
            let _ = writeln!(text, "\n- {remark}");
        }
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let row = |(place, rule): (usize, &Rule)| {
            let verdict = |column: &Column| {
                let verdict = &column.verdicts[place];
                (column.name.clone(), json!({ "verdict": verdict.word(), "words": verdict.words() }))
            };
            let verdicts: serde_json::Map<String, Value> = self.columns.iter().map(verdict).collect();
            json!({ "rule": rule.name, "says": rule.words, "verdicts": verdicts })
        };
        Value::Array(self.rules.iter().enumerate().map(row).collect())
    }
}
