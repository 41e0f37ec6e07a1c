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

use core::ffi::{c_int, c_void};

use tllmprof_platform::errno::Kept;
use tllmprof_platform::log;
use tllmprof_session as session;

redhook::hook! {
    unsafe fn _exit(status: c_int) => finish_and_exit {
        session::finish_at_once();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(_exit)(status) }
    }
}

redhook::hook! {
    unsafe fn _Exit(status: c_int) => finish_and_exit_too {
        session::finish_at_once();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(_Exit)(status) }
    }
}

redhook::hook! {
    unsafe fn quick_exit(status: c_int) => finish_and_quick_exit {
        session::finish_at_once();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(quick_exit)(status) }
    }
}

redhook::hook! {
    unsafe fn dup2(old: c_int, new: c_int) -> c_int => duplicate {
        // SAFETY: the real function with its own arguments.
        let result = unsafe { redhook::real!(dup2)(old, new) };
        tell_redirected(result, new);
        result
    }
}

redhook::hook! {
    unsafe fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int => duplicate_with_flags {
        // SAFETY: the real function with its own arguments.
        let result = unsafe { redhook::real!(dup3)(old, new, flags) };
        tell_redirected(result, new);
        result
    }
}

fn tell_redirected(result: c_int, new: c_int) {
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
    let _ = redhook::real!(dlclose);
}

redhook::hook! {
    unsafe fn dlclose(handle: *mut c_void) -> c_int => close_and_forget {
        // SAFETY: the real function with its own argument.
        let result = unsafe { redhook::real!(dlclose)(handle) };
        let _errno = Kept::new();
            tllmprof_intercept::modules_have_gone();
        result
    }
}
