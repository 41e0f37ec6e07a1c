//! Output formats: lines of text that fit a screen, and JSON.

pub(crate) mod json;
pub(crate) mod lines;
pub(crate) mod quote;
pub(crate) mod rows;
