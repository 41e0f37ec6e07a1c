//! Enters an interpreter that was running before the library was loaded, and leaves it again.
//!
//! The program's own threads are not used for this: the main thread may sleep for hours, and a thread that holds the
//! GIL may hold a lock that the library's code needs, too. Instead, a thread of the library creates a thread state and
//! waits for the GIL like a thread of the program, for as long as necessary. The thread first takes the GIL, and then
//! reads whether to install or to remove the hooks. So one such thread is enough, even if several requests are made
//! during its wait.
//!
//! The interpreter may end during the wait. Up to Python 3.13, an ending interpreter ends the waiting threads with
//! `pthread_exit`. Later versions let them wait forever. Both are harmless for this thread, which holds no resources at
//! that point. But a thread state must not be created after the interpreter has freed its memory. Just before it frees
//! its memory, the interpreter deletes its key for thread-local data. So the interpreter's GOT slot for
//! `pthread_key_delete` is patched to point to [`interpreter_goes`]. That function waits for a thread that is about to
//! create a state.
//!
//! Once the thread has the GIL, it keeps the GIL until an `atexit` callback is registered ([`at_exit`]). From then
//! on, the end of the interpreter waits for threads that run Python code of the library ([`super::entry`]).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::api::{Api, ThreadState};
use super::object::{Object, Python};
use super::threads::Thread;
use super::{attached, entry, threads};
use once_cell::race::OnceBox;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_platform::own_threads::OwnThread;
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::{name_thread, start_thread, without_signals};
use tllmprof_platform::thread::uncounted;
use tllmprof_sync::{wait, wake};

/// The longest wait until the library's thread has installed or removed the hooks.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest times that the end of the interpreter waits: `STATE_TIMEOUT` for a thread that creates a thread state,
/// and `KEPT_TIMEOUT` for a thread that may never get the GIL.
const STATE_TIMEOUT: Duration = Duration::from_secs(1);
const KEPT_TIMEOUT: Duration = Duration::from_millis(20);
const STACK: usize = 1 << 20;

/// A function that the library's thread runs while it holds the GIL. The last argument is true to
/// install the hooks, and false to remove them.
pub(crate) type Act = fn(Python<'_>, &Thread, bool);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "set once")]
    #[restart(keep)]
    static ACT: OnceBox<Act> = OnceBox::new();
    /// True if the library was attached to a running process, and not preloaded.
    #[fork(keep = "the child's library is its parent's")]
    #[restart(keep)]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    /// True if the library's hooks are to be installed in the interpreters, and false if they are
    /// to be removed.
    #[fork(keep = "the child is attached to as its parent is")]
    #[restart(keep)]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// True if the library's hooks are installed in the main interpreter.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_IN: AtomicBool = AtomicBool::new(false);
    /// 1 while the library's thread waits for the GIL or holds it, else 0. When an interpreter has ended, this thread
    /// may wait forever. So the word is reset to 0 before another interpreter starts, even if the thread still waits.
    #[fork(reset)]
    #[restart(reset)]
    static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
    /// The state of the library's thread while it enters an interpreter that was already running: `MAKES_STATE` or
    /// `MAY_BE_KEPT`; otherwise 0.
    #[fork(reset)]
    #[restart(reset)]
    static ENTERS: AtomicU32 = AtomicU32::new(0);
}

/// Value of [`ENTERS`]: the library's thread creates its thread state or, up to 3.13, waits for the GIL.
const MAKES_STATE: u32 = 1;
/// Value of [`ENTERS`], from 3.14 on: the library's thread waits for the GIL, possibly forever.
const MAY_BE_KEPT: u32 = 2;

/// Called when the library is attached to a running process, before the library looks for Python. Stores `act`, which
/// installs the hooks in the main interpreter or removes them. From then on [`is_late`] returns true.
pub(crate) fn begin(act: Act) {
    ACT.get_or_init(|| Box::new(act));
    IS_LATE.store(true, Ordering::Release);
    IS_WANTED.store(true, Ordering::Release);
}

/// Returns true if the library was attached to a running process.
pub(crate) fn is_late() -> bool {
    IS_LATE.load(Ordering::Acquire)
}

/// Returns true if the library was attached to a running process, and is detached or being
/// detached.
pub(crate) fn is_off() -> bool {
    is_late() && !IS_WANTED.load(Ordering::Acquire)
}

/// Installs the hooks if `is_wanted` is true, otherwise removes them. Returns true if this was done within the time
/// limit. Otherwise the library's thread keeps waiting for the GIL, and installs or removes the hooks later.
pub(crate) fn switch(is_wanted: bool) -> bool {
    IS_WANTED.store(is_wanted, Ordering::SeqCst);
    let since = Instant::now();
    while !is_settled() {
        start();
        let left = SWITCH_TIMEOUT.saturating_sub(since.elapsed());
        if left.is_zero() {
            return false;
        }
        wait(&UNDER_WAY, 1, left);
    }
    true
}

/// Returns true if the library's thread may enter this interpreter. In a build without a GIL the
/// interpreter could end before the `atexit` callback is registered, so the thread does not enter.
pub(crate) fn is_served(api: &Api) -> bool {
    !api.is_free_threaded
}

/// Returns true if the hooks are in the requested state, or cannot be changed.
fn is_settled() -> bool {
    let is_as_wanted = || IS_IN.load(Ordering::SeqCst) == IS_WANTED.load(Ordering::SeqCst);
    attached::api().is_none_or(|api| !is_served(api) || !api.runs() || is_as_wanted())
}

