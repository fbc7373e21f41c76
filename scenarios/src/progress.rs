//! How far a campaign or a hunt is: a bar on a terminal, a plain line every few seconds elsewhere.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::explore::Progress;
use crate::run::Stopwatch;

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Tells on `err` how far a campaign is.
pub struct Reporter<'a> {
    name: &'a str,
    /// What is counted, in the singular.
    unit: &'a str,
    bar: Option<ProgressBar>,
    err: &'a mut dyn Write,
    since_line: Stopwatch,
}

impl<'a> Reporter<'a> {
    /// For the campaign `name`, which counts in `unit`s.
    pub fn new(name: &'a str, unit: &'a str, err: &'a mut dyn Write, is_live: bool) -> Self {
        let bar = is_live.then(|| {
            let template = format!("{{prefix}} [{{bar:30}}] {{pos}}/{{len}} {unit}s, {{per_sec}}, {{eta}} left{{msg}}");
            let bar = ProgressBar::new(0).with_prefix(name.to_owned());
            bar.set_style(ProgressStyle::with_template(&template).expect("the template is constant"));
            bar
        });
        Reporter { name, unit, bar, err, since_line: Stopwatch::start() }
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
            bar.set_length(of);
            bar.set_position(done);
            bar.set_message(words);
        } else if self.since_line.elapsed() >= LINE_EVERY {
            let _ = writeln!(self.err, "{}: {done} of {of} {}s{words}", self.name, self.unit);
            self.since_line = Stopwatch::start();
        }
    }
}
