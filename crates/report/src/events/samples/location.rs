//! The location of a function's code: its file, line and name.

use schemars::JsonSchema;
use serde::Serialize;

/// A function of the host, and the location of its code.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, JsonSchema)]
pub struct Location {
    /// The name of the function: Python's qualified name, or a demangled symbol.
    pub function: String,
    /// The path of the source file, as the Python interpreter knows it; `null` for native code.
    pub file: Option<String>,
    /// The first line of the function in the source file; `null` for native code.
    pub line: Option<u32>,
}

impl Location {
    /// Returns the location of a function whose file and line are unknown.
    #[must_use]
    pub fn native(function: &str) -> Self {
        Self {
            function: function.to_owned(),
            file: None,
            line: None,
        }
    }
}
