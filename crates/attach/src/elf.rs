//! Reads headers, symbols and versions of the ELF modules (program and shared libraries) that are loaded in another
//! process. They are read from the process's memory, because a module's file may have been replaced or deleted since
//! it was loaded.

use std::collections::HashMap;
use std::ops::Range;

use crate::memory::{Mapping, ProcessMemory};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// Symbol type of an indirect function (`STT_GNU_IFUNC`), whose address is chosen at load time.
const IFUNC: u8 = 10;

/// Maximum size of a symbol table or string table that is read from a module, in bytes, and maximum number of buckets
/// that are read from its hash table. Only a damaged module has larger tables.
const MAX_TABLE_SIZE: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
struct Header {
    kind: u32,
    flags: u32,
    address: u64,
    file_size: u64,
    memory_size: u64,
}

/// A symbol (function or variable) that a module exports: its address in memory and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub address: u64,
    pub size: u64,
    pub is_ifunc: bool,
}

/// A module (program or shared library) that is loaded in the other process.
pub(crate) struct Module {
    pub path: String,
    /// The load bias: the number to add to an address in the module's file to get the address in memory.
    pub base: u64,
    pub range: Range<u64>,
    headers: Vec<Header>,
    dynamic: HashMap<u64, u64>,
    needed: Vec<u64>,
    /// Address of the module's `.eh_frame_hdr`, the index of its unwind tables. `None` if the module has no such
    /// index.
    pub eh_frame_hdr: Option<u64>,
    has_interpreter: bool,
}

/// Returns all modules (program and shared libraries) that are loaded in the process with this memory and these
/// mappings (`maps`).
pub(crate) fn modules(memory: &ProcessMemory, maps: &[Mapping]) -> Vec<Module> {
    let first = maps.iter().filter(|mapping| {
        // Modules are mapped from files, except the vDSO. Mappings of devices (`/dev/`) are left out because reading
        // the memory of a device may have side effects.
        mapping.offset == 0 && (mapping.path.starts_with('/') || mapping.path == "[vdso]")
    });
    first
        .filter(|mapping| !mapping.path.starts_with("/dev/"))
        .filter_map(|mapping| Module::read(memory, mapping))
        .filter(|module| module.is_code(maps))
        .collect()
}

impl Module {
    fn read(memory: &ProcessMemory, first: &Mapping) -> Option<Self> {
        let header: [u8; 64] = memory.bytes(first.start)?;
        if header[..4] != *b"\x7fELF" || header[4] != 2 {
            return None;
        }
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let table = first.start + u64::from_le_bytes(header[32..40].try_into().ok()?);
        let bytes = memory.some(table, usize::from(half(54)) * usize::from(half(56)))?;
        let headers: Vec<Header> = bytes
            .chunks_exact(usize::from(half(54)).max(56))
            .map(|bytes| {
                let word = |at: usize| {
                    bytes[at..at + 8]
                        .iter()
                        .rev()
                        .fold(0, |word, byte| word << 8 | u64::from(*byte))
                };
                Header {
                    kind: word(0) as u32,
                    flags: (word(0) >> 32) as u32,
                    address: word(16),
                    file_size: word(32),
                    memory_size: word(40),
                }
            })
            .collect();
        let mut loads = headers.iter().filter(|header| header.kind == PT_LOAD);
        let lowest = loads.clone().map(|header| header.address).min()?;
        let highest = loads
            .clone()
            .map(|header| header.address + header.memory_size)
            .max()?;
        loads.next()?;
        let base = first.start.wrapping_sub(lowest & !0xfff);
        let place = |kind| {
            let header = headers.iter().find(|header| header.kind == kind)?;
            Some((base.wrapping_add(header.address), header.memory_size))
        };
        let (mut dynamic, mut needed) = (HashMap::new(), Vec::new());
        if let Some((address, size)) = place(PT_DYNAMIC) {
            const DT_NEEDED: u64 = 1;
            let bytes = memory.some(address, (size as usize).min(1 << 16))?;
            for entry in bytes.chunks_exact(16) {
                let word = |at: usize| entry[at..at + 8].try_into().map(u64::from_le_bytes);
                let (Ok(tag), Ok(value)) = (word(0), word(8)) else {
                    break;
                };
                match tag {
                    0 => break,
                    DT_NEEDED => needed.push(value),
                    _ => drop(dynamic.insert(tag, value)),
                }
            }
        }
        Some(Self {
            path: first.path.clone(),
            base,
            range: first.start..base.wrapping_add(highest),
            eh_frame_hdr: place(PT_GNU_EH_FRAME).map(|(address, _)| address),
            has_interpreter: place(PT_INTERP).is_some(),
            headers,
            dynamic,
            needed,
        })
    }

