//! Memory for code, in gaps between existing mappings.

use core::ops::Range;

use tllmprof_platform::entry::{Denied, Refusal};

/// Consecutive pages, not executable at first.
pub struct TrampolinePages {
    start: usize,
    size: usize,
    code: Vec<u8>,
}

impl TrampolinePages {
    /// Maps pages at `place`, a page boundary where nothing is mapped; `None` if something is mapped there by now.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn map(place: usize, size: usize) -> Result<Option<Self>, Denied> {
        // SAFETY: a new mapping where nothing is mapped: a mapping that the kernel puts elsewhere, as old kernels do
        // that do not know the flag, is removed.
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

    /// Adds the code that `assemble` makes for the address that it is given. Returns its address range.
    pub fn add(
        &mut self,
        assemble: impl FnOnce(usize) -> Option<Vec<u8>>,
    ) -> Result<Range<usize>, Refusal> {
        let used = self.code.len().next_multiple_of(16);
        let at = self.start + used;
        let code = assemble(at).ok_or(Refusal::NoRoom)?;
        if used + code.len() > self.size {
            return Err(Refusal::NoRoom);
        }
        self.code.resize(used, 0xcc);
        let end = at + code.len();
        self.code.extend(code);
        Ok(at..end)
    }

    /// Makes the code executable.
    ///
    /// # Errors
    /// The system does not allow that.
    pub fn finish(&self) -> Result<(), Denied> {
        let place = core::ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: the pages are this part's and have that size, and no thread runs in them yet.
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
    /// No code leads there any more.
    pub unsafe fn free(self) {
        let place = core::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: the mapping is this part's, and no code leads into it any more.
        unsafe { libc::munmap(place, self.size) };
    }

    /// Returns its address range.
    #[cfg(test)]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}
