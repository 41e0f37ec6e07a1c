//! Quantiles of values, such as the median, computed exactly from all values.

use schemars::JsonSchema;
use serde::Serialize;

/// Minimum number of values beyond a quantile for the quantile to be meaningful.
const MIN_VALUES_BEYOND: f64 = 2.0;

/// Returns true if `count` values are enough for the quantile at `share`, such as 0.9. The 90th percentile needs 20
/// values, the 99th needs 200.
#[must_use]
pub fn has_enough(share: f64, count: u64) -> bool {
    count as f64 >= (MIN_VALUES_BEYOND / (1.0 - share)).round()
}

/// The distribution of a set of durations. Percentiles are nearest-rank percentiles, so each is one of the durations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Quantiles {
    /// The arithmetic mean of the durations.
    #[serde(rename = "mean_ns")]
    pub mean: u64,
    /// The median of the durations.
    #[serde(rename = "p50_ns")]
    pub p50: u64,
    /// The 90th percentile of the durations; `null` if there are fewer than 20.
    #[serde(rename = "p90_ns")]
    pub p90: Option<u64>,
    /// The 99th percentile of the durations; `null` if there are fewer than 200.
    #[serde(rename = "p99_ns")]
    pub p99: Option<u64>,
    /// The longest duration.
    #[serde(rename = "max_ns")]
    pub max: u64,
}

impl Quantiles {
    /// Returns the distribution of values; `None` if there are no values.
    pub fn from_values(values: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        let max = *values.last()?;
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(max)
        };
        let count = values.len() as u64;
        let tail = |share: f64| has_enough(share, count).then(|| at(share));
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        Some(Self {
            mean: u64::try_from(sum / values.len() as u128).unwrap_or(u64::MAX),
            p50: at(0.5),
            p90: tail(0.9),
            p99: tail(0.99),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_nearest_rank() {
        assert_eq!(Quantiles::from_values([]), None);
        let found = Quantiles::from_values((1..=200).rev()).unwrap();
        assert_eq!(
            (found.p50, found.p90, found.p99),
            (100, Some(180), Some(198))
        );
        assert_eq!((found.max, found.mean), (200, 100));
        let one = Quantiles::from_values([u64::MAX]).unwrap();
        assert_eq!((one.p50, one.max, one.mean), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn percentiles_of_few_values_say_nothing() {
        let tails = |count| {
            let found = Quantiles::from_values(1..=count).unwrap();
            (found.p90, found.p99)
        };
        assert_eq!(tails(19), (None, None));
        assert_eq!(tails(20), (Some(18), None));
        assert_eq!(tails(199), (Some(180), None));
        assert_eq!(tails(200), (Some(180), Some(198)));
    }
}
