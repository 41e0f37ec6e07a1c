//! Allocates small pieces of memory that are never freed. It does not use the host's allocator, because the
//! library may have been called from inside that allocator.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::pages::{self, Zeroed};
use tllmprof_sync::Published;

use tllmprof_platform::lifecycle;

/// The size in bytes of one block of the memory that [`take`] hands out.
const BLOCK: usize = 64 << 10;
/// The maximum number of blocks: 8 MiB in all.
const BLOCKS: usize = 128;
/// The number of bytes in a block that [`take`] can hand out: all but the block's counter.
const ROOM: usize = BLOCK - size_of::<AtomicUsize>();

/// A block of memory, mapped with one system call. Its parts are handed out one after another.
#[repr(C)]
struct ArenaBlock {
    used: AtomicUsize,
    pieces: UnsafeCell<[u8; ROOM]>,
}

const _: () = assert!(size_of::<ArenaBlock>() == BLOCK);

// SAFETY: all zeros is a valid value of both fields: a count of 0, and an array of bytes.
unsafe impl Zeroed for ArenaBlock {}
// SAFETY: `used` is atomic, and gives each piece of `pieces` to one caller; nothing else reads or writes it.
unsafe impl Sync for ArenaBlock {}

lifecycle::global! {
    #[fork(keep = "memory is inherited")]
    static CURRENT: Published<ArenaBlock> = Published::none();
    #[fork(keep = "memory is inherited")]
    static MAPPED: AtomicUsize = AtomicUsize::new(0);
}

/// Returns `bytes` bytes, zeroed and aligned to 8, which the caller may use forever. Returns `None` if
/// `bytes` is more than half a block, or if all blocks are used up.
pub(crate) fn take(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(8);
    if bytes > BLOCK / 2 {
        return None;
    }
    loop {
        let current = CURRENT.get();
        if let Some(block) = current {
            let at = block.used.fetch_add(bytes, Ordering::Relaxed);
            if at <= ROOM - bytes {
                return NonNull::new(block.pieces.get().cast::<u8>().wrapping_add(at));
            }
        }
        begin_block(current)?;
    }
}

/// Maps a new block and makes it the current one in place of `full`. If another thread has already replaced
/// `full`, the new mapping is never used.
fn begin_block(full: Option<&'static ArenaBlock>) -> Option<()> {
    if MAPPED.fetch_add(1, Ordering::Relaxed) >= BLOCKS {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let blocks: &'static [ArenaBlock] = pages::batch(1)?;
    let _ = CURRENT.replace(full, blocks.first());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_apart_and_in_memory_of_zeros() {
        let pieces: Vec<_> = (0..3000).map(|_| take(60).unwrap()).collect();
        for piece in &pieces {
            assert!(piece.addr().get().is_multiple_of(8));
            // SAFETY: the piece is at least 60 bytes, and only this test uses it.
            unsafe {
                assert_eq!(piece.cast::<[u8; 60]>().read(), [0; 60]);
                piece.cast::<[u8; 60]>().write([7; 60]);
            }
        }
        assert!(take(BLOCK / 2 + 8).is_none());
    }
}
