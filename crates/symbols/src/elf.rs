//! Reads the headers of an ELF file.

use std::io::ErrorKind;
use std::ops::Range;

use object::LittleEndian as LE;
use object::elf;
use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64};
use object::pod;

use crate::error::SymbolsError;
use crate::source::{Source, read};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    X86_64,
    Aarch64,
}

/// The headers of an ELF file.
pub struct Elf {
    pub machine: Machine,
    /// The address of the file's entry point; 0 if it has none, as in most libraries.
    pub entry: u64,
    /// True if the file is loaded at the addresses that it contains. Otherwise these addresses are
    /// offsets from the load address.
    pub fixed: bool,
    /// True if the file names an interpreter, which is the dynamic linker that loads it.
    pub has_interpreter: bool,
    /// The build id that the linker wrote, if any.
    pub build_id: Option<Vec<u8>>,
    /// The address ranges that are mapped as executable.
    executable: Vec<Range<u64>>,
    sections: Vec<SectionHeader64<LE>>,
    section_names: Vec<u8>,
}

fn count<T>(bytes: &[u8]) -> Result<&[T], SymbolsError>
where
    T: pod::Pod,
{
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>().max(1))
        .map(|(items, _)| items)
        .map_err(|()| SymbolsError::Malformed("a table is misaligned"))
}

/// Returns the complete entries of a table. If `bytes` ends with an incomplete entry, that entry is
/// left out.
pub(crate) fn entries<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    count(bytes).unwrap_or_default()
}

