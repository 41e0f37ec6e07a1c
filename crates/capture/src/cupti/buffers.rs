//! The buffers that CUPTI writes its records to.

use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

/// Size of a buffer in bytes.
pub const SIZE: usize = 1 << 20;
/// Number of buffers that are prepared, so that no thread of the program has to make one.
const PREPARED_BUFFERS: usize = 8;
/// Largest number of buffers. If they are not enough, CUPTI drops records and counts them.
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

/// Makes the prepared buffers.
pub fn prepare() {
    while MADE.load(Ordering::Relaxed) < PREPARED_BUFFERS {
        match make() {
            Some(buffer) => give_back(buffer),
            None => break,
        }
    }
}

/// Returns a buffer that is not in use.
pub fn take() -> Option<*mut u8> {
    let mut free = FREE.lock();
    if let Some(last) = free.count.checked_sub(1) {
        free.count = last;
        return Some(core::ptr::with_exposed_provenance_mut(free.places[last]));
    }
    drop(free);
    make()
}

/// Returns a buffer to the list of free ones.
pub fn give_back(buffer: *mut u8) {
    let mut free = FREE.lock();
    let count = free.count;
    if let Some(place) = free.places.get_mut(count) {
        *place = buffer.expose_provenance();
        free.count += 1;
    }
}

/// Unmaps the buffers that a window has needed in addition to the prepared ones.
pub fn shrink() {
    let mut free = FREE.lock();
    while free.count > PREPARED_BUFFERS {
        free.count -= 1;
        let place = free.places[free.count];
        // SAFETY: one of our own mappings, which no code uses any more.
        unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(place), SIZE) };
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
}

fn make() -> Option<*mut u8> {
    if MADE.fetch_add(1, Ordering::Relaxed) >= MAX_BUFFERS {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: a new anonymous mapping, whose pages are allocated at once.
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
