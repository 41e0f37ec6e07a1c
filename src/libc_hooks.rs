//! libc's own functions that we have to know of: ways out of the process that run no destructor,
//! modules that go, descriptors that are redirected.
//!
//! Each goes on to the function that comes after us, which is found without `dlsym`: some of them may be
//! called in a signal handler, in the child of a fork, or before anything of the host has been initialised.

#![allow(
    static_mut_refs,
    non_camel_case_types,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::missing_transmute_annotations
)] // what redhook's macro writes

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::errno::Kept;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve::{self, Scope};
use tllmprof_platform::{function, lifecycle, log};
use tllmprof_session as session;

/// A function that comes after us.
struct Real {
    name: &'static CStr,
    place: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            place: AtomicPtr::new(null_mut()),
        }
    }

    /// Its address; null where there is none.
    fn find(&self) -> *mut c_void {
        let known = self.place.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let found = contained(None, || {
            // Loaded by NVTX alone, this library comes after libc.
            resolve::next(self.name).or_else(|| resolve::resolve(0, self.name, None, Scope::All))
        });
        self.place
            .store(found.unwrap_or_default(), Ordering::Release);
        found.unwrap_or_default()
    }
}

/// Defines the hooks, each with what a process gets in which no library has the function.
macro_rules! hooks {
    ($($(#[$attribute:meta])*
    fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $real:ident, $none:expr, |$next:ident| $body:expr;)*) => {
        lifecycle::global! {
            $(
                #[fork(keep = "the child's modules are its parent's")]
                static $real: Real = Real::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    },
                );
            )*
        }
        /// Finds the real functions, so that a call need not. For the constructor.
        pub fn find_real() {
            $($real.find();)*
        }
        /// The names of all, and what they go on to.
        pub fn all() -> impl Iterator<Item = (&'static CStr, *mut c_void)> {
            [$(($real.name, $real.find())),*].into_iter()
        }
        $(
            /// # Safety
            /// As libc's function of this name.
            // SAFETY: the symbol is meant to take the place of libc's, and goes on to it.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                // No panic: `find` and the bodies contain what is ours, apart from libc's function.
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: the place is null or has libc's function of this name and type.
                let real = unsafe { function::at::<Function>($real.find()) };
                let $next = || match real {
                    // SAFETY: the arguments are the caller's own.
                    Some(real) => unsafe { real($($argument),*) },
                    None => $none,
                };
                $body
            }
        )*
    };
}

hooks! {
    fn _exit(status: c_int) -> (), EXIT_NOW, (), |next| exit_by(next);
    fn _Exit(status: c_int) -> (), EXIT_NOW_TOO, (), |next| exit_by(next);
    fn quick_exit(status: c_int) -> (), QUICK_EXIT, (), |next| exit_by(next);
    fn dup2(old: c_int, new: c_int) -> c_int, DUP2, -1, |next| redirected(next(), new);
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int, DUP3, -1, |next| redirected(next(), new);
    fn dlclose(handle: *mut c_void) -> c_int, DLCLOSE, -1, |next| closed(next());
}

/// The process ends at once, by `next`, which does not return.
fn exit_by(next: impl FnOnce()) {
    contained((), session::finish_at_once);
    next();
}

/// Functions that put another file behind a stream, and so behind its descriptor. Only a program that runs opens streams,
/// so `redhook` does these, which looks the real ones up by `dlsym`.
macro_rules! reopens {
    ($($name:ident => $ours:ident;)*) => {
        $(
            redhook::hook! {
                unsafe fn $name(
                    path: *const c_char,
                    mode: *const c_char,
                    stream: *mut libc::FILE
                ) -> *mut libc::FILE => $ours {
                    // SAFETY: libc's function of this name and type, with what the caller passes.
                    let result = unsafe { redhook::real!($name)(path, mode, stream) };
                    if !result.is_null() {
                        let _errno = Kept::new();
                        // SAFETY: an open stream, which libc has just given back.
                        let descriptor = unsafe { libc::fileno(result) };
                        redirected(descriptor, descriptor);
                    }
                    result
                }
            }
        )*
    };
}

reopens! {
    freopen => reopen;
    freopen64 => reopen_large;
}

/// A descriptor that messages go to may be another file now.
fn redirected(result: c_int, new: c_int) -> c_int {
    if result >= 0 {
        contained((), || log::redirected(new));
    }
    result
}

/// A module may have gone.
fn closed(result: c_int) -> c_int {
    contained((), || {
        let _errno = Kept::new();
        tllmprof_intercept::modules_have_gone();
    });
    result
}
