//! Reads and changes the environment variables of the process.

use core::ffi::{CStr, c_char, c_void};
use core::mem::size_of_val;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

use crate::elf;

// SAFETY: the declaration is that of unistd.h, and the loader binds the symbol to the program's variable.
unsafe extern "C" {
    static environ: AtomicPtr<*const c_char>;
}

/// Returns true if the C library has stored the environment (`environ`), which it does when it is initialised.
pub fn is_there() -> bool {
    // SAFETY: the word is aligned, and the C library reads it as a whole, too.
    unsafe { !environ.load(Ordering::Acquire).is_null() }
}

/// Returns true if the environment has a variable with a name for which `is_meant` returns true. Calls no function of
/// the C library.
pub fn has(is_meant: impl Fn(&[u8]) -> bool) -> bool {
    !find(|entry| is_meant(entry.name())).is_null()
}

/// Returns the value of the variable `name` as a terminated string, as `getenv` does. Returns null if it is not set.
pub fn value(name: &[u8]) -> *const c_char {
    let entry = find(|entry| entry.has_name(name));
    if entry.is_null() {
        return entry;
    }
    // SAFETY: the entry contains the name and an equals sign, so the value follows them.
    unsafe { entry.add(name.len() + 1) }
}

/// An entry of the environment: a terminated string. Only the name is read, because values may be long, and the library
/// looks up many variables when a process starts.
#[derive(Clone, Copy)]
struct Variable(*const c_char);

impl Variable {
    /// Returns the byte at `index`. No byte before it may be the terminating zero.
    unsafe fn byte(self, index: usize) -> u8 {
        // SAFETY: the caller guarantees that the string does not end before the index.
        unsafe { *self.0.cast::<u8>().add(index) }
    }

    fn name(&self) -> &[u8] {
        let mut length = 0;
        // SAFETY: the scan ends at the terminating zero.
        while !matches!(unsafe { self.byte(length) }, 0 | b'=') {
            length += 1;
        }
        // SAFETY: these bytes have just been read.
        unsafe { core::slice::from_raw_parts(self.0.cast(), length) }
    }

    fn has_name(self, name: &[u8]) -> bool {
        // SAFETY: a byte is read only if the bytes before it are equal to bytes of a name, which are not zero.
        let is_at =
            |(index, byte): (usize, &u8)| *byte != 0 && unsafe { self.byte(index) } == *byte;
        name.iter().chain(b"=").enumerate().all(is_at)
    }
}

/// Returns the first entry of the environment for which `is_it` returns true, or null if there is none.
fn find(is_it: impl Fn(Variable) -> bool) -> *const c_char {
    // SAFETY: the program's list ends with a null pointer, and its entries are terminated strings. The word that points
    // to the list is aligned, and the C library reads it as a whole, too.
    unsafe {
        let mut entry = environ.load(Ordering::Acquire);
        while !entry.is_null() && !(*entry).is_null() {
            if is_it(Variable(*entry)) {
                return *entry;
            }
            entry = entry.add(1);
        }
    }
    core::ptr::null()
}

/// Sets each variable to a value, or removes it if the value is `None`.
///
/// `setenv` may free the list of variables while another thread is reading it, for example a thread of
/// another preloaded profiler. So this function makes a new list, installs it with one store, and does not
/// free the old list. New variables are inserted before the last one, so that the first and the last variable of the
/// list stay the same. This matters to programs that change their process title, which `ps` shows: they write it over
/// the memory of their arguments and variables. Some compute the available length from the first and the last
/// variable, and do not check that all variables lie in between.
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
    // SAFETY: the program's list ends with a null pointer, and its entries are terminated strings. The word that points
    // to the list is aligned, and the C library reads it as a whole, too.
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

/// Type of `__msan_unpoison` (sanitizer/msan_interface.h).
type Unpoison = unsafe extern "C" fn(*const c_void, usize);

/// Returns `__msan_unpoison` if the program was built with MemorySanitizer, otherwise `None`. Such a program aborts
/// when it reads memory that uninstrumented code (such as this library) has written, unless that code has called
/// `__msan_unpoison` for the memory.
fn memory_sanitizer() -> Option<Unpoison> {
    let mut found = None;
    elf::walk(|module| {
        found = module.defines(c"__msan_unpoison", None);
        found.is_some()
    });
    // SAFETY: only the sanitizer defines a function of this name, which its header declares with this type.
    found.map(|function| unsafe { core::mem::transmute::<*mut c_void, Unpoison>(function) })
}

fn initialized<T>(unpoison: Option<Unpoison>, memory: &[T]) {
    if let Some(unpoison) = unpoison {
        // SAFETY: the memory is a valid slice, and the sanitizer only changes its own notes about it.
        unsafe { unpoison(memory.as_ptr().cast(), size_of_val(memory)) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Lock that lets only one test at a time change the environment, which all tests share.
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
