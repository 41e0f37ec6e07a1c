//! Finds the GOT slots through which a module calls functions of other modules.

use core::ffi::CStr;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Phdr, Elf64_Rela};

use super::memory::double_word;
use super::{ElfModule, ElfSymbol, STT_GNU_IFUNC, STT_TLS};

#[cfg(target_arch = "x86_64")]
const GLOB_DAT: u32 = 6;
#[cfg(target_arch = "x86_64")]
const JUMP_SLOT: u32 = 7;
#[cfg(target_arch = "aarch64")]
const GLOB_DAT: u32 = 1025;
#[cfg(target_arch = "aarch64")]
const JUMP_SLOT: u32 = 1026;

/// A GOT slot, which the loader fills with the address of a symbol.
pub struct Slot<'a> {
    pub place: &'a AtomicUsize,
    pub name: &'a CStr,
    /// The symbol version that the module requires, or `None` for any version.
    pub version: Option<&'a CStr>,
    /// True if the loader may fill the slot at the first call (lazy binding). Until then the slot holds the address of
    /// code in the module that the slot belongs to.
    pub may_be_lazy: bool,
}

/// A function in the symbol table of a module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DefinedFunction {
    pub address: usize,
    /// True if the symbol is an IFUNC: then `address` is a resolver, which returns the address of the real function.
    pub is_ifunc: bool,
}

impl ElfModule {
    pub fn headers(&self) -> &[Elf64_Phdr] {
        self.memory.headers()
    }

    /// Fills `buffer` with the bytes from `address` on. Returns false and reads nothing if not all of these bytes are
    /// mapped from the module's file.
    #[must_use]
    pub fn read(&self, address: usize, buffer: &mut [u8]) -> bool {
        let in_file = address.wrapping_sub(self.base);
        self.file_offset(in_file, buffer.len()).is_some() && self.memory.read(address, buffer)
    }

    /// Converts an address, relative to the module's base, to an offset in its file. Returns `None` if not all of the
    /// `length` bytes from `address` on are in the file.
    pub fn file_offset(&self, address: usize, length: usize) -> Option<u64> {
        self.headers().iter().find_map(|header| {
            let offset = (address as u64).checked_sub(header.p_vaddr)?;
            let end = offset.checked_add(length as u64)?;
            (header.p_type == libc::PT_LOAD && end <= header.p_filesz)
                .then_some(header.p_offset + offset)
        })
    }

    /// Visits the GOT slots of the functions that `wanted` selects by name. Relocations with an addend are skipped,
    /// because they are for data.
    pub fn each_slot(&self, wanted: impl Fn(&CStr) -> bool, mut visit: impl FnMut(Slot<'_>)) {
        for (table, size) in self.tables.relocations {
            let count = if table == 0 {
                0
            } else {
                size / size_of::<Elf64_Rela>()
            };
            for entry in self.memory.table(table).take(count) {
                self.slot(&entry, &wanted).map(&mut visit);
            }
        }
    }

    /// Returns the slot that the relocation `entry` describes, if the slot is for a function that `wanted` selects by
    /// name.
    fn slot(
        &self,
        entry: &[u8; size_of::<Elf64_Rela>()],
        wanted: impl Fn(&CStr) -> bool,
    ) -> Option<Slot<'_>> {
        let info = double_word(entry, offset_of!(Elf64_Rela, r_info));
        let (kind, symbol) = (info as u32, (info >> 32) as usize);
        if !matches!(kind, GLOB_DAT | JUMP_SLOT) || symbol == 0 {
            return None;
        }
        let addend = double_word(entry, offset_of!(Elf64_Rela, r_addend));
        let place = double_word(entry, offset_of!(Elf64_Rela, r_offset));
        let name = self.string(self.symbol(symbol)?.name)?;
        if addend != 0 || !wanted(name) {
            return None;
        }
        Some(Slot {
            place: self.memory.slot(self.memory.address(place))?,
            name,
            version: self.version_wanted(symbol),
            may_be_lazy: kind == JUMP_SLOT,
        })
    }

    /// Returns false if a lazy slot still holds an address relative to the module's base, because another thread is
    /// still loading the module. Otherwise the loader has processed the slots, and the result is true. It is also true
    /// for a program that is not position-independent: the addresses in its file are final.
    pub fn is_bound(&self) -> bool {
        let mut is_bound = true;
        let visit = |slot: Slot<'_>| {
            let in_file = 1..self.end - self.start;
            let value = slot.place.load(Ordering::Relaxed);
            is_bound &= !(slot.may_be_lazy && in_file.contains(&value));
        };
        self.each_slot(|_| true, visit);
        is_bound || self.base == 0
    }

    /// Returns the symbol that the module defines under `name`. If the module has symbol versions, the symbol must have
    /// the version `version`. If `version` is `None`, it must have the default version.
    pub fn definition(&self, name: &CStr, version: Option<&CStr>) -> Option<DefinedFunction> {
        let symbol = self.defined(name, version)?;
        Some(DefinedFunction {
            address: self.base.wrapping_add(symbol.value),
            is_ifunc: symbol.kind == STT_GNU_IFUNC,
        })
    }

    /// Returns the address range of a function that the module defines, in its default version. The range is empty if
    /// the module does not state the size. Returns `None` if the module does not define the function, or defines it as
    /// an IFUNC.
    pub fn code_of(&self, name: &CStr) -> Option<Range<usize>> {
        let symbol = self.defined(name, None)?;
        let start = self.base.wrapping_add(symbol.value);
        (symbol.kind != STT_GNU_IFUNC).then(|| start..start.wrapping_add(symbol.size))
    }

    fn defined(&self, name: &CStr, version: Option<&CStr>) -> Option<ElfSymbol> {
        let index = self.find(name, |index, symbol| {
            symbol.section != 0
                && symbol.value != 0
                && symbol.kind != STT_TLS
                && symbol.binding != 0
                && self.version_fits(index, version)
        })?;
        self.symbol(index)
    }
}
