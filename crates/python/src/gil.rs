//! Where the GIL is waited for, taken and dropped: the condition variables of CPython's `ceval_gil`.
//!
//! A GIL has two: `cond`, which is signalled when the GIL is dropped, and which those who want it
//! wait on; and `switch_cond`, which is signalled when it is taken, and which a thread waits on that
//! was forced to drop it. They are initialised one after the other, and lie a mutex apart. Only the
//! interpreter's own slots for `pthread_cond_*` lead here, so nobody else's calls cost anything.
//!
//! The GIL's mutex is held in these hooks, but for a forced switch: a time stamp, a total, an NVTX
//! event if somebody listens, and nothing else. As it is, holds of one GIL never overlap.

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;

use super::holds;
use super::object::Python;
use super::threads::{self, Thread};
use super::time::now;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;

/// GILs that are followed at a time; from 3.12 on an interpreter may have one of its own.
const GILS: usize = 64;
/// From `cond` to `switch_cond`.
const APART: usize = size_of::<libc::pthread_cond_t>() + size_of::<libc::pthread_mutex_t>();

/// The GILs that are followed.
struct Gils {
    /// The addresses of `cond`; 0 for a free place. `switch_cond` lies behind it.
    conditions: [AtomicUsize; GILS],
    /// How many places have been used.
    used: AtomicUsize,
    /// GILs for which there was no place.
    missed: AtomicU32,
}

lifecycle::global! {
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static FOLLOWED: Gils = Gils::none();
    /// There may be a GIL that was made before its condition variables were hooked.
    #[fork(keep = "as the GILs")]
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
    FOLLOWED.missed.load(Ordering::Relaxed)
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
    FOLLOWED.forget(condition);
    let gil = second_of_pair(&thread.last_condition, condition);
    if let Some(gil) = gil {
        follow(gil);
    }
    gil.is_some()
}

/// Follows the GIL whose `cond` lies there.
fn follow(condition: usize) {
    if !IS_OFF.load(Ordering::Relaxed) {
        FOLLOWED.follow(condition);
    }
}

/// All GILs are gone, with the interpreter's library.
pub fn forget_all() {
    FOLLOWED.forget_all();
}

/// Where the `cond` lies whose `switch_cond` is `condition`, if `last` was that one. `last` is
/// `condition` from here on, or nothing where the pair is complete.
fn second_of_pair(last: &Cell<usize>, condition: usize) -> Option<usize> {
    let first = last.replace(condition);
    if first == 0 || condition != first.wrapping_add(APART) {
        return None;
    }
    last.set(0);
    Some(first)
}

/// What a condition variable is to a GIL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Dropped,
    Taken,
}

impl Gils {
    const fn none() -> Self {
        Self {
            conditions: [const { AtomicUsize::new(0) }; GILS],
            used: AtomicUsize::new(0),
            missed: AtomicU32::new(0),
        }
    }

