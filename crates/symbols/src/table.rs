//! A symbol table together with its strings.

use memchr::memchr;
use object::LittleEndian as LE;
use object::elf;
use object::elf::Sym64;

use crate::elf::{Elf, Machine, entries};
use crate::error::SymbolsError;
use crate::function::Sources;
use crate::source::Source;

/// Length in bytes from which a name counts as damaged. Without this limit, scanning a damaged table could take very
/// long, because names may overlap and each is scanned separately.
pub(crate) const LONGEST_NAME: usize = 1 << 15;

/// The flag in `st_other` of functions that do not follow the base calling convention (ELF ABI supplement for
/// AArch64).
const STO_AARCH64_VARIANT_PCS: u8 = 0x80;

pub(crate) struct SymbolTable {
    pub sources: Sources,
    symbols: Vec<u8>,
    strings: Vec<u8>,
}

/// A function that a symbol table defines.
#[derive(Clone, Copy)]
pub(crate) struct SymbolEntry {
    /// The offset of the name in the table of strings.
    pub name: u32,
    pub address: u64,
    pub size: u64,
    pub is_ifunc: bool,
    /// True if the symbol is marked as an AArch64 function that does not follow the base calling
    /// convention.
    pub is_variant_call: bool,
}

/// An undefined symbol that may be a function of another module.
#[derive(Clone, Copy)]
pub(crate) struct Undefined {
    pub index: usize,
    pub name: u32,
    pub is_typed: bool,
    pub is_variant_call: bool,
}

impl SymbolTable {
    /// Reads the first table of the given kind, `SHT_DYNSYM` or `SHT_SYMTAB`. Returns `None` if the
    /// file has none.
    pub(crate) fn read(
        source: &(impl Source + ?Sized),
        elf: &Elf,
        kind: u32,
        sources: Sources,
    ) -> Result<Option<Self>, SymbolsError> {
        let Some(section) = elf.of_kind(kind).next() else {
            return Ok(None);
        };
        let strings = elf
            .sections()
            .get(section.sh_link.get(LE) as usize)
            .filter(|strings| strings.sh_type.get(LE) == elf::SHT_STRTAB)
            .ok_or(SymbolsError::Malformed("a symbol table has no names"))?;
        Ok(Some(Self {
            sources,
            symbols: elf.data(source, section)?,
            strings: elf.data(source, strings)?,
        }))
    }

    fn raw(&self) -> &[Sym64<LE>] {
        entries(&self.symbols)
    }

    pub(crate) fn len(&self) -> usize {
        self.raw().len()
    }

    pub(crate) fn strings(&self) -> &[u8] {
        &self.strings
    }

    /// Returns the functions that the table defines in executable code of `elf`.
    pub(crate) fn functions<'a>(&'a self, elf: &'a Elf) -> impl Iterator<Item = SymbolEntry> + 'a {
        self.raw().iter().filter_map(|symbol| {
            let kind = symbol.st_info & 0xf;
            let section = symbol.st_shndx.get(LE);
            let address = symbol.st_value.get(LE);
            let defined = !matches!(section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON);
            (matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC)
                && defined
                && elf.is_executable(address))
            .then(|| SymbolEntry {
                name: symbol.st_name.get(LE),
                address,
                size: symbol.st_size.get(LE),
                is_ifunc: kind == elf::STT_GNU_IFUNC,
                is_variant_call: is_variant_call(symbol, elf.machine),
            })
        })
    }

    /// Returns the undefined symbols that may be functions of other modules.
    pub(crate) fn undefined(&self, machine: Machine) -> impl Iterator<Item = Undefined> {
        let symbols = self.raw().iter().enumerate().skip(1);
        symbols.filter_map(move |(index, symbol)| {
            let is_weak = symbol.st_info >> 4 == elf::STB_WEAK;
            let is_typed = match symbol.st_info & 0xf {
                elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
                elf::STT_NOTYPE if !is_weak => false,
                _ => return None,
            };
            (symbol.st_shndx.get(LE) == elf::SHN_UNDEF).then(|| Undefined {
                index,
                name: symbol.st_name.get(LE),
                is_typed,
                is_variant_call: is_variant_call(symbol, machine),
            })
        })
    }

    /// Returns the address of the first symbol with this name, which may be of any type.
    pub(crate) fn address_of(&self, name: &[u8]) -> Option<u64> {
        let symbol = self.raw().iter().find(|symbol| {
            let at = symbol.st_name.get(LE) as usize;
            let rest = self.strings.get(at..);
            rest.and_then(|rest| rest.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })?;
        Some(symbol.st_value.get(LE))
    }

    /// Returns the name at the offset `at` in the table of strings. Returns `None` if the name is damaged, or belongs
    /// to a part of a function that is only entered with jumps.
    pub(crate) fn name(&self, at: u32) -> Option<&[u8]> {
        let rest = self.strings.get(at as usize..)?;
        let name = rest.get(..memchr(0, rest.get(..LONGEST_NAME).unwrap_or(rest))?)?;
        // In `.symtab`, a symbol's version is part of its name. The dynamic table stores versions
        // separately.
        let name = match memchr(b'@', name) {
            Some(version) if version > 0 && !self.sources.dynamic => name.get(..version)?,
            _ => name,
        };
        (!name.is_empty() && !is_cold(name)).then_some(name)
    }
}

/// Returns true if the name belongs to code that was moved out of a function, by a compiler
/// (`f.cold`, `f.cold.1`) or a linker (BOLT's `f.warm`).
fn is_cold(name: &[u8]) -> bool {
    let mut parts = name.rsplit(|byte| *byte == b'.');
    let last = parts.next().unwrap_or_default();
    let is_number = !last.is_empty() && last.iter().all(u8::is_ascii_digit);
    let part = if is_number { parts.next() } else { Some(last) };
    // The text before this part must be the function's name, so it must not be empty.
    matches!(part, Some(b"cold" | b"warm")) && parts.next().is_some_and(|name| !name.is_empty())
}

/// Returns true if the symbol has the flag [`STO_AARCH64_VARIANT_PCS`]. On other processors this
/// bit has no meaning.
fn is_variant_call(symbol: &Sym64<LE>, machine: Machine) -> bool {
    machine == Machine::Aarch64 && symbol.st_other & STO_AARCH64_VARIANT_PCS != 0
}

#[cfg(test)]
mod tests {
    use super::is_cold;

    #[test]
    fn cold_parts_are_known_by_their_names() {
        for name in ["f.cold", "_Z1fi.part.0.cold", "f.cold.12", "f.warm"] {
            assert!(is_cold(name.as_bytes()), "{name}");
        }
        for name in [
            "f", "cold", "f.cold.x", "f.part.0", "1", "f.colder", "12", ".cold", "cold.1",
        ] {
            assert!(!is_cold(name.as_bytes()), "{name}");
        }
    }
}
