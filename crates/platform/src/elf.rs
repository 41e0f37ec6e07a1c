//! Symbol look-up in loaded modules, without the dynamic loader's lock.
//!
//! `dlsym` takes the lock that `dlopen` holds while it runs constructors. A first CUDA call on one
//! thread must not wait for a constructor that waits for that call, so the doors read the modules'
//! own tables, as the loader does when it binds a symbol lazily. Layouts: the System V ABI, and
//! GNU hash tables and symbol versions as in glibc's `elf/dl-lookup.c`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use libc::{Elf64_Addr, Elf64_Phdr, Elf64_Sym, dl_phdr_info};

use crate::ids;
use crate::lifecycle::{self, OnlyThread, Stage};
use tllmprof_sync::wait;
use tllmprof_sync::wake;

mod changes;
mod slots;

pub use changes::{changes, with_modules};
pub use slots::{Found, Slot};

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

lifecycle::global! {
    stage: Modules;

    /// Threads that walk. They do not keep each other out: the host may be walking, too, with the
    /// loader's lock in hand, and look something up meanwhile.
    #[fork(reset)]
    static WALKERS: AtomicU32 = AtomicU32::new(0);
    /// The thread that forks, 0 for none. Nobody else starts to walk meanwhile.
    #[fork(reset)]
    static FORKING: AtomicU32 = AtomicU32::new(0);
    /// Moves on in each child, which has none of its parent's walkers.
    #[fork(by = in_child)]
    static GENERATION: AtomicU32 = AtomicU32::new(0);
}
/// How long a fork waits for walks to end: a walk is short, but its thread may not be running.
const WALK: Duration = Duration::from_secs(1);
/// How long a walk waits for a fork to end: that of a large process takes a while.
const FORK: Duration = Duration::from_secs(10);

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

/// A loaded module: its place and its tables.
///
/// Valid as long as the module stays loaded; [`walk`] keeps it so during its visit.
#[derive(Clone, Copy)]
pub struct Module {
    /// What the addresses in its file are moved by.
    pub base: usize,
    path: *const c_char,
    /// The first mapped address.
    pub start: usize,
    /// The first address behind it.
    pub end: usize,
    /// The end of the mapped segment that the symbols lie in.
    segment_end: usize,
    dynamic: *const Dyn,
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    strings_size: usize,
    gnu_hash: *const u32,
    hash: *const u32,
    versym: *const u16,
    verneed: *const Verneed,
    verdef: *const Verdef,
    headers: *const Elf64_Phdr,
    header_count: usize,
    /// Relocations of the GOT and of the PLT: where, and how many bytes.
    relocations: [(*const c_void, usize); 2],
}

/// Visits the loaded modules in the loader's order, until the visitor returns true.
///
/// No module is unloaded meanwhile. The loader's lock for this is one that a fork does not give
/// back in the child, so that none may happen meanwhile: see [`before_fork`].
pub fn walk(visit: impl FnMut(&Module) -> bool) {
    let _walking = Walking::begin();
    iterate(visit);
}

fn iterate(mut visit: impl FnMut(&Module) -> bool) {
    unsafe extern "C" fn each<V: FnMut(&Module) -> bool>(
        info: *mut dl_phdr_info,
        _: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and `visit` is the closure given below,
        // which is used by this call alone.
        unsafe {
            let visit = &mut *visit.cast::<V>();
            Module::new(&*info)
                .is_some_and(|module| visit(&module))
                .into()
        }
    }
    fn each_of<V: FnMut(&Module) -> bool>(
        _: &V,
    ) -> unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int {
        each::<V>
    }
    let callback = each_of(&visit);
    // SAFETY: the callback gets the closure back as the type it has, and the closure outlives the
    // call.
    unsafe {
        libc::dl_iterate_phdr(Some(callback), (&raw mut visit).cast());
    }
}

/// A walk that is under way.
struct Walking {
    generation: u32,
}

impl Walking {
    fn begin() -> Self {
        let mut deadline = None;
        loop {
            WALKERS.fetch_add(1, Ordering::SeqCst);
            let generation = GENERATION.load(Ordering::Relaxed);
            let walking = Self { generation };
            let forking = FORKING.load(Ordering::SeqCst);
            // The thread that forks may walk in the handlers of others.
            if forking == 0 || forking == this_thread() {
                return walking;
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + FORK);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return walking;
            }
            drop(walking);
            wait(&FORKING, forking, left);
        }
    }
}