    /// Follows the GIL whose `cond` lies there.
    fn follow(&self, condition: usize) {
        // Another thread may have found the same one.
        let is_it = |place: &AtomicUsize| place.load(Ordering::Acquire) == condition;
        if self.conditions.iter().any(is_it) {
            return;
        }
        for (index, place) in self.conditions.iter().enumerate() {
            let free = place.compare_exchange(0, condition, Ordering::AcqRel, Ordering::Relaxed);
            if free.is_ok() {
                self.used.fetch_max(index + 1, Ordering::AcqRel);
                return;
            }
        }
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    /// The places that have been used.
    #[inline]
    fn used(&self) -> &[AtomicUsize] {
        &self.conditions[..self.used.load(Ordering::Acquire).min(GILS)]
    }

    /// A condition variable is gone, and a GIL with it if it is one's. Whether it is.
    fn forget(&self, condition: usize) -> bool {
        self.used().iter().any(|place| {
            let known = place.compare_exchange(condition, 0, Ordering::AcqRel, Ordering::Relaxed);
            known.is_ok()
        })
    }

    fn forget_all(&self) {
        for place in &self.conditions {
            place.store(0, Ordering::Release);
        }
    }

    /// What a condition variable is, and to which GIL.
    #[inline]
    fn part(&self, condition: usize) -> Option<(Part, u64)> {
        self.used().iter().zip(0..).find_map(|(place, gil)| {
            let known = place.load(Ordering::Relaxed);
            match condition.wrapping_sub(known) {
                0 => Some((Part::Dropped, gil)),
                APART if known != 0 => Some((Part::Taken, gil)),
                _ => None,
            }
        })
    }
}

/// The functions by which the GIL is followed: their names, what stands in their slots, and what that goes on to.
pub fn hooks() -> [(&'static CStr, usize, usize); 4] {
    macro_rules! address {
        ($function:expr) => {
            $function as *const () as usize
        };
    }
    [
        (
            c"pthread_cond_signal",
            address!(signal),
            address!(libc::pthread_cond_signal),
        ),
        (
            c"pthread_cond_timedwait",
            address!(timed_wait),
            address!(pthread_cond_timedwait),
        ),
        (
            c"pthread_cond_wait",
            address!(wait),
            address!(pthread_cond_wait),
        ),
        (
            c"pthread_cond_destroy",
            address!(destroy),
            address!(libc::pthread_cond_destroy),
        ),
    ]
}

/// Stands in the interpreter's slot for `pthread_cond_signal`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C" fn signal(condition: *mut libc::pthread_cond_t) -> c_int {
    // No panic: `noted` contains it.
    match FOLLOWED.part(condition.addr()) {
        Some((part, gil)) => noted(|thread| match part {
            Part::Taken => thread.holds.takes(gil),
            Part::Dropped => thread.holds.drops(),
        }),
        None if IS_LATE.load(Ordering::Relaxed) => learn(condition.addr()),
        None => {}
    }
    // SAFETY: the interpreter's own call, with its own arguments, goes on to where it was meant to.
    unsafe { libc::pthread_cond_signal(condition) }
}

/// A thread that drops a GIL and takes it again signals its `cond` and then its `switch_cond`.
#[cold]
fn learn(condition: usize) {
    noted(|thread| {
        if let Some(gil) = second_of_pair(&thread.last_condition, condition) {
            follow(gil);
            if let Some((Part::Taken, gil)) = FOLLOWED.part(condition) {
                thread.holds.takes(gil);
            }
        }
    });
}

/// Has `note` note something of the calling thread, if there is a place for it. The interpreter's call goes on
/// whatever becomes of that.
#[inline]
fn noted(note: impl FnOnce(&Thread)) {
    let _errno = Kept::new();
    contained((), || {
        if let Some(thread) = threads::current() {
            thread.catch_up();
            note(thread);
        }
    });
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
    // No panic: `noted` contains it.
    if let Some((Part::Dropped, gil)) = FOLLOWED.part(condition.addr()) {
        noted(|thread| thread.holds.begins_to_wait(gil));
    }
    // SAFETY: the interpreter's own call, with its own arguments, goes on to where it was meant to.
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
    // No panic: `noted` contains it.
    let is_forced = matches!(FOLLOWED.part(condition.addr()), Some((Part::Taken, _)));
    let since = if is_forced { now() } else { 0 };
    let ticks = if is_forced { holds::ticks() } else { 0 };
    // SAFETY: the interpreter's own call, with its own arguments, goes on to where it was meant to.
    let result = unsafe { pthread_cond_wait(condition, mutex) };
    if is_forced {
        noted(|thread| {
            let time = now().saturating_sub(since);
            thread.holds.was_forced(time, ticks);
        });
    }
    result
}

/// Stands in the interpreter's slot for `pthread_cond_destroy`.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C" fn destroy(condition: *mut libc::pthread_cond_t) -> c_int {
    // No panic: `noted` contains it.
    if FOLLOWED.forget(condition.addr()) {
        // Whoever ends an interpreter has its GIL to the last.
        noted(|thread| thread.holds.drops());
    }
    // SAFETY: the interpreter's own call, with its own arguments, goes on to where it was meant to.
    unsafe { libc::pthread_cond_destroy(condition) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COND: usize = 0x1000;

    #[test]
    fn a_gil_shows_by_two_conditions_a_mutex_apart() {
        let last = Cell::new(0);
        assert_eq!(second_of_pair(&last, COND), None);
        assert_eq!(second_of_pair(&last, COND + APART), Some(COND));
        // The pair is complete: a third one in the same distance begins another.
        assert_eq!(second_of_pair(&last, COND + 2 * APART), None);
        // Another mutex's condition in between.
        assert_eq!(second_of_pair(&last, COND), None);
        assert_eq!(second_of_pair(&last, 0x9000), None);
        assert_eq!(second_of_pair(&last, COND + APART), None);
    }

    #[test]
    fn the_first_condition_is_of_drops_and_the_second_of_takes() {
        let gils = Gils::none();
        assert_eq!(gils.part(COND), None);
        assert_eq!(gils.part(APART), None); // of a free place
        gils.follow(0x9000);
        gils.follow(COND);
        gils.follow(COND);
        assert_eq!(gils.part(COND), Some((Part::Dropped, 1)));
        assert_eq!(gils.part(COND + APART), Some((Part::Taken, 1)));
        assert_eq!(gils.part(COND + 8), None);
        assert_eq!(gils.part(0x9000), Some((Part::Dropped, 0)));
    }

    #[test]
    fn a_place_is_used_again_when_its_gil_is_gone() {
        let gils = Gils::none();
        gils.follow(COND);
        gils.follow(0x9000);
        assert!(gils.forget(COND));
        assert!(!gils.forget(COND));
        assert_eq!(gils.part(COND), None);
        gils.follow(0x5000);
        assert_eq!(gils.part(0x5000), Some((Part::Dropped, 0)));
        gils.forget_all();
        assert_eq!(gils.part(0x9000), None);
        assert_eq!(gils.part(APART), None);
    }

    #[test]
    fn gils_without_a_place_are_counted() {
        let gils = Gils::none();
        for number in 1..=GILS + 2 {
            gils.follow(number * COND);
        }
        assert_eq!(gils.missed.load(Ordering::Relaxed), 2);
        assert_eq!(
            gils.part(GILS * COND),
            Some((Part::Dropped, GILS as u64 - 1))
        );
        assert_eq!(gils.part((GILS + 1) * COND), None);
    }

    /// Lies as a GIL's do in CPython.
    #[repr(C)]
    struct Pair {
        cond: libc::pthread_cond_t,
        mutex: libc::pthread_mutex_t,
        switch: libc::pthread_cond_t,
    }

    fn pair() -> &'static mut Pair {
        Box::leak(Box::new(Pair {
            cond: libc::PTHREAD_COND_INITIALIZER,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            switch: libc::PTHREAD_COND_INITIALIZER,
        }))
    }

