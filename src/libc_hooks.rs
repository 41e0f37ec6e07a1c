//! libc's own functions that we have to know of: ways out of the process that run no destructor,
//! modules that go, descriptors that are redirected.
//!
//! None of these is hot, and what comes after us is what they mean, so `redhook` does them.

#![allow(
    static_mut_refs,
    non_camel_case_types,
    missing_docs,
    clippy::missing_safety_doc,
    clippy::missing_transmute_annotations
)] // what redhook's macro writes

use core::ffi::{c_char, c_int, c_void};

use tllmprof_platform::errno::Kept;
use tllmprof_platform::log;
use tllmprof_session as session;

/// Functions that end the process at once.
macro_rules! exits {
    ($($name:ident => $ours:ident;)*) => {
        $(
            redhook::hook! {
                unsafe fn $name(status: c_int) => $ours {
                    session::finish_at_once();
                    // SAFETY: libc's function of this name and type, which may be called with any status.
                    unsafe { redhook::real!($name)(status) }
                }
            }
        )*
    };
}

exits! {
    _exit => finish_and_exit;
    _Exit => finish_and_exit_too;
    quick_exit => finish_and_quick_exit;
}

/// Functions that put another file behind a descriptor.
macro_rules! duplicates {
    ($($name:ident($new:ident $(, $flags:ident)?) => $ours:ident;)*) => {
        $(
            redhook::hook! {
                unsafe fn $name(old: c_int, $new: c_int $(, $flags: c_int)?) -> c_int => $ours {
                    // SAFETY: libc's function of this name and type, which refuses descriptors that are none.
                    let result = unsafe { redhook::real!($name)(old, $new $(, $flags)?) };
                    log_redirected(result, $new);
                    result
                }
            }
        )*
    };
}

duplicates! {
    dup2(new) => duplicate;
    dup3(new, flags) => duplicate_with_flags;
}

/// Functions that put another file behind a stream, and so behind its descriptor.
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
                        // SAFETY: an open stream, which libc has just given back.
                        let descriptor = unsafe { libc::fileno(result) };
                        log_redirected(descriptor, descriptor);
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
fn log_redirected(result: c_int, new: c_int) {
    let _errno = Kept::new();
    if result >= 0 {
        log::redirected(new);
    }
}

/// Finds the real functions now: some of them may be called in a signal handler or in the child of
/// a fork, where nothing can be looked up. For the constructor.
pub fn find_real() {
    let _ = redhook::real!(_exit);
    let _ = redhook::real!(_Exit);
    let _ = redhook::real!(quick_exit);
    let _ = redhook::real!(dup2);
    let _ = redhook::real!(dup3);
    let _ = redhook::real!(freopen);
    let _ = redhook::real!(freopen64);
    let _ = redhook::real!(dlclose);
}

redhook::hook! {
    unsafe fn dlclose(handle: *mut c_void) -> c_int => close_and_forget {
        // SAFETY: libc's function of this name and type, with the handle that the caller may close.
        let result = unsafe { redhook::real!(dlclose)(handle) };
        let _errno = Kept::new();
        tllmprof_intercept::modules_have_gone();
        result
    }
}
