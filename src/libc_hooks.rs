//! Hooks functions of libc: those that end the process without running destructors, those that unload modules, and
//! those that redirect file descriptors.
//!
//! Each hook calls the real function: the next function of its name in the search order, which is usually libc's. The
//! real function is found without `dlsym`, because some of the hooks may be called in a signal handler, in the child of
//! a fork, or before the host has initialised anything.

#![allow(
    static_mut_refs,
    non_camel_case_types,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::missing_transmute_annotations
)] // lints for code that redhook's macro generates

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::panics::contained;
use tllmprof_platform::resolve::{self, Scope};
use tllmprof_platform::{function, lifecycle, log};
use tllmprof_session as session;

/// The real function (usually libc's) that a hook calls: its name, and its address once it is found.
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

    /// Returns the address of the real function; null if no library has it.
    fn find(&self) -> *mut c_void {
        let known = self.place.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let found = contained(None, || {
            // If only NVTX has loaded this library, the library comes after libc in the search order. Then `next`,
            // which searches only later modules, may find nothing.
            resolve::next(self.name).or_else(|| resolve::resolve(0, self.name, None, Scope::All))
        });
        self.place
            .store(found.unwrap_or_default(), Ordering::Release);
        found.unwrap_or_default()
    }
}

/// Defines hooks, one for each row of the macro's arguments. The row also gives the result (`$none`) of a call in a
/// process in which no library has the real function.
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
        /// Finds all real functions in advance, so that no hook has to search for one. Called when the library is
        /// loaded.
        pub(crate) fn find_real() {
            $($real.find();)*
        }
        /// Returns the name of each function that this module hooks, and the address of the real function.
        pub(crate) fn all() -> impl Iterator<Item = (&'static CStr, *mut c_void)> {
            [$(($real.name, $real.find())),*].into_iter()
        }
        $(
            /// # Safety
            /// The conditions are those of libc's function of this name.
            // SAFETY: the symbol is meant to replace libc's function, and calls it.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                // No panic: `find` and the bodies catch panics of our own code; the rest is libc's function.
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: the pointer is null, or points to libc's function of this name and type.
                let real = unsafe { function::at::<Function>($real.find()) };
                let $next = || match real {
                    // SAFETY: called with the caller's own arguments.
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

/// Finishes the session (closes an open window and logs the result of all windows). Then calls `next`, the real
/// function, which ends the process at once.
fn exit_by(next: impl FnOnce()) {
    contained((), session::finish_at_once);
    next();
}

/// Defines hooks for functions such as `freopen`, which attach another file to a stream, and so to the stream's
/// descriptor. `redhook` defines these hooks and finds the real functions by `dlsym`. For these hooks `dlsym` is safe,
/// because only a program that already runs has streams to reopen.
macro_rules! reopens {
    ($($name:ident => $ours:ident;)*) => {
        $(
            redhook::hook! {
                unsafe fn $name(
                    path: *const c_char,
                    mode: *const c_char,
                    stream: *mut libc::FILE
                ) -> *mut libc::FILE => $ours {
                    // SAFETY: this is libc's function of this name and type, called with the caller's arguments.
                    let result = unsafe { redhook::real!($name)(path, mode, stream) };
                    if !result.is_null() {
                        let _errno = SavedErrno::new();
                        // SAFETY: `result` is an open stream, which libc has just returned.
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

/// If `result` is not negative, informs the log that descriptor `new` refers to another file now: log messages may be
/// written to this descriptor. Returns `result`.
fn redirected(result: c_int, new: c_int) -> c_int {
    if result >= 0 {
        contained((), || log::redirected(new));
    }
    result
}

/// Called with the result of `dlclose`, which may have unloaded modules. Makes the library forget the functions that it
/// has found in unloaded modules. Returns `result`.
fn closed(result: c_int) -> c_int {
    contained((), || {
        let _errno = SavedErrno::new();
        tllmprof_intercept::modules_have_gone();
    });
    result
}
