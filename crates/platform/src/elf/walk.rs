//! The walk over the loaded modules, which no fork may happen in.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use libc::dl_phdr_info;

use super::{Module, walker};
use crate::ids;
use crate::lifecycle::{self, OnlyThread, Stage};
use crate::panics::contained;
use tllmprof_sync::wait;
use tllmprof_sync::wake;

lifecycle::global! {
    stage: Modules;

    /// Threads that walk. They do not keep each other out: the host may be walking, too, with the
    /// loader's lock in hand, and look something up meanwhile.
    #[fork(reset)]
    static WALKERS: AtomicU32 = AtomicU32::new(0);
    /// The thread that forks, 0 for none. Nobody else starts to walk meanwhile.
    #[fork(reset)]
    static FORKING: AtomicU32 = AtomicU32::new(0);
    /// Moves on in each child, which has none of its parent's walkers.
    #[fork(by = in_child)]
    static GENERATION: AtomicU32 = AtomicU32::new(0);
}
/// How long a fork waits for walks to end: a walk is short, but its thread may not be running.
const WALK: Duration = Duration::from_secs(1);
/// How long a walk waits for a fork to end: that of a large process takes a while.
const FORK: Duration = Duration::from_secs(10);

/// Visits the loaded modules in the loader's order, until the visitor returns true.
///
/// No module is unloaded meanwhile. The loader's lock for this is one that a fork does not give
/// back in the child, so that none may happen meanwhile: see [`before_fork`].
pub fn walk(visit: impl FnMut(&Module) -> bool) {
    let _walking = Walking::begin();
    iterate(visit);
}

pub(super) fn iterate(mut visit: impl FnMut(&Module) -> bool) {
    each_described(&mut |info| Module::new(info).is_some_and(|module| visit(&module)));
}

/// What the loader reports of a module.
pub(super) struct Description<'a>(pub(super) &'a dl_phdr_info);

/// Visits what the loader reports of each module, until the visitor returns true.
pub(super) fn each_described(visit: &mut dyn FnMut(Description<'_>) -> bool) {
    type Visitor<'a> = &'a mut dyn FnMut(Description<'_>) -> bool;
    unsafe extern "C" fn each(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description, and `visit` is the closure given below,
        // which is used by this call alone.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visitor<'_>>()) };
        // A panic must not pass the loader, which would keep its lock: nothing more is visited then.
        contained(true, || visit(Description(info))).into()
    }
    let mut visit: Visitor<'_> = visit;
    // SAFETY: the callback gets the closure back as the type it has, and the closure outlives the
    // call.
    unsafe {
        walker::iterate()(Some(each), (&raw mut visit).cast());
    }
}

/// A walk that is under way.
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
            // The thread that forks may walk in the handlers of others.
            if forking == 0 || forking == this_thread() {
                return walking;
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + FORK);
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
        // The child of a fork in a signal handler that interrupted the walk has no walkers.
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

/// Keeps other threads from walking over a fork, unless another thread forks, too.
fn before_fork() {
    let us = this_thread();
    if FORKING
        .compare_exchange(0, us, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let deadline = Instant::now() + WALK;
    loop {
        let walkers = WALKERS.load(Ordering::SeqCst);
        let left = deadline.saturating_duration_since(Instant::now());
        if walkers == 0 || left.is_zero() {
            return;
        }
        wait(&WALKERS, walkers, left);
    }
}

/// Lets other threads walk again, where [`before_fork`] kept them from it.
fn after_fork() {
    let held = FORKING.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::Relaxed);
    if held.is_ok() {
        wake(&FORKING, i32::MAX);
    }
}

/// What other threads were walking through is nothing to the child.
fn in_child(_: &OnlyThread) {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The module that `address` lies in.
pub fn containing(address: usize) -> Option<Module> {
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
