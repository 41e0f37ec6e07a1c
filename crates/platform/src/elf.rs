//! Symbol look-up in loaded modules (the executable and shared libraries), without the dynamic loader's lock.
//!
//! `dlsym` takes the lock that `dlopen` holds while it runs constructors. A thread that makes its first CUDA
//! call must not wait for a constructor that itself waits for that call. So this library reads the modules'
//! tables directly, like the loader does when it binds a symbol lazily. Layouts: the System V ABI, and GNU
//! hash tables and symbol versions as in glibc's `elf/dl-lookup.c`.

use core::ffi::{CStr, c_char, c_void};
use core::mem::offset_of;

use libc::Elf64_Sym;

mod changes;
#[cfg(test)]
mod damaged;
mod memory;
mod namespaces;
mod slots;
mod walk;
mod walker;

pub use changes::{changes, unallocated_thread_locals, with_modules};
use memory::{Memory, double_word};
pub use namespaces::each_elsewhere;
pub use slots::{DefinedFunction, Slot};
use walk::Description;
pub use walk::{containing, walk};

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_STRSZ: i64 = 10;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const DT_PREINIT_ARRAY: i64 = 32;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERDEF: i64 = 0x6fff_fffc;
const DT_VERNEED: i64 = 0x6fff_fffe;

const STT_GNU_IFUNC: u8 = 10;
const STT_TLS: u8 = 6;
const VERSYM_HIDDEN: u16 = 0x8000;

#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Verneed {
    version: u16,
    count: u16,
    file: u32,
    aux: u32,
    next: u32,
}

#[repr(C)]
struct Vernaux {
    hash: u32,
    flags: u16,
    other: u16,
    name: u32,
    next: u32,
}

#[repr(C)]
struct Verdef {
    version: u16,
    flags: u16,
    index: u16,
    count: u16,
    hash: u32,
    aux: u32,
    next: u32,
}

/// The used fields of a symbol table entry.
struct ElfSymbol {
    name: usize,
    kind: u8,
    binding: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// The addresses of a module's tables; 0 for a table that the module does not have.
#[derive(Clone, Copy, Default)]
struct Tables {
    symbols: usize,
    strings: usize,
    strings_size: usize,
    gnu_hash: usize,
    hash: usize,
    versym: usize,
    verneed: usize,
    verdef: usize,
    /// The relocation tables of the GOT and of the PLT: for each the address, and the size in bytes.
    relocations: [(usize, usize); 2],
}

/// A loaded module (the executable or a shared library): its address range and its tables.
///
/// A value is valid as long as the module stays loaded. [`walk`] keeps a module loaded while it visits the module.
#[derive(Clone, Copy)]
pub struct ElfModule {
    /// The difference between an address in memory and the same address in the module's file.
    pub base: usize,
    path: *const c_char,
    /// The first mapped address of the module.
    pub start: usize,
    /// The first address after the module's last mapped byte.
    pub end: usize,
    /// Address of the dynamic section, which contains the addresses of the tables.
    dynamic: usize,
    memory: Memory,
    tables: Tables,
}

impl ElfModule {
    /// Reads the loader's description of a module. Returns `None` if the module has no symbols.
    fn new(Description(info): Description<'_>) -> Option<Self> {
        // SAFETY: the loader passed this description, and the module is loaded.
        let memory = unsafe { Memory::described_by(info) };
        let (mut start, mut end, mut dynamic) = (usize::MAX, 0, None);
        for header in memory.headers() {
            match header.p_type {
                libc::PT_LOAD => {
                    start = start.min(memory.address(header.p_vaddr));
                    end = end.max(memory.address(header.p_vaddr + header.p_memsz));
                }
                libc::PT_DYNAMIC => dynamic = Some(memory.address(header.p_vaddr)),
                _ => {}
            }
        }
        let mut module = Self {
            base: memory.base(),
            path: info.dlpi_name,
            start,
            end,
            dynamic: dynamic?,
            memory,
            tables: Tables::default(),
        };
        // The array `values` collects the values of those entries of the dynamic section that have small tags,
        // indexed by tag. A starting process reads about a hundred dynamic sections, so this must be fast.
        let mut values = [0; DT_JMPREL as usize + 1];
        let (mut gnu_hash, mut versym, mut verneed, mut verdef) = (0, 0, 0, 0);
        module.each_dynamic(|tag, value| {
            if let Ok(tag) = usize::try_from(tag)
                && let Some(place) = values.get_mut(tag)
            {
                *place = value;
                return;
            }
            match tag {
                DT_GNU_HASH => gnu_hash = value,
                DT_VERSYM => versym = value,
                DT_VERNEED => verneed = value,
                DT_VERDEF => verdef = value,
                _ => {}
            }
        });
        // glibc replaces the addresses in the dynamic section, which are relative to the module, by addresses in
        // memory. It does not do so in a module that it cannot write to, such as the vDSO.
        let place = |value: usize| match value {
            0 => 0,
            value if value < start => module.base.wrapping_add(value),
            value => value,
        };
        let value = |tag: i64| values[tag as usize];
        let tables = Tables {
            symbols: place(value(DT_SYMTAB)),
            strings: place(value(DT_STRTAB)),
            strings_size: value(DT_STRSZ),
            gnu_hash: place(gnu_hash),
            hash: place(value(DT_HASH)),
            versym: place(versym),
            verneed: place(verneed),
            verdef: place(verdef),
            relocations: [
                (place(value(DT_RELA)), value(DT_RELASZ)),
                (place(value(DT_JMPREL)), value(DT_PLTRELSZ)),
            ],
        };
        module.tables = tables;
        (tables.symbols != 0 && tables.strings != 0).then_some(module)
    }

