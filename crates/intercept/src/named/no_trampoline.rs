//! Stand-in on AArch64 for the module `trampoline`: function entries are not patched there, so no
//! trampolines are needed.

use core::ops::Range;

use tllmprof_platform::elf::Module;
use tllmprof_platform::entry::{Entry, Refusal};
use tllmprof_platform::maps::Maps;

/// Stand-in for executable memory near a module, which AArch64 does not need.
pub struct Region {
    pub of: usize,
}

impl Region {
    /// # Errors
    /// Always fails, because no trampolines are made on AArch64.
    pub fn near(_: &Module, _: usize, _: &Maps) -> Result<Self, Refusal> {
        Err(Refusal::NoRoom)
    }

    pub fn add(&mut self, entry: &Entry, _: Option<usize>) -> Result<Range<usize>, Refusal> {
        match *entry {}
    }

    /// # Errors
    ///
    /// Always fails, because no trampoline exists on AArch64.
    pub fn finish(&self) -> Result<(), Refusal> {
        Err(Refusal::NoRoom)
    }

    /// # Safety
    /// There are no requirements.
    pub unsafe fn free(self) {}
}
