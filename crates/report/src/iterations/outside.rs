//! Times of the iterations outside windows. The record contains only a histogram of these times.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Header, Histogram};

use crate::events::named::Ns;
use crate::numbers::quantiles::has_enough;

/// Durations of iterations outside windows. They come from a histogram, so they have an error of up to 1.6 %.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Outside {
    /// Durations of all iterations outside windows.
    #[serde(flatten)]
    pub all: OutsideSum,
    /// Durations of the iterations outside windows that ended before the last automatic window. tllmprof opens an
    /// automatic window by itself, without a command of the user, such as a window of `--when`. `null` if the record
    /// does not count these iterations separately.
    pub before: Option<OutsideSum>,
    /// Durations of the other iterations outside windows, which did not end before the last automatic window (see
    /// `before`). `null` if the record does not count these iterations separately.
    pub after: Option<OutsideSum>,
}

/// The distribution of the durations of a set of iterations outside windows.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct OutsideSum {
    /// The number of iterations outside windows.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The median of the durations; `null` if there are no iterations.
    #[serde(rename = "p50_ns")]
    pub p50: Option<u64>,
    /// The 90th percentile of the durations; `null` if there are fewer than 20 iterations.
    #[serde(rename = "p90_ns")]
    pub p90: Option<u64>,
    /// The 99th percentile of the durations; `null` if there are fewer than 200 iterations.
    #[serde(rename = "p99_ns")]
    pub p99: Option<u64>,
    /// The longest duration; `null` if there are no iterations.
    #[serde(rename = "max_ns")]
    pub max: Option<u64>,
}

impl Outside {
    /// Returns the times of iterations outside windows. `before` contains the buckets of the histogram from which the
    /// field `before` is computed; it is empty if the record lacks that histogram.
    pub fn new(header: &Header, before: &[(u16, u64)], ns: &Ns) -> Self {
        let all = &header.outside;
        let before = (!before.is_empty()).then(|| Histogram::of_buckets(before.iter().copied()));
        Self {
            all: OutsideSum::new(all, ns),
            before: before.as_ref().map(|before| OutsideSum::new(before, ns)),
            after: before
                .as_ref()
                .map(|before| OutsideSum::new(&all.since(before), ns)),
        }
    }
}

impl OutsideSum {
    fn new(histogram: &Histogram, ns: &Ns) -> Self {
        let quantile = |share| histogram.quantile(share).map(|ticks| ns.convert(ticks));
        let tail = |share| quantile(share).filter(|_| has_enough(share, histogram.count()));
        Self {
            iterations: histogram.count(),
            p50: quantile(0.5),
            p90: tail(0.9),
            p99: tail(0.99),
            max: (histogram.count() > 0).then(|| ns.convert(histogram.max())),
        }
    }
}
