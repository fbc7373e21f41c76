//! The `sim` command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use scenarios::command::{Command, Terminal};
use scenarios::drive::{Correct, Simulated};

/// A run allocates for every record; this takes an eighth of its time off.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = Command::parse();
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let is_live = err.is_terminal();
    scenarios::interrupt::listen();
    let mut terminal = Terminal::new(&mut out, &mut err, is_live);
    ExitCode::from(command.execute(&Simulated(Correct), &mut terminal) as u8)
}
