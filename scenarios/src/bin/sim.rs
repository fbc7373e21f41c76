//! The `sim` command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use scenarios::command::{Command, Terminal};
use scenarios::drive::{Correct, Simulated};

fn main() -> ExitCode {
    let command = Command::parse();
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let is_live = err.is_terminal();
    scenarios::interrupt::listen();
    let mut terminal = Terminal::new(&mut out, &mut err, is_live);
    ExitCode::from(command.execute(&Simulated(Correct), &mut terminal) as u8)
}