    /// Returns true if the module's code is mapped at the addresses that its headers state. Otherwise the program has
    /// mapped the file only to read its contents, such as its symbols.
    fn is_code(&self, maps: &[Mapping]) -> bool {
        let mut code = self
            .headers
            .iter()
            .filter(|header| header.kind == PT_LOAD && header.flags & 1 != 0)
            .map(|header| self.base.wrapping_add(header.address));
        let is_mapped = |address: u64| {
            maps.iter().any(|mapping| {
                (mapping.start..mapping.end).contains(&address)
                    && mapping.is_executable
                    && mapping.path == self.path
            })
        };
        code.all(is_mapped)
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.range.contains(&address)
    }

    /// Returns true if the module's headers state that there is code at the address.
    pub(crate) fn has_code_at(&self, address: u64) -> bool {
        let mut code = self
            .headers
            .iter()
            .filter(|header| header.kind == PT_LOAD && header.flags & 1 != 0);
        let is_in = |header: &Header| {
            let start = self.base.wrapping_add(header.address);
            (start..start.wrapping_add(header.memory_size)).contains(&address)
        };
        self.contains(address) && code.any(is_in)
    }

    pub(crate) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns true if the module names a dynamic loader, as dynamically linked programs do and static programs do
    /// not.
    pub(crate) const fn has_interpreter(&self) -> bool {
        self.has_interpreter
    }

    /// Returns the address of the table that the dynamic section's entry `tag` refers to. The loader has replaced the
    /// offsets in the dynamic section by addresses, except in the vDSO. So a value below the load bias is still an
    /// offset, and the load bias is added to it.
    fn table(&self, tag: u64) -> Option<u64> {
        let value = *self.dynamic.get(&tag)?;
        Some(match value < self.base {
            true => self.base + value,
            false => value,
        })
    }

    fn text(&self, memory: &ProcessMemory, offset: u64) -> Option<String> {
        const DT_STRTAB: u64 = 5;
        let address = self.table(DT_STRTAB)? + offset;
        // The text may end right at the end of a mapping, where a longer read would fail. So it is read byte by byte.
        let mut text = Vec::new();
        while text.len() < 4096 {
            match memory.bytes::<1>(address + text.len() as u64)? {
                [0] => break,
                [byte] => text.push(byte),
            }
        }
        String::from_utf8(text).ok()
    }

    /// Returns the names of the libraries that the module needs (`DT_NEEDED`).
    pub(crate) fn needed(&self, memory: &ProcessMemory) -> Vec<String> {
        let texts = self.needed.iter();
        texts
            .filter_map(|offset| self.text(memory, *offset))
            .collect()
    }

    /// Returns the newest symbol version that the module defines with a name of this form: `prefix`, followed by two
    /// numbers, as in `GLIBC_2.34`. With the prefix `GLIBC_`, this version shows how new the C library is. Returns
    /// `None` if the module defines no such version.
    pub(crate) fn newest(&self, memory: &ProcessMemory, prefix: &str) -> Option<(u32, u32)> {
        const DT_VERDEF: u64 = 0x6fff_fffc;
        const MAX_VERSIONS: usize = 1000;
        let mut entry = self.table(DT_VERDEF)?;
        let mut newest = None;
        for _ in 0..MAX_VERSIONS {
            let bytes: [u8; 20] = memory.bytes(entry)?;
            let word = |at: usize| {
                let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
                u64::from(u32::from_le_bytes(word))
            };
            let name = u32::from_le_bytes(memory.bytes(entry + word(12))?);
            let version = self.text(memory, name.into()).and_then(|name| {
                let (major, minor) = name.strip_prefix(prefix)?.split_once('.')?;
                // A third number in the version, as in `GLIBC_2.2.5`, is ignored.
                let minor = minor.split('.').next()?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            });
            newest = newest.max(version);
            match word(16) {
                0 => break,
                next => entry += next,
            }
        }
        newest
    }

