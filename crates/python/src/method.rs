//! Rust functions that Python calls, as C functions or as pending calls on its main thread.
//!
//! The wrappers around the Rust functions pass a [`Python`] as proof that the thread holds the GIL. The wrappers of
//! methods preserve `errno` and a pending exception, except those of [`MethodDef::fast`].

use core::ffi::{CStr, c_int, c_void};

use super::api::{Api, Method, Raw};
use super::attached;
use super::object::{Object, Python};
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;

pub use super::api::MethodDef;

/// A C function with the calling convention [`FASTCALL`].
type FastMethod = unsafe extern "C" fn(Raw, *const Raw, isize) -> Raw;

/// `METH_VARARGS`: the second parameter of the C function is a tuple of all arguments.
const VARARGS: c_int = 0x1;
/// `METH_NOARGS`: the function takes no arguments.
const NOARGS: c_int = 0x4;
/// `METH_O`: the second parameter of the C function is the only argument.
const ONE: c_int = 0x8;
/// `METH_FASTCALL`: the second parameter is an array of the arguments, and the third one its
/// length.
const FASTCALL: c_int = 0x80;

/// Constructors for Rust functions that Python calls. The Rust functions are function items or
/// closures that capture nothing. Their type `F` has size 0, so no value has to be stored for the C
/// function.
impl MethodDef {
    /// Defines a function without arguments.
    pub const fn without_args<F: Fn(Python<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>) + Copy + 'static>(_: Raw, _: Raw) -> Raw {
            // No panic: `reply` catches panics.
            // SAFETY: Python calls this function, so the thread holds the GIL. A value of type `F`
            // was passed to `without_args`.
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
            // No panic: `reply` catches panics.
            // SAFETY: Python calls this function with a live tuple, so the thread holds the GIL. A
            // value of type `F` was passed to `with_tuple`.
            unsafe { reply_to(args, |py, args| the::<F>()(py, args)) }
        }
        Self::new(name, called::<F>, VARARGS)
    }

    /// Defines a function that is bound to an object ([`Python::function_of`]). The Rust function gets this object. The
    /// one argument that Python passes is ignored.
    pub const fn bound<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
            own: Raw,
            _: Raw,
        ) -> Raw {
            // No panic: `reply` catches panics.
            // SAFETY: Python calls this function with the object that it is bound to, so the thread
            // holds the GIL. A value of type `F` was passed to `bound`.
            unsafe { reply_to(own, |py, own| the::<F>()(py, own)) }
        }
        Self::new(name, called::<F>, ONE)
    }

    /// Defines a function that gets only the address of its first argument, or 0 if it has none. This is for functions
    /// that Python calls often: `errno` and exceptions are not preserved, which saves time.
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
            // SAFETY: Python calls this function with an array of `count` arguments, so the thread
            // holds the GIL. A value of type `F` was passed to `fast`.
            unsafe {
                let first = if count > 0 { (*args).addr() } else { 0 };
                let py = Python::assume(api);
                contained((), || the::<F>()(py, first));
                py.none()
            }
        }
        // SAFETY: the flag `FASTCALL` makes Python call the function with its real type.
        let method = unsafe { core::mem::transmute::<FastMethod, Method>(called::<F>) };
        Self::new(name, method, FASTCALL)
    }

    /// Defines a function that gets its first argument as an object, and may return a result to Python. Without an
    /// argument, the Rust function is not called. Unlike with [`MethodDef::fast`], `errno` and exceptions are
    /// preserved.
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
            // SAFETY: Python calls this function with an array of `count` live arguments, so the
            // thread holds the GIL. A value of type `F` was passed to `answering`.
            unsafe {
                let py = Python::assume(api);
                let answer = contained(None, || {
                    let first = (count > 0).then(|| py.share(*args)).flatten()?;
                    py.quietly(|py| the::<F>()(py, &first))
                });
                answer.map_or_else(|| py.none(), Object::release)
            }
        }
        // SAFETY: the flag `FASTCALL` makes Python call the function with its real type.
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

    /// Returns the function's name in Python.
    pub const fn name(&self) -> &'static CStr {
        // SAFETY: `new` took the pointer from a `&'static CStr`.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// Returns the only value of a type with size 0.
///
/// # Safety
/// A value of type `F` must have existed.
const unsafe fn the<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "the function captures something") };
    // SAFETY: reading a type with size 0 accesses no memory. The caller promises that a value
    // existed, and `F` may be copied.
    unsafe { core::ptr::NonNull::<F>::dangling().read() }
}

/// Runs `act`, and returns None to Python. A panic in `act` does not reach Python.
///
/// # Safety
/// The calling thread holds the GIL.
unsafe fn reply(act: impl FnOnce(Python<'_>)) -> Raw {
    let _errno = SavedErrno::new();
    let Some(api) = attached::api() else {
        return core::ptr::null_mut();
    };
    // SAFETY: the caller promises that the thread holds the GIL.
    let py = unsafe { Python::assume(api) };
    contained((), || py.quietly(act));
    py.none()
}

/// Runs `act` like [`reply`], with an object that Python passed. Does not run `act` if `object` is null.
///
/// # Safety
/// The calling thread holds the GIL, and `object` is null or alive.
unsafe fn reply_to(object: Raw, act: impl FnOnce(Python<'_>, &Object<'_>)) -> Raw {
    // SAFETY: the caller promises that the thread holds the GIL. Python keeps `object` alive until
    // the called function returns.
    unsafe {
        reply(|py| {
            if let Some(object) = py.share(object) {
                act(py, &object);
            }
        })
    }
}

/// Makes the interpreter call `act` on its main thread, between two bytecode instructions. If `act` sets an
/// exception, the exception is raised in the main thread's code. Returns `act` in an error if too many calls are
/// pending.
pub fn call_on_main_thread<F: FnOnce(Python<'_>) + Send + 'static>(
    api: &Api,
    act: F,
) -> Result<(), F> {
    unsafe extern "C" fn called<F: FnOnce(Python<'_>)>(act: *mut c_void) -> c_int {
        let _errno = SavedErrno::new();
        // SAFETY: the box was made below, for one call of this function.
        let act = unsafe { Box::from_raw(act.cast::<F>()) };
        let Some(api) = attached::api() else { return 0 };
        // SAFETY: Python holds the GIL when it runs a pending call.
        let py = unsafe { Python::assume(api) };
        let is_done = contained(false, || {
            act(py);
            true
        });
        if !is_done {
            // `act` panicked. If an exception is still set, it belongs to the library and must not
            // reach the program.
            py.clear_exception();
        }
        if py.has_raised() { -1 } else { 0 }
    }
    let act = Box::into_raw(Box::new(act));
    // SAFETY: pending calls may be added at any time. The function is in this library, which is
    // never unloaded, and it takes over the box.
    if unsafe { (api.add_pending_call)(called::<F>, act.cast()) } == 0 {
        return Ok(());
    }
    // SAFETY: the box was made above, and the interpreter did not take it.
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
            // SAFETY: a value of type `F` was passed.
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
        // SAFETY: no interpreter was found in this process, so the function does not use the
        // arguments.
        assert!(unsafe { (END.method)(null, null) }.is_null());
    }
}
