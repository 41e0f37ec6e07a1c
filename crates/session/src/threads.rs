//! The threads that make calls, from the first call of each to its end.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_config::{Settings, Step};

use super::wiring::{doors, sink};
use super::{OWNER, STATE, State, learning, stream_capture, turn};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::thread::Inside;
use tllmprof_platform::thread::{self, Part};
use tllmprof_platform::thread::uncounted;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::Slot;
use tllmprof_platform::ids;
use tllmprof_platform::log;

/// A thread's slot, as a part of its record.
#[repr(transparent)]
struct Counts(Slot);

// SAFETY: no other part is of this kind.
unsafe impl Part for Counts {
    const KIND: thread::Kind = thread::Kind::Slot;

    fn thread_ends(&'static self) {
        leave(&self.0);
    }
}

/// The calling thread's slot, if it has one.
#[inline]
pub fn slot() -> Option<&'static Slot> {
    thread::part::<Counts>().map(|counts| &counts.0)
}

/// The first of a slot's cells, for calls outside a stream capture or inside one.
pub fn cells_of(slot: &Slot, capturing: bool) -> *const c_void {
    core::ptr::from_ref(slot.cells(capturing)).cast()
}

/// The slots of the parent's threads are not the child's.
pub fn forget() {
    thread::set_counting(core::ptr::null(), core::ptr::null());
    thread::forget_parts::<Counts>();
}

/// Where the thread that counts in `slot` notes its calls; null where that is not wanted.
pub fn trail_of(slot: Option<&Slot>) -> *const c_void {
    slot.and_then(|slot| learning::trail(slot.thread()))
        .map_or(core::ptr::null(), |trail| core::ptr::from_ref(trail).cast())
}

/// Gives the calling thread a place to count. The first that uses CUDA begins the session.
pub fn new_thread(uses_cuda: bool) {
    let mut guard = STATE.lock();
    if guard.is_none() {
        *guard = State::new();
    }
    let Some(state) = guard.as_mut() else { return };
    OWNER.store(ids::process(), Ordering::Relaxed);
    let counts = thread::begin_part(|_, left: Option<&'static Counts>| {
        Some(left.unwrap_or_else(|| {
            let thread = u32::try_from(state.slots.len()).unwrap_or(u32::MAX);
            let first_limit = |what| state.first_limit(what, thread);
            let counts: &'static Counts =
                Box::leak(Box::new(Counts(Slot::new(thread, first_limit))));
            state.slots.push(&counts.0);
            counts
        }))
    });
    let Some(Counts(slot)) = counts else { return };
    slot.take();
    slot.set_block(thread::set_counting(
        cells_of(slot, false),
        trail_of(Some(slot)),
    ));
    let begins = uses_cuda && state.begin_to_use_cuda();
    drop(guard);
    if begins {
        turn::run(STATE.lock());
    }
}

/// The process uses CUDA. No lock is held: a profiler's code may make calls, too.
pub fn begin(settings: &'static Settings) {
    mind_exit();
    let _uncancelled = Uncancelled::new();
    log::set_level(settings.log);
    match settings.step {
        Step::Symbol { .. } => doors().report_named(),
        Step::Auto => learning::tell_hint(),
        _ => {}
    }
    uncounted(&mut || sink().start(settings));
}

/// Has the window closed when the process ends.
fn mind_exit() {
    extern "C" fn at_exit() {
        super::finish();
    }
    lifecycle::global! {
        #[fork(keep = "handlers are inherited")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if !ONCE.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function of this library, which is never unloaded. Registered
        // now, it runs before those that the driver registered when it was initialised.
        unsafe { libc::atexit(at_exit) };
    }
}

/// A thread has ended: another may count where it did.
fn leave(slot: &'static Slot) {
    let _inside = Inside::enter();
    let mut guard = STATE.lock();
    slot.set_block(0);
    thread::set_counting(core::ptr::null(), core::ptr::null());
    if let Some(state) = guard.as_mut() {
        stream_capture::forget(state, slot);
    }
    slot.leave();
    drop(guard);
    if ids::process() == ids::thread() {
        sink().main_thread_leaves();
    }
}

/// Counts what the assembler did not count; whether the thread has to ask what it means.
pub fn count(what: Counted) -> bool {
    slot().is_some_and(|slot| {
        let cell = slot.cell(what, stream_capture::is_under_way());
        cell.add();
        cell.count() > cell.limit()
    })
}
