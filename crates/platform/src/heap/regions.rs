//! The memory mappings (called regions) of which the library's heap consists.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// The unit in bytes for the sizes of regions (the heap's memory mappings). It does not depend on the system's page
/// size.
pub(crate) const PAGE: usize = 4096;
/// Largest number of regions (memory mappings of the heap) at a time.
const MAX_REGIONS: usize = 256;
/// A region (a memory mapping of the heap) is described by one word. Its low `COUNT_BITS` bits are the region's size in
/// pages. The other bits are the number of its first page, that is, the region's address divided by [`PAGE`].
const COUNT_BITS: u32 = 28;
/// The word of a region that was removed from the list. (A word of 0 marks the end of the list.)
pub(super) const GONE: u64 = 1 << COUNT_BITS;

/// A list of regions (the heap's memory mappings). An address can be looked up without a lock: it is the address of a
/// block in use, and a region is unmapped only when no block in it is in use.
pub(crate) struct Regions([AtomicU64; MAX_REGIONS]);

impl Regions {
    pub(crate) const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_REGIONS])
    }

    /// Returns true if the address `place` is in one of the regions.
    pub(crate) fn contain(&self, place: *mut u8) -> bool {
        let page = (place.addr() / PAGE) as u64;
        self.words().any(|word| {
            let (first, count) = (word >> COUNT_BITS, word & (GONE - 1));
            page.wrapping_sub(first) < count
        })
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        words.take_while(|&word| word != 0)
    }

    /// Makes a new mapping of at least `size` bytes, filled with zeros, and adds it to the list. Returns its address,
    /// or `None` if there is no memory or the list is full.
    pub(crate) fn map(&self, size: usize) -> Option<*mut u8> {
        let size = size.checked_next_multiple_of(PAGE)?;
        // SAFETY: the kernel chooses the address of the mapping, so it replaces none.
        let place = unsafe {
            libc::mmap(
                null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return None;
        }
        let place = place.cast();
        let is_kept = packed(place, size).is_some_and(|word| {
            let free = [0, GONE];
            self.0.iter().any(|at| {
                let now = at.load(Ordering::Relaxed);
                free.contains(&now)
                    && at
                        .compare_exchange(now, word, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            })
        });
        if !is_kept {
            // SAFETY: the mapping was made above, and no other code knows it.
            unsafe { libc::munmap(place.cast(), size) };
            return None;
        }
        Some(place)
    }

    /// Unmaps a region (a memory mapping of the heap).
    ///
    /// # Safety
    /// [`Regions::map`] created the region with this size, and it is no longer used.
    pub(crate) unsafe fn unmap(&self, place: *mut u8, size: usize) {
        let size = size.next_multiple_of(PAGE);
        let this = packed(place, size);
        let at = |word: &&AtomicU64| Some(word.load(Ordering::Relaxed)) == this;
        if let Some(word) = self.0.iter().find(at) {
            // The entry is removed before the region is unmapped, because another thread's new region may get
            // the same address immediately.
            word.store(GONE, Ordering::Release);
            // SAFETY: the list contained this mapping, and the caller guarantees that it is no longer used.
            unsafe { libc::munmap(place.cast(), size) };
        }
    }
}

fn packed(place: *mut u8, size: usize) -> Option<u64> {
    let (first, count) = ((place.addr() / PAGE) as u64, (size / PAGE) as u64);
    (count < GONE && first >> (u64::BITS - COUNT_BITS) == 0).then_some(first << COUNT_BITS | count)
}
