//! Waiting for the GIL and holding it, by the condition variables that CPython's `ceval_gil` uses.
//!
//! A GIL has two: `cond`, which is signalled when the GIL is dropped, and which those who want it
//! wait on; and `switch_cond`, which is signalled when it is taken, and which a thread waits on that
//! was forced to drop it. They are initialised one after the other, and lie a mutex apart. Only the
//! interpreter's own slots for `pthread_cond_*` lead here, so nobody else's calls cost anything.
//!
//! The GIL's mutex is held in these hooks: a time stamp, a record, an NVTX event if somebody
//! listens, and nothing else.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use super::threads::{self, Thread};
use crate::capture::marks::{Name, Started};
use crate::errno::Kept;

/// GILs that are followed at a time; from 3.12 on an interpreter may have one of its own.
const GILS: usize = 64;
/// From `cond` to `switch_cond`.
const APART: usize = size_of::<libc::pthread_cond_t>() + size_of::<libc::pthread_mutex_t>();

/// The addresses of `cond`; 0 for a free place. `switch_cond` lies behind it.
static CONDITIONS: [AtomicUsize; GILS] = [const { AtomicUsize::new(0) }; GILS];
/// How many places have been used.
static USED: AtomicUsize = AtomicUsize::new(0);

struct Names {
    wait: Name,
    hold: Name,
}

static NAMES: OnceBox<Option<Names>> = OnceBox::new();

/// What a thread has waited for and held so far. Times in nanoseconds.
#[derive(Default)]
pub struct Total {
    pub count: AtomicU64,
    pub time: AtomicU64,
    pub longest: AtomicU64,
}

