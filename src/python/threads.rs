//! The threads that Python's events happen on.
//!
//! A thread gets its place at its first event and gives it back when it ends. Places are never
//! freed: the totals are read from other threads, and a hook must not allocate from the heap.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use super::functions::Spans;
use super::holds::Holds;
use super::names::{Text, ThreadName};
use super::totals;
use crate::ids;
use crate::intercept::tls;

const NO_KEY: u32 = u32::MAX;
/// Tells when a thread ends that has a place.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
/// All places, newest first.
static ALL: AtomicPtr<Thread> = AtomicPtr::new(core::ptr::null_mut());
/// Places that are made at a time.
const BATCH: usize = 32;

/// What is known of a thread. On cache lines of its own: threads that have the GIL in turn write here.
#[repr(align(128))]
pub struct Thread {
    is_used: AtomicBool,
    /// The kernel's number for it.
    pub number: AtomicI32,
    pub name: ThreadName,
    next: AtomicPtr<Thread>,
    /// The condition variable that the thread has initialised last.
    pub last_condition: Cell<usize>,
    pub holds: Holds,
    /// The collection that is under way on the thread.
    pub collecting: UnsafeCell<Option<super::gc::Collecting>>,
    pub spans: UnsafeCell<Spans>,
    /// Calls of torch modules that the thread is in.
    pub modules: Cell<u32>,
    /// The thread is in our own code that Python runs.
    pub is_busy: Cell<bool>,
}

// SAFETY: what is no atomic is used by the thread that has the place, alone.
unsafe impl Sync for Thread {}

/// The calling thread's place; none if there is no memory for one.
#[inline]
pub fn current() -> Option<&'static Thread> {
    // SAFETY: the block is the thread's own; places are never freed.
    let known = unsafe { (*tls()).python.as_ref() };
    known.or_else(take)
}

/// The places of all threads that there have been.
pub fn all() -> impl Iterator<Item = &'static Thread> {
    let at = |place: &AtomicPtr<Thread>| {
        // SAFETY: null or a place, which is never freed.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    };
    core::iter::successors(at(&ALL), move |thread| at(&thread.next))
}

#[cold]
fn take() -> Option<&'static Thread> {
    let free = |thread: &&Thread| {
        !thread.is_used.load(Ordering::Relaxed) && !thread.is_used.swap(true, Ordering::Acquire)
    };
    let thread = all().find(free).or_else(more)?;
    thread.number.store(ids::thread(), Ordering::Relaxed);
    thread.name.begin();
    // SAFETY: the block is the thread's own.
    unsafe { (*tls()).python = thread };
    let key = KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: the key has been made; its value is a place, which is never freed.
        unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(thread).cast()) };
    }
    Some(thread)
}

/// Makes a batch of places, of which the first is taken.
fn more() -> Option<&'static Thread> {
    // SAFETY: an anonymous mapping, which is never unmapped.
    let pages = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            BATCH * size_of::<Thread>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if pages == libc::MAP_FAILED {
        return None;
    }
    let first: *mut Thread = pages.cast();
    for index in (0..BATCH).rev() {
        // SAFETY: the mapping has room for that many, is aligned to a page, and nobody else has it.
        let thread: &'static Thread = unsafe {
            let place = first.add(index);
            place.write(Thread::new(index == 0));
            &*place
        };
        let mut head = ALL.load(Ordering::Acquire);
        loop {
            thread.next.store(head, Ordering::Relaxed);
            let us = core::ptr::from_ref(thread).cast_mut();
            match ALL.compare_exchange(head, us, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }
    // SAFETY: written above.
    Some(unsafe { &*first })
}

impl Thread {
    /// Whether a thread has the place.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// What it is called.
    pub fn name(&self) -> Text {
        self.name.get(self.number.load(Ordering::Relaxed))
    }

    const fn new(is_used: bool) -> Self {
        Self {
            is_used: AtomicBool::new(is_used),
            number: AtomicI32::new(0),
            name: ThreadName::new(),
            next: AtomicPtr::new(core::ptr::null_mut()),
            last_condition: Cell::new(0),
            holds: Holds::new(),
            collecting: UnsafeCell::new(None),
            spans: UnsafeCell::new(Spans::new()),
            modules: Cell::new(0),
            is_busy: Cell::new(false),
        }
    }
}

/// Has the end of threads told. Once, before the first event.
pub fn start() {
    unsafe extern "C" fn ends(thread: *mut c_void) {
        // SAFETY: the value is a place, which is never freed.
        leave(unsafe { &*thread.cast::<Thread>() });
    }
    if KEY.load(Ordering::Relaxed) != NO_KEY {
        return;
    }
    let mut key = 0;
    // SAFETY: the handler is a function of this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } == 0 {
        // Without a key the places of threads that end are not used again.
        KEY.store(key, Ordering::Relaxed);
    }
}

fn leave(thread: &'static Thread) {
    totals::ends(thread);
    thread.holds.leave();
    // SAFETY: the block is the thread's own; so is the place, until it is given back below.
    unsafe {
        (*tls()).python = core::ptr::null();
        *thread.collecting.get() = None;
        (*thread.spans.get()).leave();
    }
    thread.modules.set(0);
    thread.is_busy.set(false);
    thread.last_condition.set(0);
    thread.is_used.store(false, Ordering::Release);
}

/// The child of a fork has one thread: ranges that others had open are their process's.
///
/// # Safety
/// The process has one thread.
pub unsafe fn in_child() {
    // SAFETY: the block is the thread's own.
    let us = unsafe { (*tls()).python };
    for thread in all() {
        let is_us = core::ptr::eq(thread, us);
        // SAFETY: no other thread uses its place any more.
        unsafe {
            thread.holds.in_child();
            if let Some(collecting) = (*thread.collecting.get()).take() {
                collecting.forget();
            }
            (*thread.spans.get()).in_child();
        }
        thread.modules.set(0);
        if is_us {
            thread.number.store(ids::thread(), Ordering::Relaxed);
        } else {
            thread.is_busy.set(false);
            thread.last_condition.set(0);
            thread.is_used.store(false, Ordering::Relaxed);
        }
    }
}
