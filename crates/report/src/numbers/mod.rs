//! Statistics and number formats: quantiles, differences between series, and units.

pub(crate) mod between;
pub(crate) mod bootstrap;
pub(crate) mod parts;
pub(crate) mod quantiles;
pub(crate) mod units;