    /// Returns the address of the table that leads to the unwind entries (`.eh_frame_hdr`), or `None` if the module has
    /// no such table.
    pub fn unwind_table(&self) -> Option<usize> {
        let mut headers = self.memory.headers().iter();
        let table = headers.find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        Some(self.memory.address(table.p_vaddr))
    }

    pub const fn contains(&self, address: usize) -> bool {
        address >= self.start && address < self.end
    }

    fn each_dynamic(&self, mut visit: impl FnMut(i64, usize)) {
        let entries = self.memory.table::<{ size_of::<Dyn>() }>(self.dynamic);
        let read = |entry: [u8; size_of::<Dyn>()]| {
            let tag = double_word(&entry, offset_of!(Dyn, tag)).cast_signed();
            (tag, double_word(&entry, offset_of!(Dyn, value)) as usize)
        };
        for (tag, value) in entries.map(read).take_while(|(tag, _)| *tag != DT_NULL) {
            visit(tag, value);
        }
    }

    /// Returns the string at `offset` of the module's string table.
    fn string(&self, offset: usize) -> Option<&CStr> {
        let most = self.tables.strings_size.checked_sub(offset)?;
        self.memory
            .string(self.tables.strings.wrapping_add(offset), most)
    }

    /// Returns entry `index` of the symbol table, or `None` if the entry is not in a readable segment.
    fn symbol(&self, index: usize) -> Option<ElfSymbol> {
        const SIZE: usize = size_of::<Elf64_Sym>();
        let at = self.tables.symbols.checked_add(index.checked_mul(SIZE)?)?;
        let entry: [u8; SIZE] = self.memory.bytes(at)?;
        let word = |offset| double_word(&entry, offset) as usize;
        let info = entry[offset_of!(Elf64_Sym, st_info)];
        Some(ElfSymbol {
            name: word(offset_of!(Elf64_Sym, st_name)) & 0xffff_ffff,
            kind: info & 0xf,
            binding: info >> 4,
            section: word(offset_of!(Elf64_Sym, st_shndx)) as u16,
            value: word(offset_of!(Elf64_Sym, st_value)),
            size: word(offset_of!(Elf64_Sym, st_size)),
        })
    }

    /// Returns the path from which the module was loaded. It is empty for the executable.
    pub fn path(&self) -> &CStr {
        if self.path.is_null() {
            return c"";
        }
        // SAFETY: the loader keeps the terminated path as long as the module is loaded.
        unsafe { CStr::from_ptr(self.path) }
    }

    /// Returns the file name of the module. It is empty for the executable.
    pub fn file_name(&self) -> &[u8] {
        let path = self.path().to_bytes();
        let start = path.iter().rposition(|&byte| byte == b'/');
        path.get(start.map_or(0, |slash| slash + 1)..)
            .unwrap_or_default()
    }

