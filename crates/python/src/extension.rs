//! The hook for a higher crate that acts in the interpreter.

use tllmprof_config::Settings;

use super::object::Python;

/// Work that a higher crate does in the interpreter. There is at most one extension ([`EXTENSION`]).
pub trait Extension: Sync {
    /// Returns true if the settings request it.
    fn is_asked_for(&self, settings: &Settings) -> bool;
    /// Stores the settings. It runs in the library's constructor.
    fn start(&self, settings: &Settings);
    /// Returns true if [`Extension::look`] is to be called at an audited event of this name.
    fn wants(&self, event: &[u8]) -> bool;
    /// Handles such an event in an interpreter.
    fn look(&self, py: Python<'_>);
    /// Handles the end of the main interpreter.
    fn ends(&self, py: Python<'_>);
}

/// The extension, if there is one.
#[linkme::distributed_slice]
pub static EXTENSION: [&'static dyn Extension];

pub fn extension() -> Option<&'static dyn Extension> {
    EXTENSION.first().copied()
}