impl Drop for Walking {
    fn drop(&mut self) {
        // The child of a fork in a signal handler that interrupted the walk has no walkers.
        if self.generation == GENERATION.load(Ordering::Relaxed)
            && WALKERS.fetch_sub(1, Ordering::SeqCst) == 1
            && FORKING.load(Ordering::SeqCst) != 0
        {
            wake(&WALKERS, 1);
        }
    }
}

fn this_thread() -> u32 {
    ids::thread().cast_unsigned()
}

lifecycle::at_fork! {
    stage: Stage::Modules,
    before: before_fork,
    parent: after_fork,
}

/// Keeps other threads from walking over a fork, unless another thread forks, too.
fn before_fork() {
    let us = this_thread();
    if FORKING
        .compare_exchange(0, us, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let deadline = Instant::now() + WALK;
    loop {
        let walkers = WALKERS.load(Ordering::SeqCst);
        let left = deadline.saturating_duration_since(Instant::now());
        if walkers == 0 || left.is_zero() {
            return;
        }
        wait(&WALKERS, walkers, left);
    }
}

/// Lets other threads walk again, where [`before_fork`] kept them from it.
fn after_fork() {
    let held = FORKING.compare_exchange(this_thread(), 0, Ordering::SeqCst, Ordering::Relaxed);
    if held.is_ok() {
        wake(&FORKING, i32::MAX);
    }
}

/// What other threads were walking through is nothing to the child.
fn in_child(_: &OnlyThread) {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The module that `address` lies in.
pub fn containing(address: usize) -> Option<Module> {
    let mut found = None;
    walk(|module| {
        let here = module.contains(address);
        if here {
            found = Some(*module);
        }
        here
    });
    found
}

impl Module {
    /// Reads what the loader tells of a module; `None` if it has no symbols.
    ///
    /// # Safety
    /// `info` describes a module that is loaded.
    unsafe fn new(info: &dl_phdr_info) -> Option<Self> {
        // SAFETY: the loader's description holds that many program headers.
        let headers: &[Elf64_Phdr] =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let base = usize::try_from(info.dlpi_addr).ok()?;
        let address = |at: Elf64_Addr| base.wrapping_add(at as usize);
        let mut module = Self {
            base,
            path: info.dlpi_name,
            start: usize::MAX,
            end: 0,
            segment_end: 0,
            dynamic: core::ptr::null(),
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            strings_size: 0,
            gnu_hash: core::ptr::null(),
            hash: core::ptr::null(),
            versym: core::ptr::null(),
            verneed: core::ptr::null(),
            verdef: core::ptr::null(),
            headers: headers.as_ptr(),
            header_count: headers.len(),
            relocations: [(core::ptr::null(), 0); 2],
        };
        for header in headers {
            match header.p_type {
                libc::PT_LOAD => {
                    module.start = module.start.min(address(header.p_vaddr));
                    module.end = module.end.max(address(header.p_vaddr + header.p_memsz));
                }
                libc::PT_DYNAMIC => {
                    module.dynamic = core::ptr::with_exposed_provenance(address(header.p_vaddr))
                }
                _ => {}
            }
        }
        if module.dynamic.is_null() {
            return None;
        }
        // glibc has made these addresses absolute, except where it cannot write, as in the vDSO.
        let (start, raw) = (module.start, module);
        raw.each_dynamic(|tag, value| {
            let at = if value < start {
                base.wrapping_add(value)
            } else {
                value
            };
            let place = core::ptr::with_exposed_provenance::<c_void>(at);
            match tag {
                DT_SYMTAB => module.symbols = place.cast(),
                DT_STRTAB => module.strings = place.cast(),
                DT_STRSZ => module.strings_size = value,
                DT_GNU_HASH => module.gnu_hash = place.cast(),
                DT_HASH => module.hash = place.cast(),
                DT_VERSYM => module.versym = place.cast(),
                DT_VERNEED => module.verneed = place.cast(),
                DT_VERDEF => module.verdef = place.cast(),
                DT_RELA => module.relocations[0].0 = place,
                DT_RELASZ => module.relocations[0].1 = value,
                DT_JMPREL => module.relocations[1].0 = place,
                DT_PLTRELSZ => module.relocations[1].1 = value,
                _ => {}
            }
        });
        let symbols = module.symbols.addr();
        module.segment_end = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| {
                (
                    address(header.p_vaddr),
                    address(header.p_vaddr + header.p_filesz),
                )
            })
            .find(|(start, end)| (*start..*end).contains(&symbols))
            .map_or(0, |(_, end)| end);
        (!module.symbols.is_null() && !module.strings.is_null()).then_some(module)
    }

    /// Whether `address` lies in the module.
    pub const fn contains(&self, address: usize) -> bool {
        address >= self.start && address < self.end
    }

    fn each_dynamic(&self, mut visit: impl FnMut(i64, usize)) {
        let mut entry = self.dynamic;
        // SAFETY: the module's dynamic section ends with DT_NULL.
        unsafe {
            while (*entry).tag != DT_NULL {
                visit((*entry).tag, (*entry).value);
                entry = entry.add(1);
            }
        }
    }

    fn string(&self, offset: usize) -> &CStr {
        // SAFETY: offsets in the module's own tables lead to terminated strings of its table.
        unsafe { CStr::from_ptr(self.strings.add(offset)) }
    }

    /// The path that it was loaded from; empty for the executable.
    pub fn path(&self) -> &CStr {
        if self.path.is_null() {
            return c"";
        }
        // SAFETY: the loader keeps the name as long as the module.
        unsafe { CStr::from_ptr(self.path) }
    }

    /// The name of its file; empty for the executable.
    pub fn file_name(&self) -> &[u8] {
        let path = self.path().to_bytes();
        let start = path.iter().rposition(|&byte| byte == b'/');
        path.get(start.map_or(0, |slash| slash + 1)..)
            .unwrap_or_default()
    }

    /// The name that others need it by.
    pub fn soname(&self) -> Option<&CStr> {
        let mut name = None;
        self.each_dynamic(|tag, value| {
            if tag == DT_SONAME {
                name = Some(value);
            }
        });
        name.map(|offset| self.string(offset))
    }

    /// Visits the names of the modules that it needs, in order.
    pub fn each_needed(&self, mut visit: impl FnMut(&CStr)) {
        self.each_dynamic(|tag, value| {
            if tag == DT_NEEDED {
                visit(self.string(value));
            }
        });
    }

    /// The address of the function that the module defines under `name`, in `version` if the
    /// module has versions at all; without one, in its default version.
    pub fn defines(&self, name: &CStr, version: Option<&CStr>) -> Option<*mut c_void> {
        let found = self.definition(name, version)?;
        (!found.is_ifunc).then(|| core::ptr::with_exposed_provenance_mut(found.address))
    }

    /// The version in which the module asks for the function `name`, if it asks for one.
    pub fn wants(&self, name: &CStr) -> Option<&CStr> {
        if self.verneed.is_null() || self.versym.is_null() {
            return None; // spares the search
        }
        // Undefined symbols need not be in a GNU hash table: the list is searched, rarely.
        self.version_wanted(self.undefined(name)?)
    }

    /// The version in which the module asks for a symbol that it does not define.
    fn version_wanted(&self, index: usize) -> Option<&CStr> {
        if self.verneed.is_null() || self.versym.is_null() {
            return None;
        }
        // SAFETY: the version table has an entry for each symbol, and the module's version needs
        // are chained by offsets that end in 0.
        unsafe {
            let wanted = *self.versym.add(index) & !VERSYM_HIDDEN;
            let mut need = self.verneed;
            loop {
                let mut aux = need.byte_add((*need).aux as usize).cast::<Vernaux>();
                loop {
                    if (*aux).other & !VERSYM_HIDDEN == wanted {
                        return Some(self.string((*aux).name as usize));
                    }
                    if (*aux).next == 0 {
                        break;
                    }
                    aux = aux.byte_add((*aux).next as usize);
                }
                if (*need).next == 0 {
                    return None;
                }
                need = need.byte_add((*need).next as usize);
            }
        }
    }

    fn version_fits(&self, index: usize, version: Option<&CStr>) -> bool {
        if self.versym.is_null() {
            return true;
        }
        // SAFETY: the version table has an entry for each symbol.
        let has = unsafe { *self.versym.add(index) };
        match version {
            None => has & VERSYM_HIDDEN == 0,
            Some(_) if self.verdef.is_null() => true,
            Some(wanted) => self.version_name(has & !VERSYM_HIDDEN) == Some(wanted),
        }
    }

    fn version_name(&self, index: u16) -> Option<&CStr> {
        let mut definition = self.verdef;
        // SAFETY: version definitions are chained by offsets that end in 0; each has a first
        // auxiliary entry, which starts with the name's offset.
        unsafe {
            while !definition.is_null() {
                if (*definition).index == index {
                    let aux = definition
                        .byte_add((*definition).aux as usize)
                        .cast::<u32>();
                    return Some(self.string(*aux as usize));
                }
                if (*definition).next == 0 {
                    return None;
                }
                definition = definition.byte_add((*definition).next as usize);
            }
        }
        None
    }

    /// The first symbol called `name` that `fits`, by the hash table that the module has.
    fn find(&self, name: &CStr, fits: impl Fn(usize, &Elf64_Sym) -> bool) -> Option<usize> {
        let matches = |index: usize| {
            // SAFETY: the hash tables hold indices of the symbol table.
            let symbol = unsafe { &*self.symbols.add(index) };
            self.string(symbol.st_name as usize) == name && fits(index, symbol)
        };
        // SAFETY: header and tables lie behind one another as the format says; chains end where
        // their last entry is marked.
        unsafe {
            if !self.gnu_hash.is_null() {
                let (buckets, first, words) =
                    (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2));
                if buckets == 0 {
                    return None;
                }
                let hash = gnu_hash(name);
                let bucket = self.gnu_hash.add(4 + 2 * words as usize);
                let chain = bucket.add(buckets as usize);
                let mut index = *bucket.add((hash % buckets) as usize);
                if index == 0 || index < first {
                    return None;
                }
                loop {
                    let entry = *chain.add((index - first) as usize);
                    if entry | 1 == hash | 1 && matches(index as usize) {
                        return Some(index as usize);
                    }
                    if entry & 1 == 1 {
                        return None;
                    }
                    index += 1;
                }
            }
            if !self.hash.is_null() {
                let (buckets, chains) = (*self.hash, *self.hash.add(1));
                let (bucket, chain) = (self.hash.add(2), self.hash.add(2 + buckets as usize));
                if buckets == 0 {
                    return None;
                }
                let mut index = *bucket.add((sysv_hash(name) % buckets) as usize);
                while index != 0 && index < chains {
                    if matches(index as usize) {
                        return Some(index as usize);
                    }
                    index = *chain.add(index as usize);
                }
            }
        }
        None
    }

    /// Whether the module takes `name` from another one.
    pub fn asks_for(&self, name: &CStr) -> bool {
        self.undefined(name).is_some()
    }

    /// Whether functions of the module run before those of the modules that it needs.
    pub fn runs_early(&self) -> bool {
        let mut runs_early = false;
        self.each_dynamic(|tag, _| runs_early |= tag == DT_PREINIT_ARRAY);
        runs_early
    }

    /// The index of the undefined symbol `name`.
    fn undefined(&self, name: &CStr) -> Option<usize> {
        (1..self.undefined_end()).find(|&index| {
            // SAFETY: the index is within the symbol table.
            let symbol = unsafe { &*self.symbols.add(index) };
            symbol.st_shndx == 0
                && (symbol.st_name as usize) < self.strings_size
                && self.string(symbol.st_name as usize) == name
        })
    }

    /// An index that all undefined symbols are below.
    fn undefined_end(&self) -> usize {
        // SAFETY: both tables start with their sizes. In a GNU table the symbols before the first
        // hashed one are the undefined ones, unless none is hashed at all.
        unsafe {
            if !self.gnu_hash.is_null() && *self.gnu_hash.add(1) > 1 {
                return *self.gnu_hash.add(1) as usize;
            }
            if !self.hash.is_null() {
                return *self.hash.add(1) as usize;
            }
        }
        // What lies behind the symbols in memory bounds them: another table, or the end of the
        // module.
        let tables = [
            self.strings.addr(),
            self.versym.addr(),
            self.gnu_hash.addr(),
            self.verneed.addr(),
            self.verdef.addr(),
            self.segment_end,
        ];
        let symbols = self.symbols.addr();
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
