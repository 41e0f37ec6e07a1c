//! The library's heap: the library allocates from this heap, not with the program's `malloc`.
//!
//! The program's allocator may take locks, unwind the stack or look up names. That is dangerous while the library
//! holds the loader's lock, or if the library was called from that allocator. Also, a tool that counts or checks
//! allocations must only see those of the program. The program's allocator is used only if this heap gets no memory,
//! or if the heap's lock cannot be acquired. That happens in a signal handler that interrupted an allocation, and in
//! a child process that was forked during an allocation. The address of a block shows which allocator it belongs to.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::alloc::System;

use dlmalloc::Dlmalloc;
use tllmprof_sync::{Guard, Lock};

use crate::lifecycle::{self, OnlyThread, Stage};
use regions::Regions;

mod regions;

/// The longest time that an allocation waits while another thread allocates. After that, the allocation uses the
/// program's allocator.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// A block of at least this number of bytes gets a memory mapping of its own.
const LARGE: usize = 256 * 1024;

type Heap = Dlmalloc<Pages>;

lifecycle::global! {
    stage: Heap;

    #[fork(by = in_child)]
    static HEAP: Lock<Heap> = Lock::new(Dlmalloc::new_with_allocator(Pages));
    /// True after a wait for the heap's lock has timed out. From then on no thread waits for the
    /// lock, until a thread has found it free again.
    #[fork(reset)]
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "the child has the same pages")]
    static REGIONS: Regions = Regions::none();
}

lifecycle::at_fork! {
    stage: Stage::Again, // after all other stages, because these allocate
    before: || HEAP.hold_over_fork(),
    parent: || HEAP.release_after_fork(),
}

/// Runs in the child of a fork, and releases the heap's lock, which the forking thread acquired before the fork. If
/// that thread could not acquire it, because another thread was allocating, the heap stays locked in the child for
/// ever. The child then uses the program's allocator.
fn in_child(alone: &OnlyThread) {
    HEAP.break_open_if_held(alone);
}

fn locked() -> Option<Guard<'static, Heap>> {
    if IS_LOST.load(Ordering::Relaxed) {
        let heap = HEAP.try_lock()?;
        IS_LOST.store(false, Ordering::Relaxed);
        return Some(heap);
    }
    let heap = HEAP.lock_for(LOCK_TIMEOUT);
    if heap.is_none() {
        IS_LOST.store(true, Ordering::Relaxed);
    }
    heap
}

/// The source of memory for dlmalloc, which manages the small blocks. It never returns memory to the system.
struct Pages;

// SAFETY: each block of memory is a new mapping, which nothing else uses and which is never unmapped.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.max(LARGE);
        REGIONS
            .map(size)
            .map_or((null_mut(), 0, 0), |place| (place, size, 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        regions::PAGE
    }
}

/// The library's global allocator. It takes small blocks from [`HEAP`], and maps each large block separately.
pub struct OwnHeap;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= regions::PAGE
}

// SAFETY: a block is a region (a memory mapping of this heap), lies in a region, or belongs to the system allocator.
// Its address and size show which of these three cases applies, and so how to free the block. A region exists as long
// as a block in it. The heap is used under its lock, and the functions do not unwind. (They are not inlined, because
// otherwise every function that allocates would contain a copy.)
unsafe impl GlobalAlloc for OwnHeap {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let own = if is_large(layout) {
            REGIONS.map(layout.size())
        } else {
            // SAFETY: the heap accepts any size, and the alignment is a power of two.
            locked().map(|mut heap| unsafe { heap.malloc(layout.size(), layout.align()) })
        };
        match own {
            Some(own) if !own.is_null() => own,
            // SAFETY: the caller's layout is passed unchanged.
            _ => unsafe { System.alloc(layout) },
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !REGIONS.contain(block) {
            // SAFETY: the block is in none of this heap's regions, so it comes from the system's allocator.
            unsafe { System.dealloc(block, layout) };
        } else if is_large(layout) {
            // SAFETY: a block of this size is a region, and the caller no longer uses it.
            unsafe { REGIONS.unmap(block, layout.size()) };
        } else if let Some(mut heap) = locked() {
            // SAFETY: the heap has allocated the block with this size and alignment.
            unsafe { heap.free(block, layout.size(), layout.align()) };
        }
        // If the heap's lock cannot be acquired, the block is never freed.
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller of `realloc` must pass a size that does not overflow when it is rounded up to the
        // alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if REGIONS.contain(block) && !is_large(layout) && !is_large(wanted) {
            let (old, align) = (layout.size(), layout.align());
            // SAFETY: the heap has allocated the block with this size and alignment.
            let own = locked().map(|mut heap| unsafe { heap.realloc(block, old, align, size) });
            if let Some(own) = own
                && !own.is_null()
            {
                return own;
            }
        }
        // SAFETY: the caller does not pass a size of 0.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: both blocks have at least this many bytes, and the new block is not used elsewhere. The old block
            // is freed with its own layout.
            unsafe {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests;
