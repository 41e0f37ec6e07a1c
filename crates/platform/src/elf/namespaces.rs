//! Modules that were loaded into separate linker namespaces (`dlmopen`). `dl_iterate_phdr` does not visit them, but the
//! loader lists them for debuggers.

use core::ffi::{CStr, c_char, c_int};

use libc::{Elf64_Ehdr, dl_phdr_info};

use super::{Description, ElfModule, walk};
use crate::peek;

const DT_DEBUG: i64 = 21;
/// The lowest version of the structure `r_debug` that has a pointer to the next linker namespace.
const HAS_NEXT: c_int = 2;

/// The structure `r_debug_extended` in glibc's `link.h`, which describes a linker namespace.
#[repr(C)]
struct Namespace {
    version: c_int,
    modules: *const Link,
    breakpoint: usize,
    state: c_int,
    loader: usize,
    next: *const Namespace,
}

/// The public fields of the loader's `link_map`.
#[repr(C)]
struct Link {
    base: usize,
    path: *const c_char,
    dynamic: usize,
    next: *const Link,
}

/// Visits the modules outside the initial linker namespace that `is_wanted` selects. `is_wanted` gets the name of a
/// module's file without the folder. No module is unloaded during the visits. Before glibc 2.35 the loader does not
/// list the other namespaces, so no module is visited.
pub fn each_elsewhere(is_wanted: impl Fn(&[u8]) -> bool, mut visit: impl FnMut(&ElfModule)) {
    // A walk over the initial namespace holds the loader's lock, which all namespaces share. So the lists of modules
    // do not change during the walk.
    walk(|program| {
        let mut first = 0;
        program.each_dynamic(|tag, value| {
            if tag == DT_DEBUG {
                first = value;
            }
        });
        // SAFETY: the pointer is null, or points to the loader's structure of the first namespace, which it keeps for
        // debuggers.
        let first = unsafe { core::ptr::with_exposed_provenance::<Namespace>(first).as_ref() };
        let mut namespace = first.filter(|first| first.version >= HAS_NEXT);
        while let Some(this) = namespace {
            // SAFETY: the loader only adds to this list. The last element has a null pointer.
            namespace = unsafe { this.next.as_ref() };
            let Some(next) = namespace else { break };
            // SAFETY: the list of modules changes only under the loader's lock, which this walk holds.
            let mut link = unsafe { next.modules.as_ref() };
            while let Some(this) = link {
                // SAFETY: the list of modules changes only under the loader's lock, which this walk holds.
                link = unsafe { this.next.as_ref() };
                // SAFETY: the loader keeps the terminated path as long as the module is loaded.
                let path = unsafe { (!this.path.is_null()).then(|| CStr::from_ptr(this.path)) };
                let name = path.map_or(&[][..], CStr::to_bytes);
                let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                if is_wanted(name)
                    && let Some(module) = described(this)
                {
                    visit(&module);
                }
            }
        }
        true
    });
}

/// Returns the module that `link`, an entry of the loader's list of modules, describes. Returns `None` if the module's
/// file header is not mapped at its load address. For shared libraries, the header is mapped there.
fn described(link: &Link) -> Option<ElfModule> {
    let mut header = [0; size_of::<Elf64_Ehdr>()];
    peek::copy(link.base, &mut header)?;
    // SAFETY: the array has the size of a header, and any bytes are a valid header.
    let header = unsafe { header.as_ptr().cast::<Elf64_Ehdr>().read_unaligned() };
    if !header.e_ident.starts_with(b"\x7fELF") {
        return None;
    }
    // SAFETY: all fields of the structure may be null or 0.
    let mut info = unsafe { core::mem::zeroed::<dl_phdr_info>() };
    info.dlpi_addr = link.base as u64;
    info.dlpi_name = link.path;
    info.dlpi_phdr = core::ptr::with_exposed_provenance(link.base + header.e_phoff as usize);
    info.dlpi_phnum = header.e_phnum;
    ElfModule::new(Description(&info))
}
