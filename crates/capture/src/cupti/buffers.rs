//! The memory that CUPTI writes into.

use core::sync::atomic::{AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

/// Bytes of a buffer.
pub const SIZE: usize = 1 << 20;
/// Buffers that are there from the start, so that no thread of the program has to make one.
const AHEAD: usize = 8;
/// Buffers that there can be; where that is not enough, CUPTI drops work and counts it.
const MOST: usize = 256;

struct Free {
    places: [usize; MOST],
    count: usize,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(free)]
    static FREE: Lock<Free> = Lock::new(Free {
        places: [0; MOST],
        count: 0,
    });
    #[fork(keep = "buffers are inherited")]
    static MADE: AtomicUsize = AtomicUsize::new(0);
}

/// Makes those that are to be there from the start.
pub fn prepare() {
    while MADE.load(Ordering::Relaxed) < AHEAD {
        match make() {
            Some(buffer) => give_back(buffer),
            None => break,
        }
    }
}

/// A buffer that is not in use.
pub fn take() -> Option<*mut u8> {
    let mut free = FREE.lock();
    if let Some(last) = free.count.checked_sub(1) {
        free.count = last;
        return Some(core::ptr::with_exposed_provenance_mut(free.places[last]));
    }
    drop(free);
    make()
}

/// Gives a buffer back.
pub fn give_back(buffer: *mut u8) {
    let mut free = FREE.lock();
    let count = free.count;
    if let Some(place) = free.places.get_mut(count) {
        *place = buffer.expose_provenance();
        free.count += 1;
    }
}

/// Gives back to the system what a window has needed beyond the first.
pub fn shrink() {
    let mut free = FREE.lock();
    while free.count > AHEAD {
        free.count -= 1;
        let place = free.places[free.count];
        // SAFETY: one of our own mappings, which nobody uses any more.
        unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(place), SIZE) };
        MADE.fetch_sub(1, Ordering::Relaxed);
    }
}

fn make() -> Option<*mut u8> {
    if MADE.fetch_add(1, Ordering::Relaxed) >= MOST {
        MADE.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    // SAFETY: a new anonymous mapping, of pages that are there at once.
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
