//! Memory that is all zeros in every copy of the process, also in one that no handler tells of.

use core::ptr::NonNull;

/// New pages, all zeros, which are never unmapped. Where the kernel cannot wipe them in copies
/// (before Linux 4.14), the handlers of a fork have to.
pub fn pages(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new anonymous mapping.
    unsafe {
        let place = libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if place == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(place, bytes, libc::MADV_WIPEONFORK);
        NonNull::new(place.cast())
    }
}
