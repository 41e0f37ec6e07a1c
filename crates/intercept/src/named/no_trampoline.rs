//! No code for patched entries to jump to: AArch64, where entries are not patched.

use core::ops::Range;

use tllmprof_platform::elf::Module;
use tllmprof_platform::entry::{Entry, Refusal};
use tllmprof_platform::maps::Maps;

/// Executable memory near a module: none is needed.
pub struct Region {
    pub of: usize,
}

impl Region {
    /// # Errors
    /// There is none.
    pub fn near(_: &Module, _: usize, _: &Maps) -> Result<Self, Refusal> {
        Err(Refusal::NoRoom)
    }

    pub fn add(&mut self, entry: &Entry, _: Option<usize>) -> Result<Range<usize>, Refusal> {
        match *entry {}
    }

    /// # Errors
    /// There are none.
    pub fn finish(&self) -> Result<(), Refusal> {
        Err(Refusal::NoRoom)
    }

    /// # Safety
    /// None is needed.
    pub unsafe fn free(self) {}
}
