//! Finds CPython in the process, and installs the hooks in each interpreter.
//!
//! CPython is the module that defines the C API: the program itself, or libpython, which may be loaded later. The
//! module's GOT slots for `pthread_cond_*` are patched to point to this library's hooks. When the interpreter starts,
//! it initializes the two condition variables of its GIL, which calls a hook. At that moment the library adds an audit
//! hook to the interpreter: early enough to miss no event, and late enough not to disturb the interpreter's start. At
//! the first audit event in an initialized interpreter, the audit hook installs all other hooks in this interpreter.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;

use super::api::{Api, Raw};
use super::attached::{self, Attached, OutOfReach, api};
use super::extension::extension;
use super::method::call_on_main_thread;
use super::object::{Object, Python};
use super::threads::{self, Thread};
use super::torch::{compiled, modules};
use super::wants::wants;
use super::{entry, functions, gc, gil, interpreter, late, names};
use tllmprof_platform::elf;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::got::{self, Redirect, redirect};
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::panics::contained;
use tllmprof_sync::Lock;

/// The longest time that a thread waits for another thread that installs hooks.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

lifecycle::global! {
    stage: Sinks;

    #[fork(free)]
    #[restart(keep)]
    static ATTACHING: Lock<()> = Lock::new(());
    /// True if the library's audit hook has been added to the running interpreter.
    #[fork(keep = "hooks are copied")]
    #[restart(reset)]
    static IS_AUDITED: AtomicBool = AtomicBool::new(false);
    /// The ids of the interpreters in which the hooks are installed. CPython does not reuse an id
    /// before all interpreters have ended.
    #[fork(free)]
    #[restart(reset)]
    static INSTALLED: Lock<Vec<i64>> = Lock::new(Vec::new());
    /// The address of the interpreter whose hooks were last checked and brought into the wanted state (installed or
    /// removed); 0 for none. Further audit events in this interpreter skip the check.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static LAST: AtomicUsize = AtomicUsize::new(0);
}

/// Looks for CPython among the process's modules. If it is found and the settings require hooks, patches its GOT
/// slots. Called when the list of modules has changed.
pub(crate) fn look() {
    let Some(_attaching) = ATTACHING.lock_for(LOCK_TIMEOUT) else {
        return;
    };
    if let Some(attached) = attached::get() {
        let is_there = elf::containing(attached.start)
            .is_some_and(|module| (module.start, module.end) == (attached.start, attached.end));
        if is_there {
            follow_setters(attached);
            return;
        }
        attached::set(None);
        gil::forget_all();
        lifecycle::restart();
    }
    let mut found = None;
    let is_installed = wants().is_installed();
    let redirects = redirects(wants().gil, late::is_late());
    elf::with_modules(|modules| {
        found = modules.iter().find_map(|module| {
            let api = Api::find(module)?;
            let is_led = !is_installed
                || match redirect(module, &redirects) {
                    Ok(is_led) => {
                        if !is_led {
                            attached::is_out_of_reach(OutOfReach::NotHooked);
                        }
                        is_led
                    }
                    Err(unreadable) => {
                        attached::is_out_of_reach(OutOfReach::Unreadable(unreadable));
                        false
                    }
                };
            is_led.then_some(Attached {
                api,
                start: module.start,
                end: module.end,
            })
        });
    });
    let Some(attached) = found else {
        return;
    };
    lifecycle::register();
    let attached: &'static Attached = Box::leak(Box::new(attached));
    attached::set(Some(attached));
    follow_setters(attached);
    let api = &attached.api;
    if !is_installed || !api.is_initialized() {
        return;
    }
    gil::is_late();
    if late::is_late() {
        // Start the library's thread that installs the hooks, and do not wait for it: the current thread may belong to
        // the program. The thread that attaches the library to the process waits later until the hooks are installed.
        late::start();
    } else if Python::if_held(api, begin_late).is_none()
        && call_on_main_thread(api, begin_late).is_err()
    {
        log::once!(Debug, "Python is too busy to be attached to");
    }
}

/// Hooks the C functions with which other tools set a frame evaluator. Does nothing unless calls of Python functions
/// have to be reported.
fn follow_setters(attached: &Attached) {
    if wants().functions || wants().modules {
        functions::follow_setters(attached);
    }
}

/// Adds the audit hook to an interpreter that was already initialized when the library found it.
fn begin_late(py: Python<'_>) {
    // If another tool's audit hook refuses ours, CPython may set an exception. `quietly` drops it.
    py.quietly(|py| audit(py.api));
}

/// Returns the GOT slots to patch, with their new targets. `gil` is true if the library records when threads wait for
/// the GIL and when they hold it. `is_late` is true if the library was attached to a running process.
fn redirects(gil: bool, is_late: bool) -> Vec<Redirect> {
    let mut redirects = vec![Redirect {
        name: c"pthread_cond_init",
        to: initialise as *const () as usize,
    }];
    if is_late {
        redirects.push(Redirect {
            name: c"pthread_key_delete",
            to: late::interpreter_goes as *const () as usize,
        });
    }
    if gil {
        let hooks = gil::hooks().into_iter();
        redirects.extend(hooks.map(|(name, to, _)| Redirect { name, to }));
    }
    redirects
}

