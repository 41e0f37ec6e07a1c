//! Which of the known engines is in the process.

use core::ffi::CStr;
use std::ffi::CString;

use tllmprof_config::engines::Seen;

use crate::elf;

/// Whether the process has it, by what the loader knows.
pub fn seen(what: &Seen) -> bool {
    match what {
        Seen::Module(file) => any(|module| module.file_name().starts_with(file.as_bytes())),
        Seen::Symbol(name) => CString::new(*name).is_ok_and(|name| is_defined(&name)),
        // Python's modules are seen from within the interpreter alone.
        Seen::Python(_) => false,
    }
}

fn is_defined(name: &CStr) -> bool {
    any(|module| module.defines(name, None).is_some())
}

fn any(is_it: impl Fn(&elf::Module) -> bool) -> bool {
    let mut found = false;
    elf::walk(|module| {
        found = is_it(module);
        found
    });
    found
}
