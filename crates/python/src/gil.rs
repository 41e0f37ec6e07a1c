//! Records waits for the GIL and the times at which threads take and drop it. CPython's `ceval_gil`
//! has no hooks for this, so the condition variables of the GIL are observed.
//!
//! A GIL has two condition variables. `cond` is signalled when the GIL is dropped, and threads that
//! want the GIL wait on `cond`. `switch_cond` is signalled when the GIL is taken. A thread that was
//! forced to drop the GIL waits on `switch_cond` until another thread has taken the GIL. CPython
//! initializes `cond` first and `switch_cond` next, and a mutex lies between them in memory. Only the
//! interpreter's own GOT slots for `pthread_cond_*` are patched, so calls of other modules cost
//! nothing.
//!
//! The hooks run while the thread holds the GIL's mutex, except when a thread waits on `switch_cond` and when the GIL
//! is destroyed. A hook takes a time stamp, adds to a total, and emits an NVTX event if ranges are wanted. Because of
//! the mutex, the recorded holds of one GIL never overlap.

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;

use super::holds;
use super::object::Python;
use super::threads::{self, Thread};
use super::time::now;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;

/// The maximum number of GILs that are observed at a time. From 3.12 on, each interpreter may have its own GIL.
const MAX_GILS: usize = 64;
/// Distance in bytes from a GIL's condition variable `cond` to its `switch_cond`.
const SWITCH_COND_OFFSET: usize =
    size_of::<libc::pthread_cond_t>() + size_of::<libc::pthread_mutex_t>();

/// The GILs that the library observes through their condition variables.
struct Gils {
    /// The address of each observed GIL's `cond`; 0 for a free element. `switch_cond` lies at a fixed distance after
    /// it.
    conditions: [AtomicUsize; MAX_GILS],
    /// Number of elements at the start of `conditions` that hold the address of a GIL, or have held
    /// one.
    used: AtomicUsize,
    /// Number of GILs that are not observed because all [`MAX_GILS`] elements were in use.
    missed: AtomicU32,
}

lifecycle::global! {
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static FOLLOWED: Gils = Gils::none();
    /// True if the interpreter may have created a GIL before the library's hooks were installed.
    #[fork(keep = "as the GILs")]
    #[restart(keep)]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    /// True if the interpreter runs without a GIL.
    #[fork(keep = "as the interpreter")]
    #[restart(keep)]
    static IS_OFF: AtomicBool = AtomicBool::new(false);
}

// SAFETY: the declarations match pthread.h. `C-unwind` allows a cancelled thread to unwind through
// them.
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

/// Returns the number of GILs that are not observed because [`MAX_GILS`] others were observed already.
pub(crate) fn missed() -> u32 {
    FOLLOWED.missed.load(Ordering::Relaxed)
}

/// Starts to record when threads wait for the GIL and when they hold it. Called when the first interpreter is
/// initialized. The hooks of `pthread_cond_*` must not call this function: it loads the tool (a library) that receives
/// the NVTX ranges, and the tool's code must not run while a thread holds the GIL's mutex.
pub(crate) fn begin(py: Python<'_>, thread: &Thread) {
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
    // The GIL of the first interpreter is GIL number 0 in `FOLLOWED`.
    thread.holds.begin(0);
}

/// Returns true if the interpreter uses a GIL now, as `sys._is_gil_enabled` reports. Also returns true if the
/// interpreter lacks this function, because all versions without it use a GIL.
fn has_gil(py: Python<'_>) -> bool {
    let Some(sys) = py.imported(c"sys") else {
        return true;
    };
    let Some(asked) = sys.attr(c"_is_gil_enabled") else {
        return true;
    };
    asked.call(&[]).is_none_or(|answer| answer.is_true())
}

/// Called if an interpreter existed before the hooks were installed, so that the condition variables of its GIL are not
/// known yet. From then on the library recognizes them when a thread drops the GIL and takes it again.
pub(crate) fn is_late() {
    IS_LATE.store(true, Ordering::Relaxed);
}

/// Called when the interpreter initializes a condition variable. If the variable is the second one of a GIL, starts to
/// observe this GIL and returns true.
pub(crate) fn initialised(condition: usize, thread: &Thread) -> bool {
    FOLLOWED.forget(condition);
    let gil = second_of_pair(&thread.last_condition, condition);
    if let Some(gil) = gil {
        follow(gil);
    }
    gil.is_some()
}

/// Starts to observe the GIL whose `cond` has this address.
fn follow(condition: usize) {
    if !IS_OFF.load(Ordering::Relaxed) {
        FOLLOWED.follow(condition);
    }
}

/// Stops observing all GILs. Called when the interpreter's library was unloaded, or if the interpreter runs without a
/// GIL.
pub(crate) fn forget_all() {
    FOLLOWED.forget_all();
}

/// Returns the address of a GIL's `cond` if `last` is that `cond` and `condition` is its
/// `switch_cond`. Sets `last` to `condition`, or to 0 if the pair is complete.
fn second_of_pair(last: &Cell<usize>, condition: usize) -> Option<usize> {
    let first = last.replace(condition);
    if first == 0 || condition != first.wrapping_add(SWITCH_COND_OFFSET) {
        return None;
    }
    last.set(0);
    Some(first)
}

