//! The mappings that the heap consists of.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// What regions are counted in, whatever the size of the system's pages.
pub const PAGE: usize = 4096;
/// How many there may be.
const MOST: usize = 256;
/// A region is a word: the number of its first page, and in so many bits how many pages it has.
const COUNT_BITS: u32 = 28;
/// No region any more, but maybe others behind it: 0 is behind the last.
pub(super) const GONE: u64 = 1 << COUNT_BITS;

/// Mappings, each of which stays where it is as long as a block in it: so whether an address is in one is read
/// without a lock.
pub struct Regions([AtomicU64; MOST]);

impl Regions {
    pub const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; MOST])
    }

    /// Whether `place` is in one.
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

    /// A new mapping of zeros, or none.
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
            // SAFETY: the mapping made above, which nobody has seen.
            unsafe { libc::munmap(place.cast(), size) };
            return None;
        }
        Some(place)
    }

    /// Gives a mapping back.
    ///
    /// # Safety
    /// [`Regions::map`] has made it of this size, and nobody uses it any more.
    pub unsafe fn unmap(&self, place: *mut u8, size: usize) {
        let size = size.next_multiple_of(PAGE);
        let this = packed(place, size);
        let at = |word: &&AtomicU64| Some(word.load(Ordering::Relaxed)) == this;
        if let Some(word) = self.0.iter().find(at) {
            // First: another thread's mapping may lie there at once.
            word.store(GONE, Ordering::Release);
            // SAFETY: such a mapping, and nobody uses it, as the caller says.
            unsafe { libc::munmap(place.cast(), size) };
        }
    }
}

fn packed(place: *mut u8, size: usize) -> Option<u64> {
    let (first, count) = ((place.addr() / PAGE) as u64, (size / PAGE) as u64);
    (count < GONE && first >> (u64::BITS - COUNT_BITS) == 0).then_some(first << COUNT_BITS | count)
}
