//! Numbers: distributions, differences between series, and formatting.

pub mod between;
pub mod bootstrap;
pub mod parts;
pub mod quantiles;
pub mod units;