impl Total {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            time: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Adds one. By the thread that it belongs to, alone.
    #[inline]
    fn add(&self, time: u64) {
        let add =
            |to: &AtomicU64, value| to.store(to.load(Ordering::Relaxed) + value, Ordering::Relaxed);
        add(&self.count, 1);
        add(&self.time, time);
        if time > self.longest.load(Ordering::Relaxed) {
            self.longest.store(time, Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        for part in [&self.count, &self.time, &self.longest] {
            part.store(0, Ordering::Relaxed);
        }
    }
}

/// A thread and the GIL.
pub struct Waits {
    /// When the wait began that is under way; 0 for none.
    waits_since: Cell<u64>,
    holds_since: Cell<u64>,
    wait: UnsafeCell<Option<Started>>,
    hold: UnsafeCell<Option<Started>>,
    pub waits: Total,
    pub holds: Total,
    /// Waits of a thread that was made to drop the GIL, for another to take it.
    pub forced: Total,
    /// The thread finds out where its GIL is: what it signals first is `cond`.
    learns: Cell<bool>,
}

impl Waits {
    pub const fn new() -> Self {
        Self {
            learns: Cell::new(false),
            waits_since: Cell::new(0),
            holds_since: Cell::new(0),
            wait: UnsafeCell::new(None),
            hold: UnsafeCell::new(None),
            waits: Total::new(),
            holds: Total::new(),
            forced: Total::new(),
        }
    }

    fn begins_to_wait(&self) {
        if self.waits_since.get() == 0 {
            self.waits_since.set(super::now());
            // SAFETY: the cell is the calling thread's own.
            unsafe { *self.wait.get() = names().map(|names| names.wait.start()) };
        }
    }

    fn takes(&self) {
        let now = super::now();
        let waited = self.waits_since.replace(0);
        if waited != 0 {
            self.waits.add(now - waited);
            // SAFETY: as above.
            unsafe { *self.wait.get() = None };
        }
        self.holds_since.set(now);
        // SAFETY: as above.
        unsafe { *self.hold.get() = names().map(|names| names.hold.start()) };
    }

    fn drops(&self) {
        let held = self.holds_since.replace(0);
        if held != 0 {
            self.holds.add(super::now() - held);
            // SAFETY: as above.
            unsafe { *self.hold.get() = None };
        }
    }

    /// Finds the GIL that the thread has; `retake` drops and takes it.
    pub fn learn(&self, retake: impl FnOnce()) {
        self.learns.set(true);
        retake();
        self.learns.set(false);
    }

    /// The thread has ended.
    pub fn leave(&self) {
        self.waits_since.set(0);
        self.holds_since.set(0);
        // SAFETY: as above.
        unsafe {
            *self.wait.get() = None;
            *self.hold.get() = None;
        }
    }

    /// The process is the child of a fork, in which `is_us` is the one thread that there is.
    pub fn in_child(&self, is_us: bool) {
        for total in [&self.waits, &self.holds, &self.forced] {
            total.clear();
        }
        let held = self.holds_since.replace(0);
        self.waits_since.set(0);
        // SAFETY: no other thread uses the cell any more.
        unsafe {
            for range in [self.wait.get(), self.hold.get()] {
                if let Some(range) = (*range).take() {
                    range.forget();
                }
            }
        }
        if is_us && held != 0 {
            self.takes();
        }
    }
}

fn names() -> Option<&'static Names> {
    NAMES.get().and_then(Option::as_ref)
}

/// Has ranges given, if somebody listens. Not in a hook: it loads the tool.
pub fn begin() {
    NAMES.get_or_init(|| {
        Box::new(
            Name::new("GIL wait")
                .zip(Name::new("GIL hold"))
                .map(|(wait, hold)| Names { wait, hold }),
        )
    });
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
pub fn follow(condition: usize) {
    for (index, place) in CONDITIONS.iter().enumerate() {
        let known = place.compare_exchange(0, condition, Ordering::AcqRel, Ordering::Acquire);
        if known.is_ok() || known == Err(condition) {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            return;
        }
    }
}

/// A condition variable is gone, and a GIL with it if it is one's.
pub fn forget(condition: usize) {
    for place in &CONDITIONS[..USED.load(Ordering::Acquire)] {
        let _ = place.compare_exchange(condition, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// What a condition variable is to a GIL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Dropped,
    Taken,
}

#[inline]
fn part(condition: usize) -> Option<Part> {
    let used = USED.load(Ordering::Acquire);
    CONDITIONS[..used.min(GILS)].iter().find_map(|place| {
        let known = place.load(Ordering::Relaxed);
        match condition.wrapping_sub(known) {
            0 => Some(Part::Dropped),
            APART if known != 0 => Some(Part::Taken),
            _ => None,
        }
    })
}

/// Stands in the interpreter's slot for `pthread_cond_signal`.
pub unsafe extern "C" fn signal(condition: *mut libc::pthread_cond_t) -> c_int {
    let mut part = part(condition.addr());
    if part.is_none()
        && let Some(thread) = threads::current()
        && thread.gil.learns.replace(false)
    {
        follow(condition.addr());
        part = Some(Part::Dropped);
    }
    if let Some(part) = part
        && let Some(thread) = threads::current()
    {
        let _errno = Kept::new();
        match part {
            Part::Taken => thread.gil.takes(),
            Part::Dropped => thread.gil.drops(),
        }
    }
    // SAFETY: the caller's own argument.
    unsafe { libc::pthread_cond_signal(condition) }
}

/// Stands in the interpreter's slot for `pthread_cond_timedwait`.
pub unsafe extern "C" fn timed_wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
    until: *const libc::timespec,
) -> c_int {
    if part(condition.addr()) == Some(Part::Dropped)
        && let Some(thread) = threads::current()
    {
        let _errno = Kept::new();
        thread.gil.begins_to_wait();
    }
    // SAFETY: the caller's own arguments.
    unsafe { libc::pthread_cond_timedwait(condition, mutex, until) }
}

/// Stands in the interpreter's slot for `pthread_cond_wait`.
pub unsafe extern "C" fn wait(
    condition: *mut libc::pthread_cond_t,
    mutex: *mut libc::pthread_mutex_t,
) -> c_int {
    let forced = part(condition.addr()) == Some(Part::Taken);
    let thread = if forced { threads::current() } else { None };
    let since = thread.map(|_| super::now());
    // SAFETY: the caller's own arguments.
    let result = unsafe { libc::pthread_cond_wait(condition, mutex) };
    if let (Some(thread), Some(since)) = (thread, since) {
        thread.gil.forced.add(super::now().saturating_sub(since));
    }
    result
}

/// Stands in the interpreter's slot for `pthread_cond_destroy`.
pub unsafe extern "C" fn destroy(condition: *mut libc::pthread_cond_t) -> c_int {
    forget(condition.addr());
    // SAFETY: the caller's own argument.
    unsafe { libc::pthread_cond_destroy(condition) }
}
