//! The threads that make calls, from the first call of each to its end.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tllmprof_config::{Settings, Step};
use tllmprof_learn::Trail;

use super::{OWNER, STATE, State, learning, stream_capture, turn};
use crate::cancel::Uncancelled;
use crate::intercept::{Inside, tell_named, tls, uncounted};
use crate::step::counted::Counted;
use crate::step::threads::Slot;
use crate::{capture, ids, log};

const NO_KEY: u32 = u32::MAX;
/// Tells when a thread ends that has a slot.
static THREAD_KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// The calling thread's slot, if it has one.
pub fn slot() -> Option<&'static Slot> {
    // SAFETY: the block is the thread's own; slots are never freed.
    unsafe { (*tls()).slot.as_ref() }
}

/// The slots of all threads, of those that have ended, too. Takes the lock of the state.
pub fn slots() -> Vec<&'static Slot> {
    let guard = STATE.lock();
    guard
        .as_ref()
        .map_or_else(Vec::new, |state| state.slots.clone())
}

/// Gives the calling thread a slot, or none. Under the lock of the state.
pub fn set_slot(slot: Option<&'static Slot>) {
    let cells = slot.map_or(core::ptr::null(), |slot| {
        core::ptr::from_ref(slot.cells(false))
    });
    let block = tls();
    // SAFETY: the block is the thread's own.
    unsafe {
        if let Some(old) = (*block).slot.as_ref() {
            old.set_block(0);
        }
        (*block).slot = slot.map_or(core::ptr::null(), core::ptr::from_ref);
        (*block).cells = cells.cast();
        (*block).trail = trail_of(slot);
    }
    if let Some(slot) = slot {
        slot.set_block(block.expose_provenance());
    }
}

/// Where the thread that counts in `slot` notes its calls; null where that is not wanted.
pub fn trail_of(slot: Option<&Slot>) -> *const Trail {
    slot.and_then(|slot| learning::trail(slot.thread()))
        .map_or(core::ptr::null(), core::ptr::from_ref)
}

/// Gives the calling thread a place to count. The first that uses CUDA begins the session.
pub fn new_thread(uses_cuda: bool) {
    let mut guard = STATE.lock();
    if guard.is_none() {
        *guard = State::new();
        make_key();
    }
    let Some(state) = guard.as_mut() else { return };
    OWNER.store(ids::process(), Ordering::Relaxed);
    let left = state.slots.iter().copied().find(|slot| slot.take());
    let slot = left.unwrap_or_else(|| {
        let thread = u32::try_from(state.slots.len()).unwrap_or(u32::MAX);
        let first_limit = |what| state.first_limit(what, thread);
        let slot: &'static Slot = Box::leak(Box::new(Slot::new(thread, first_limit)));
        state.slots.push(slot);
        slot
    });
    set_slot(Some(slot));
    let begins = uses_cuda && state.begin_to_use_cuda();
    drop(guard);
    let key = THREAD_KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: the key has been made; its value is a static's address.
        unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(slot).cast()) };
    }
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
        Step::Symbol { .. } => tell_named(),
        Step::Auto => learning::tell_hint(),
        _ => {}
    }
    uncounted(&mut || capture::start(settings, uncounted));
}

/// Has the window closed when the process ends.
fn mind_exit() {
    extern "C" fn at_exit() {
        super::finish();
    }
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler is a function of this library, which is never unloaded. Registered
        // now, it runs before those that the driver registered when it was initialised.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Has the end of threads told.
fn make_key() {
    unsafe extern "C" fn thread_ends(slot: *mut c_void) {
        // SAFETY: the value is the address of a slot, which is never freed.
        leave(unsafe { &*slot.cast::<Slot>() });
    }
    static ONCE: AtomicBool = AtomicBool::new(false);
    if ONCE.swap(true, Ordering::AcqRel) {
        return; // a forked child has them already
    }
    let mut key = 0;
    // SAFETY: the handler is a function of this library, which is never unloaded.
    let has_key = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) == 0 };
    // Without a key the slots of threads that end are not used again.
    if has_key {
        THREAD_KEY.store(key, Ordering::Relaxed);
    }
}

/// A thread has ended: another may count where it did.
fn leave(slot: &'static Slot) {
    let _inside = Inside::enter();
    let mut guard = STATE.lock();
    set_slot(None);
    if let Some(state) = guard.as_mut() {
        stream_capture::forget(state, slot);
    }
    slot.leave();
    drop(guard);
    if ids::process() == ids::thread() {
        capture::main_thread_leaves();
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
