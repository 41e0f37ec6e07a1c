//! Enters an interpreter that is older than the library, and leaves it again.
//!
//! The program's threads are not used for this: the main thread may sleep for hours, and a thread with the
//! GIL may hold any lock. So a thread of the library's own makes itself a thread state and waits for the GIL,
//! like one of the program's, for as long as necessary. It reads its task only when it has the GIL, so one
//! such thread is enough.
//!
//! The interpreter may end meanwhile. Up to 3.13 it ends threads that wait for the GIL with `pthread_exit`;
//! later versions let them wait forever. Both are harmless for this thread, which has nothing to unwind and
//! holds nothing at that point. But a thread state must not be made once the interpreter's memory is freed.
//! Therefore the interpreter's own slot for `pthread_key_delete` leads here ([`interpreter_goes`]): the
//! interpreter deletes its key just before that, and then waits for a thread that had found it alive.
//!
//! Once the thread has the GIL, it keeps it until an `atexit` callback is registered ([`at_exit`]). From then
//! on, the end of the interpreter waits for threads inside ([`super::entry`]).

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

/// Limit for the wait for the thread.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Limits for how long the interpreter's end waits: for a thread that makes itself a state, and for one that
/// may never get the GIL.
const STATE_TIMEOUT: Duration = Duration::from_secs(1);
const KEPT_TIMEOUT: Duration = Duration::from_millis(20);
const STACK: usize = 1 << 20;

/// Work with the GIL. `true` installs the hooks, `false` removes them.
pub type Act = fn(Python<'_>, &Thread, bool);

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "set once")]
    #[restart(keep)]
    static ACT: OnceBox<Act> = OnceBox::new();
    /// True if the library was attached to a running process.
    #[fork(keep = "the child's library is its parent's")]
    #[restart(keep)]
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    /// True if the hooks are to be installed in the interpreters.
    #[fork(keep = "the child is attached to as its parent is")]
    #[restart(keep)]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// True if the main interpreter has the hooks.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_IN: AtomicBool = AtomicBool::new(false);
    /// 1 while a thread waits for the GIL or has it. A thread that an interpreter keeps waiting does not
    /// count for the next one.
    #[fork(reset)]
    #[restart(reset)]
    static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
    /// `MAKES_STATE` or `MAY_BE_KEPT` while the thread has found the interpreter alive, else 0.
    #[fork(reset)]
    #[restart(reset)]
    static ENTERS: AtomicU32 = AtomicU32::new(0);
}

/// The thread makes itself a state or, up to 3.13, waits for the GIL.
const MAKES_STATE: u32 = 1;
/// The thread waits for the GIL, possibly forever.
const MAY_BE_KEPT: u32 = 2;

/// Notes that the library is attached to a running process, before it looks for Python. `act` installs the
/// hooks in the main interpreter, or removes them.
pub fn begin(act: Act) {
    ACT.get_or_init(|| Box::new(act));
    IS_LATE.store(true, Ordering::Release);
    IS_WANTED.store(true, Ordering::Release);
}

/// Returns true if the library was attached to a running process.
pub fn is_late() -> bool {
    IS_LATE.load(Ordering::Acquire)
}

/// Returns true if the library is detached, or about to be.
pub fn is_off() -> bool {
    is_late() && !IS_WANTED.load(Ordering::Acquire)
}