/// The event that a GIL's condition variable signals: that the GIL was dropped, or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConditionRole {
    Dropped,
    Taken,
}

impl Gils {
    const fn none() -> Self {
        Self {
            conditions: [const { AtomicUsize::new(0) }; MAX_GILS],
            used: AtomicUsize::new(0),
            missed: AtomicU32::new(0),
        }
    }

    /// Adds the GIL whose `cond` has this address to `conditions`. If all elements are in use, counts the GIL in
    /// `missed` instead.
    fn follow(&self, condition: usize) {
        // Another thread may already have added the same GIL.
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

    /// Returns the elements of `conditions` that hold the address of a GIL, or have held one.
    #[inline]
    fn used(&self) -> &[AtomicUsize] {
        &self.conditions[..self.used.load(Ordering::Acquire).min(MAX_GILS)]
    }

    /// Stops observing the GIL whose `cond` has this address, and returns true if there is such a GIL. Called when the
    /// GIL is destroyed, or when another condition variable is initialized at this address.
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

    /// Returns the role of a condition variable, and the index of its GIL. Returns `None` if it belongs to no
    /// observed GIL.
    #[inline]
    fn part(&self, condition: usize) -> Option<(ConditionRole, u64)> {
        self.used().iter().zip(0..).find_map(|(place, gil)| {
            let known = place.load(Ordering::Relaxed);
            match condition.wrapping_sub(known) {
                0 => Some((ConditionRole::Dropped, gil)),
                SWITCH_COND_OFFSET if known != 0 => Some((ConditionRole::Taken, gil)),
                _ => None,
            }
        })
    }
}

/// Returns the hooks with which GILs are observed: for each function its name, the library's replacement, and the
/// original function.
pub(crate) fn hooks() -> [(&'static CStr, usize, usize); 4] {
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

/// Replaces `pthread_cond_signal` in the interpreter's GOT slot. If the condition variable belongs to an observed GIL,
/// records that the calling thread takes or drops this GIL. Returns the result of `pthread_cond_signal`.
///
/// # Safety
/// The arguments are valid for `pthread_cond_signal`.
pub(crate) unsafe extern "C" fn signal(condition: *mut libc::pthread_cond_t) -> c_int {
    // No panic: `noted` catches panics.
    match FOLLOWED.part(condition.addr()) {
        Some((part, gil)) => noted(|thread| match part {
            ConditionRole::Taken => thread.holds.takes(gil),
            ConditionRole::Dropped => thread.holds.drops(),
        }),
        None if IS_LATE.load(Ordering::Relaxed) => learn(condition.addr()),
        None => {}
    }
    // SAFETY: this is the interpreter's own call with its own arguments, passed on to its target.
    unsafe { libc::pthread_cond_signal(condition) }
}

/// Recognizes a GIL that existed before the hooks. A thread that drops this GIL and takes it again signals its `cond`
/// and then its `switch_cond`.
#[cold]
fn learn(condition: usize) {
    noted(|thread| {
        if let Some(gil) = second_of_pair(&thread.last_condition, condition) {
            follow(gil);
            if let Some((ConditionRole::Taken, gil)) = FOLLOWED.part(condition) {
                thread.holds.takes(gil);
            }
        }
    });
}

/// Runs `note` with the state of the calling thread. A panic in `note` does not reach the interpreter.
#[inline]
fn noted(note: impl FnOnce(&Thread)) {
    let _errno = SavedErrno::new();
    contained((), || {
        if let Some(thread) = threads::current() {
            thread.catch_up();
            note(thread);
        }
    });
}

/// Replaces `pthread_cond_timedwait` in the interpreter's GOT slot. If the condition variable belongs to an observed
/// GIL, records that the calling thread waits for this GIL.
///
/// # Safety
/// The arguments are valid for `pthread_cond_timedwait`.
pub(crate) unsafe extern "C-unwind" fn timed_wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
    until: *const libc::timespec,
) -> c_int {
    // No panic: `noted` catches panics.
    if let Some((ConditionRole::Dropped, gil)) = FOLLOWED.part(condition.addr()) {
        noted(|thread| thread.holds.begins_to_wait(gil));
    }
    // SAFETY: this is the interpreter's own call with its own arguments, passed on to its target.
    unsafe { pthread_cond_timedwait(condition, mutex, until) }
}

/// Replaces `pthread_cond_wait` in the interpreter's GOT slot. If the condition variable is the `switch_cond` of an
/// observed GIL, the calling thread was forced to drop this GIL. The time until another thread has taken the GIL is
/// then recorded.
///
/// # Safety
/// The arguments are valid for `pthread_cond_wait`.
pub(crate) unsafe extern "C-unwind" fn wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
) -> c_int {
    // No panic: `noted` catches panics.
    let is_forced = matches!(
        FOLLOWED.part(condition.addr()),
        Some((ConditionRole::Taken, _))
    );
    let since = if is_forced { now() } else { 0 };
    let ticks = if is_forced { holds::ticks() } else { 0 };
    // SAFETY: this is the interpreter's own call with its own arguments, passed on to its target.
    let result = unsafe { pthread_cond_wait(condition, mutex) };
    if is_forced {
        noted(|thread| {
            let time = now().saturating_sub(since);
            thread.holds.was_forced(time, ticks);
        });
    }
    result
}

/// Replaces `pthread_cond_destroy` in the interpreter's GOT slot. If the condition variable is the `cond` of an
/// observed GIL, the GIL is no longer observed.
///
/// # Safety
/// The arguments are valid for `pthread_cond_destroy`.
pub(crate) unsafe extern "C" fn destroy(condition: *mut libc::pthread_cond_t) -> c_int {
    // No panic: `noted` catches panics.
    if FOLLOWED.forget(condition.addr()) {
        // The thread that ends an interpreter holds the GIL until the GIL is destroyed. So its hold of the GIL ends
        // at this call.
        noted(|thread| thread.holds.drops());
    }
    // SAFETY: this is the interpreter's own call with its own arguments, passed on to its target.
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
        assert_eq!(second_of_pair(&last, COND + SWITCH_COND_OFFSET), Some(COND));
        // The previous pair is complete. A condition at the same distance after the pair's second condition must not
        // complete another pair.
        assert_eq!(second_of_pair(&last, COND + 2 * SWITCH_COND_OFFSET), None);
        // In this test, the program initializes an unrelated condition between the two conditions of a GIL.
        assert_eq!(second_of_pair(&last, COND), None);
        assert_eq!(second_of_pair(&last, 0x9000), None);
        assert_eq!(second_of_pair(&last, COND + SWITCH_COND_OFFSET), None);
    }

