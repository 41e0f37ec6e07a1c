//! The program's NVTX ranges: those that the rule for a step names, and the open ones for the record.

pub mod crossing;
pub mod handles;
pub mod known;
pub mod open;
pub mod pattern;
pub mod seen;
pub mod started;
