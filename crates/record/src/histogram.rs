//! Histograms of durations, with a fixed number of buckets.
//!
//! Each value below 64 has its own bucket. Every octave above (the values from one power of two to the next)
//! has 32 buckets of equal width. A bucket's middle is within 1/64 (1.6 %) of every value in the bucket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BITS: u32 = 5;
const EXACT: u64 = 2 << BITS;

/// The number of buckets. Together they cover all 64-bit values.
pub const BUCKETS: usize = ((64 - BITS as usize) + 1) << BITS;

/// Returns the index of the bucket for a value.
#[inline]
const fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let shift = 63 - BITS - value.leading_zeros();
    ((shift as usize) << BITS) + (value >> shift) as usize
}

/// Returns the middle of the range of a bucket's values.
const fn middle(bucket: usize) -> u64 {
    if (bucket as u64) < EXACT {
        return bucket as u64;
    }
    let shift = (bucket >> BITS) - 1;
    let low = ((bucket - (shift << BITS)) as u64) << shift;
    low + ((1 << shift) >> 1)
}

/// A histogram in memory that is mapped to a file and that several threads write. Every bit pattern is valid.
/// All zeros is the empty histogram.
#[repr(C)]
#[derive(Debug)]
pub struct SharedHistogram {
    count: AtomicU64,
    sum: AtomicU64,
    max: AtomicU64,
    reserved: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl SharedHistogram {
    /// The size of a histogram in the record's file, in bytes.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// Adds a value. Several threads may call this function at the same time.
    #[inline]
    pub fn add(&self, value: u64) {
        self.buckets[bucket(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        self.max.fetch_max(value, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// Returns the index and the count of each bucket that is not empty.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        let buckets = (0..).zip(&self.buckets);
        let buckets = buckets.map(|(bucket, count)| (bucket, count.load(Relaxed)));
        buckets.filter(|(_, count)| *count > 0)
    }
}

/// A histogram in this process's own memory, for example one that was read from a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    count: u64,
    sum: u64,
    max: u64,
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            max: 0,
            buckets: vec![0; BUCKETS],
        }
    }
}

impl Histogram {
    /// Decodes the bytes of a [`SharedHistogram`]. Missing bytes count as zeros.
    ///
    /// The number of values is computed from the buckets. The number that is stored in the bytes is not used, because
    /// it is too small if the process ended while its threads added values.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut words = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(0);
        let (_, sum, max, _) = (next(), next(), next(), next());
        let buckets: Vec<_> = (0..BUCKETS).map(|_| next()).collect();
        Self {
            count: buckets.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            sum,
            max,
            buckets,
        }
    }

    /// Returns a histogram from pairs of bucket and count, like those that [`SharedHistogram::buckets`]
    /// returns. If a bucket occurs twice, the last count is used. Buckets that do not exist are ignored. Sum
    /// and maximum are accurate within 1.6 %.
    pub fn of_buckets(counts: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let mut histogram = Self::default();
        for (bucket, count) in counts {
            if let Some(there) = histogram.buckets.get_mut(usize::from(bucket)) {
                *there = count;
            }
        }
        for (bucket, count) in histogram.buckets.iter().enumerate() {
            histogram.count = histogram.count.saturating_add(*count);
            let sum = middle(bucket).saturating_mul(*count);
            histogram.sum = histogram.sum.saturating_add(sum);
            if *count > 0 {
                histogram.max = middle(bucket);
            }
        }
        histogram
    }

    /// Returns true if the maximum is possible for the counts in the buckets. Otherwise replaces it with the middle
    /// of the last bucket that has values, and returns false.
    pub(crate) fn keep_possible(&mut self) -> bool {
        let last = self.buckets.iter().rposition(|n| *n > 0);
        // A maximum below the last bucket that has values is possible: a writer may have ended
        // after it updated a bucket and before it updated the maximum.
        let is_possible = match last {
            Some(last) => bucket(self.max) <= last,
            None => self.max == 0,
        };
        if !is_possible {
            self.max = last.map_or(0, middle);
        }
        is_possible
    }

    /// Returns true if the maximum and all counts are at least as large as in `before`.
    pub(crate) fn has_grown_from(&self, before: &Self) -> bool {
        let mut buckets = self.buckets.iter().zip(&before.buckets);
        self.max >= before.max && buckets.all(|(now, then)| now >= then)
    }

