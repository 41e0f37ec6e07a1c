//! Statistics and number formats: quantiles, differences between series, and units.

pub mod between;
pub mod bootstrap;
pub mod parts;
pub mod quantiles;
pub mod units;
