//! The interface for an extension: another crate that depends on this crate and does its own work in the interpreter.

use tllmprof_config::Settings;

use super::object::Python;

/// The work of another crate in the interpreter. There is at most one extension ([`EXTENSION`]).
pub trait Extension: Sync {
    /// Returns true if the settings request the extension.
    fn is_asked_for(&self, settings: &Settings) -> bool;
    /// Stores the settings. Called when the library is loaded.
    fn start(&self, settings: &Settings);
    /// Returns true if [`Extension::look`] is to be called at an audit event with this name.
    fn wants(&self, event: &[u8]) -> bool;
    /// Runs the extension's code in the interpreter `py`. Called at an audit event for which `wants` returned
    /// true.
    fn look(&self, py: Python<'_>);
    /// Runs the extension's last code in the main interpreter. Called when this interpreter ends.
    fn ends(&self, py: Python<'_>);
}

/// The registered extension; empty if there is none.
#[linkme::distributed_slice]
pub static EXTENSION: [&'static dyn Extension];

pub(crate) fn extension() -> Option<&'static dyn Extension> {
    EXTENSION.first().copied()
}
