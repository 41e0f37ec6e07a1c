//! The mappings that the heap consists of.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// The unit in which regions are counted, whatever the size of the system's pages.
pub const PAGE: usize = 4096;
/// The largest number of regions.
const MAX_REGIONS: usize = 256;
/// A region is stored in a word: the number of its first page, and in this many bits its number of pages.
const COUNT_BITS: u32 = 28;
/// The value of a removed region, which others may follow. The value after the last region is 0.
pub(super) const GONE: u64 = 1 << COUNT_BITS;

/// Mappings, each of which stays as long as a block in it. So an address can be looked up without a lock.
pub struct Regions([AtomicU64; MAX_REGIONS]);

impl Regions {
    pub const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_REGIONS])
    }

    /// Returns true if `place` is in one of the regions.
    pub fn contain(&self, place: *mut u8) -> bool {
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

    /// Returns a new mapping of zeros; `None` if there is no memory or no free word.
    pub fn map(&self, size: usize) -> Option<*mut u8> {
        let size = size.checked_next_multiple_of(PAGE)?;
        // SAFETY: the kernel chooses where the mapping lies, so that it replaces none.
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
            // SAFETY: the mapping made above, which no other code has seen.
            unsafe { libc::munmap(place.cast(), size) };
            return None;
        }
        Some(place)
    }

    /// Unmaps a region.
    ///
    /// # Safety
    /// [`Regions::map`] has made it with this size, and it is no longer used.
    pub unsafe fn unmap(&self, place: *mut u8, size: usize) {
        let size = size.next_multiple_of(PAGE);
        let this = packed(place, size);
        let at = |word: &&AtomicU64| Some(word.load(Ordering::Relaxed)) == this;
        if let Some(word) = self.0.iter().find(at) {
            // Before unmapping: another thread's new mapping may get the same address immediately.
            word.store(GONE, Ordering::Release);
            // SAFETY: such a mapping, and it is not used, as the caller guarantees.
            unsafe { libc::munmap(place.cast(), size) };
        }
    }
}

fn packed(place: *mut u8, size: usize) -> Option<u64> {
    let (first, count) = ((place.addr() / PAGE) as u64, (size / PAGE) as u64);
    (count < GONE && first >> (u64::BITS - COUNT_BITS) == 0).then_some(first << COUNT_BITS | count)
}
