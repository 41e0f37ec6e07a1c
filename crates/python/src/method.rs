//! Functions of ours that Python calls: C functions, and calls on its main thread.
//!
//! They are given as Rust functions. The wrappers around them preserve `errno` and a pending exception, and
//! prove that the thread has the GIL.

use core::ffi::{CStr, c_int, c_void};

use super::api::{Api, Method, Raw};
use super::attached;
use super::object::{Object, Python};
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;

pub use super::api::MethodDef;

/// A C function with the calling convention [`FASTCALL`].
type FastMethod = unsafe extern "C" fn(Raw, *const Raw, isize) -> Raw;

/// `METH_VARARGS`: the second argument is a tuple.
const VARARGS: c_int = 0x1;
/// `METH_NOARGS`.
const NOARGS: c_int = 0x4;
/// `METH_O`: the second argument is the only one.
const ONE: c_int = 0x8;
/// `METH_FASTCALL`: the second argument is an array, the third one its length.
const FASTCALL: c_int = 0x80;

/// Rust functions that Python calls, and that return None to it. They are function items, or closures that
/// capture nothing: `F` has no size, so no place is needed to store it.
impl MethodDef {
    /// Defines a function without arguments.
    pub const fn without_args<F: Fn(Python<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>) + Copy + 'static>(_: Raw, _: Raw) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this, so the thread has the GIL; a value of the function's type was passed
            // to `without_args`.
            unsafe { reply(|py| the::<F>()(py)) }
        }
        Self::new(name, called::<F>, NOARGS)
    }

    /// Defines a function that takes its arguments as a tuple.
    pub const fn with_tuple<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
            _: Raw,
            args: Raw,
        ) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this with a live tuple, so the thread has the GIL; a value of the
            // function's type was passed to `with_tuple`.
            unsafe { reply_to(args, |py, args| the::<F>()(py, args)) }
        }
        Self::new(name, called::<F>, VARARGS)
    }

    /// Defines a function that is bound to an object ([`Python::function_of`]), which it receives. It ignores
    /// the one argument that Python passes.
    pub const fn bound<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
            own: Raw,
            _: Raw,
        ) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this with the object that the function is bound to, so the thread has the
            // GIL; a value of the function's type was passed to `bound`.
            unsafe { reply_to(own, |py, own| the::<F>()(py, own)) }
        }
        Self::new(name, called::<F>, ONE)
    }

    /// Defines a function that receives only the address of its first argument, or 0. It is called often, so
    /// it preserves neither `errno` nor exceptions.
    pub const fn fast<F: Fn(Python<'_>, usize) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, usize) + Copy + 'static>(
            _: Raw,
            args: *const Raw,
            count: isize,
        ) -> Raw {
            let Some(api) = attached::api() else {
                return core::ptr::null_mut();
            };
            // SAFETY: Python calls this with an array of that many arguments, so the thread has the GIL; a
            // value of the function's type was passed to `fast`.
            unsafe {
                let first = if count > 0 { (*args).addr() } else { 0 };
                let py = Python::assume(api);
                contained((), || the::<F>()(py, first));
                py.none()
            }
        }
        // SAFETY: the function is called as its flags say, whatever type it is stored as.
        let method = unsafe { core::mem::transmute::<FastMethod, Method>(called::<F>) };
        Self::new(name, method, FASTCALL)
    }

    /// Defines a function as [`MethodDef::fast`] does, but it receives its first argument and returns a
    /// result to Python, or None.
    pub const fn answering<F>(name: &'static CStr, _: F) -> Self
    where
        F: for<'py> Fn(Python<'py>, &Object<'py>) -> Option<Object<'py>> + Copy + 'static,
    {
        unsafe extern "C" fn called<F>(_: Raw, args: *const Raw, count: isize) -> Raw
        where
            F: for<'py> Fn(Python<'py>, &Object<'py>) -> Option<Object<'py>> + Copy + 'static,
        {
            let _errno = SavedErrno::new();
            let Some(api) = attached::api() else {
                return core::ptr::null_mut();
            };
            // SAFETY: Python calls this with an array of that many live arguments, so the thread has the GIL;
            // a value of the function's type was passed to `answering`.
            unsafe {
                let py = Python::assume(api);
                let answer = contained(None, || {
                    let first = (count > 0).then(|| py.share(*args)).flatten()?;
                    py.quietly(|py| the::<F>()(py, &first))
                });
                answer.map_or_else(|| py.none(), Object::release)
            }
        }
        // SAFETY: the function is called as its flags say, whatever type it is stored as.
        let method = unsafe { core::mem::transmute::<FastMethod, Method>(called::<F>) };
        Self::new(name, method, FASTCALL)
    }

    const fn new(name: &'static CStr, method: Method, flags: c_int) -> Self {
        Self {
            name: name.as_ptr(),
            method,
            flags,
            doc: core::ptr::null(),
        }
    }

    /// Returns the name in Python.
    pub const fn name(&self) -> &'static CStr {
        // SAFETY: `new` made it from such a text.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// Returns the only value of a type without size.
///
/// # Safety
/// A value of the type has existed.
const unsafe fn the<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "the function captures something") };
    // SAFETY: reading a type without size accesses no memory; a value of it has existed, and it may be
    // copied.
    unsafe { core::ptr::NonNull::<F>::dangling().read() }
}

