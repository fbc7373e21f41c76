//! How far a campaign is: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::explore::Progress;
use crate::run::Stopwatch;

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Tells on `err` how far the campaign of one scenario is.
pub struct Reporter<'a> {
    name: &'a str,
    bar: Option<ProgressBar>,
    err: &'a mut dyn Write,
    since_line: Stopwatch,
}

impl<'a> Reporter<'a> {
    /// For `count` seeds of the scenario `name`.
    pub fn new(name: &'a str, count: u64, err: &'a mut dyn Write, is_live: bool) -> Self {
        let bar = is_live.then(|| {
            let style =
                ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} seeds, {per_sec}, {eta} left{msg}");
            let bar = ProgressBar::new(count).with_prefix(name.to_owned());
            bar.set_style(style.expect("the template is constant"));
            bar
        });
        Reporter { name, bar, err, since_line: Stopwatch::start() }
    }

    /// Clears the bar.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Reporter<'_> {
    fn step(&mut self, done: u64, of: u64, failed: usize) {
        let words = if failed == 0 { String::new() } else { format!(", {failed} failed") };
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(words);
        } else if self.since_line.elapsed() >= LINE_EVERY {
            let _ = writeln!(self.err, "{}: {done} of {of} seeds{words}", self.name);
            self.since_line = Stopwatch::start();
        }
    }
}
