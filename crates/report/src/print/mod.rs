//! Output formats: lines of text that fit a screen, and JSON.

pub mod json;
pub mod lines;
pub mod quote;
pub mod rows;
