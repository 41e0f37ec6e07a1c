//! How durations are distributed, in a fixed number of buckets.
//!
//! Values under 64 have a bucket each; every octave above has 32 buckets of equal width. A bucket's
//! middle is within 1/64 (1.6 %) of every value in it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BITS: u32 = 5;
const EXACT: u64 = 2 << BITS;

/// Buckets, for every value of 64 bits.
pub const BUCKETS: usize = ((64 - BITS as usize) + 1) << BITS;

/// The bucket of a value.
#[inline]
const fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let shift = 63 - BITS - value.leading_zeros();
    ((shift as usize) << BITS) + (value >> shift) as usize
}

/// The middle of a bucket's values.
const fn middle(bucket: usize) -> u64 {
    if (bucket as u64) < EXACT {
        return bucket as u64;
    }
    let shift = (bucket >> BITS) - 1;
    let low = ((bucket - (shift << BITS)) as u64) << shift;
    low + ((1 << shift) >> 1)
}

/// A histogram in memory that is shared, and mapped to a file: every bit pattern is one, all zero is
/// the empty one.
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
    /// Bytes that it takes.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// Adds a value. Any number of threads may, at once.
    #[inline]
    pub fn add(&self, value: u64) {
        self.buckets[bucket(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        self.max.fetch_max(value, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }
}

/// A histogram, read.
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
    /// Reads what a [`SharedHistogram`] left; bytes that are missing are zeros.
    ///
    /// The number of values is what the buckets hold: a writer that was ended between two of its
    /// stores left them one apart.
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

    /// Whether the longest value is one that the buckets can hold; where it is not, it becomes one.
    pub(crate) fn keep_possible(&mut self) -> bool {
        let last = self.buckets.iter().rposition(|n| *n > 0);
        // Where a writer was ended between two of its stores, the longest may be of the time before.
        let is_possible = match last {
            Some(last) => bucket(self.max) <= last,
            None => self.max == 0,
        };
        if !is_possible {
            self.max = last.map_or(0, middle);
        }
        is_possible
    }

    /// Whether no bucket holds less than it did in `before`.
    pub(crate) fn has_grown_from(&self, before: &Self) -> bool {
        let mut buckets = self.buckets.iter().zip(&before.buckets);
        self.max >= before.max && buckets.all(|(now, then)| now >= then)
    }

    /// The values that were added since it was `before`. The largest is of all, and their sum too where `before` is of
    /// another histogram.
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

    /// How many values `value` exceeds or equals, within 1.6 %.
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

    /// How many values it holds.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest, exactly.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The value that `share` (0 to 1) of the values do not exceed (nearest rank), within 1.6 %;
    /// `None` where there are no values.
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
