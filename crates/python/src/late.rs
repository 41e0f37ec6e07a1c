//! The way into an interpreter that was there before the library was attached, and out of it again.
//!
//! The program's threads are not asked: the main thread may sleep for hours, and whoever has the GIL may hold any lock. So a
//! thread of the library's own makes itself a thread state and waits for the GIL, as one of the program's would, for as long
//! as it takes. What is to be done it reads when it has it, so that one such thread is enough.
//!
//! The interpreter may end meanwhile. Up to 3.13 it ends threads that wait for the GIL by `pthread_exit`, later ones it keeps
//! for ever: both are harmless to this thread, which has nothing to unwind there and holds nothing. A thread state must not
//! be made any more once the interpreter's memory goes. So the interpreter's own slot for `pthread_key_delete` leads here
//! ([`interpreter_goes`]): it deletes its key right before, and waits there for a thread that had found it alive.
//!
//! Once the thread has the GIL, it lets nobody else have it until an `atexit` callback is registered ([`at_exit`]). From then
//! on the end of the interpreter waits for who is inside ([`super::entry`]).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::api::{Api, ThreadState};
use super::object::{Object, Python};
use super::threads::Thread;
use super::{attached, entry, threads};
use once_cell::race::OnceBox;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::lifecycle;
use tllmprof_platform::own_threads::OwnThread;
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::{name_thread, start_thread, without_signals};
use tllmprof_platform::thread::uncounted;
use tllmprof_sync::{wait, wake};

/// How long somebody waits for the thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the interpreter's end waits for a thread that makes itself a state, and for one that it keeps.
const ENDING: Duration = Duration::from_secs(1);
const KEPT: Duration = Duration::from_millis(20);
const STACK: usize = 1 << 20;

/// What is done with the GIL: `true` for what is installed to come.
pub type Act = fn(Python<'_>, &Thread, bool);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "set once")]
    #[restart(keep)]
    static ACT: OnceBox<Act> = OnceBox::new();
    /// The library was attached to a process that runs.
    #[fork(keep = "the child's library is its parent's")]
    #[restart(keep)]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    /// The interpreters are to have what is installed.
    #[fork(keep = "the child is attached to as its parent is")]
    #[restart(keep)]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// The main interpreter has it.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_IN: AtomicBool = AtomicBool::new(false);
    /// A thread is on its way to the GIL, or has it. One that an interpreter has kept is not there for the next.
    #[fork(reset)]
    #[restart(reset)]
    static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
    /// It has found the interpreter alive: `MAKES_STATE` or `MAY_BE_KEPT`, else 0.
    #[fork(reset)]
    #[restart(reset)]
    static ENTERS: AtomicU32 = AtomicU32::new(0);
}

/// It makes itself a state, or, up to 3.13, waits for the GIL.
const MAKES_STATE: u32 = 1;
/// It waits for the GIL, and may do so for ever.
const MAY_BE_KEPT: u32 = 2;

/// The library is attached to a process that runs. Before Python is looked for.
/// `act` gives the main interpreter what is installed, or takes it away.
pub fn begin(act: Act) {
    ACT.get_or_init(|| Box::new(act));
    IS_LATE.store(true, Ordering::Release);
    IS_WANTED.store(true, Ordering::Release);
}

/// Whether the library was attached to a process that runs.
pub fn is_late() -> bool {
    IS_LATE.load(Ordering::Acquire)
}

/// Whether it is detached, or about to be.
pub fn is_off() -> bool {
    is_late() && !IS_WANTED.load(Ordering::Acquire)
}

/// Has the interpreter get what is installed, or give it back; whether that was done in time. If not, the thread still waits
/// for the GIL.
pub fn switch(is_wanted: bool) -> bool {
    IS_WANTED.store(is_wanted, Ordering::SeqCst);
    let since = Instant::now();
    while !is_settled() {
        start();
        let left = PATIENCE.saturating_sub(since.elapsed());
        if left.is_zero() {
            return false;
        }
        wait(&UNDER_WAY, 1, left);
    }
    true
}

/// Whether the thread may go in: without a GIL to hold, nothing keeps the interpreter from ending before the `atexit` callback is
/// registered.
pub fn is_served(api: &Api) -> bool {
    !api.is_free_threaded
}

/// Whether there is nothing to be done.
fn is_settled() -> bool {
    let is_as_wanted = || IS_IN.load(Ordering::SeqCst) == IS_WANTED.load(Ordering::SeqCst);
    attached::api().is_none_or(|api| !is_served(api) || !api.runs() || is_as_wanted())
}

/// Starts the thread, unless there is one. For a thread of the program's, too.
pub fn start() {
    let is_free = UNDER_WAY.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    if is_free.is_ok() && !without_signals(|| start_thread(STACK, main)) {
        UNDER_WAY.store(0, Ordering::SeqCst);
    }
}

/// A word that is 0 again when this goes.
struct Set(&'static AtomicU32);

impl Drop for Set {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
        wake(self.0, i32::MAX);
    }
}

/// The thread. Nothing is caught around the wait for the GIL, in which the interpreter may end it.
extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    let _under_way = Set(&UNDER_WAY);
    let _own = OwnThread::passing();
    name_thread(c"tllmprof-python");
    if let Some(api) = attached::api().filter(|api| is_served(api))
        && !entry::is_closed()
        && let Some(state) = enter(api)
    {
        contained((), || uncounted(&mut || settle(api, state)));
    }
    core::ptr::null_mut()
}

