//! Finds the C library's `dl_iterate_phdr`.
//!
//! A call through the PLT may reach another library's function of this name. A sanitizer's function must not be called
//! before the sanitizer is initialised. Another library's function may call `dlsym` to find the C library's function.
//! If this library is in its own hook of `dlsym` at that moment, the calls would recurse. So the C library's function
//! is found in its symbol table, through the loader's list of modules. Reading the list up to the C library needs no
//! lock, because these modules are loaded at start and never unloaded.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{Elf64_Phdr, PF_R, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

use super::{Description, ElfModule};
use crate::{function, lifecycle};

type Visit = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Visit>, *mut c_void) -> c_int;

lifecycle::global! {
    #[fork(keep = "the C library stays where it is")]
    static ITERATE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
}

/// The fields of the structure `r_debug` in link.h up to the last field that this module uses.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const Link,
}

/// The structure `link_map` in link.h.
#[repr(C)]
struct Link {
    base: usize,
    path: *const c_char,
    dynamic: usize,
    next: *const Self,
    before: *const Self,
}

// SAFETY: the declaration is that of link.h, and the loader defines the symbol.
unsafe extern "C" {
    static _r_debug: Debug;
}

/// Returns the C library's `dl_iterate_phdr`. If that is not found, returns the function that the PLT leads
/// to.
pub(super) fn iterate() -> Iterate {
    let mut known = ITERATE.load(Ordering::Relaxed);
    if known.is_null() {
        known = find().unwrap_or_default();
        ITERATE.store(known, Ordering::Relaxed);
    }
    // SAFETY: the pointer is null or the C library's function of this name and type.
    unsafe { function::at::<Iterate>(known) }.unwrap_or(libc::dl_iterate_phdr)
}

fn find() -> Option<*mut c_void> {
    // SAFETY: the loader has filled the structure before it ran any code. The modules before the C library are never
    // unloaded, and this loop ends at the C library.
    unsafe {
        let mut link = (&raw const _r_debug.first).read_volatile();
        while let Some(Link { dynamic, next, .. }) = link.as_ref() {
            let headers = headers(&*link);
            let info = describe(&*link, &headers);
            if *dynamic != 0
                && let Some(module) = ElfModule::new(Description(&info))
                && module.soname() == Some(c"libc.so.6")
            {
                return module.defines(c"dl_iterate_phdr", None);
            }
            link = *next;
        }
    }
    None
}

/// Returns artificial program headers with the data that [`ElfModule::new`] needs, because the loader's list of
/// modules does not lead to the real ones. Their only segment covers all addresses from the module's base on, so
/// nothing protects from wrong addresses in a damaged dynamic section.
fn headers(link: &Link) -> [Elf64_Phdr; 2] {
    const ALL: u64 = 1 << 47;
    let header = |kind, address: usize, size| Elf64_Phdr {
        p_type: kind,
        p_flags: PF_R,
        p_offset: 0,
        p_vaddr: address as u64,
        p_paddr: 0,
        p_filesz: size,
        p_memsz: size,
        p_align: 1,
    };
    [
        header(PT_LOAD, 0, ALL),
        header(PT_DYNAMIC, link.dynamic.wrapping_sub(link.base), 0),
    ]
}

fn describe(link: &Link, headers: &[Elf64_Phdr; 2]) -> dl_phdr_info {
    dl_phdr_info {
        dlpi_addr: link.base as u64,
        dlpi_name: link.path,
        dlpi_phdr: headers.as_ptr(),
        dlpi_phnum: headers.len() as u16,
        dlpi_adds: 0,
        dlpi_subs: 0,
        dlpi_tls_modid: 0,
        dlpi_tls_data: null_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_own_is_found() {
        // SAFETY: the name is terminated. RTLD_DEFAULT searches the modules that the process started with.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dl_iterate_phdr".as_ptr()) };
        assert_eq!(find(), Some(expected));
        assert_eq!(iterate() as *mut c_void, expected);
    }
}
