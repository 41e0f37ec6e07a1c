//! Which of the program's ranges a rule names.

pub mod handles;
pub mod pattern;
pub mod seen;
pub mod started;
