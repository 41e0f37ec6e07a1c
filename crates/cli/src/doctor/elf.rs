//! Reads the parts of an ELF file that decide how the file is loaded.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym, SymbolTable};
use object::read::{ReadCache, ReadRef, StringTable};
use object::{Endianness, FileKind};

use super::version::Version;

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Elf {
    pub is_64: bool,
    pub machine: u16,
    /// The dynamic linker that the file requests. Most libraries request none. A program that requests none is either
    /// statically linked, so that nothing can be preloaded into it, or is the dynamic linker itself.
    pub interpreter: Option<String>,
    pub needed: Vec<String>,
    pub soname: Option<String>,
    /// Size of the address space that the file's segments take when the file is loaded, in bytes.
    pub memory: u64,
    pub rpath: Option<String>,
    pub runpath: Option<String>,
    /// The highest `GLIBC_x.y` version that the file requires.
    pub glibc_demanded: Option<Version>,
    /// The highest `GLIBC_x.y` version that the file defines. `None` if the file is not glibc.
    pub glibc_provided: Option<Version>,
    /// True if the file's symbol table (`.symtab`) defines one of two functions of the CUDA runtime: `cudaGraphLaunch`
    /// or `cudaGetDriverEntryPoint`. A stripped file has no such table.
    pub has_cuda_symbols: bool,
    /// The kind of the CPython module, if the file exports CPython's C API.
    pub python: Option<CPython>,
    /// Offset of the `.rodata` section in the file, and the section's size, both in bytes. `None` if the file has no
    /// such section.
    rodata: Option<(u64, u64)>,
}

/// The kind of a module that exports CPython's C API. The kind determines if libtllmprof.so can attach to the module's
/// interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CPython {
    /// CPython has audit hooks, and the module has the GOT slot that libtllmprof.so patches to attach to the
    /// interpreter.
    Attachable,
    /// CPython is too old to have audit hooks: Python 3.7 or earlier.
    TooOld,
    /// The module does not import `pthread_cond_init`. To attach to the interpreter, libtllmprof.so needs the GOT slot
    /// of that function.
    WithoutSlots,
}

#[derive(Debug)]
pub(crate) enum NotRead {
    Io(io::Error),
    NotElf,
    /// The file is damaged, or in an unknown version of the format.
    Malformed(object::Error),
}

impl Elf {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// The file cannot be read, is not an ELF file, or is damaged.
    pub(crate) fn read(path: &Path) -> Result<Self, NotRead> {
        let file = File::open(path).map_err(NotRead::Io)?;
        // Programs can be gigabytes large, so only the parts of the file that are used below are read.
        let cache = ReadCache::new(file);
        let parsed = match FileKind::parse(&cache) {
            Ok(FileKind::Elf64) => read_as::<elf::FileHeader64<Endianness>, _>(&cache),
            Ok(FileKind::Elf32) => read_as::<elf::FileHeader32<Endianness>, _>(&cache),
            _ => return Err(NotRead::NotElf),
        };
        parsed.map_err(NotRead::Malformed)
    }

    pub(crate) fn same_architecture(&self, other: &Self) -> bool {
        self.is_64 == other.is_64 && self.machine == other.machine
    }

    /// Returns true if this file is a dynamic linker of glibc.
    pub(crate) fn is_loader(&self) -> bool {
        let name = self.soname.as_deref();
        name.is_some_and(|name| name.starts_with("ld-linux") || name.starts_with("ld64.so"))
    }

    pub(crate) fn architecture(&self) -> String {
        let bits = if self.is_64 { 64 } else { 32 };
        match self.machine {
            elf::EM_X86_64 if !self.is_64 => "x32".to_owned(),
            elf::EM_X86_64 => "x86-64".to_owned(),
            elf::EM_386 => "i386".to_owned(),
            elf::EM_AARCH64 => "aarch64".to_owned(),
            elf::EM_PPC64 => "ppc64".to_owned(),
            elf::EM_RISCV => format!("riscv{bits}"),
            machine => format!("machine {machine}, {bits}-bit"),
        }
    }

