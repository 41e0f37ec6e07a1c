//! The state of each thread that has caused events in Python.
//!
//! A thread gets a slot at its first event and returns it when it ends. Slots are never freed, because other threads
//! read the totals in them. They do not come from the heap, because a hook takes a slot, and hooks must not allocate.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::collecting::Collecting;
use super::holds::Holds;
use super::longest::{self, Longest};
use super::spans::Spans;
use super::thread_name::{NameCopy, ThreadName};
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle::{self, OnlyThread, Stage};
use tllmprof_platform::pages::{self, Chained, Spare};
use tllmprof_platform::thread::{self, Part};
use tllmprof_sync::Published;

lifecycle::global! {
    /// Thread slots that no thread has used yet.
    #[fork(keep = "places are inherited")]
    #[restart(keep)]
    static SPARE: Spare<Thread> = Spare::none();
    /// Number of times that the library's hooks were removed from the interpreter. A thread's stored calls are valid
    /// only if the number has not changed since the thread stored them.
    #[fork(keep = "the threads are copied as they are")]
    #[restart(keep)]
    static ERA: AtomicU32 = AtomicU32::new(0);
}
/// Number of thread slots that are allocated at a time.
const SLOTS_PER_BATCH: usize = 32;

/// The state of a thread. The struct fills whole cache lines, so that threads that take the GIL in turn do not write
/// to the same cache line.
#[repr(align(128))]
pub(crate) struct Thread {
    is_used: AtomicBool,
    /// The kernel's id of the thread that owns this slot.
    pub number: AtomicI32,
    pub name: ThreadName,
    /// The next slot in the list of slots that no thread has used yet.
    next: Published<Thread>,
    /// The address of the condition variable that the thread initialized or signalled last; 0 for none. A GIL has two
    /// condition variables at a known distance in memory. The library recognizes a GIL when a thread initializes or
    /// signals the second one right after the first one.
    pub last_condition: Cell<usize>,
    pub holds: Holds,
    /// The garbage collection that runs on the thread now, if any.
    pub collecting: Cell<Option<Collecting>>,
    pub spans: Spans,
    /// Number of calls of torch modules that the thread is inside.
    pub modules: Cell<u32>,
    /// True while the thread runs the library's own code in Python. Events that occur meanwhile on the thread are
    /// ignored.
    pub is_busy: Cell<bool>,
    /// The value of [`ERA`] for which the stored calls, such as those in `spans`, are valid.
    era: Cell<u32>,
}

// SAFETY: fields that are not atomic are used only by the thread that owns the slot, or by the only
// thread of a process. No reference into a cell is handed out, so a signal handler on the same
// thread never interrupts the use of one.
unsafe impl Sync for Thread {}

/// Returns the calling thread's slot, which holds the thread's state. A thread without a slot gets
/// one now. Returns `None` if there is no memory.
#[inline]
pub(crate) fn current() -> Option<&'static Thread> {
    #[cfg(test)]
    crate::broken::panic_if_asked();
    known().or_else(take)
}

/// Returns the calling thread's slot, which holds the thread's state, if the thread has one.
#[inline]
pub(crate) fn known() -> Option<&'static Thread> {
    thread::part()
}

/// Returns all slots that were ever given to a thread.
pub(crate) fn all() -> impl Iterator<Item = &'static Thread> {
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

/// Returns a slot that no thread has used yet.
fn spare() -> Option<&'static Thread> {
    SPARE.take(|| pages::batch_with(SLOTS_PER_BATCH, Thread::new))
}

impl Chained for Thread {
    fn next(&self) -> &Published<Self> {
        &self.next
    }
}

// SAFETY: `Thread` is the only type of per-thread data of the kind `ThreadComponent::Python`.
unsafe impl Part for Thread {
    const KIND: thread::ThreadComponent = thread::ThreadComponent::Python;

    fn thread_ends(&'static self) {
        leave(self);
    }
}

impl Thread {
    /// Returns true if a thread owns the slot.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Runs `act`, which is code of the library in Python, with `is_busy` set.
    pub(crate) fn busily<R>(&self, act: impl FnOnce() -> R) -> R {
        struct BusyMark<'a>(&'a Cell<bool>);
        impl Drop for BusyMark<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        self.is_busy.set(true);
        let _busy = BusyMark(&self.is_busy);
        act()
    }

    pub(crate) fn name(&self) -> NameCopy {
        self.name.get(self.number.load(Ordering::Relaxed))
    }

    const fn new() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            number: AtomicI32::new(0),
            name: ThreadName::new(),
            next: Published::none(),
            last_condition: Cell::new(0),
            holds: Holds::new(),
            collecting: Cell::new(None),
            spans: Spans::new(),
            modules: Cell::new(0),
            is_busy: Cell::new(false),
            era: Cell::new(0),
        }
    }

    /// Forgets the stored calls if the library's hooks were removed after the calls were stored, because the ends of
    /// these calls may not have been reported. Only the thread itself may call this function.
    #[inline]
    pub(crate) fn catch_up(&self) {
        let era = ERA.load(Ordering::Relaxed);
        if self.era.get() != era {
            self.forget(era);
        }
    }

    #[cold]
    fn forget(&self, era: u32) {
        self.era.set(era);
        self.holds.forget();
        self.collecting.set(None);
        self.spans.forget();
    }
}

/// Makes all threads forget the calls that they are in, because the ends of these calls will not be
/// reported.
pub(crate) fn forget_calls() {
    ERA.fetch_add(1, Ordering::Relaxed);
}

fn leave(thread: &'static Thread) {
    let time = thread.holds.waits.longest();
    if time != 0 {
        thread.name.ask_kernel();
        let name = thread.name();
        longest::keep(Longest { time, name });
    }
    thread.holds.leave();
    thread.collecting.set(None);
    thread.spans.thread_ends();
    thread.modules.set(0);
    thread.is_busy.set(false);
    thread.last_condition.set(0);
    thread.is_used.store(false, Ordering::Relaxed);
}

lifecycle::at_fork! {
    stage: Stage::Sinks,
    child: in_child,
}

/// Resets the slots in the child of a fork. The child has a single thread, and the ranges of all
/// threads belong to the parent.
fn in_child(alone: &OnlyThread) {
    let us = known();
    for thread in all() {
        let is_us = us.is_some_and(|us| core::ptr::eq(thread, us));
        thread.holds.in_child(alone);
        if let Some(collecting) = thread.collecting.take() {
            collecting.forget();
        }
        thread.spans.in_child(alone);
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_place_is_given_once() {
        let places: Vec<_> = (0..SLOTS_PER_BATCH * 2 + 1)
            .map(|_| spare().unwrap())
            .collect();
        let addresses: HashSet<_> = places.iter().map(|it| core::ptr::from_ref(*it)).collect();
        assert_eq!(addresses.len(), places.len());
        assert!(places.iter().all(|it| !it.is_used() && !it.is_busy.get()));
    }

    #[test]
    fn a_thread_keeps_its_place_until_it_ends() {
        let place = || core::ptr::from_ref(current().unwrap()).addr();
        let ours = place();
        let on_another = std::thread::spawn(move || {
            let first = place();
            assert_eq!(place(), first);
            known().unwrap().modules.set(3);
            first
        });
        let theirs = on_another.join().unwrap();
        assert_eq!(place(), ours);
        assert_ne!(ours, theirs);
        let left = all().find(|it| core::ptr::from_ref(*it).addr() == theirs);
        // A thread of another test may have the slot by now, but does not use this field.
        assert_eq!(left.unwrap().modules.get(), 0);
    }
}
