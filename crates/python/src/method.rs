//! What Python calls of ours: C functions, and calls on its main thread.
//!
//! Rust functions are given; what the interpreter calls around them keeps `errno` and an exception
//! that is set, and proves that the thread has the GIL.

use core::ffi::{CStr, c_int, c_void};

use super::api::{Api, Method, Raw};
use super::attached;
use super::object::{Object, Python};
use tllmprof_platform::errno::Kept;
use tllmprof_platform::panics::contained;

pub use super::api::MethodDef;

/// A C function that Python calls with [`FASTCALL`].
type FastMethod = unsafe extern "C" fn(Raw, *const Raw, isize) -> Raw;

/// `METH_VARARGS`: the second argument is a tuple.
const VARARGS: c_int = 0x1;
/// `METH_NOARGS`.
const NOARGS: c_int = 0x4;
/// `METH_O`: the second argument is the one that there is.
const ONE: c_int = 0x8;
/// `METH_FASTCALL`: the second argument is an array, and a third one its length.
const FASTCALL: c_int = 0x80;

/// Rust functions that Python calls, and to which it gets None back. They are function items, or
/// closures that capture nothing: `F` has no size, so that it is known without a place to keep it.
impl MethodDef {
    /// One that takes no arguments.
    pub const fn without_args<F: Fn(Python<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>) + Copy + 'static>(_: Raw, _: Raw) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this, so that the thread has the GIL; a value of the function's
            // type was given to `without_args`.
            unsafe { reply(|py| the::<F>()(py)) }
        }
        Self::new(name, called::<F>, NOARGS)
    }

    /// One that takes its arguments as a tuple.
    pub const fn with_tuple<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
            _: Raw,
            args: Raw,
        ) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this, so that the thread has the GIL, with a live tuple; a value
            // of the function's type was given to `with_tuple`.
            unsafe { reply_to(args, |py, args| the::<F>()(py, args)) }
        }
        Self::new(name, called::<F>, VARARGS)
    }

    /// One that was made with an object of its own ([`Python::function_of`]), which it is given. The
    /// one argument that Python calls it with is left out.
    pub const fn bound<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
        name: &'static CStr,
        _: F,
    ) -> Self {
        unsafe extern "C" fn called<F: Fn(Python<'_>, &Object<'_>) + Copy + 'static>(
            own: Raw,
            _: Raw,
        ) -> Raw {
            // No panic: `reply` contains it.
            // SAFETY: Python calls this, so that the thread has the GIL, with the object that the
            // function was made with; a value of the function's type was given to `bound`.
            unsafe { reply_to(own, |py, own| the::<F>()(py, own)) }
        }
        Self::new(name, called::<F>, ONE)
    }

    /// One that is given the address of its first argument alone, or 0, and for which nothing is
    /// kept: it is called often.
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
            // SAFETY: Python calls this, so that the thread has the GIL, with an array of that many
            // arguments; a value of the function's type was given to `fast`.
            unsafe {
                let first = if count > 0 { (*args).addr() } else { 0 };
                let py = Python::assume(api);
                contained((), || the::<F>()(py, first));
                py.none()
            }
        }
        // SAFETY: a function that is called as its flags say, whatever type it is kept as.
        let method = unsafe { core::mem::transmute::<FastMethod, Method>(called::<F>) };
        Self::new(name, method, FASTCALL)
    }

    /// As [`MethodDef::fast`], given its first argument, and giving Python what the function gives, or None.
    pub const fn answering<F>(name: &'static CStr, _: F) -> Self
    where
        F: for<'py> Fn(Python<'py>, &Object<'py>) -> Option<Object<'py>> + Copy + 'static,
    {
        unsafe extern "C" fn called<F>(_: Raw, args: *const Raw, count: isize) -> Raw
        where
            F: for<'py> Fn(Python<'py>, &Object<'py>) -> Option<Object<'py>> + Copy + 'static,
        {
            let _errno = Kept::new();
            let Some(api) = attached::api() else {
                return core::ptr::null_mut();
            };
            // SAFETY: Python calls this, so that the thread has the GIL, with an array of that many
            // live arguments; a value of the function's type was given to `answering`.
            unsafe {
                let py = Python::assume(api);
                let answer = contained(None, || {
                    let first = (count > 0).then(|| py.share(*args)).flatten()?;
                    py.quietly(|py| the::<F>()(py, &first))
                });
                answer.map_or_else(|| py.none(), Object::release)
            }
        }
        // SAFETY: a function that is called as its flags say, whatever type it is kept as.
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

    /// What Python calls it.
    pub const fn name(&self) -> &'static CStr {
        // SAFETY: made of such a text by `new`.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// The one value of a type without size.
///
/// # Safety
/// There has been a value of the type.
const unsafe fn the<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "the function captures something") };
    // SAFETY: a type without size is read from nowhere; there has been a value of it, which may be
    // copied.
    unsafe { core::ptr::NonNull::<F>::dangling().read() }
}

/// Runs `act`, and gives None to Python, which calls; no panic of it gets there.
///
/// # Safety
/// The thread has the GIL.
unsafe fn reply(act: impl FnOnce(Python<'_>)) -> Raw {
    let _errno = Kept::new();
    let Some(api) = attached::api() else {
        return core::ptr::null_mut();
    };
    // SAFETY: Python calls the function that this is a part of, with the GIL.
    let py = unsafe { Python::assume(api) };
    contained((), || py.quietly(act));
    py.none()
}

/// As [`reply`], with an object that the interpreter has given.
///
/// # Safety
/// The thread has the GIL, and `object` is null or a live object.
unsafe fn reply_to(object: Raw, act: impl FnOnce(Python<'_>, &Object<'_>)) -> Raw {
    // SAFETY: Python calls the function that this is a part of, with the GIL, and keeps `object` alive
    // until that returns.
    unsafe {
        reply(|py| {
            if let Some(object) = py.share(object) {
                act(py, &object);
            }
        })
    }
}

/// Has the interpreter call `act` on its main thread, between two steps of its code; an exception
/// that `act` leaves is raised there. Gives `act` back if too many calls are pending.
pub fn call_on_main_thread<F: FnOnce(Python<'_>) + Send + 'static>(
    api: &Api,
    act: F,
) -> Result<(), F> {
    unsafe extern "C" fn called<F: FnOnce(Python<'_>)>(act: *mut c_void) -> c_int {
        let _errno = Kept::new();
        // SAFETY: made below, for one call of this.
        let act = unsafe { Box::from_raw(act.cast::<F>()) };
        let Some(api) = attached::api() else { return 0 };
        // SAFETY: Python calls this with the GIL.
        let py = unsafe { Python::assume(api) };
        let is_done = contained(false, || {
            act(py);
            true
        });
        if !is_done {
            // Not the program's: it was not `act` that left it.
            py.clear_exception();
        }
        if py.has_raised() { -1 } else { 0 }
    }
    let act = Box::into_raw(Box::new(act));
    // SAFETY: may be called at any time; the function is of this library, which is never unloaded,
    // and takes the box over.
    if unsafe { (api.add_pending_call)(called::<F>, act.cast()) } == 0 {
        return Ok(());
    }
    // SAFETY: made above; the interpreter has not taken it.
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
        const fn of<F: Fn(usize) + Copy>(_: F) -> F {
            // SAFETY: a value was given.
            unsafe { the::<F>() }
        }
        of(|address| SEEN.store(address, Ordering::Relaxed))(7);
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
        // SAFETY: no interpreter is attached to, so that nothing is used.
        assert!(unsafe { (END.method)(null, null) }.is_null());
    }
}