/// Installs the hooks, or removes them. Returns true if that was done in time; otherwise the thread still
/// waits for the GIL.
pub fn switch(is_wanted: bool) -> bool {
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

/// Returns true if the thread may enter. Without a GIL to hold, the interpreter could end before the `atexit`
/// callback is registered.
pub fn is_served(api: &Api) -> bool {
    !api.is_free_threaded
}

/// Returns true if there is nothing to do.
fn is_settled() -> bool {
    let is_as_wanted = || IS_IN.load(Ordering::SeqCst) == IS_WANTED.load(Ordering::SeqCst);
    attached::api().is_none_or(|api| !is_served(api) || !api.runs() || is_as_wanted())
}

/// Starts the thread, unless there is one. A thread of the program may call it, too.
pub fn start() {
    let is_free = UNDER_WAY.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    if is_free.is_ok() && !without_signals(|| start_thread(STACK, main)) {
        UNDER_WAY.store(0, Ordering::SeqCst);
    }
}

/// A word that is reset to 0 when this is dropped.
struct Set(&'static AtomicU32);

impl Drop for Set {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
        wake(self.0, i32::MAX);
    }
}

/// The thread's main function. It catches nothing around the wait for the GIL, during which the interpreter
/// may end it.
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

/// Gives the calling thread a state and the GIL. Returns `None` if the interpreter ends, or lacks the
/// functions for that.
fn enter(api: &'static Api) -> Option<ThreadState> {
    type Restore = unsafe extern "C-unwind" fn(ThreadState);
    let (main_interpreter, new) = api.main_interpreter.zip(api.new_state)?;
    api.clear_state.and(api.delete_current_state)?;
    // SAFETY: only the unwinding differs. The caller's frames permit it: nothing in them catches it.
    let restore = unsafe {
        core::mem::transmute::<unsafe extern "C" fn(ThreadState), Restore>(api.restore_thread)
    };
    ENTERS.store(MAKES_STATE, Ordering::SeqCst);
    let enters = Set(&ENTERS);
    if !api.runs() {
        return None;
    }
    // SAFETY: the interpreter lives until `interpreter_goes` returns, which waits for this.
    let state = unsafe { new(main_interpreter()) };
    if state.is_null() {
        return None;
    }
    if !api.version.ends_waiting_threads() {
        ENTERS.store(MAY_BE_KEPT, Ordering::SeqCst);
    }
    // SAFETY: this is a new state of this thread, which had none.
    unsafe { restore(state) };
    drop(enters);
    Some(state)
}

/// Does the work, and then releases the GIL and the state. The calling thread has both.
fn settle(api: &'static Api, state: ThreadState) {
    /// Makes the end of the interpreter wait until the state is gone.
    struct Leaves<'a> {
        api: &'a Api,
        state: ThreadState,
        _inside: Option<entry::Inside>,
    }
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            let Self { api, state, .. } = *self;
            if let Some((clear, delete)) = api.clear_state.zip(api.delete_current_state) {
                // SAFETY: the state belongs to the calling thread, which has the GIL, and is not used
                // afterwards.
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
    // SAFETY: the thread has the GIL, except while it lends it to others.
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

/// Notes that the main interpreter has the hooks, or does not, or will at its first event.
pub fn is_settled_as(is_in: bool) {
    IS_IN.store(is_in, Ordering::SeqCst);
}

/// Returns the module `atexit` without a step of Python code: between two of these, another thread could get
/// the GIL and end the interpreter.
pub fn at_exit<'py>(py: Python<'py>) -> Option<Object<'py>> {
    if let Some(module) = py.imported(c"atexit") {
        return Some(module);
    }
    // `_imp` accepts any object with a name.
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

/// Waits for a thread that has found the interpreter alive, up to a limit.
fn await_entering(api: &'static Api) {
    let since = Instant::now();
    loop {
        let enters = ENTERS.load(Ordering::SeqCst);
        let patience = match enters {
            0 => break,
            MAKES_STATE => STATE_TIMEOUT,
            _ => KEPT_TIMEOUT, // it checks every 5 ms
        };
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        let wait = || wait(&ENTERS, enters, left.min(KEPT_TIMEOUT));
        if api.version.waits_for_end() {
            wait();
        } else {
            // The thread leaves once it gets the GIL.
            Python::if_held(api, |py| py.without_gil(wait)).unwrap_or_else(wait);
        }
    }
}

/// Replaces `pthread_key_delete` in the interpreter's slot. The interpreter calls it before it frees its
/// memory.
///
/// # Safety
/// It is called with that function's arguments.
pub unsafe extern "C" fn interpreter_goes(key: libc::pthread_key_t) -> c_int {
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

    /// Returns true if no thread is under way, except one that the interpreter keeps waiting.
    pub(crate) fn is_over() -> bool {
        UNDER_WAY.load(Ordering::SeqCst) == 0 || ENTERS.load(Ordering::SeqCst) == MAY_BE_KEPT
    }

    #[test]
    fn without_an_interpreter_there_is_nothing_to_be_done() {
        assert!(is_settled() && !is_late() && !is_off());
        let mut key = 0;
        // SAFETY: a key of this test, which has no other user.
        unsafe {
            assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
            assert_eq!(interpreter_goes(key), 0);
            assert_eq!(interpreter_goes(key), libc::EINVAL);
        }
    }
}
