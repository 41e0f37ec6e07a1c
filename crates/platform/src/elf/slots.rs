//! GOT slots that a module reaches other modules' functions through.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Phdr, Elf64_Rela};

use super::{Module, STT_GNU_IFUNC, STT_TLS};

#[cfg(target_arch = "x86_64")]
const GLOB_DAT: u32 = 6;
#[cfg(target_arch = "x86_64")]
const JUMP_SLOT: u32 = 7;
#[cfg(target_arch = "aarch64")]
const GLOB_DAT: u32 = 1025;
#[cfg(target_arch = "aarch64")]
const JUMP_SLOT: u32 = 1026;

/// A slot that the loader fills with the address of a symbol.
pub struct Slot<'a> {
    pub place: &'a AtomicUsize,
    pub name: &'a CStr,
    /// The version in which the module asks for the symbol.
    pub version: Option<&'a CStr>,
    /// The loader may fill it at the first call only; until then it leads back into the module.
    pub may_be_lazy: bool,
}

/// A function that a module defines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub address: usize,
    /// The address is that of a function that says which one is meant.
    pub is_ifunc: bool,
}

impl Module {
    /// Its program headers.
    pub fn headers(&self) -> &[Elf64_Phdr] {
        // SAFETY: the loader's table of that length, which stays as long as the module.
        unsafe { core::slice::from_raw_parts(self.headers, self.header_count) }
    }

    /// Where `address`, given as in the file, lies in the file, if `length` bytes from there do.
    pub fn file_offset(&self, address: usize, length: usize) -> Option<u64> {
        self.headers().iter().find_map(|header| {
            let offset = (address as u64).checked_sub(header.p_vaddr)?;
            let end = offset.checked_add(length as u64)?;
            (header.p_type == libc::PT_LOAD && end <= header.p_filesz)
                .then_some(header.p_offset + offset)
        })
    }

    /// Visits the slots for functions of names that are `wanted`. Relocations of data, which may
    /// have an addend, are no slots.
    pub fn each_slot(&self, wanted: impl Fn(&CStr) -> bool, mut visit: impl FnMut(Slot<'_>)) {
        for (table, size) in self.relocations {
            let count = if table.is_null() {
                0
            } else {
                size / size_of::<Elf64_Rela>()
            };
            for index in 0..count {
                // SAFETY: the module's own table has that many entries.
                let entry = unsafe { &*table.cast::<Elf64_Rela>().add(index) };
                let kind = entry.r_info as u32;
                let symbol = (entry.r_info >> 32) as usize;
                if !matches!(kind, GLOB_DAT | JUMP_SLOT) || symbol == 0 || entry.r_addend != 0 {
                    continue;
                }
                // SAFETY: relocations name symbols of the module's table.
                let name = unsafe { (*self.symbols.add(symbol)).st_name as usize };
                let name = self.string(name);
                let place = self.base.wrapping_add(entry.r_offset as usize);
                if !place.is_multiple_of(align_of::<usize>()) || !wanted(name) {
                    continue;
                }
                visit(Slot {
                    // SAFETY: the slot is the loader's word in the module's data, aligned, and
                    // stays as long as the module.
                    place: unsafe { &*core::ptr::with_exposed_provenance::<AtomicUsize>(place) },
                    name,
                    version: self.version_wanted(symbol),
                    may_be_lazy: kind == JUMP_SLOT,
                });
            }
        }
    }

    /// Whether the loader has gone through the module's slots, as far as they tell: another thread
    /// may be loading it. A slot that is filled at the first call leads back into its own module
    /// until then; before, it holds where that lies in the file.
    pub fn is_bound(&self) -> bool {
        let mut is_bound = true;
        let visit = |slot: Slot<'_>| {
            let in_file = 1..self.end - self.start;
            let value = slot.place.load(Ordering::Relaxed);
            is_bound &= !(slot.may_be_lazy && in_file.contains(&value));
        };
        self.each_slot(|_| true, visit);
        is_bound
    }

    /// What the module defines under `name`, in `version` if the module has versions at all;
    /// without one, in its default version.
    pub fn definition(&self, name: &CStr, version: Option<&CStr>) -> Option<Found> {
        let index = self.find(name, |index, symbol| {
            symbol.st_shndx != 0
                && symbol.st_value != 0
                && symbol.st_info & 0xf != STT_TLS
                && symbol.st_info >> 4 != 0
                && self.version_fits(index, version)
        })?;
        // SAFETY: `find` returns indices of the symbol table.
        let symbol = unsafe { &*self.symbols.add(index) };
        Some(Found {
            address: self.base.wrapping_add(symbol.st_value as usize),
            is_ifunc: symbol.st_info & 0xf == STT_GNU_IFUNC,
        })
    }
}
