//! Memory for trampolines (the code to which patched entries jump), in gaps between existing mappings.

use core::ops::Range;

use tllmprof_platform::entry::{Denied, PatchRefusal};

/// Consecutive pages that hold trampolines (the code to which patched entries jump). The pages are not executable at
/// first.
pub(crate) struct TrampolinePages {
    start: usize,
    size: usize,
    code: Vec<u8>,
}

impl TrampolinePages {
    /// Maps pages at the page boundary `place`, where nothing is mapped. Returns `None` if something has been mapped
    /// there in the meantime.
    ///
    /// # Errors
    /// Returns an error if the system refuses the mapping.
    pub(crate) fn map(place: usize, size: usize) -> Result<Option<Self>, Denied> {
        // SAFETY: the mapping is new and replaces no other. Old kernels do not know MAP_FIXED_NOREPLACE and may map the
        // pages elsewhere; such a mapping is removed.
        unsafe {
            let got = libc::mmap(
                core::ptr::with_exposed_provenance_mut(place),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            if got == libc::MAP_FAILED {
                return match tllmprof_platform::errno::now() {
                    libc::EEXIST => Ok(None),
                    _ => Err(Denied::last()),
                };
            }
            if got.expose_provenance() != place {
                libc::munmap(got, size);
                return Ok(None);
            }
        }
        Ok(Some(Self {
            start: place,
            size,
            code: Vec::new(),
        }))
    }

    /// Calls `assemble` with the address at which the new code will lie, and adds the code that `assemble` returns.
    /// Returns the code's address range, or an error if `assemble` returns `None` or the pages have no room.
    pub(crate) fn add(
        &mut self,
        assemble: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) -> Result<Range<usize>, PatchRefusal> {
        let used = self.code.len().next_multiple_of(16);
        let at = self.start + used;
        let code = assemble(at).ok_or(PatchRefusal::NoRoom)?;
        if used + code.len() > self.size {
            return Err(PatchRefusal::NoRoom);
        }
        self.code.resize(used, 0xcc);
        let end = at + code.len();
        self.code.extend(code);
        Ok(at..end)
    }

    /// Copies the code into the pages and makes them executable.
    ///
    /// # Errors
    /// Returns an error if the system does not allow executable memory.
    pub(crate) fn finish(&self) -> Result<(), Denied> {
        let place = core::ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: these pages belong to this object and have this size, and no thread runs code in them yet.
        let result = unsafe {
            core::ptr::copy_nonoverlapping(self.code.as_ptr(), place, self.code.len());
            libc::mprotect(place.cast(), self.size, libc::PROT_READ | libc::PROT_EXEC)
        };
        match result {
            0 => Ok(()),
            _ => Err(Denied::last()),
        }
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// No code jumps into the pages any more.
    pub(crate) unsafe fn free(self) {
        let place = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping belongs to this object, and no code jumps into it any more.
        unsafe { libc::munmap(place, self.size) };
    }

    #[cfg(test)]
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}