    /// Looks up functions that the module exports. Names in `names` that the module does not export are missing in the
    /// result.
    pub(crate) fn functions<'a>(
        &self,
        memory: &ProcessMemory,
        names: &[&'a str],
    ) -> HashMap<&'a str, Symbol> {
        const FUNC: u8 = 2;
        let found = self.look_up(memory, names, &[FUNC, IFUNC]);
        found.unwrap_or_default()
    }

    /// Returns the address of the variable `name`, if the module exports it.
    pub(crate) fn variable(&self, memory: &ProcessMemory, name: &str) -> Option<u64> {
        const OBJECT: u8 = 1;
        let found = self.look_up(memory, &[name], &[OBJECT])?;
        found.get(name).map(|symbol| symbol.address)
    }

    fn look_up<'a>(
        &self,
        memory: &ProcessMemory,
        names: &[&'a str],
        kinds: &[u8],
    ) -> Option<HashMap<&'a str, Symbol>> {
        const DT_STRTAB: u64 = 5;
        const DT_SYMTAB: u64 = 6;
        const DT_STRSZ: u64 = 10;
        const SYMBOL: usize = 24;
        const VERSYM: u64 = 0x6fff_fff0;
        let count = self.symbols(memory)?;
        let symbols = memory.some(self.table(DT_SYMTAB)?, count.checked_mul(SYMBOL)?)?;
        let size = usize::try_from(*self.dynamic.get(&DT_STRSZ)?).ok()?;
        let strings = memory.some(self.table(DT_STRTAB)?, size.min(MAX_TABLE_SIZE))?;
        let versions = self.table(VERSYM);
        let versions = versions.and_then(|versions| memory.some(versions, count * 2));
        let mut found = HashMap::new();
        for (index, symbol) in symbols.chunks_exact(SYMBOL).enumerate() {
            let word = |at: usize| symbol[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
            let name = (word(0) & 0xffff_ffff) as usize;
            let kind = symbol[4] & 0xf;
            let is_defined = symbol[6..8] != [0, 0];
            if !is_defined || !kinds.contains(&kind) {
                continue;
            }
            // A symbol may have several versions. Hidden versions exist only for programs that were linked with an
            // older release of the library. So a hidden version is used only if no other version exists.
            let version = versions
                .as_ref()
                .and_then(|all| all.get(index * 2..index * 2 + 2));
            let is_hidden = version.is_some_and(|version| version[1] & 0x80 != 0);
            let Some(name) = names.iter().find(|wanted| is_text(&strings, name, wanted)) else {
                continue;
            };
            if is_hidden && found.contains_key(name) {
                continue;
            }
            let symbol = Symbol {
                address: self.base.wrapping_add(word(8)),
                size: word(16),
                is_ifunc: kind == IFUNC,
            };
            found.insert(*name, symbol);
        }
        Some(found)
    }

    /// Returns the number of entries in the symbol table. ELF states this number only in the module's hash tables.
    fn symbols(&self, memory: &ProcessMemory) -> Option<usize> {
        const DT_HASH: u64 = 4;
        const DT_GNU_HASH: u64 = 0x6fff_fef5;
        let number = |address| {
            memory
                .bytes(address)
                .map(|bytes| u32::from_le_bytes(bytes) as usize)
        };
        let count = match (self.table(DT_GNU_HASH), self.table(DT_HASH)) {
            (None, hash) => number(hash? + 4)?,
            (Some(hash), _) => {
                let (buckets, first, words) = (number(hash)?, number(hash + 4)?, number(hash + 8)?);
                let at = hash + 16 + 8 * words as u64;
                let all = memory.some(at, buckets.min(MAX_TABLE_SIZE) * 4)?;
                let last = all.chunks_exact(4).map(|bucket| {
                    u32::from_le_bytes([bucket[0], bucket[1], bucket[2], bucket[3]]) as usize
                });
                let mut last = last.max()?;
                if last < first {
                    return Some(first);
                }
                let chains = at + 4 * buckets as u64;
                while number(chains + 4 * (last - first) as u64)? & 1 == 0 {
                    last += 1;
                }
                last + 1
            }
        };
        (count < MAX_TABLE_SIZE / 24).then_some(count)
    }

    /// Returns the unused bytes after each read-only segment: memory from the end of the segment's file contents to
    /// the end of its last page. The flag of each range is true if its bytes are executable.
    pub(crate) fn slack(&self) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        const PAGE: u64 = 4096;
        let loads = self
            .headers
            .iter()
            .filter(|header| header.kind == PT_LOAD && header.flags & 2 == 0);
        loads.filter_map(move |header| {
            let end = self.base.wrapping_add(header.address) + header.file_size;
            let is_whole = header.file_size == header.memory_size && header.file_size > 0;
            // The next segment never begins in the same page of memory. So if the segment in memory consists only of
            // its file contents (`is_whole`), the rest of its last page is unused.
            is_whole.then_some((end..end.next_multiple_of(PAGE), header.flags & 1 != 0))
        })
    }
}