    #[test]
    fn the_first_condition_is_of_drops_and_the_second_of_takes() {
        let gils = Gils::none();
        assert_eq!(gils.part(COND), None);
        assert_eq!(gils.part(SWITCH_COND_OFFSET), None); // 0 marks a free slot, so no condition may match it
        gils.follow(0x9000);
        gils.follow(COND);
        gils.follow(COND);
        assert_eq!(gils.part(COND), Some((ConditionRole::Dropped, 1)));
        assert_eq!(
            gils.part(COND + SWITCH_COND_OFFSET),
            Some((ConditionRole::Taken, 1))
        );
        assert_eq!(gils.part(COND + 8), None);
        assert_eq!(gils.part(0x9000), Some((ConditionRole::Dropped, 0)));
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
        assert_eq!(gils.part(0x5000), Some((ConditionRole::Dropped, 0)));
        gils.forget_all();
        assert_eq!(gils.part(0x9000), None);
        assert_eq!(gils.part(SWITCH_COND_OFFSET), None);
    }

    #[test]
    fn gils_without_a_place_are_counted() {
        let gils = Gils::none();
        for number in 1..=MAX_GILS + 2 {
            gils.follow(number * COND);
        }
        assert_eq!(gils.missed.load(Ordering::Relaxed), 2);
        assert_eq!(
            gils.part(MAX_GILS * COND),
            Some((ConditionRole::Dropped, MAX_GILS as u64 - 1))
        );
        assert_eq!(gils.part((MAX_GILS + 1) * COND), None);
    }

    /// The conditions and the mutex of a GIL, laid out in memory as in CPython.
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

    /// Makes the calls that CPython makes when a thread waits for the GIL, takes it, and drops it.
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
        // SAFETY: the conditions and the mutex are initialized and never freed; the mutex is locked
        // for the waits.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            assert_eq!(timed_wait(cond, mutex, &raw const past), libc::ETIMEDOUT);
            assert_eq!(timed_wait(cond, mutex, &raw const past), libc::ETIMEDOUT);
            signal(switch); // the thread takes the GIL
            assert!(holds.holds_since().is_some());
            signal(cond); // the thread drops the GIL
            libc::pthread_mutex_unlock(mutex);
        }
        assert_eq!((holds.waits.count(), holds.holds.count()), (1, 1));
        assert!(holds.waits.longest() > 0);
        assert_eq!(holds.forced.count(), 0);
        // SAFETY: no thread waits on these conditions.
        unsafe {
            signal(switch);
            destroy(cond); // the thread held the GIL until its destruction
            destroy(switch);
        }
        assert_eq!(holds.holds.count(), 2);
        assert_eq!(FOLLOWED.part(cond.addr()), None);
        // SAFETY: no other thread uses the condition, and it is initialized before it is signalled.
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
        // SAFETY: the mutex and the condition are initialised and never freed.
        unsafe { libc::pthread_mutex_lock(mutex) };
        let other = std::thread::spawn(move || {
            let mutex = core::ptr::with_exposed_provenance_mut(mutex_there);
            let switch = core::ptr::with_exposed_provenance_mut(switch_there);
            // SAFETY: the mutex and the condition are initialised and never freed.
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
