//! The process's environment.

use core::ffi::{CStr, c_char, c_void};
use core::mem::size_of_val;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

use crate::elf;

// SAFETY: declared as in unistd.h; the loader binds it to the host's own.
unsafe extern "C" {
    static environ: AtomicPtr<*const c_char>;
}

/// Whether the C library has been given the variables, which happens when it is initialised.
pub fn is_there() -> bool {
    // SAFETY: the word is aligned, and libc itself reads it as a whole.
    unsafe { !environ.load(Ordering::Acquire).is_null() }
}

/// Whether a variable is set whose name `is_meant`. Calls nothing of the host's.
pub fn has(is_meant: impl Fn(&[u8]) -> bool) -> bool {
    let name =
        |entry: &[u8]| is_meant(entry.split(|&byte| byte == b'=').next().unwrap_or_default());
    !find(name).is_null()
}

/// The value of a variable, as `getenv` gives it; null for none.
pub fn value(name: &[u8]) -> *const c_char {
    let is_it = |entry: &[u8]| {
        entry
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(b"="))
    };
    let entry = find(is_it);
    if entry.is_null() {
        return entry;
    }
    // SAFETY: the entry is longer than the name and the sign behind it.
    unsafe { entry.add(name.len() + 1) }
}

/// The first entry of the environment that `is_it`; null for none.
fn find(is_it: impl Fn(&[u8]) -> bool) -> *const c_char {
    // SAFETY: the host's list ends with a null, and its entries are terminated strings. The word
    // that leads to it is aligned, and libc itself reads it as a whole.
    unsafe {
        let mut entry = environ.load(Ordering::Acquire);
        while !entry.is_null() && !(*entry).is_null() {
            if is_it(CStr::from_ptr(*entry).to_bytes()) {
                return *entry;
            }
            entry = entry.add(1);
        }
    }
    core::ptr::null()
}

/// Sets variables, each to a value or to none.
///
/// `setenv` may free the list of variables that another thread, of a profiler that is preloaded,
/// too, is reading. So the process gets a new list, at one stroke, and the old one stays. Its first and its last variable
/// stay there: a program that writes its title where its arguments and variables lie takes the distance between them for
/// the length, and some do not look whether all lie there.
pub fn publish(changes: &[(&str, Option<&[u8]>)]) {
    let is_changed = |entry: &CStr| {
        let entry = entry.to_bytes();
        changes.iter().any(|(name, _)| {
            entry
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"="))
        })
    };
    let mut list = Vec::new();
    let unpoison = memory_sanitizer();
    // SAFETY: the host's list ends with a null, and its entries are terminated strings. The word
    // that leads to it is aligned, and libc itself reads it as a whole.
    unsafe {
        let mut entry = environ.load(Ordering::Acquire);
        while !entry.is_null() && !(*entry).is_null() {
            if !is_changed(CStr::from_ptr(*entry)) {
                list.push(*entry);
            }
            entry = entry.add(1);
        }
    }
    let place = list.len().saturating_sub(1).max(1).min(list.len());
    for (name, value) in changes {
        let entry = value.map(|value| [name.as_bytes(), b"=", value].concat());
        if let Some(Ok(entry)) = entry.map(CString::new) {
            initialized(unpoison, entry.as_bytes_with_nul());
            list.insert(place, entry.into_raw().cast_const());
        }
    }
    list.push(core::ptr::null());
    initialized(unpoison, &list);
    // SAFETY: the word is aligned, and the new list lives as long as the process.
    unsafe { environ.store(list.leak().as_mut_ptr(), Ordering::Release) };
}

/// `__msan_unpoison` (sanitizer/msan_interface.h).
type Unpoison = unsafe extern "C" fn(*const c_void, usize);

/// MemorySanitizer's function, in a program built with it. The program ends where it reads memory that code built without
/// the sanitizer has written, unless that code says so.
fn memory_sanitizer() -> Option<Unpoison> {
    let mut found = None;
    elf::walk(|module| {
        found = module.defines(c"__msan_unpoison", None);
        found.is_some()
    });
    // SAFETY: the sanitizer alone defines a function of this name, which its header declares so.
    found.map(|function| unsafe { core::mem::transmute::<*mut c_void, Unpoison>(function) })
}

fn initialized<T>(unpoison: Option<Unpoison>, memory: &[T]) {
    if let Some(unpoison) = unpoison {
        // SAFETY: the memory is a slice's; the sanitizer only writes what it knows about it.
        unsafe { unpoison(memory.as_ptr().cast(), size_of_val(memory)) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The environment is the process's: one test at a time changes it.
    pub(crate) static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn variables_are_set_replaced_and_taken_away() {
        let _one = ONE.lock();
        const NAME: &str = "TLLMPROF_OF_A_TEST";
        let value = || std::env::var(NAME).ok();
        let count = || std::env::vars_os().count();
        let before = count();
        let ends = || {
            let mut all = std::env::vars_os().map(|(name, _)| name);
            (all.next(), all.last())
        };
        let ends_before = ends();
        publish(&[(NAME, Some(b"1")), ("TLLMPROF_OF_A_TEST_TOO", Some(b"2"))]);
        assert_eq!(value().as_deref(), Some("1"));
        assert_eq!(count(), before + 2);
        assert_eq!(ends(), ends_before, "where a title would begin and end");
        let is_set = |wanted: &str| has(|name| name == wanted.as_bytes());
        assert!(is_there() && is_set(NAME) && is_set("TLLMPROF_OF_A_TEST_TOO"));
        assert!(!is_set("TLLMPROF_OF") && !is_set("1") && !is_set(""));
        publish(&[(NAME, Some(b"a=b"))]);
        assert_eq!(value().as_deref(), Some("a=b"));
        assert_eq!(count(), before + 2, "in the place of the other");
        publish(&[(NAME, None), ("TLLMPROF_OF_A_TEST_TOO", Some(b"a\0b"))]);
        assert_eq!(value(), None);
        assert_eq!(count(), before, "what no variable can hold is none");
    }
}
