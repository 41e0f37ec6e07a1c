//! Where the GIL is waited for, taken and dropped: the condition variables of CPython's `ceval_gil`.
//!
//! A GIL has two: `cond`, which is signalled when the GIL is dropped, and which those who want it
//! wait on; and `switch_cond`, which is signalled when it is taken, and which a thread waits on that
//! was forced to drop it. They are initialised one after the other, and lie a mutex apart. Only the
//! interpreter's own slots for `pthread_cond_*` lead here, so nobody else's calls cost anything.
//!
//! The GIL's mutex is held in these hooks, but for a forced switch: a time stamp, a total, an NVTX
//! event if somebody listens, and nothing else. As it is, holds of one GIL never overlap.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;

use super::holds;
use super::object::Python;
use super::threads::{self, Thread};
use super::time::now;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::log;

/// GILs that are followed at a time; from 3.12 on an interpreter may have one of its own.
const GILS: usize = 64;
/// From `cond` to `switch_cond`.
const APART: usize = size_of::<libc::pthread_cond_t>() + size_of::<libc::pthread_mutex_t>();

lifecycle::global! {
    /// The addresses of `cond`; 0 for a free place. `switch_cond` lies behind it.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static CONDITIONS: [AtomicUsize; GILS] = [const { AtomicUsize::new(0) }; GILS];
    /// How many places have been used.
    #[fork(keep = "as the conditions")]
    #[restart(keep)]
    static USED: AtomicUsize = AtomicUsize::new(0);
    /// GILs for which there was no place.
    #[fork(keep = "as the conditions")]
    #[restart(keep)]
    static MISSED: AtomicU32 = AtomicU32::new(0);
    /// There may be a GIL that was made before anybody told us.
    #[fork(keep = "as the conditions")]
    #[restart(keep)]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    /// The interpreter is built to do without, and does.
    #[fork(keep = "as the interpreter")]
    #[restart(keep)]
    static IS_OFF: AtomicBool = AtomicBool::new(false);
}

// SAFETY: these are the declarations of pthread.h. A thread that is cancelled is unwound out of them.
unsafe extern "C-unwind" {
    fn pthread_cond_timedwait(
        condition: *mut libc::pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
        until: *const libc::timespec,
    ) -> c_int;
    fn pthread_cond_wait(
        condition: *mut libc::pthread_cond_t,
        mutex: *mut libc::pthread_mutex_t,
    ) -> c_int;
}

/// GILs that could not be followed.
pub fn missed() -> u32 {
    MISSED.load(Ordering::Relaxed)
}

/// An interpreter is up. With the first one, ranges and totals begin. Not for a hook: it loads the
/// tool that listens.
pub fn begin(py: Python<'_>, thread: &Thread) {
    if holds::have_names() {
        return;
    }
    if !has_gil(py) {
        IS_OFF.store(true, Ordering::Relaxed);
        forget_all();
        log::say!(
            Debug,
            "Python {} runs without a GIL: there is none to wait for",
            py.api.version
        );
    }
    holds::begin();
    // The first interpreter's is the first in the table.
    thread.holds.begin(0);
}

/// Whether threads need one now. A free-threaded build takes it for moments all the same, while it
/// imports an extension module.
fn has_gil(py: Python<'_>) -> bool {
    let Some(sys) = py.imported(c"sys") else {
        return true;
    };
    let Some(asked) = sys.attr(c"_is_gil_enabled") else {
        return true;
    };
    asked.call(&[]).is_none_or(|answer| answer.is_true())
}

/// There is an interpreter already: its GIL shows when a thread drops and retakes it.
pub fn is_late() {
    IS_LATE.store(true, Ordering::Relaxed);
}

/// A condition variable of the interpreter's has been initialised. Whether that made a GIL.
pub fn initialised(condition: usize, thread: &Thread) -> bool {
    forget(condition);
    let last = thread.last_condition.replace(condition);
    if last == 0 || condition != last.wrapping_add(APART) {
        return false;
    }
    thread.last_condition.set(0);
    follow(last);
    true
}

