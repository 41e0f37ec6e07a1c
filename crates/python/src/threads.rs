//! The threads that Python's events happen on.
//!
//! A thread gets its place at its first event and gives it back when it ends. Places are never
//! freed: the totals are read from other threads, and a hook must not allocate from the heap.

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use super::functions::Spans;
use super::holds::Holds;
use super::names::{Text, ThreadName};
use super::totals;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_platform::ids;
use tllmprof_platform::thread::{self, Part};

lifecycle::global! {
    /// Places that were made and no thread has had yet, in a chain.
    #[fork(keep = "places are inherited")]
    #[restart(keep)]
    static SPARE: AtomicPtr<Thread> = AtomicPtr::new(core::ptr::null_mut());
}
/// Places that are made at a time.
const BATCH: usize = 32;

/// What is known of a thread. On cache lines of its own: threads that have the GIL in turn write here.
#[repr(align(128))]
pub struct Thread {
    is_used: AtomicBool,
    /// The kernel's number for it.
    pub number: AtomicI32,
    pub name: ThreadName,
    /// The next of the spare places.
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
    known().or_else(take)
}

/// The calling thread's place, if it has one.
#[inline]
pub fn known() -> Option<&'static Thread> {
    thread::part()
}

/// The places of all threads that there have been.
pub fn all() -> impl Iterator<Item = &'static Thread> {
    thread::parts()
}

#[cold]
fn take() -> Option<&'static Thread> {
    thread::begin_part(|record, left| {
        let thread: &Thread = left.or_else(spare)?;
        thread.number.store(record.number(), Ordering::Relaxed);
        thread.name.begin();
        thread.is_used.store(true, Ordering::Relaxed);
        Some(thread)
    })
}

/// A place that no thread has had, from a batch of them.
fn spare() -> Option<&'static Thread> {
    let mut first = SPARE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if first.is_null() {
        first = more()?;
    }
    // SAFETY: a place, which is never freed.
    let thread: &'static Thread = unsafe { &*first };
    let rest = thread
        .next
        .swap(core::ptr::null_mut(), Ordering::Relaxed);
    // Should another thread have put its own rest back meanwhile, this one is lost: a batch at most.
    let _ = SPARE.compare_exchange(
        core::ptr::null_mut(),
        rest,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    Some(thread)
}

/// Makes a batch of places, each of which leads to the next.
fn more() -> Option<*mut Thread> {
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
    let mut next = core::ptr::null_mut();
    for index in (0..BATCH).rev() {
        // SAFETY: the mapping has room for that many, is aligned to a page, and nobody else has it.
        next = unsafe {
            let place = first.add(index);
            place.write(Thread::new(next));
            place
        };
    }
    Some(first)
}

// SAFETY: no other part is of this kind.
unsafe impl Part for Thread {
    const KIND: thread::Kind = thread::Kind::Python;

    fn thread_ends(&'static self) {
        leave(self);
    }
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

    const fn new(next: *mut Self) -> Self {
        Self {
            is_used: AtomicBool::new(false),
            number: AtomicI32::new(0),
            name: ThreadName::new(),
            next: AtomicPtr::new(next),
            last_condition: Cell::new(0),
            holds: Holds::new(),
            collecting: UnsafeCell::new(None),
            spans: UnsafeCell::new(Spans::new()),
            modules: Cell::new(0),
            is_busy: Cell::new(false),
        }
    }
}

fn leave(thread: &'static Thread) {
    totals::ends(thread);
    thread.holds.leave();
    // SAFETY: the place is the thread's own until this returns.
    unsafe {
        *thread.collecting.get() = None;
        (*thread.spans.get()).leave();
    }
    thread.modules.set(0);
    thread.is_busy.set(false);
    thread.last_condition.set(0);
    thread.is_used.store(false, Ordering::Relaxed);
}

lifecycle::at_fork! {
    stage: Stage::Sinks,
    child: in_child,
}

/// The child of a fork has one thread: ranges that others had open are their process's.
fn in_child(_: &OnlyThread) {
    let us = known();
    for thread in all() {
        let is_us = us.is_some_and(|us| core::ptr::eq(thread, us));
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
