//! Stand-in on AArch64 for the module `trampoline`: function entries are not patched there, so no
//! trampolines are needed.

use core::ops::Range;

use tllmprof_platform::elf::ElfModule;
use tllmprof_platform::entry::{PatchRefusal, PatchableEntry};
use tllmprof_platform::maps::Maps;

/// Stand-in for executable memory near a module, which AArch64 does not need.
pub(crate) struct Region {
    pub of: usize,
}

impl Region {
    /// # Errors
    /// Always fails: AArch64 has no memory for trampolines.
    pub(crate) fn near(_: &ElfModule, _: usize, _: &Maps) -> Result<Self, PatchRefusal> {
        Err(PatchRefusal::NoRoom)
    }

    pub(crate) fn add(
        &mut self,
        entry: &PatchableEntry,
        _: Option<usize>,
    ) -> Result<Range<usize>, PatchRefusal> {
        match *entry {}
    }

    /// # Errors
    ///
    /// Always fails, because no trampoline exists on AArch64.
    pub(crate) fn finish(&self) -> Result<(), PatchRefusal> {
        Err(PatchRefusal::NoRoom)
    }

    /// # Safety
    /// There are no requirements.
    pub(crate) unsafe fn free(self) {}
}