/// Follows the GIL whose `cond` lies there.
fn follow(condition: usize) {
    if IS_OFF.load(Ordering::Relaxed) {
        return;
    }
    // Another thread may have found the same one.
    let is_it = |place: &AtomicUsize| place.load(Ordering::Acquire) == condition;
    if CONDITIONS.iter().any(is_it) {
        return;
    }
    for (index, place) in CONDITIONS.iter().enumerate() {
        let free = place.compare_exchange(0, condition, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            return;
        }
    }
    MISSED.fetch_add(1, Ordering::Relaxed);
}

/// A condition variable is gone, and a GIL with it if it is one's. Whether it is.
fn forget(condition: usize) -> bool {
    CONDITIONS[..USED.load(Ordering::Acquire)]
        .iter()
        .any(|place| {
            let known = place.compare_exchange(condition, 0, Ordering::AcqRel, Ordering::Relaxed);
            known.is_ok()
        })
}

/// All GILs are gone, with the interpreter's library.
pub fn forget_all() {
    for place in &CONDITIONS {
        place.store(0, Ordering::Release);
    }
}

/// What a condition variable is to a GIL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Dropped,
    Taken,
}

/// What it is, and to which GIL.
#[inline]
fn part(condition: usize) -> Option<(Part, u64)> {
    let used = USED.load(Ordering::Acquire);
    CONDITIONS[..used.min(GILS)]
        .iter()
        .zip(0..)
        .find_map(|(place, gil)| {
            let known = place.load(Ordering::Relaxed);
            match condition.wrapping_sub(known) {
                0 => Some((Part::Dropped, gil)),
                APART if known != 0 => Some((Part::Taken, gil)),
                _ => None,
            }
        })
}

/// Stands in the interpreter's slot for `pthread_cond_signal`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C" fn signal(condition: *mut libc::pthread_cond_t) -> c_int {
    match part(condition.addr()) {
        Some((part, gil)) => {
            let _errno = Kept::new();
            if let Some(thread) = threads::current() {
                match part {
                    Part::Taken => thread.holds.takes(gil),
                    Part::Dropped => thread.holds.drops(),
                }
            }
        }
        None if IS_LATE.load(Ordering::Relaxed) => learn(condition.addr()),
        None => {}
    }
    // SAFETY: the caller's own argument.
    unsafe { libc::pthread_cond_signal(condition) }
}

/// A thread that drops a GIL and takes it again signals its `cond` and then its `switch_cond`.
#[cold]
fn learn(condition: usize) {
    let _errno = Kept::new();
    let Some(thread) = threads::current() else {
        return;
    };
    let last = thread.last_condition.replace(condition);
    if last != 0 && condition == last.wrapping_add(APART) {
        thread.last_condition.set(0);
        follow(last);
        if let Some((Part::Taken, gil)) = part(condition) {
            thread.holds.takes(gil);
        }
    }
}

/// Stands in the interpreter's slot for `pthread_cond_timedwait`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C-unwind" fn timed_wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
    until: *const libc::timespec,
) -> c_int {
    if let Some((Part::Dropped, gil)) = part(condition.addr()) {
        let _errno = Kept::new();
        if let Some(thread) = threads::current() {
            thread.holds.begins_to_wait(gil);
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { pthread_cond_timedwait(condition, mutex, until) }
}

/// Stands in the interpreter's slot for `pthread_cond_wait`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C-unwind" fn wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
) -> c_int {
    let is_forced = matches!(part(condition.addr()), Some((Part::Taken, _)));
    let since = if is_forced { now() } else { 0 };
    let ticks = if is_forced { holds::ticks() } else { 0 };
    // SAFETY: the caller's own arguments.
    let result = unsafe { pthread_cond_wait(condition, mutex) };
    if is_forced {
        let _errno = Kept::new();
        if let Some(thread) = threads::current() {
            let time = now().saturating_sub(since);
            thread.holds.was_forced(time, ticks);
        }
    }
    result
}

/// Stands in the interpreter's slot for `pthread_cond_destroy`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C" fn destroy(condition: *mut libc::pthread_cond_t) -> c_int {
    if forget(condition.addr()) {
        let _errno = Kept::new();
        // Whoever ends an interpreter has its GIL to the last.
        if let Some(thread) = threads::current() {
            thread.holds.drops();
        }
    }
    // SAFETY: the caller's own argument.
    unsafe { libc::pthread_cond_destroy(condition) }
}
