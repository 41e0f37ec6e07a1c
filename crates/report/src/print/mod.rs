//! Output: text that fits a screen, and JSON.

pub mod json;
pub mod lines;
pub mod quote;
pub mod rows;