    /// Returns the module's soname: the name under which other modules require it. Returns `None` if it has none.
    pub fn soname(&self) -> Option<&CStr> {
        let mut name = None;
        self.each_dynamic(|tag, value| {
            if tag == DT_SONAME {
                name = Some(value);
            }
        });
        self.string(name?)
    }

    /// Visits the names of the modules that this module needs, in order.
    pub fn each_needed(&self, mut visit: impl FnMut(&CStr)) {
        self.each_dynamic(|tag, value| {
            if tag == DT_NEEDED
                && let Some(name) = self.string(value)
            {
                visit(name);
            }
        });
    }

    /// Returns the address of the function that the module defines under `name`, or `None` if there is none or if it is
    /// an IFUNC. If the module has symbol versions, the function must have the version `version` or, if that is `None`,
    /// be the default version.
    pub fn defines(&self, name: &CStr, version: Option<&CStr>) -> Option<*mut c_void> {
        let found = self.definition(name, version)?;
        (!found.is_ifunc).then(|| core::ptr::with_exposed_provenance_mut(found.address))
    }

    /// Returns the symbol version in which the module requires the function `name`, if it requires one.
    pub fn wants(&self, name: &CStr) -> Option<&CStr> {
        if self.tables.verneed == 0 || self.tables.versym == 0 {
            return None; // the module requires no versions
        }
        // The GNU hash table need not contain undefined symbols, so the whole symbol table has to
        // be searched.
        self.version_wanted(self.undefined(name)?)
    }

    /// Returns the number of the symbol version of symbol `index`, as the module numbers its versions; `None` if the
    /// module has no versions.
    fn version(&self, index: usize) -> Option<u16> {
        let table = self.tables.versym;
        (table != 0).then(|| {
            self.memory
                .half(table.wrapping_add(index * size_of::<u16>()))
        })?
    }

    /// Returns the version in which the module requires the undefined symbol `index`, or `None` if it requires no
    /// version.
    fn version_wanted(&self, index: usize) -> Option<&CStr> {
        if self.tables.verneed == 0 {
            return None;
        }
        let wanted = self.version(index)? & !VERSYM_HIDDEN;
        let mut need = self.tables.verneed;
        loop {
            let word = |at: usize, offset| self.memory.word(at.wrapping_add(offset));
            let mut aux = need.wrapping_add(word(need, offset_of!(Verneed, aux))? as usize);
            loop {
                let other = self
                    .memory
                    .half(aux.wrapping_add(offset_of!(Vernaux, other)))?;
                if other & !VERSYM_HIDDEN == wanted {
                    let name = word(aux, offset_of!(Vernaux, name))?;
                    return self.string(name as usize);
                }
                match word(aux, offset_of!(Vernaux, next))? {
                    0 => break,
                    next => aux = aux.wrapping_add(next as usize),
                }
            }
            match word(need, offset_of!(Verneed, next))? {
                0 => return None,
                next => need = need.wrapping_add(next as usize),
            }
        }
    }

    fn version_fits(&self, index: usize, version: Option<&CStr>) -> bool {
        let Some(has) = self.version(index) else {
            return true;
        };
        match version {
            None => has & VERSYM_HIDDEN == 0,
            Some(_) if self.tables.verdef == 0 => true,
            Some(wanted) => self.version_name(has & !VERSYM_HIDDEN) == Some(wanted),
        }
    }

    /// Returns the name of the symbol version with number `index`, if the module defines it.
    fn version_name(&self, index: u16) -> Option<&CStr> {
        let mut definition = self.tables.verdef;
        loop {
            let place = |offset| definition.wrapping_add(offset);
            if self.memory.half(place(offset_of!(Verdef, index)))? == index {
                let aux = self.memory.word(place(offset_of!(Verdef, aux)))?;
                // The first auxiliary entry of a version's definition begins with the offset of the
                // version's name.
                let name = self.memory.word(place(aux as usize))?;
                return self.string(name as usize);
            }
            match self.memory.word(place(offset_of!(Verdef, next)))? {
                0 => return None,
                next => definition = definition.wrapping_add(next as usize),
            }
        }
    }

