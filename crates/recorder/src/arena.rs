//! Small pieces of memory that are never given back, without the host's allocator: what asks may be
//! that allocator.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;

/// Bytes that are mapped at a time, and how often at most: 8 MiB in all.
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 128;

/// The start of a block; the pieces lie behind it.
struct Block {
    used: AtomicUsize,
}

lifecycle::global! {
    #[fork(keep = "memory is inherited")]
    static CURRENT: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());
    #[fork(keep = "memory is inherited")]
    static MAPPED: AtomicUsize = AtomicUsize::new(0);
}

/// So many bytes, all zeros, aligned to 8; at most half a block.
pub fn take(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.next_multiple_of(8);
    if bytes > BLOCK / 2 {
        return None;
    }
    loop {
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a block, which is never unmapped once it was here.
        if let Some(block) = unsafe { current.as_ref() } {
            let at = block.used.fetch_add(bytes, Ordering::Relaxed);
            if at <= BLOCK - bytes {
                // SAFETY: within the block, and nobody else gets these bytes.
                return NonNull::new(unsafe { current.cast::<u8>().add(at) });
            }
        }
        begin_block(current)?;
    }
}

/// Puts a new block in the place of `full`; another thread may have done it.
fn begin_block(full: *mut Block) -> Option<()> {
    if MAPPED.fetch_add(1, Ordering::Relaxed) >= BLOCKS {
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: a new anonymous mapping, which is unmapped only if nobody has seen it.
    unsafe {
        let place = libc::mmap(
            core::ptr::null_mut(),
            BLOCK,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if place == libc::MAP_FAILED {
            return None;
        }
        let block = place.cast::<Block>();
        (*block)
            .used
            .store(size_of::<Block>().next_multiple_of(8), Ordering::Relaxed);
        let put = CURRENT.compare_exchange(full, block, Ordering::AcqRel, Ordering::Acquire);
        if put.is_err() {
            libc::munmap(place, BLOCK);
            MAPPED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Some(())
}