    /// Returns the histogram of the values that were added since `before`, an earlier copy of this histogram. Its
    /// maximum is that of all values, because the maximum of the added values is not known. If `before` has a larger
    /// sum, and so cannot be an earlier copy, the sum is that of all values, too.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().zip(&before.buckets);
        let buckets: Vec<_> = buckets
            .map(|(now, then)| now.saturating_sub(*then))
            .collect();
        Self {
            count: buckets.iter().fold(0, |sum, n| sum.saturating_add(*n)),
            sum: self.sum.checked_sub(before.sum).unwrap_or(self.sum),
            max: self.max,
            buckets,
        }
    }

    /// Returns the number of values that are at most `value`. Values within 1.6 % of `value` may be counted
    /// wrongly.
    #[must_use]
    pub fn at_most(&self, value: u64) -> u64 {
        let buckets = self.buckets.iter().enumerate();
        let within = buckets.take_while(|(bucket, _)| middle(*bucket) <= value);
        within.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.buckets[bucket(value)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Returns the number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the values. It is accurate only within 1.6 % after [`Histogram::of_buckets`].
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the maximum. After [`Histogram::of_buckets`] and [`Histogram::since`] it may differ from the true
    /// maximum. The maximum of a histogram that was read from a record may be too small if the process was killed while
    /// a thread added a value.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns a quantile within 1.6 %, by the nearest-rank method: the smallest value v so that at least the fraction
    /// `share` (0 to 1) of all values are at most v. Returns `None` if there are no values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        for (bucket, n) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*n);
            if seen >= rank {
                return Some(middle(bucket).min(self.max));
            }
        }
        Some(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_within_one_64th_of_every_value() {
        let edges = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [
                power - 1,
                power,
                power + 1,
                power + power / 3,
                power | power >> 1,
            ]
        });
        for value in edges.chain([u64::MAX, u64::MAX - 1]) {
            let bucket = bucket(value);
            assert!(bucket < BUCKETS, "{value}");
            let off = middle(bucket).abs_diff(value);
            assert!(off <= value / 64, "{value}: {off}");
        }
    }

    #[test]
    fn buckets_make_the_histogram_that_they_were_of() {
        let shared = SharedHistogram {
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        };
        let mut read = Histogram::default();
        for value in [7, 7, 9, 60, 5_000_000, u64::MAX] {
            shared.add(value);
            read.add(value);
        }
        let made = Histogram::of_buckets(shared.buckets());
        assert_eq!(made.buckets, read.buckets);
        assert_eq!(made.count(), 6);
        for share in [0.1, 0.5, 0.9] {
            assert_eq!(made.quantile(share), read.quantile(share));
        }
        read.add(100);
        assert_eq!(read.since(&made).count(), 1);
        // Buckets and counts that are impossible, as in a damaged record, must cause no panic.
        let odd = Histogram::of_buckets([(u16::MAX, 5), (3, u64::MAX), (4, u64::MAX), (3, 2)]);
        assert_eq!((odd.count(), odd.quantile(0.0)), (u64::MAX, Some(3)));
    }

    #[test]
    fn buckets_follow_each_other() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(middle(index)), index);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for value in 1..=1000 {
            histogram.add(value * 1000);
        }
        for (share, exact) in [
            (0.0, 1000),
            (0.5, 500_000),
            (0.99, 990_000),
            (1.0, 1_000_000),
        ] {
            let found = histogram.quantile(share).unwrap();
            assert!(found.abs_diff(exact) <= exact / 64, "{share}: {found}");
        }
        assert_eq!((histogram.count(), histogram.max()), (1000, 1_000_000));
    }

    #[test]
    fn what_came_later_is_told_apart_and_counted_up_to_a_value() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.add(value * 1000));
        let before = histogram.clone();
        (1..=10).for_each(|value| histogram.add(value * 1_000_000));
        let later = histogram.since(&before);
        assert_eq!((later.count(), later.sum()), (10, 55_000_000));
        assert!(later.quantile(0.5).unwrap().abs_diff(5_000_000) <= 5_000_000 / 64);
        assert_eq!(later.at_most(5_200_000), 5);
        assert_eq!(
            [0, 500_000, u64::MAX].map(|value| histogram.at_most(value)),
            [0, 100, 110]
        );
        assert_eq!(histogram.since(&histogram).quantile(0.5), None);
    }

    #[test]
    fn what_is_shared_is_read() {
        let shared = SharedHistogram {
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        };
        let mut plain = Histogram::default();
        for value in [0, 1, 63, 64, 65, 1 << 20, u64::MAX >> 1] {
            shared.add(value);
            plain.add(value);
        }
        let mut bytes = Vec::new();
        for word in [&shared.count, &shared.sum, &shared.max, &shared.reserved]
            .into_iter()
            .chain(&shared.buckets)
        {
            bytes.extend(word.load(Relaxed).to_le_bytes());
        }
        assert_eq!(bytes.len(), SharedHistogram::BYTES);
        assert_eq!(Histogram::decode(&bytes), plain);
        assert_eq!(
            Histogram::decode(&bytes[..40]).count(),
            1,
            "the bucket of 0 alone"
        );
    }
}
