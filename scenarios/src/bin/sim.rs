//! The `sim` command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use scenarios::command::{Command, Terminal};
use scenarios::plan::Plan;
use scenarios::run::{Outcome, RunOptions, RunReport};

fn main() -> ExitCode {
    let command = Command::parse();
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let is_live = err.is_terminal();
    let mut terminal = Terminal { out: &mut out, err: &mut err, is_live };
    ExitCode::from(command.execute(&run_plan, &mut terminal) as u8)
}

fn run_plan(_: &Plan, _: &RunOptions) -> RunReport {
    RunReport::of(Outcome::Harness("no world is wired to the command yet".to_owned()))
}
