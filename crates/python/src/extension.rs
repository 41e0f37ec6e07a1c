//! What a crate above this one does in the interpreter.

use tllmprof_config::Settings;

use super::object::Python;

/// Something that is done in the interpreter by a crate above this one. There may be one
/// ([`EXTENSION`]).
pub trait Extension: Sync {
    /// Whether it has anything to do.
    fn is_asked_for(&self, settings: &Settings) -> bool;
    /// Remembers what is asked for. In the library's constructor.
    fn start(&self, settings: &Settings);
    /// Whether it wants to [`Extension::look`] at an audited event of this name.
    fn wants(&self, event: &[u8]) -> bool;
    /// Such an event has come, in an interpreter.
    fn look(&self, py: Python<'_>);
    /// The main interpreter ends.
    fn ends(&self, py: Python<'_>);
}

/// The extension, if there is one.
#[linkme::distributed_slice]
pub static EXTENSION: [&'static dyn Extension];

pub fn extension() -> Option<&'static dyn Extension> {
    EXTENSION.first().copied()
}
