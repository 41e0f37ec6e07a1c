//! The walk over the loaded modules. A walk holds the loader's lock. So a fork waits until walks have ended: otherwise
//! the lock would stay locked in the child.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use libc::dl_phdr_info;

use super::{ElfModule, walker};
use crate::ids;
use crate::lifecycle::{self, OnlyThread, Stage};
use crate::panics::contained;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

lifecycle::global! {
    stage: Modules;

    /// The number of walks over the modules that are in progress, on all threads. It is a count and not a flag, because
    /// several walks may be in progress at once. Walks of the program itself do not count.
    #[fork(reset)]
    static WALKERS: AtomicU32 = AtomicU32::new(0);
    /// ID of the thread that is forking; 0 if there is none. Other threads start no walk during the fork.
    #[fork(reset)]
    static FORKING: AtomicU32 = AtomicU32::new(0);
    /// A number that is larger by one in a child process than in its parent. A walk over the modules stores it at its
    /// beginning, so that a walk that began before a fork is recognized.
    #[fork(by = in_child)]
    static GENERATION: AtomicU32 = AtomicU32::new(0);
}
/// The longest time that a fork waits for walks over the modules to end. A walk is short, but its thread may have to
/// wait for a processor.
const WALK_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a walk over the modules waits for a fork to end. The fork of a large process takes a while.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// Visits the loaded modules in the loader's order, until `visit` returns true.
///
/// No module is unloaded during the walk. If the process forked during the walk, the loader's lock would stay
/// locked in the child. So forks wait for walks to end: see [`before_fork`].
pub fn walk(mut visit: impl FnMut(&ElfModule) -> bool) {
    let _walking = Walking::begin();
    iterate(&mut visit);
}

/// Visits the modules like [`walk`], inside a walk that has begun. Not generic, so that it is compiled only
/// once: it has many callers and need not be fast.
pub(super) fn iterate(visit: &mut dyn FnMut(&ElfModule) -> bool) {
    each_described(&mut |info| ElfModule::new(info).is_some_and(|module| visit(&module)));
}

/// The loader's description of a module.
pub(super) struct Description<'a>(pub(super) &'a dl_phdr_info);

/// Visits the loader's description of each module, until `visit` returns true.
pub(super) fn each_described(visit: &mut dyn FnMut(Description<'_>) -> bool) {
    type Visitor<'a> = &'a mut dyn FnMut(Description<'_>) -> bool;
    unsafe extern "C" fn each(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description. `visit` is the closure that was passed below, and only this
        // call uses it.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visitor<'_>>()) };
        // A panic of `visit` must not pass through the loader, because the loader's lock would stay
        // locked. The walk ends after such a panic.
        contained(true, || visit(Description(info))).into()
    }
    let mut visit: Visitor<'_> = visit;
    // SAFETY: the callback receives the closure with its original type, and the closure outlives the call.
    unsafe {
        walker::iterate()(Some(each), (&raw mut visit).cast());
    }
}

/// A walk in progress. A fork waits until this value is dropped.
pub(super) struct Walking {
    generation: u32,
}

impl Walking {
    pub(super) fn begin() -> Self {
        let mut deadline = None;
        loop {
            WALKERS.fetch_add(1, Ordering::SeqCst);
            let generation = GENERATION.load(Ordering::Relaxed);
            let walking = Self { generation };
            let forking = FORKING.load(Ordering::SeqCst);
            // The forking thread itself may begin a walk, because fork handlers of other libraries
            // may cause one.
            if forking == 0 || forking == this_thread() {
                return walking;
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + FORK_TIMEOUT);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return walking;
            }
            drop(walking);
            wait(&FORKING, forking, left);
        }
    }
}

impl Drop for Walking {
    fn drop(&mut self) {
        // If the walk began before a fork, do not decrease the number of walkers in the child, because that number
        // started at 0 in the child. This case occurs if a signal handler interrupts the walk and forks.
        if self.generation == GENERATION.load(Ordering::Relaxed)
            && WALKERS.fetch_sub(1, Ordering::SeqCst) == 1
            && FORKING.load(Ordering::SeqCst) != 0
        {
            wake(&WALKERS, 1);
        }
    }
}

fn this_thread() -> u32 {
    ids::thread().cast_unsigned()
}

lifecycle::at_fork! {
    stage: Stage::Modules,
    before: before_fork,
    parent: after_fork,
}

/// Prevents other threads from starting a walk over the modules during a fork, and waits until their walks have
/// ended, at most for [`WALK_TIMEOUT`]. Does nothing if another thread is forking at the same time.
fn before_fork() {
    let us = this_thread();
    if FORKING
        .compare_exchange(0, us, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let deadline = Instant::now() + WALK_TIMEOUT;
    loop {
        let walkers = WALKERS.load(Ordering::SeqCst);
        let left = deadline.saturating_duration_since(Instant::now());
        if walkers == 0 || left.is_zero() {
            return;
        }
        wait(&WALKERS, walkers, left);
    }
}

/// Allows other threads to walk over the modules again, if [`before_fork`] prevented it.
fn after_fork() {
    let held = FORKING.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::Relaxed);
    if held.is_ok() {
        wake(&FORKING, i32::MAX);
    }
}

/// Runs in the child after a fork. Increases the generation, so that walks that began before the fork are recognized.
fn in_child(_: &OnlyThread) {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the module that contains `address`, or `None` if no module does.
pub fn containing(address: usize) -> Option<ElfModule> {
    let mut found = None;
    walk(|module| {
        let here = module.contains(address);
        if here {
            found = Some(*module);
        }
        here
    });
    found
}
