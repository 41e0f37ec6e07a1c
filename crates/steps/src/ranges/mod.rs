//! The program's ranges: which of them a rule names, and which are open, for the record.

pub mod crossing;
pub mod handles;
pub mod known;
pub mod open;
pub mod pattern;
pub mod seen;
pub mod started;