/// Gives the calling thread a state and the GIL. None if the interpreter ends, or has no functions for that.
fn enter(api: &'static Api) -> Option<ThreadState> {
    type Restore = unsafe extern "C-unwind" fn(ThreadState);
    let (main_interpreter, new) = api.main_interpreter.zip(api.new_state)?;
    api.clear_state.and(api.delete_current_state)?;
    // SAFETY: only the unwinding differs, which the caller's frames permit: they have nothing to catch it.
    let restore = unsafe {
        core::mem::transmute::<unsafe extern "C" fn(ThreadState), Restore>(api.restore_thread)
    };
    ENTERS.store(MAKES_STATE, Ordering::SeqCst);
    let enters = Set(&ENTERS);
    if !api.runs() {
        return None;
    }
    // SAFETY: the interpreter is there until `interpreter_goes` returns, which waits for this.
    let state = unsafe { new(main_interpreter()) };
    if state.is_null() {
        return None;
    }
    if !api.version.ends_waiting_threads() {
        ENTERS.store(MAY_BE_KEPT, Ordering::SeqCst);
    }
    // SAFETY: a new state of this thread's, which has none.
    unsafe { restore(state) };
    drop(enters);
    Some(state)
}

/// Does what is to be done, and gives the GIL and the state back. The calling thread has both.
fn settle(api: &'static Api, state: ThreadState) {
    /// Until the state is gone the end of the interpreter waits.
    struct Leaves<'a> {
        api: &'a Api,
        state: ThreadState,
        _inside: Option<entry::Inside>,
    }
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            let Self { api, state, .. } = *self;
            if let Some((clear, delete)) = api.clear_state.zip(api.delete_current_state) {
                // SAFETY: the state is the calling thread's, which has the GIL, and is used no more.
                unsafe {
                    clear(state);
                    delete();
                }
            }
        }
    }
    let inside = entry::inside();
    let is_open = inside.is_some();
    let _leaves = Leaves {
        api,
        state,
        _inside: inside,
    };
    let Some(thread) = threads::current().filter(|_| is_open) else {
        return;
    };
    // SAFETY: the thread has the GIL, but where it gives it to others for a while.
    let py = unsafe { Python::assume(api) };
    loop {
        let is_wanted = IS_WANTED.load(Ordering::SeqCst);
        if is_wanted == IS_IN.load(Ordering::SeqCst) {
            return;
        }
        if let Some(act) = ACT.get() {
            act(py, thread, is_wanted);
        }
        is_settled_as(is_wanted);
    }
}

/// The main interpreter has what is installed, or not, or will at its first event.
pub fn is_settled_as(is_in: bool) {
    IS_IN.store(is_in, Ordering::SeqCst);
}

/// The module `atexit`, without a step of Python code: between two of these another thread could get the GIL and end the
/// interpreter.
pub fn at_exit<'py>(py: Python<'py>) -> Option<Object<'py>> {
    if let Some(module) = py.imported(c"atexit") {
        return Some(module);
    }
    // What `_imp` wants is any object with a name.
    let spec = py.sys(c"implementation")?.class()?.call(&[])?;
    let has_name = spec.own_attrs()?.set_item(c"name", &py.text("atexit")?);
    let imp = py.imported(c"_imp").filter(|_| has_name)?;
    let module = imp.attr(c"create_builtin")?.call(&[&spec])?;
    imp.attr(c"exec_builtin")?.call(&[&module])?;
    if !py.api.version.keeps_atexit_without_module() {
        py.c().modules()?.set_item(c"atexit", &module);
    }
    Some(module)
}

/// Waits for a thread that has found the interpreter alive, but not long.
fn await_entering(api: &'static Api) {
    let since = Instant::now();
    loop {
        let enters = ENTERS.load(Ordering::SeqCst);
        let patience = match enters {
            0 => break,
            MAKES_STATE => ENDING,
            _ => KEPT, // it looks every 5 ms
        };
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        let wait = || wait(&ENTERS, enters, left.min(KEPT));
        if api.version.waits_for_end() {
            wait();
        } else {
            // It leaves once it gets the GIL.
            Python::if_held(api, |py| py.without_gil(wait)).unwrap_or_else(wait);
        }
    }
}

/// Stands in the interpreter's slot for `pthread_key_delete`, which it calls before its memory goes.
///
/// # Safety
/// Called as that function is.
pub unsafe extern "C" fn interpreter_goes(key: libc::pthread_key_t) -> c_int {
    let errno = Kept::new();
    contained((), || {
        if let Some(api) = attached::api().filter(|api| !api.runs()) {
            await_entering(api);
        }
    });
    drop(errno);
    // SAFETY: the interpreter's own call, with its own argument, goes on to where it was meant to.
    unsafe { libc::pthread_key_delete(key) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Whether no thread is on its way, but one that the interpreter has kept.
    pub(crate) fn is_over() -> bool {
        UNDER_WAY.load(Ordering::SeqCst) == 0 || ENTERS.load(Ordering::SeqCst) == MAY_BE_KEPT
    }

    #[test]
    fn without_an_interpreter_there_is_nothing_to_be_done() {
        assert!(is_settled() && !is_late() && !is_off());
        let mut key = 0;
        // SAFETY: a key of this test's, which nobody uses.
        unsafe {
            assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
            assert_eq!(interpreter_goes(key), 0);
            assert_eq!(interpreter_goes(key), libc::EINVAL);
        }
    }
}
