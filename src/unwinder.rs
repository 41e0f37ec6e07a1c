//! Forwards the unwinder's functions to the unwinder of the process, which is found only when it is needed.
//!
//! Rust normally links every library to `libgcc_s.so.1`. A process whose loader does not find that file would not start
//! with such a library preloaded, although the process may never unwind. A second unwinder inside this library is no
//! solution either. The functions of one unwinder cannot read the state of another in the middle of an unwind.
//! Exceptions and cancelled threads of the host pass through frames of this library, and some of these frames have
//! something to clean up.
//!
//! So this library defines the unwinder's functions as private symbols, and each of them finds the process's
//! function. Code that unwinds has already loaded an unwinder. If this library itself panics in a process without an
//! unwinder, `libgcc_s.so.1` is opened, as the C library does to cancel a thread. If that file is missing, a panic
//! ends the process, like a panic that is not caught.

use core::arch::global_asm;
use core::ffi::{CStr, c_void};

use tllmprof_platform::resolve::{self, Scope};

/// Type of the unwinder's functions. They have at most three arguments, each of which fits into a register.
type UnwinderFunction = unsafe extern "C-unwind" fn(usize, usize, usize) -> usize;

/// The result `_URC_FATAL_PHASE1_ERROR` of the Itanium C++ ABI: the exception could not be raised.
const NOT_RAISED: usize = 3;
/// The result `_URC_END_OF_STACK` of the Itanium C++ ABI: there is no further frame.
const END_OF_STACK: usize = 5;

// This is a separate function, so that the frames of the forwarding functions have nothing to clean up. Otherwise the
// unwinder would run this cleanup during an unwind, and the cleanup would call the unwinder again.
#[cold]
#[inline(never)]
fn find(name: &CStr) -> Option<UnwinderFunction> {
    let loaded = || {
        // `next` searches only the modules that come after this library in load order. If this library was loaded after
        // the process had started, it comes last, so `next` does not find the process's unwinder. Then all modules
        // except this library are searched. The first argument is the address of the caller: 0, because the search
        // does not depend on a caller.
        resolve::next(name).or_else(|| resolve::resolve(0, name, None, Scope::All))
    };
    let found = loaded().or_else(|| {
        // SAFETY: loading this library runs no code that could do harm.
        let opened = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
        (!opened.is_null()).then(loaded).flatten()
    })?;
    // SAFETY: this is the unwinder's function of that name. It ignores arguments that it does not have.
    Some(unsafe { core::mem::transmute::<*mut c_void, UnwinderFunction>(found) })
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Defines functions under the unwinder's names. Their symbols are hidden, because exported symbols would be used by
/// the whole process.
macro_rules! define {
    ($($name:literal, $function:ident, without: $without:expr;)*) => {$(
        unsafe extern "C-unwind" fn $function(first: usize, second: usize, third: usize) -> usize {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name that is none"),
            };
            // No panic: a panic that unwinds through this function is caught further up the stack.
            match find(NAME) {
                // SAFETY: called with the caller's arguments for this function.
                Some(function) => unsafe { function(first, second, third) },
                None => $without,
            }
        }
        global_asm!(
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            jump!(),
            function = sym $function,
        );
    )*};
}

define! {
    "_Unwind_RaiseException", raise, without: NOT_RAISED;
    "_Unwind_Resume", resume, without: std::process::abort();
    "_Unwind_DeleteException", delete, without: 0;
    "_Unwind_Backtrace", backtrace, without: END_OF_STACK;
    "_Unwind_FindEnclosingFunction", enclosing_function, without: 0;
    // The following functions describe a frame that is being unwound. Without an unwinder, each of them returns 0.
    // For the first function, 0 means that the frame has nothing to clean up.
    "_Unwind_GetLanguageSpecificData", language_specific_data, without: 0;
    "_Unwind_GetRegionStart", region_start, without: 0;
    "_Unwind_GetTextRelBase", text_base, without: 0;
    "_Unwind_GetDataRelBase", data_base, without: 0;
    "_Unwind_GetCFA", frame_address, without: 0;
    "_Unwind_GetIP", instruction, without: 0;
    "_Unwind_GetIPInfo", instruction_info, without: 0;
    "_Unwind_SetGR", set_register, without: 0;
    "_Unwind_SetIP", set_instruction, without: 0;
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// A guard whose drop increments a counter. It shows that the unwinder cleaned up the guard's frame.
    struct Cleaned<'a>(&'a AtomicU32);

    impl Drop for Cleaned<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // The test binary contains this module's definitions of the unwinder's functions, like the library does. So panics
    // in this test pass through them.
    #[test]
    fn a_panic_is_caught_and_what_it_passes_cleaned_up() {
        let cleaned = AtomicU32::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _outer = Cleaned(&cleaned);
            let inner = || -> u32 {
                let _inner = Cleaned(&cleaned);
                panic!("not a failure: this is to be caught")
            };
            inner()
        }));
        assert!(caught.is_err());
        assert_eq!(cleaned.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_thread_that_leaves_by_pthread_exit_cleans_up() {
        extern "C-unwind" fn leave(cleaned: *mut c_void) -> *mut c_void {
            // SAFETY: the test waits for this thread, and keeps the counter until then.
            let _cleaned = Cleaned(unsafe { &*cleaned.cast::<AtomicU32>() });
            // SAFETY: the C library unwinds the frames of this thread, all of which may be unwound.
            unsafe { pthread_exit(core::ptr::null_mut()) }
        }
        // SAFETY: the functions are declared as in pthread.h, except that they may unwind.
        unsafe extern "C-unwind" {
            fn pthread_exit(result: *mut c_void) -> !;
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attributes: *const libc::pthread_attr_t,
                start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> libc::c_int;
        }
        let cleaned = AtomicU32::new(0);
        let mut thread = 0;
        let counter = (&raw const cleaned).cast_mut().cast();
        // SAFETY: the attributes are the default ones, and the counter lives until the thread has been joined.
        unsafe {
            assert_eq!(
                pthread_create(&raw mut thread, core::ptr::null(), leave, counter),
                0
            );
            assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
        }
        assert_eq!(cleaned.load(Ordering::Relaxed), 1);
    }
}