fn is_text(strings: &[u8], at: usize, wanted: &str) -> bool {
    let end = at + wanted.len();
    strings.get(at..end) == Some(wanted.as_bytes()) && strings.get(end) == Some(&0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory;

    /// Returns the memory and the modules of the process that runs this test.
    pub(crate) fn here() -> (ProcessMemory, Vec<Module>) {
        let pid = std::process::id().cast_signed();
        let memory = ProcessMemory::open(pid).unwrap();
        let modules = modules(&memory, &memory::maps(pid).unwrap());
        (memory, modules)
    }

    #[test]
    fn functions_are_found_where_they_lie() {
        let (memory, modules) = here();
        let getpid = libc::getpid as *const () as u64;
        let libc = modules
            .iter()
            .find(|module| module.contains(getpid))
            .unwrap();
        assert!(libc.file_name().starts_with("libc.so"));
        let found = libc.functions(&memory, &["getpid", "memcpy", "no_such_function"]);
        assert_eq!(found["getpid"].address, getpid);
        assert!(!found["getpid"].is_ifunc && found["memcpy"].is_ifunc);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn the_c_library_says_its_version() {
        let (memory, modules) = here();
        let libc = modules
            .iter()
            .find(|module| module.file_name().starts_with("libc.so"))
            .unwrap();
        // SAFETY: the function returns a zero-terminated string that is never freed.
        let version = unsafe { core::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        let newest = libc.newest(&memory, "GLIBC_").unwrap();
        // The newest symbol version may be a few minor versions older than the C library, because a glibc release that
        // adds no functions defines no symbol version.
        let (major, minor) = version.to_str().unwrap().split_once('.').unwrap();
        assert_eq!(newest.0, major.parse::<u32>().unwrap());
        let minor: u32 = minor.parse().unwrap();
        assert!(
            (minor.saturating_sub(3)..=minor).contains(&newest.1),
            "{newest:?}"
        );
        assert_eq!(libc.newest(&memory, "NO_SUCH_"), None);
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let (memory, modules) = here();
        let us = here as *const () as u64;
        let program = modules.iter().find(|module| module.contains(us)).unwrap();
        assert!(program.has_interpreter() && program.eh_frame_hdr.is_some());
        let needed = program.needed(&memory);
        assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
        assert!(modules.iter().any(|module| module.path == "[vdso]"));
    }

    #[test]
    fn a_file_that_is_mapped_for_its_contents_is_no_module() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let length = file.metadata().unwrap().len() as usize;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced, and the new mapping is only
        // read.
        let place = unsafe {
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(core::ptr::null_mut(), length, rights, flags, descriptor, 0)
        };
        assert_ne!(place, libc::MAP_FAILED);
        let (_, modules) = here();
        let place = place.expose_provenance() as u64;
        assert!(modules.iter().all(|module| module.range.start != place));
        let us = here as *const () as u64;
        let ours = modules.iter().filter(|module| module.contains(us));
        assert_eq!(ours.count(), 1);
    }

    #[test]
    fn slack_is_mapped_and_behind_the_code() {
        let (memory, modules) = here();
        let us = here as *const () as u64;
        let program = modules.iter().find(|module| module.contains(us)).unwrap();
        let code: Vec<_> = program
            .slack()
            .filter(|(_, executable)| *executable)
            .collect();
        assert_eq!(code.len(), 1);
        for (range, _) in program.slack() {
            assert!(range.end - range.start < 4096 && range.end % 4096 == 0);
            assert!(range.is_empty() || memory.bytes::<1>(range.end - 1).is_some());
        }
        assert!(us < code[0].0.start);
    }
}
