//! The buffers into which CUPTI writes its records.

use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

/// Size of each buffer for CUPTI's records, in bytes.
pub(crate) const SIZE: usize = 1 << 20;
/// Number of buffers that are allocated in advance, so that usually no thread of the program has to
/// allocate one.
const PREPARED_BUFFERS: usize = 8;
/// Maximum number of buffers. If CUPTI needs more, it drops records and counts the dropped ones.
const MAX_BUFFERS: usize = 256;

struct Free {
    places: [usize; MAX_BUFFERS],
    count: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(free)]
    static FREE: Lock<Free> = Lock::new(Free {
        places: [0; MAX_BUFFERS],
        count: 0,
    });
    #[fork(keep = "buffers are inherited")]
    static MADE: AtomicUsize = AtomicUsize::new(0);
}

/// Allocates buffers in advance, up to [`PREPARED_BUFFERS`].
pub(crate) fn prepare() {
    while MADE.load(Ordering::Relaxed) < PREPARED_BUFFERS {
        match make() {
            Some(buffer) => give_back(buffer),
            None => break,
        }
    }
}

/// Returns a free buffer, and allocates a new one if no buffer is free. Returns `None` if [`MAX_BUFFERS`] are in use
/// or there is no memory.
pub(crate) fn take() -> Option<*mut u8> {
    let mut free = FREE.lock();
    if let Some(last) = free.count.checked_sub(1) {
        free.count = last;
        return Some(core::ptr::with_exposed_provenance_mut(free.places[last]));
    }
    drop(free);
    make()
}

/// Puts a buffer that is no longer used back into the list of free buffers.
pub(crate) fn give_back(buffer: *mut u8) {
    let mut free = FREE.lock();
    let count = free.count;
    if let Some(place) = free.places.get_mut(count) {
        *place = buffer.expose_provenance();
        free.count += 1;
    }
}

/// Unmaps free buffers until at most [`PREPARED_BUFFERS`] free ones are left.
pub(crate) fn shrink() {
    let mut free = FREE.lock();
    while free.count > PREPARED_BUFFERS {
        free.count -= 1;
        let place = free.places[free.count];
        // SAFETY: this address is that of one of our mappings, and no code uses the mapping any more because it is in
        // the list of free buffers.
        unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(place), SIZE) };
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
}

fn make() -> Option<*mut u8> {
    if MADE.fetch_add(1, Ordering::Relaxed) >= MAX_BUFFERS {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: the kernel chooses the address of this new anonymous mapping. Its pages are populated
    // at once.
    let place = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
            0,
        )
    };
    if place == libc::MAP_FAILED {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    Some(place.cast())
}
