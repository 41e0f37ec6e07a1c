//! Finds the GOT slots through which a module calls functions of other modules.

use object::LittleEndian as LE;
use object::elf;
use object::elf::Rela64;

use crate::elf::{Elf, Machine, entries};
use crate::error::SymbolsError;
use crate::function::Slots;
use crate::source::{Source, read};

/// Number of bytes of relocations that are read at a time. A whole table is not read at once, because the tables of
/// large libraries have tens of megabytes.
const CHUNK_BYTES: u64 = 4096 * size_of::<Rela64<LE>>() as u64;

/// Returns the kinds of GOT slots of each dynamic symbol, by the symbol's index.
pub(crate) fn slots(
    source: &(impl Source + ?Sized),
    elf: &Elf,
    symbols: usize,
) -> Result<Vec<Slots>, SymbolsError> {
    let mut slots = vec![Slots::default(); symbols];
    let (jump_slot, glob_dat) = match elf.machine {
        Machine::X86_64 => (elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT),
        Machine::Aarch64 => (elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT),
    };
    for section in elf.of_kind(elf::SHT_RELA) {
        let symbols = elf.sections().get(section.sh_link.get(LE) as usize);
        if symbols.is_none_or(|table| table.sh_type.get(LE) != elf::SHT_DYNSYM) {
            continue;
        }
        let (start, size) = (section.sh_offset.get(LE), section.sh_size.get(LE));
        let mut done = 0;
        while done < size {
            let part = CHUNK_BYTES.min(size - done);
            let what = "its relocations lie outside";
            let at = start
                .checked_add(done)
                .ok_or(SymbolsError::Malformed(what))?;
            let bytes = read(source, at, part, what)?;
            for entry in entries::<Rela64<LE>>(&bytes) {
                let index = entry.r_sym(LE, false) as usize;
                let kind = entry.r_type(LE, false);
                let Some(slots) = slots.get_mut(index).filter(|_| index != 0) else {
                    continue;
                };
                slots.jump_slot |= kind == jump_slot;
                slots.glob_dat |= kind == glob_dat;
            }
            done += part;
        }
    }
    Ok(slots)
}