/// Patches the interpreter's GOT slots for `pthread_cond_*`, so that the library sees when threads wait for the GIL,
/// take it and drop it. Restores the slots if `to_us` is false.
pub(crate) fn lead_gil(to_us: bool) {
    let Some(attached) = attached::get().filter(|_| wants().gil) else {
        return;
    };
    let hooks = gil::hooks();
    let hook = |name: &CStr| hooks.iter().find(|hook| hook.0 == name);
    elf::with_modules(|modules| {
        let is_it = |module: &&elf::ElfModule| module.start == attached.start;
        if let Some(module) = modules.iter().find(is_it) {
            got::lead(
                module,
                |name| hook(name).is_some(),
                |name, value| match hook(name)? {
                    (_, ours, _) if to_us => (value != Some(*ours)).then_some(*ours),
                    (_, ours, real) => (value == Some(*ours)).then_some(*real),
                },
            );
        }
    });
}

/// The hook that the interpreter calls in place of `pthread_cond_init`. If the condition variable is the second one of
/// a new GIL, adds the audit hook to the interpreter. Returns the result of the real `pthread_cond_init`.
///
/// # Safety
/// The arguments are valid for `pthread_cond_init`.
unsafe extern "C" fn initialise(
    condition: *mut libc::pthread_cond_t,
    attributes: *const libc::pthread_condattr_t,
) -> c_int {
    let errno = SavedErrno::new();
    contained((), || {
        if let (Some(api), Some(thread)) = (api(), threads::current())
            && gil::initialised(condition.addr(), thread)
        {
            if !api.is_initialized() {
                lifecycle::restart();
            }
            audit(api);
        }
    });
    drop(errno);
    // SAFETY: this is the interpreter's own call with its own arguments, passed on to its target.
    unsafe { libc::pthread_cond_init(condition, attributes) }
}

fn audit(api: &Api) {
    if IS_AUDITED.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: the interpreter accepts hooks even before it is initialized. The hook is a function
    // of this library, which is never unloaded.
    if unsafe { (api.add_audit_hook)(audited, core::ptr::null_mut()) } != 0 {
        log::once!(
            Debug,
            "Python takes no audit hook: what was asked for of Python is left out"
        );
    }
}

/// The hook that CPython calls at each audit event.
///
/// # Safety
/// Only the interpreter calls this function, on a thread that holds the GIL. `event` is a terminated
/// text, and `args` a live tuple.
unsafe extern "C" fn audited(event: *const c_char, args: Raw, _: *mut c_void) -> c_int {
    let _errno = SavedErrno::new();
    if entry::is_closed() {
        return 0;
    }
    contained((), || {
        if let (Some(api), Some(thread)) = (api(), threads::current())
            && !thread.is_busy.get()
            // An audit event may occur before the thread has a thread state. Then no hook is installed.
            && api.has_thread_state()
            && api.runs()
        {
            // SAFETY: the interpreter holds the GIL when it calls audit hooks, and passes a
            // terminated text.
            let (py, event) = unsafe { (Python::assume(api), CStr::from_ptr(event)) };
            // SAFETY: the interpreter passes a tuple that outlives this call.
            met(py, thread, event, &|| unsafe { py.share(args) });
        }
    });
    0
}

/// Installs the hooks in the calling thread's interpreter if `is_wanted` is true, otherwise removes them. Does nothing
/// if the hooks are already in the wanted state. Returns false if another thread holds the lock for too long.
fn settle(py: Python<'_>, thread: &Thread, is_wanted: bool) -> bool {
    let number = py.interpreter();
    let Some(mut installed) = INSTALLED.lock_for(LOCK_TIMEOUT) else {
        return false;
    };
    if installed.contains(&number) == is_wanted {
        return true;
    }
    if is_wanted {
        installed.push(number);
    } else {
        installed.retain(|known| *known != number);
    }
    drop(installed);
    match number {
        0 => late::is_settled_as(is_wanted),
        _ => attached::sub_interpreter_begins(),
    }
    thread.busily(|| {
        py.quietly(|py| match is_wanted {
            true => interpreter::install(py, thread, number),
            false => interpreter::uninstall(py, number),
        });
    });
    true
}

/// Returns true if the process has more interpreters than the main one.
fn has_sub_interpreters(py: Python<'_>) -> bool {
    let newest_and_main = py.api.first_interpreter.zip(py.api.main_interpreter);
    newest_and_main.is_some_and(|(newest, main)| {
        // SAFETY: both functions only read a pointer, and the interpreter is initialized. CPython's
        // list of interpreters begins with the newest and ends with the main one.
        unsafe { newest() != main() }
    })
}

