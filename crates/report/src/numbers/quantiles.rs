//! How values are distributed, exactly.

use schemars::JsonSchema;
use serde::Serialize;

/// How durations are distributed. Quantiles are by nearest rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Quantiles {
    /// The arithmetic mean.
    #[serde(rename = "mean_ns")]
    pub mean: u64,
    /// The median.
    #[serde(rename = "p50_ns")]
    pub p50: u64,
    /// The 90th percentile.
    #[serde(rename = "p90_ns")]
    pub p90: u64,
    /// The 99th percentile.
    #[serde(rename = "p99_ns")]
    pub p99: u64,
    /// The longest.
    #[serde(rename = "max_ns")]
    pub max: u64,
}

impl Quantiles {
    /// Those of some values; `None` where there are none.
    pub fn of(values: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        let max = *values.last()?;
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(max)
        };
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        Some(Self {
            mean: u64::try_from(sum / values.len() as u128).unwrap_or(u64::MAX),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_nearest_rank() {
        assert_eq!(Quantiles::of([]), None);
        let found = Quantiles::of((1..=100).rev()).unwrap();
        assert_eq!((found.p50, found.p90, found.p99), (50, 90, 99));
        assert_eq!((found.max, found.mean), (100, 50));
        let one = Quantiles::of([u64::MAX]).unwrap();
        assert_eq!((one.p50, one.max, one.mean), (u64::MAX, u64::MAX, u64::MAX));
    }
}
