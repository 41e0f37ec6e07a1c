//! Ways out of the process that run no destructor, and modules that go.
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

use super::export;
use crate::errno::Kept;
use crate::session;

redhook::hook! {
    unsafe fn _exit(status: c_int) => finish_and_exit {
        session::finish();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(_exit)(status) }
    }
}

redhook::hook! {
    unsafe fn _Exit(status: c_int) => finish_and_exit_too {
        session::finish();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(_Exit)(status) }
    }
}

redhook::hook! {
    unsafe fn quick_exit(status: c_int) => finish_and_quick_exit {
        session::finish();
        // SAFETY: the real function with its own argument.
        unsafe { redhook::real!(quick_exit)(status) }
    }
}

redhook::hook! {
    unsafe fn dlclose(handle: *mut c_void) -> c_int => close_and_forget {
        // SAFETY: the real function with its own argument.
        let result = unsafe { redhook::real!(dlclose)(handle) };
        let _errno = Kept::new();
        export::forget_unloaded();
        result
    }
}