/// Starts the library's thread, which installs or removes the hooks, unless this thread is already running. Threads of
/// the program may call this, too.
pub(crate) fn start() {
    let is_free = UNDER_WAY.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    if is_free.is_ok() && !without_signals(|| start_thread(STACK, main)) {
        UNDER_WAY.store(0, Ordering::SeqCst);
    }
}

/// Sets an atomic word back to 0 when dropped, and wakes the threads that wait until the word is 0.
struct Set(&'static AtomicU32);

impl Drop for Set {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
        wake(self.0, i32::MAX);
    }
}

/// The main function of the library's thread. The function must not catch unwinding around the wait
/// for the GIL, because the interpreter may end the thread there with `pthread_exit`.
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

/// Creates a thread state for the calling thread, and takes the GIL. Returns `None` if the
/// interpreter is ending, or lacks the functions for this.
fn enter(api: &'static Api) -> Option<ThreadState> {
    type Restore = unsafe extern "C-unwind" fn(ThreadState);
    let (main_interpreter, new) = api.main_interpreter.zip(api.new_state)?;
    api.clear_state.and(api.delete_current_state)?;
    // SAFETY: the two function types differ only in that the second one may unwind. The unwinding passes through the
    // callers' frames, and none of them catches it.
    let restore = unsafe {
        core::mem::transmute::<unsafe extern "C" fn(ThreadState), Restore>(api.restore_thread)
    };
    ENTERS.store(MAKES_STATE, Ordering::SeqCst);
    let enters = Set(&ENTERS);
    if !api.runs() {
        return None;
    }
    // SAFETY: the interpreter lives until `interpreter_goes` returns, and that function waits while
    // `ENTERS` is set.
    let state = unsafe { new(main_interpreter()) };
    if state.is_null() {
        return None;
    }
    if !api.version.ends_waiting_threads() {
        ENTERS.store(MAY_BE_KEPT, Ordering::SeqCst);
    }
    // SAFETY: the state was created above for this thread, which had none.
    unsafe { restore(state) };
    drop(enters);
    Some(state)
}

/// Installs or removes the hooks, as [`IS_WANTED`] requests. Then gives up the thread state and the GIL, which the
/// calling thread has.
fn settle(api: &'static Api, state: ThreadState) {
    /// Deletes the thread state when dropped. Until then, `_inside` makes the end of the
    /// interpreter wait.
    struct Leaves<'a> {
        api: &'a Api,
        state: ThreadState,
        _inside: Option<entry::Inside>,
    }
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            let Self { api, state, .. } = *self;
            if let Some((clear, delete)) = api.clear_state.zip(api.delete_current_state) {
                // SAFETY: the state belongs to the calling thread, which holds the GIL. It is not
                // used afterwards.
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
    // SAFETY: the thread holds the GIL, except while Python code that it calls releases it.
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

/// Stores whether the hooks are installed in the main interpreter. `is_in` is also true if the next audit event in this
/// interpreter is going to install them.
pub(crate) fn is_settled_as(is_in: bool) {
    IS_IN.store(is_in, Ordering::SeqCst);
}

/// Returns the module `atexit` without running Python bytecode. Between two bytecode instructions,
/// another thread could get the GIL and end the interpreter.
pub(crate) fn at_exit<'py>(py: Python<'py>) -> Option<Object<'py>> {
    if let Some(module) = py.imported(c"atexit") {
        return Some(module);
    }
    // Create an object that serves as the module's spec: `_imp` accepts any object with an attribute `name`.
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

/// Waits for a thread that is entering the interpreter, for a limited time.
fn await_entering(api: &'static Api) {
    let since = Instant::now();
    loop {
        let enters = ENTERS.load(Ordering::SeqCst);
        let patience = match enters {
            0 => break,
            MAKES_STATE => STATE_TIMEOUT,
            _ => KEPT_TIMEOUT, // the thread checks every 5 ms if the interpreter ends
        };
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        let wait = || wait(&ENTERS, enters, left.min(KEPT_TIMEOUT));
        if api.version.waits_for_end() {
            wait();
        } else {
            // The thread that is entering notices the end only after it gets the GIL, so release
            // the GIL meanwhile.
            Python::if_held(api, |py| py.without_gil(wait)).unwrap_or_else(wait);
        }
    }
}

/// Replaces `pthread_key_delete` in the interpreter's GOT slot. Called when the interpreter is about to free its
/// memory. If the library's thread is entering the interpreter, first waits for this thread.
///
/// # Safety
/// The argument is valid for `pthread_key_delete`.
pub(crate) unsafe extern "C" fn interpreter_goes(key: libc::pthread_key_t) -> c_int {
    let errno = SavedErrno::new();
    contained((), || {
        if let Some(api) = attached::api().filter(|api| !api.runs()) {
            await_entering(api);
        }
    });
    drop(errno);
    // SAFETY: this is the interpreter's own call with its own argument, passed on to its target.
    unsafe { libc::pthread_key_delete(key) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns true if the library's thread has ended, or if it waits for the GIL, possibly forever.
    pub(crate) fn is_over() -> bool {
        UNDER_WAY.load(Ordering::SeqCst) == 0 || ENTERS.load(Ordering::SeqCst) == MAY_BE_KEPT
    }

    #[test]
    fn without_an_interpreter_there_is_nothing_to_be_done() {
        assert!(is_settled() && !is_late() && !is_off());
        let mut key = 0;
        // SAFETY: only this test uses the key.
        unsafe {
            assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
            assert_eq!(interpreter_goes(key), 0);
            assert_eq!(interpreter_goes(key), libc::EINVAL);
        }
    }
}
