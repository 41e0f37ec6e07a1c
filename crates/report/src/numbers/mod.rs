//! Numbers: how they are distributed, whether two series differ, and how people read them.

pub mod bootstrap;
pub mod parts;
pub mod quantiles;
pub mod units;
