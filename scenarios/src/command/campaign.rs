//! The words that campaigns and hunts have in common.

use std::num::NonZeroUsize;

use anyhow::bail;
use clap::Args;

use super::parse_seed;

/// Which seeds, how many at a time, and in which form the results come.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Campaign {
    /// How many seeds: of each scenario [default: 200], or of each range of a hunt [default: 1000].
    #[arg(long, value_parser = parse_count)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value = "0", value_parser = parse_seed, allow_negative_numbers = true)]
    pub(super) from: u64,
    /// Runs at a time [default: one a core].
    #[arg(long, value_parser = parse_jobs)]
    jobs: Option<NonZeroUsize>,
    /// JSON instead of tables.
    #[arg(long)]
    pub(super) json: bool,
}

/// Reads how many of something a campaign has.
pub(super) fn parse_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("with none nothing would be run and nothing shown; give 1 or more".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err(format!("write a whole number from 1 to {}, such as 200", u64::MAX)),
    }
}

fn parse_jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "write a whole number from 1 on, or leave it out for one a core".to_owned())
}

impl Campaign {
    /// Seeds of each of `parts` scenarios or ranges, `default` unless told otherwise, that follow each other when they
    /// are ranges. Refuses what goes beyond the last seed there is.
    pub(super) fn seeds(&self, default: u64, parts: u64) -> anyhow::Result<u64> {
        let seeds = self.seeds.unwrap_or(default);
        if seeds.checked_mul(parts).and_then(|all| self.from.checked_add(all - 1)).is_none() {
            let times = if parts == 1 { String::new() } else { format!("{parts} times ") };
            bail!("{times}{seeds} seeds from {} go beyond {}; take fewer or start lower", self.from, u64::MAX);
        }
        Ok(seeds)
    }

    /// Runs at a time: as asked, or one a core.
    pub(super) fn jobs(&self) -> NonZeroUsize {
        self.jobs.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}
