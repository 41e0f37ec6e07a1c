//! The iterations outside windows.

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::Header;

use crate::events::named::Ns;

/// Iterations outside windows: a histogram, exact to 1.6 %.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Outside {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The median; `null`: there are none.
    #[serde(rename = "p50_ns")]
    pub p50: Option<u64>,
    /// The 90th percentile; `null`: there are none.
    #[serde(rename = "p90_ns")]
    pub p90: Option<u64>,
    /// The 99th percentile; `null`: there are none.
    #[serde(rename = "p99_ns")]
    pub p99: Option<u64>,
    /// The longest; `null`: there are none.
    #[serde(rename = "max_ns")]
    pub max: Option<u64>,
}

impl Outside {
    pub fn of(header: &Header, ns: &Ns) -> Self {
        let histogram = &header.outside;
        let quantile = |share| histogram.quantile(share).map(|ticks| ns.of(ticks));
        Self {
            iterations: histogram.count(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: (histogram.count() > 0).then(|| ns.of(histogram.max())),
        }
    }
}