/// Installs the hooks in the main interpreter if `is_wanted` is true, otherwise removes them. In each other interpreter
/// the hooks are installed or removed at its next audit event. The calling thread is one of the library's own, and has
/// held the GIL since it entered Python.
pub(crate) fn switch(py: Python<'_>, thread: &Thread, is_wanted: bool) {
    // Without `stdout` and `stderr` the interpreter is still starting, which is too early for the hooks. A later
    // audit event in this interpreter installs them.
    let is_up = py.quietly(|py| py.sys(c"stdout").is_some() && py.sys(c"stderr").is_some());
    if !is_wanted {
        threads::forget_calls();
    } else if has_sub_interpreters(py) {
        attached::sub_interpreter_begins();
    }
    if is_up {
        settle(py, thread, is_wanted);
    }
    LAST.store(0, Ordering::Relaxed);
    if is_wanted {
        thread.busily(|| begin_late(py));
    }
}

/// A change in the set of interpreters, as an audit event reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InterpreterChange {
    /// A new interpreter begins.
    Begins,
    /// The calling thread's interpreter ends, or is being cleared.
    Ends,
    Other,
}

impl InterpreterChange {
    /// Returns `None` if the event is not about interpreters.
    fn parse(event: &[u8]) -> Option<Self> {
        let what = event.strip_prefix(b"cpython.PyInterpreterState_")?;
        Some(match what {
            b"New" => Self::Begins,
            _ if what.ends_with(b"Clear") => Self::Ends,
            _ => Self::Other,
        })
    }
}

/// Handles an audit event: first installs the hooks in the event's interpreter, or removes them if they are no longer
/// wanted, unless this was done already. Then passes the event to the components that want it. `args` returns the
/// event's arguments.
fn met<'py>(
    py: Python<'py>,
    thread: &Thread,
    event: &CStr,
    args: &dyn Fn() -> Option<Object<'py>>,
) {
    let interpreter = py.interpreter_address();
    let event = event.to_bytes();
    if let Some(change) = InterpreterChange::parse(event) {
        // Forget the last address: a later interpreter may have the address of one that ended.
        LAST.store(0, Ordering::Relaxed);
        match change {
            InterpreterChange::Begins => attached::sub_interpreter_begins(),
            InterpreterChange::Ends if py.interpreter() != 0 => interpreter::another_ends(py),
            InterpreterChange::Ends | InterpreterChange::Other => {}
        }
        return;
    }
    if LAST.load(Ordering::Relaxed) != interpreter {
        // Without `stdout` and `stderr` the interpreter is still starting, which is too early for
        // the hooks.
        if !py.quietly(|py| py.sys(c"stdout").is_some() && py.sys(c"stderr").is_some()) {
            return;
        }
        if !settle(py, thread, !late::is_off()) {
            return;
        }
        LAST.store(interpreter, Ordering::Relaxed);
    }
    if late::is_off() {
        return;
    }
    if wants().gil && names::are_behind() {
        thread.busily(|| py.quietly(names::look));
    }
    if functions::wants(event) {
        thread.busily(|| py.quietly(|py| functions::audited(py, event, args)));
    }
    if wants().gc && gc::wants(event) {
        thread.busily(|| py.quietly(|py| gc::check(py, false)));
    }
    if modules::wants(event) {
        thread.busily(|| py.quietly(modules::look));
    }
    if compiled::wants(event) {
        thread.busily(|| py.quietly(|py| compiled::look(py, event, args)));
    }
    if let Some(extension) = extension().filter(|it| it.wants(event)) {
        thread.busily(|| py.quietly(|py| extension.look(py)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_that_begin_and_end_are_audited() {
        let of = |event: &str| InterpreterChange::parse(event.as_bytes());
        assert_eq!(
            of("cpython.PyInterpreterState_New"),
            Some(InterpreterChange::Begins)
        );
        assert_eq!(
            of("cpython.PyInterpreterState_Clear"),
            Some(InterpreterChange::Ends)
        );
        assert_eq!(
            of("cpython.PyInterpreterState_Other"),
            Some(InterpreterChange::Other)
        );
        assert_eq!(of("cpython._PySys_ClearAuditHooks"), None);
        assert_eq!(of("import"), None);
    }

    #[test]
    fn waits_for_the_gil_are_hooked_where_they_are_asked_for() {
        let names = |gil, late| -> Vec<_> {
            let redirects = redirects(gil, late);
            redirects.iter().map(|it| it.name).collect()
        };
        assert_eq!(names(false, false), [c"pthread_cond_init"]);
        assert_eq!(
            names(false, true),
            [c"pthread_cond_init", c"pthread_key_delete"]
        );
        assert_eq!(names(true, false).len(), 5);
        assert!(names(true, false).contains(&c"pthread_cond_timedwait"));
    }

    #[test]
    fn a_process_without_cpython_is_left_alone() {
        look();
        assert!(!attached::is_there());
    }
}
