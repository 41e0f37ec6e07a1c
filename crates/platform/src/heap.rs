//! The library's own heap: its code allocates from pages of this heap, not from the host's `malloc`.
//!
//! The host's allocator may take locks, unwind the stack or look names up, while the library holds the
//! loader's lock or was called from that very allocator. A tool that counts or checks allocations must only
//! see those of the host. The host's allocator is used only if there is no memory for this heap, or if the
//! heap's lock cannot be acquired (in a signal handler that interrupted an allocation, or in a copy of the
//! process made during one). The address of a block shows which allocator it belongs to.

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

/// The time an allocation waits for another thread's.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Blocks of at least this size are mappings of their own.
const LARGE: usize = 256 * 1024;

type Heap = Dlmalloc<Pages>;

lifecycle::global! {
    stage: Heap;

    #[fork(by = in_child)]
    static HEAP: Lock<Heap> = Lock::new(Dlmalloc::new_with_allocator(Pages));
    /// True after a wait has timed out: then no thread waits until the lock is free again.
    #[fork(reset)]
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "the child has the same pages")]
    static REGIONS: Regions = Regions::none();
}

lifecycle::at_fork! {
    stage: Stage::Again, // after all others, which allocate
    before: || HEAP.hold_over_fork(),
    parent: || HEAP.release_after_fork(),
}

/// If another thread was allocating during the fork, the heap stays locked for good.
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

/// The source of memory for the heap of small blocks, which never returns any.
struct Pages;

// SAFETY: each block of memory is a new mapping, which nothing else uses and which stays.
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

/// The library's allocator.
pub struct OwnHeap;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= regions::PAGE
}

// SAFETY: a block is a region, lies in a region of the heap, or is the system allocator's, and is freed by
// the one that its address and size show. A region stays as long as a block in it. The heap is used under its
// lock. Nothing here unwinds. (Not inlined: every allocating function would contain a copy.)
unsafe impl GlobalAlloc for OwnHeap {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let own = if is_large(layout) {
            REGIONS.map(layout.size())
        } else {
            // SAFETY: any size will do, and the alignment is a power of two.
            locked().map(|mut heap| unsafe { heap.malloc(layout.size(), layout.align()) })
        };
        match own {
            Some(own) if !own.is_null() => own,
            // SAFETY: the caller's layout, unchanged.
            _ => unsafe { System.alloc(layout) },
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !REGIONS.contain(block) {
            // SAFETY: it is in none of our regions, so the system's allocator has made it.
            unsafe { System.dealloc(block, layout) };
        } else if is_large(layout) {
            // SAFETY: such a block is a region, and the caller no longer uses it.
            unsafe { REGIONS.unmap(block, layout.size()) };
        } else if let Some(mut heap) = locked() {
            // SAFETY: the heap has made the block of this size and alignment.
            unsafe { heap.free(block, layout.size(), layout.align()) };
        }
        // Otherwise the block is lost: the heap's lock cannot be acquired.
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: GlobalAlloc requires from its caller a size that does not overflow when it is rounded up to
        // the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if REGIONS.contain(block) && !is_large(layout) && !is_large(wanted) {
            let (old, align) = (layout.size(), layout.align());
            // SAFETY: the heap has made the block of this size and alignment.
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
            // SAFETY: both blocks have that many bytes, and the new one belongs to nothing else. The old one
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