impl Elf {
    /// Reads the headers of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a supported ELF file, or is damaged.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Self, SymbolsError> {
        let mut bytes = [0; size_of::<FileHeader64<LE>>()];
        match source.fill(&mut bytes, 0) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let mut magic = [0; 4];
                let is_elf = source.fill(&mut magic, 0).is_ok() && magic == elf::ELFMAG;
                return Err(if is_elf {
                    SymbolsError::Malformed("its header is cut off")
                } else {
                    SymbolsError::NotElf
                });
            }
            other => other?,
        }
        if !bytes.starts_with(&elf::ELFMAG) {
            return Err(SymbolsError::NotElf);
        }
        let header: &FileHeader64<LE> = match pod::from_bytes(&bytes) {
            Ok((header, _)) => header,
            Err(()) => return Err(SymbolsError::Malformed("its header is cut off")),
        };
        let machine = machine(header)?;
        let segments = segments(source, header)?;
        let sections = sections(source, header)?;
        let mut read_elf = Self {
            machine,
            entry: header.e_entry.get(LE),
            fixed: header.e_type.get(LE) == elf::ET_EXEC,
            has_interpreter: segments
                .iter()
                .any(|segment| segment.p_type.get(LE) == elf::PT_INTERP),
            build_id: None,
            executable: segments
                .iter()
                .filter(|segment| segment.p_type.get(LE) == elf::PT_LOAD)
                .filter(|segment| segment.p_flags.get(LE) & elf::PF_X != 0)
                .map(|segment| {
                    let start = segment.p_vaddr.get(LE);
                    start..start.saturating_add(segment.p_memsz.get(LE))
                })
                .collect(),
            section_names: Vec::new(),
            sections,
        };
        let names = match header.e_shstrndx.get(LE) {
            elf::SHN_XINDEX => read_elf.sections.first().map_or(0, |s| s.sh_link.get(LE)),
            index => index.into(),
        };
        if let Some(section) = read_elf.sections.get(names as usize)
            && section.sh_type.get(LE) == elf::SHT_STRTAB
        {
            read_elf.section_names = data(source, section, "its section names lie outside")?;
        }
        read_elf.build_id = read_elf.find_build_id(source)?;
        Ok(read_elf)
    }

    /// Returns true if the file maps `address` as executable code.
    pub fn is_executable(&self, address: u64) -> bool {
        self.executable.iter().any(|range| range.contains(&address))
    }

    pub(crate) fn sections(&self) -> &[SectionHeader64<LE>] {
        &self.sections
    }

    pub(crate) fn of_kind(&self, kind: u32) -> impl Iterator<Item = &SectionHeader64<LE>> {
        self.sections
            .iter()
            .filter(move |section| section.sh_type.get(LE) == kind)
    }

    pub(crate) fn named(&self, name: &[u8]) -> Option<&SectionHeader64<LE>> {
        self.sections.iter().find(|section| {
            let rest = self.section_names.get(section.sh_name.get(LE) as usize..);
            rest.and_then(|rest| rest.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// Returns the bytes of a section. The result is empty if the file does not contain the
    /// section's bytes, for example in a debug file, or if the bytes are compressed.
    pub(crate) fn data(
        &self,
        source: &(impl Source + ?Sized),
        section: &SectionHeader64<LE>,
    ) -> Result<Vec<u8>, SymbolsError> {
        data(source, section, "a section lies outside")
    }

    fn find_build_id(
        &self,
        source: &(impl Source + ?Sized),
    ) -> Result<Option<Vec<u8>>, SymbolsError> {
        for section in self.of_kind(elf::SHT_NOTE) {
            let id = build_id(&self.data(source, section)?);
            if id.is_some() {
                return Ok(id);
            }
        }
        Ok(None)
    }
}

fn machine(header: &FileHeader64<LE>) -> Result<Machine, SymbolsError> {
    let unsupported = |what: &str| Err(SymbolsError::Unsupported(what.to_owned()));
    if header.e_ident.class != elf::ELFCLASS64 {
        return unsupported("a 32-bit file");
    }
    if header.e_ident.data != elf::ELFDATA2LSB {
        return unsupported("a big-endian file");
    }
    match header.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => {}
        elf::ET_REL => return unsupported("an object file that is not linked yet"),
        elf::ET_CORE => return unsupported("a core dump"),
        _ => return unsupported("an ELF file of an unknown type"),
    }
    match header.e_machine.get(LE) {
        elf::EM_X86_64 => Ok(Machine::X86_64),
        elf::EM_AARCH64 => Ok(Machine::Aarch64),
        other => unsupported(&format!(
            "a file for another processor, ELF machine {other}"
        )),
    }
}

fn segments(
    source: &(impl Source + ?Sized),
    header: &FileHeader64<LE>,
) -> Result<Vec<ProgramHeader64<LE>>, SymbolsError> {
    let number = u64::from(header.e_phnum.get(LE));
    if number == 0 {
        return Ok(Vec::new());
    }
    if usize::from(header.e_phentsize.get(LE)) != size_of::<ProgramHeader64<LE>>() {
        return Err(SymbolsError::Malformed(
            "its program headers have another size",
        ));
    }
    let size = number * size_of::<ProgramHeader64<LE>>() as u64;
    let what = "its program headers lie outside";
    let bytes = read(source, header.e_phoff.get(LE), size, what)?;
    Ok(count(&bytes)?.to_vec())
}

fn sections(
    source: &(impl Source + ?Sized),
    header: &FileHeader64<LE>,
) -> Result<Vec<SectionHeader64<LE>>, SymbolsError> {
    const HEADER_BYTES: u64 = size_of::<SectionHeader64<LE>>() as u64;
    let offset = header.e_shoff.get(LE);
    if offset == 0 {
        return Ok(Vec::new());
    }
    if u64::from(header.e_shentsize.get(LE)) != HEADER_BYTES {
        return Err(SymbolsError::Malformed(
            "its section headers have another size",
        ));
    }
    let what = "its section headers lie outside";
    let first = read(source, offset, HEADER_BYTES, what)?;
    // If the number of sections is too large for `e_shnum`, the size field of the first section
    // contains it.
    let number = match header.e_shnum.get(LE) {
        0 => count::<SectionHeader64<LE>>(&first)?
            .first()
            .map_or(0, |section| section.sh_size.get(LE)),
        number => number.into(),
    };
    let size = number
        .checked_mul(HEADER_BYTES)
        .ok_or(SymbolsError::Malformed(what))?;
    let bytes = read(source, offset, size, what)?;
    Ok(count(&bytes)?.to_vec())
}

fn data(
    source: &(impl Source + ?Sized),
    section: &SectionHeader64<LE>,
    what: &'static str,
) -> Result<Vec<u8>, SymbolsError> {
    let packed = section.sh_flags.get(LE) & u64::from(elf::SHF_COMPRESSED) != 0;
    if section.sh_type.get(LE) == elf::SHT_NOBITS || packed {
        return Ok(Vec::new());
    }
    read(
        source,
        section.sh_offset.get(LE),
        section.sh_size.get(LE),
        what,
    )
}

/// Finds the GNU build id in the notes of a file (layout: the gABI, "Note Section").
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    loop {
        let name_size = word(notes, 0)? as usize;
        let size = word(notes, 4)? as usize;
        let kind = word(notes, 8)?;
        let content = 12_usize.checked_add(name_size.checked_next_multiple_of(4)?)?;
        let name = notes.get(12..)?.get(..name_size)?;
        let id = notes.get(content..)?.get(..size)?;
        if kind == elf::NT_GNU_BUILD_ID && name == b"GNU\0" {
            return (id.len() > 1).then(|| id.to_vec());
        }
        notes = notes.get(content.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
}
