//! The common clock, on which the records of several machines are shown together.

use std::collections::HashMap;

use crate::record::Record;

/// For each record, the offset from its `CLOCK_MONOTONIC` to the common clock, in nanoseconds.
///
/// Records from the same boot of a machine share `CLOCK_MONOTONIC`, so the distances between their times stay exact.
/// Records of different machines are aligned by the time of day, so they are only as well aligned as the machines'
/// clocks. The common clock is the clock of the machine that was started first, so that no time is negative.
#[derive(Debug)]
pub struct Clocks {
    shifts: Vec<u64>,
    /// The time of day at which the common clock is 0, in nanoseconds since 1970.
    pub unix: i64,
}

impl Clocks {
    /// Returns the offsets from the clocks of these records to the common clock, in the order of the records.
    #[must_use]
    pub fn from_records(records: &[Record]) -> Self {
        Self::new(records.iter().map(|record| {
            let process = &record.process;
            (&process.facts.boot[..], process.record.unix_minus_monotonic)
        }))
    }

    /// Computes the offsets. For each record, `records` contains the boot id and the time of day minus
    /// `CLOCK_MONOTONIC`, in nanoseconds. A record without a boot id counts as a separate machine.
    fn new<'a>(records: impl Iterator<Item = (&'a str, i64)>) -> Self {
        let mut boots = HashMap::new();
        let offsets: Vec<i64> = records
            .map(|(boot, unix)| match boot {
                "" => unix,
                boot => *boots.entry(boot).or_insert(unix),
            })
            .collect();
        let unix = offsets.iter().copied().min().unwrap_or(0);
        let shifts = offsets.iter().map(|offset| offset.abs_diff(unix)).collect();
        Self { shifts, unix }
    }

    pub(crate) fn shift(&self, index: usize) -> u64 {
        self.shifts.get(index).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_boot_has_one_clock_and_others_follow_the_time_of_day() {
        let records = [("a", 1000), ("b", 400), ("a", 1003), ("", 450), ("", 1000)];
        let clocks = Clocks::new(records.into_iter());
        assert_eq!(clocks.unix, 400);
        assert_eq!(clocks.shifts, [600, 0, 600, 50, 600]);
        let extremes = Clocks::new([("a", i64::MIN), ("b", i64::MAX)].into_iter());
        assert_eq!(extremes.shifts, [0, u64::MAX]);
        assert_eq!(Clocks::new(std::iter::empty()).shift(0), 0);
    }
}