/// Runs `act`, and returns None to Python, the caller. A panic does not reach Python.
///
/// # Safety
/// The thread has the GIL.
unsafe fn reply(act: impl FnOnce(Python<'_>)) -> Raw {
    let _errno = SavedErrno::new();
    let Some(api) = attached::api() else {
        return core::ptr::null_mut();
    };
    // SAFETY: Python calls the enclosing function with the GIL.
    let py = unsafe { Python::assume(api) };
    contained((), || py.quietly(act));
    py.none()
}

/// Runs `act` as [`reply`] does, with an object from the interpreter.
///
/// # Safety
/// The thread has the GIL, and `object` is null or a live object.
unsafe fn reply_to(object: Raw, act: impl FnOnce(Python<'_>, &Object<'_>)) -> Raw {
    // SAFETY: Python calls the enclosing function with the GIL, and keeps `object` alive until that returns.
    unsafe {
        reply(|py| {
            if let Some(object) = py.share(object) {
                act(py, &object);
            }
        })
    }
}

/// Makes the interpreter call `act` on its main thread, between two steps of its code. An exception that
/// `act` leaves is raised there. Returns `act` if too many calls are pending.
pub fn call_on_main_thread<F: FnOnce(Python<'_>) + Send + 'static>(
    api: &Api,
    act: F,
) -> Result<(), F> {
    unsafe extern "C" fn called<F: FnOnce(Python<'_>)>(act: *mut c_void) -> c_int {
        let _errno = SavedErrno::new();
        // SAFETY: it was made below, for one call of this function.
        let act = unsafe { Box::from_raw(act.cast::<F>()) };
        let Some(api) = attached::api() else { return 0 };
        // SAFETY: Python calls this with the GIL.
        let py = unsafe { Python::assume(api) };
        let is_done = contained(false, || {
            act(py);
            true
        });
        if !is_done {
            // The exception is not the program's, as `act` panicked.
            py.clear_exception();
        }
        if py.has_raised() { -1 } else { 0 }
    }
    let act = Box::into_raw(Box::new(act));
    // SAFETY: it may be called at any time; the function is in this library, which is never unloaded, and
    // takes over the box.
    if unsafe { (api.add_pending_call)(called::<F>, act.cast()) } == 0 {
        return Ok(());
    }
    // SAFETY: it was made above, and the interpreter has not taken it.
    Err(*unsafe { Box::from_raw(act) })
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    fn see(_: Python<'_>, address: usize) {
        SEEN.store(address, Ordering::Relaxed);
    }

    #[test]
    fn a_function_is_known_by_its_type() {
        const fn value_of<F: Fn(usize) + Copy>(_: F) -> F {
            // SAFETY: a value was passed.
            unsafe { the::<F>() }
        }
        value_of(|address| SEEN.store(address, Ordering::Relaxed))(7);
        assert_eq!(SEEN.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_definition_keeps_its_name_and_convention() {
        static SEE: MethodDef = MethodDef::fast(c"see", see);
        static END: MethodDef = MethodDef::without_args(c"end", |_| {});
        assert_eq!((SEE.name(), SEE.flags), (c"see", FASTCALL));
        assert_eq!((END.name(), END.flags), (c"end", NOARGS));
        assert!(END.doc.is_null());
    }

    #[test]
    fn without_an_interpreter_nothing_runs() {
        static END: MethodDef = MethodDef::without_args(c"end", |_| unreachable!());
        let null = core::ptr::null_mut();
        // SAFETY: no interpreter is attached, so the arguments are not used.
        assert!(unsafe { (END.method)(null, null) }.is_null());
    }
}