    /// Returns the index of the first symbol named `name` for which `fits` returns true. Uses the module's
    /// GNU hash table, or the System V one if there is no GNU table.
    fn find(&self, name: &CStr, fits: impl Fn(usize, &ElfSymbol) -> bool) -> Option<usize> {
        let matches = |index: usize| {
            self.symbol(index).is_some_and(|symbol| {
                self.string(symbol.name) == Some(name) && fits(index, &symbol)
            })
        };
        if self.tables.gnu_hash != 0 {
            self.find_by_gnu_hash(name, matches)
        } else if self.tables.hash != 0 {
            self.find_by_hash(name, matches)
        } else {
            None
        }
    }

    fn find_by_gnu_hash(&self, name: &CStr, matches: impl Fn(usize) -> bool) -> Option<usize> {
        let word = |index: usize| {
            self.memory
                .word(self.tables.gnu_hash.wrapping_add(index * 4))
        };
        let (buckets, first, filters) = (word(0)?, word(1)?, word(2)?);
        let hash = gnu_hash(name);
        let bucket = 4 + 2 * filters as usize;
        let chain = bucket + buckets as usize;
        let mut index = word(bucket + hash.checked_rem(buckets)? as usize)?;
        if index == 0 || index < first {
            return None;
        }
        loop {
            let entry = word(chain + (index - first) as usize)?;
            if entry | 1 == hash | 1 && matches(index as usize) {
                return Some(index as usize);
            }
            if entry & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    fn find_by_hash(&self, name: &CStr, matches: impl Fn(usize) -> bool) -> Option<usize> {
        let word = |index: usize| self.memory.word(self.tables.hash.wrapping_add(index * 4));
        let (buckets, chains) = (word(0)?, word(1)?);
        let chain = 2 + buckets as usize;
        let mut index = word(2 + sysv_hash(name).checked_rem(buckets)? as usize)?;
        // The number of steps is limited, because in a damaged table a hash chain may be circular.
        for _ in 0..chains {
            if index == 0 || index >= chains {
                return None;
            }
            if matches(index as usize) {
                return Some(index as usize);
            }
            index = word(chain + index as usize)?;
        }
        None
    }

    /// Returns true if the module imports `name` from another module.
    pub fn asks_for(&self, name: &CStr) -> bool {
        self.undefined(name).is_some()
    }

    /// Returns true if the module has `DT_PREINIT_ARRAY`: functions that run before the constructors of the
    /// modules that it needs.
    pub fn runs_early(&self) -> bool {
        let mut runs_early = false;
        self.each_dynamic(|tag, _| runs_early |= tag == DT_PREINIT_ARRAY);
        runs_early
    }

    /// Returns the index in the symbol table of the undefined symbol `name`, or `None` if there is no such symbol.
    fn undefined(&self, name: &CStr) -> Option<usize> {
        // The search ends at the end of the segment, because a damaged table may claim a larger
        // size.
        let mut symbols =
            (1..self.undefined_end()).map_while(|index| Some((index, self.symbol(index)?)));
        let is_it =
            |symbol: &ElfSymbol| symbol.section == 0 && self.string(symbol.name) == Some(name);
        let (index, _) = symbols.find(|(_, symbol)| is_it(symbol))?;
        Some(index)
    }

    /// Returns a symbol index that is greater than those of all undefined symbols.
    fn undefined_end(&self) -> usize {
        // The second word of a GNU hash table is the index of the first hashed symbol. All undefined symbols come
        // before it, unless no symbol is hashed. The second word of the other kind of hash table is the number of
        // symbols.
        let second =
            |table: usize| (table != 0).then(|| self.memory.word(table.wrapping_add(4)))?;
        if let Some(first) = second(self.tables.gnu_hash).filter(|first| *first > 1) {
            return first as usize;
        }
        if let Some(chains) = second(self.tables.hash) {
            return chains as usize;
        }
        // Without a usable hash table, the symbol table ends at the latest where the next table begins in
        // memory, or where the segment ends.
        let symbols = self.tables.symbols;
        let tables = [
            self.tables.strings,
            self.tables.versym,
            self.tables.gnu_hash,
            self.tables.verneed,
            self.tables.verdef,
            self.memory.file_end(symbols).unwrap_or(0),
        ];
        let end = tables.into_iter().filter(|&table| table > symbols).min();
        end.map_or(0, |end| (end - symbols) / size_of::<Elf64_Sym>())
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| {
        hash.wrapping_mul(33).wrapping_add(byte.into())
    })
}

fn sysv_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0, |hash: u32, &byte| {
        let hash = (hash << 4).wrapping_add(byte.into());
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}
