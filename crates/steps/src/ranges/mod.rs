//! Tracks the program's NVTX ranges: the ranges that count as steps, because their names match the step rule, and all
//! open ranges, for the record.

pub mod crossing;
pub mod handles;
pub mod known;
pub mod open;
pub mod pattern;
pub mod seen;
pub mod started;
