//! Follows the program's NVTX ranges: ranges that the rule for a step names, and open ranges for the record.

pub mod crossing;
pub mod handles;
pub mod known;
pub mod open;
pub mod pattern;
pub mod seen;
pub mod started;