    /// As CPython does it: both are initialised, one thread takes and drops, another waits.
    #[test]
    fn hooks_count_a_threads_waits_and_holds() {
        let pair = pair();
        let (cond, mutex, switch) = (
            &raw mut pair.cond,
            &raw mut pair.mutex,
            &raw mut pair.switch,
        );
        let thread = threads::current().unwrap();
        thread.holds.begin_anew();
        assert!(!initialised(cond.addr(), thread));
        assert!(initialised(switch.addr(), thread));
        let past = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let holds = &thread.holds;
        // SAFETY: conditions and a mutex that are initialised and never freed; the mutex is locked
        // where it is waited with.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            assert_eq!(timed_wait(cond, mutex, &raw const past), libc::ETIMEDOUT);
            assert_eq!(timed_wait(cond, mutex, &raw const past), libc::ETIMEDOUT);
            signal(switch); // takes
            assert!(holds.holds_since().is_some());
            signal(cond); // drops
            libc::pthread_mutex_unlock(mutex);
        }
        assert_eq!((holds.waits.count(), holds.holds.count()), (1, 1));
        assert!(holds.waits.longest() > 0);
        assert_eq!(holds.forced.count(), 0);
        // SAFETY: nobody waits on them.
        unsafe {
            signal(switch);
            destroy(cond); // the thread had it to the last
            destroy(switch);
        }
        assert_eq!(holds.holds.count(), 2);
        assert_eq!(FOLLOWED.part(cond.addr()), None);
        // SAFETY: a condition that nobody uses, and that is initialised before it is signalled.
        unsafe {
            libc::pthread_cond_init(cond, core::ptr::null());
            signal(cond);
        }
        assert_eq!(holds.holds.count(), 2);
    }

    #[test]
    fn a_thread_that_was_forced_waits_until_another_has_it() {
        let pair = pair();
        let (cond, mutex, switch) = (
            &raw mut pair.cond,
            &raw mut pair.mutex,
            &raw mut pair.switch,
        );
        let forced = &threads::current().unwrap().holds.forced;
        let before = forced.count();
        FOLLOWED.follow(cond.addr());
        let (mutex_there, switch_there) = (mutex.expose_provenance(), switch.expose_provenance());
        // SAFETY: a mutex and a condition that are initialised and never freed.
        unsafe { libc::pthread_mutex_lock(mutex) };
        let other = std::thread::spawn(move || {
            let mutex = core::ptr::with_exposed_provenance_mut(mutex_there);
            let switch = core::ptr::with_exposed_provenance_mut(switch_there);
            // SAFETY: a mutex and a condition that are initialised and never freed.
            unsafe {
                libc::pthread_mutex_lock(mutex);
                signal(switch);
                libc::pthread_mutex_unlock(mutex);
            }
            threads::known().unwrap().holds.holds_since().is_some()
        });
        // SAFETY: the mutex is locked by this thread.
        unsafe {
            assert_eq!(wait(switch, mutex), 0);
            libc::pthread_mutex_unlock(mutex);
        }
        assert!(other.join().unwrap());
        assert_eq!(forced.count(), before + 1);
        FOLLOWED.forget(cond.addr());
    }
}