    /// Returns true if all of these strings occur in the file's constants (`.rodata`).
    pub(crate) fn has_strings(&self, path: &Path, strings: &[&str]) -> io::Result<bool> {
        let Some((start, size)) = self.rodata else {
            return Ok(false);
        };
        const CHUNK: usize = 1 << 20;
        let file = File::open(path)?;
        let overlap = strings.iter().map(|s| s.len()).max().unwrap_or(0);
        let mut missing: Vec<&str> = strings.to_vec();
        let mut buffer = vec![0; CHUNK + overlap];
        let mut offset = 0;
        while offset < size && !missing.is_empty() {
            let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
            let wanted = buffer.len().min(left);
            let got = read_full(&file, &mut buffer[..wanted], start + offset)?;
            missing.retain(|string| !contains(&buffer[..got], string.as_bytes()));
            if got < wanted {
                break;
            }
            offset += CHUNK as u64;
        }
        Ok(missing.is_empty())
    }
}

pub(crate) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    let Some((&first, _)) = needle.split_first() else {
        return true;
    };
    let mut rest = haystack;
    while let Some(at) = rest.iter().position(|byte| *byte == first) {
        if rest[at..].starts_with(needle) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

fn read_full(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

fn read_as<'data, Header, Data>(data: Data) -> object::Result<Elf>
where
    Header: FileHeader<Endian = Endianness>,
    Data: ReadRef<'data>,
{
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let mut found = Elf {
        is_64: header.is_type_64(),
        machine: header.e_machine(endian),
        ..Elf::default()
    };
    let segments = header.program_headers(endian, data)?;
    found.memory = memory(segments.iter().filter_map(|segment| {
        let start = segment.p_vaddr(endian).into();
        let size = segment.p_memsz(endian).into();
        (segment.p_type(endian) == elf::PT_LOAD).then_some((start, size))
    }));
    for segment in segments {
        if let Some(path) = segment.interpreter(endian, data)? {
            found.interpreter = Some(String::from_utf8_lossy(path).into_owned());
        }
        if let Some(entries) = segment.dynamic(endian, data)? {
            read_dynamic::<Header, _>(&mut found, segments, entries, endian, data)?;
        }
    }
    // The remaining fields (the glibc versions, `rodata`, `python` and `has_cuda_symbols`) come from section headers. A
    // file may have no section headers; then these fields stay empty.
    read_sections::<Header, _>(&mut found, header, endian, data)?;
    Ok(found)
}

/// Returns the size of the address space that the segments of an ELF file take, in bytes. Each segment is given by its
/// address and its size.
fn memory(segments: impl Iterator<Item = (u64, u64)>) -> u64 {
    const PAGE: u64 = 4096;
    let (mut first, mut end) = (u64::MAX, 0);
    for (start, size) in segments {
        first = first.min(start & !(PAGE - 1));
        end = end.max(start.saturating_add(size));
    }
    let size = end.saturating_sub(first);
    size.checked_next_multiple_of(PAGE).unwrap_or(size)
}

fn read_dynamic<'data, Header, Data>(
    found: &mut Elf,
    segments: &[Header::ProgramHeader],
    entries: &[Header::Dyn],
    endian: Endianness,
    data: Data,
) -> object::Result<()>
where
    Header: FileHeader<Endian = Endianness>,
    Data: ReadRef<'data>,
{
    let value = |tag| {
        entries
            .iter()
            .find(|e| e.tag32(endian) == Some(tag))
            .map(|e| e.d_val(endian).into())
    };
    let (Some(address), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else {
        return Ok(());
    };
    // `DT_STRTAB` is the string table's address in memory. The segment that is loaded at this address gives the table's
    // offset in the file.
    let offset = segments.iter().find_map(|segment| {
        let start: u64 = segment.p_vaddr(endian).into();
        let length: u64 = segment.p_filesz(endian).into();
        let base: u64 = segment.p_offset(endian).into();
        let inside = address
            .checked_sub(start)
            .filter(|inside| *inside < length)?;
        (segment.p_type(endian) == elf::PT_LOAD).then(|| base.wrapping_add(inside))
    });
    let Some(offset) = offset else {
        return Ok(());
    };
    let strings = StringTable::new(data, offset, offset.saturating_add(size));
    for entry in entries {
        let tag = entry.tag32(endian);
        if tag == Some(elf::DT_NULL) {
            break;
        }
        if !matches!(
            tag,
            Some(elf::DT_NEEDED | elf::DT_SONAME | elf::DT_RPATH | elf::DT_RUNPATH)
        ) {
            continue;
        }
        let offset = u32::try_from(entry.d_val(endian).into());
        let Some(text) = offset.ok().and_then(|offset| strings.get(offset).ok()) else {
            continue;
        };
        let text = String::from_utf8_lossy(text).into_owned();
        match tag {
            Some(elf::DT_NEEDED) => found.needed.push(text),
            Some(elf::DT_SONAME) => found.soname = Some(text),
            Some(elf::DT_RPATH) => found.rpath = Some(text),
            _ => found.runpath = Some(text),
        }
    }
    Ok(())
}

fn read_sections<'data, Header, Data>(
    found: &mut Elf,
    header: &Header,
    endian: Endianness,
    data: Data,
) -> object::Result<()>
where
    Header: FileHeader<Endian = Endianness>,
    Data: ReadRef<'data>,
{
    let sections = header.sections(endian, data)?;
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut names)) = needs.next()? {
            while let Some(name) = names.next()? {
                let version = Version::parse_glibc(name.name(endian, strings)?);
                found.glibc_demanded = found.glibc_demanded.max(version);
            }
        }
    }
    if let Some((mut definitions, link)) = sections.gnu_verdef(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut names)) = definitions.next()? {
            if let Some(name) = names.next()? {
                let version = Version::parse_glibc(name.name(endian, strings)?);
                found.glibc_provided = found.glibc_provided.max(version);
            }
        }
    }
    for (_, section) in sections.enumerate() {
        if sections.section_name(endian, section)? == b".rodata" {
            found.rodata = section.file_range(endian);
        }
    }
    found.python = python::<Header, _>(&sections.symbols(endian, data, elf::SHT_DYNSYM)?, endian);
    let symbols = sections.symbols(endian, data, elf::SHT_SYMTAB)?;
    found.has_cuda_symbols = symbols.iter().any(|symbol| {
        symbol.st_type() == elf::STT_FUNC
            && !symbol.is_undefined(endian)
            && symbol
                .name(endian, symbols.strings())
                .is_ok_and(|name| name == b"cudaGraphLaunch" || name == b"cudaGetDriverEntryPoint")
    });
    Ok(())
}

fn python<'data, Header, Data>(
    symbols: &SymbolTable<'data, Header, Data>,
    endian: Endianness,
) -> Option<CPython>
where
    Header: FileHeader<Endian = Endianness>,
    Data: ReadRef<'data>,
{
    let (mut is_one, mut takes_hooks, mut has_slots) = (false, false, false);
    for symbol in symbols.iter() {
        match (
            symbol.name(endian, symbols.strings()),
            symbol.is_undefined(endian),
        ) {
            (Ok(b"Py_GetVersion"), false) => is_one = true,
            (Ok(b"PySys_AddAuditHook"), false) => takes_hooks = true,
            (Ok(b"pthread_cond_init"), true) => has_slots = true,
            _ => {}
        }
    }
    is_one.then_some(match (takes_hooks, has_slots) {
        (true, true) => CPython::Attachable,
        (true, false) => CPython::WithoutSlots,
        (false, _) => CPython::TooOld,
    })
}
