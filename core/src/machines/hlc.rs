//! Versions: the publisher's hybrid logical clock, and the numbering of outputs that share an id.
//!
//! The clock follows the wall but never goes back with it, and stays above every version that it was shown, so that a
//! later publish always outranks an earlier one. Versions themselves are in [`crate::identity`].

use std::collections::BTreeMap;

use compact_str::CompactString;

use crate::identity::Version;

/// A hybrid logical clock, microseconds since the Unix epoch.
#[derive(Debug)]
pub struct Hlc {
    last: u64,
}

/// A version that no clock of this system can have given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {} is beyond any clock: who wrote it? Versions of publishers end in the year 2112", .0.0)]
pub struct ForeignVersion(pub Version);

impl Hlc {
    /// Readings of wall clocks and of other publishers must lie below: half of what a version can hold (the year 2112),
    /// so that the clock never runs out above them.
    pub const WALL_END: u64 = 1 << 52;

    /// A clock whose first reading is above `floor_micros`.
    pub fn new(floor_micros: u64) -> Self {
        Hlc { last: floor_micros.min(Self::WALL_END) }
    }

    /// The next reading: above every earlier one and everything observed, and not below `wall_micros`.
    pub fn next(&mut self, wall_micros: u64) -> u64 {
        self.last = wall_micros.min(Self::WALL_END).max(self.last + 1);
        self.last
    }

    /// Keeps later readings above `version`'s; refuses one that would use the clock up.
    pub fn observe(&mut self, version: Version) -> Result<(), ForeignVersion> {
        if version.0 < 0 || version.hlc() >= Self::WALL_END {
            return Err(ForeignVersion(version));
        }
        self.last = self.last.max(version.hlc());
        Ok(())
    }
}

/// Versions of the outputs of one attempt: the `k`-th output with one id gets the `k`-th version of the publish.
#[derive(Debug)]
pub struct OutputVersions {
    base: Version,
    /// The first id and how often it was given: most attempts know no other.
    first: Option<(CompactString, u32)>,
    others: BTreeMap<CompactString, u32>,
}

impl OutputVersions {
    /// For an attempt at the record stamped `base`.
    pub fn new(base: Version) -> Self {
        OutputVersions { base, first: None, others: BTreeMap::new() }
    }

    /// The version of the next output with this id; `None` when the attempt has given 1,024 already.
    pub fn next(&mut self, id: &str) -> Option<Version> {
        let given = match &mut self.first {
            None => &mut self.first.insert((id.into(), 0)).1,
            Some((first, given)) if *first == id => given,
            Some(_) => match self.others.get_mut(id) {
                Some(given) => given,
                None => self.others.entry(id.into()).or_default(),
            },
        };
        let version = self.base.output(*given)?;
        *given += 1;
        Some(version)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Next(u64),
        Observe(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..50u64).prop_map(Step::Next),
            any::<u64>().prop_map(Step::Next),
            (0..60i64 << 10).prop_map(Step::Observe),
            any::<i64>().prop_map(Step::Observe),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn readings_rise_above_all_that_was_seen(floor in 0..40u64, steps in prop::collection::vec(step(), 0..60)) {
            let mut clock = Hlc::new(floor);
            let mut seen = vec![Version::from_hlc(floor)];
            for step in steps {
                match step {
                    Step::Next(wall) => {
                        let reading = clock.next(wall);
                        let version = Version::from_hlc(reading);
                        prop_assert!(seen.iter().all(|earlier| *earlier < version && earlier.hlc() < reading));
                        prop_assert!(reading >= wall.min(Hlc::WALL_END));
                        seen.push(version);
                    }
                    Step::Observe(version) => {
                        let version = Version(version);
                        let sane = version.0 >= 0 && version.hlc() < Hlc::WALL_END;
                        prop_assert_eq!(clock.observe(version).is_ok(), sane);
                        seen.extend(sane.then_some(version));
                    }
                }
            }
        }

        #[test]
        fn outputs_of_one_id_get_rising_versions(ids in prop::collection::vec(0..3u8, 0..40), hlc in 0..1u64 << 52) {
            let mut versions = OutputVersions::new(Version::from_hlc(hlc));
            for (index, id) in ids.iter().enumerate() {
                let earlier = ids[..index].iter().filter(|other| *other == id).count() as i64;
                prop_assert_eq!(versions.next(&id.to_string()), Some(Version(((hlc as i64) << 10) + earlier)));
            }
        }
    }

    #[test]
    fn an_attempt_cannot_give_an_id_more_versions_than_fit() {
        let mut versions = OutputVersions::new(Version::from_hlc(5));
        let given = (0..2_000).filter_map(|_| versions.next("doc")).collect::<Vec<_>>();
        assert_eq!((given.len(), given.last()), (1_024, Some(&Version((5 << 10) + 1_023))));
        assert_eq!(versions.next("another"), Some(Version::from_hlc(5)));
    }
}
