//! The modules of the process (the executable and shared libraries): lists them, recognizes those that must
//! not be patched, and reports when modules are loaded or unloaded.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::lifecycle;
use once_cell::race::OnceBox;

use crate::elf;
use crate::elf::ElfModule;
use crate::maps::{Maps, page_size};
use crate::resolve;
use crate::stack;
use crate::system;

/// The beginnings of the names of modules that the library's hooks depend on. Functions of these modules are
/// not hooked, and their GOT slots are not changed.
const LEFT_ALONE: [&[u8]; 7] = [
    b"libc.so",
    b"ld-linux",
    b"libpthread.so",
    b"libdl.so",
    b"librt.so",
    b"libgcc_s.so",
    b"linux-vdso",
];

/// A loaded module: the executable or a shared library.
pub struct LoadedModule {
    pub start: usize,
    pub end: usize,
    /// The path of the module's file in the list of memory mappings. It changes if the file is moved or deleted.
    pub path: PathBuf,
    /// The module's name in the loader's list, which stays the same as long as the module is loaded. Empty for the
    /// executable.
    pub name: CString,
    pub soname: Option<Vec<u8>>,
    pub is_left_alone: bool,
}

impl LoadedModule {
    /// Returns true if `self` and `other` describe the same module at the same address.
    pub fn is(&self, other: &Self) -> bool {
        self.start == other.start && self.end == other.end && self.name == other.name
    }

    /// Returns true if `listed`, the loader's list, contains this module at the same address.
    pub fn is_listed(&self, listed: &[ListedModule]) -> bool {
        listed.iter().any(|(range, name)| {
            range.start == self.start && range.end == self.end && *name == self.name
        })
    }
}

/// A module in the loader's list: its address range and its name.
pub type ListedModule = (Range<usize>, CString);

/// Returns the loader's list of all modules that are loaded now. Unlike [`present`], this function does not depend on
/// the memory mappings: the list also contains modules that the loader has not relocated yet.
pub fn listed() -> Vec<ListedModule> {
    let mut listed = Vec::new();
    elf::walk(|module| {
        listed.push((module.start..module.end, module.path().to_owned()));
        false
    });
    listed
}

/// Returns the modules that are loaded now and have a file. The boolean is true if the list is complete. It is false
/// if another thread is still loading a module, because that module is left out of the list.
pub fn present(maps: &Maps) -> (Vec<LoadedModule>, bool) {
    let (mut present, mut is_complete) = (Vec::new(), true);
    elf::walk(|module| {
        if let Some(path) = maps.file_at(module.start) {
            if !is_relocated(module, maps) {
                is_complete = false;
                return false;
            }
            present.push(LoadedModule {
                start: module.start,
                end: module.end,
                path: path.to_owned(),
                name: module.path().to_owned(),
                soname: module.soname().map(|name| name.to_bytes().to_owned()),
                is_left_alone: is_left_alone(module),
            });
        }
        false
    });
    (present, is_complete)
}

/// Returns true if the loader has finished the module's relocations. As the last step, the loader makes the module's
/// RELRO pages read-only. For a module without such pages, the values of its GOT slots decide.
pub fn is_relocated(module: &ElfModule, maps: &Maps) -> bool {
    let relro = relro(module);
    if relro.is_empty() {
        return module.is_bound();
    }
    let mapping = maps.at(relro.start);
    mapping.is_some_and(|mapping| !mapping.is_writable)
}

/// Returns the pages that the loader makes read-only when it has finished the module's relocations. The range is empty
/// if there are none.
pub fn relro(module: &ElfModule) -> Range<usize> {
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    let mut headers = module.headers().iter();
    let Some(relro) = headers.find(|header| header.p_type == PT_GNU_RELRO) else {
        return 0..0;
    };
    let start = module.base.wrapping_add(relro.p_vaddr as usize);
    let end = start.wrapping_add(relro.p_memsz as usize);
    let page = page_size();
    start & !(page - 1)..end & !(page - 1)
}

/// Returns true if the file at `path` is not the file that `module` was loaded from, for example after an
/// upgrade. Then the symbols in the file are not those of the running code.
pub fn is_replaced(module: &ElfModule, maps: &Maps, path: &Path) -> bool {
    if maps.is_deleted_at(module.start) {
        return true;
    }
    let Ok(file) = tllmprof_symbols::open(path) else {
        return false;
    };
    let inode = file.metadata().map(|status| status.ino());
    // Some file systems report another inode number than the list of mappings has. Then compare the ELF notes, which
    // contain the build ID.
    if inode.is_ok_and(|inode| {
        maps.at(module.start)
            .is_some_and(|mapping| mapping.inode == inode)
    }) {
        return false;
    }
    let is_like = |address: usize, length: usize| {
        let start = module.base.wrapping_add(address);
        let (mut mapped, mut stored) = (vec![0; length], vec![0; length]);
        module.file_offset(address, length).is_none_or(|offset| {
            module.read(start, &mut mapped)
                && file.read_exact_at(&mut stored, offset).is_ok()
                && mapped == stored
        })
    };
    let notes = module
        .headers()
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE);
    let mut ranges: Vec<_> = notes
        .map(|header| (header.p_vaddr as usize, header.p_filesz as usize))
        .collect();
    // The file header, which contains the positions of the file's parts, is compared as well.
    ranges.push((
        module.start.wrapping_sub(module.base),
        size_of::<libc::Elf64_Ehdr>(),
    ));
    !ranges
        .into_iter()
        .all(|(address, length)| is_like(address, length))
}

/// Returns true if the calling thread has enough stack left to parse function names.
pub fn has_stack() -> bool {
    const NEEDED: usize = 512 * 1024;
    let here = stack::here();
    // The stack pointer may lie outside these bounds: a coroutine or a signal handler may run on
    // another stack, whose size is unknown. Then this function returns false.
    stack::bounds().is_some_and(|stack| stack.contains(&here) && here - stack.start >= NEEDED)
}

/// Returns true if the module's functions and slots must not be changed.
pub fn is_left_alone(module: &ElfModule) -> bool {
    resolve::is_us(module)
        || module.soname().is_some_and(|name| {
            LEFT_ALONE
                .iter()
                .any(|left| name.to_bytes().starts_with(left))
        })
}

/// Copies the memory at `address` to `buffer`, if the address lies in a loaded module. Returns false if it does not,
/// for example because the module was unloaded.
pub fn read_any(address: usize, buffer: &mut [u8]) -> bool {
    let mut found = false;
    elf::walk(|module| {
        let here = module.contains(address);
        found |= here && module.read(address, buffer);
        here
    });
    found
}

/// Returns true if the process has only one thread.
pub fn is_alone() -> bool {
    system::threads() == Some(1)
}

lifecycle::global! {
    /// True if a part of the library has to be notified when modules are loaded or unloaded. The hooks for
    /// symbol look-ups read this flag.
    #[fork(keep = "the child's modules are its parent's")]
    pub static ARE_WATCHED: AtomicBool = AtomicBool::new(false);
    /// The function to call after modules were loaded or unloaded; empty until [`watch`] is called. It may be empty
    /// although [`ARE_WATCHED`] is true: the search for native functions by name (`sym:` rules) sets only that flag.
    #[fork(keep = "set once, at the start")]
    static WATCHER: OnceBox<fn()> = OnceBox::new();
    /// The value of [`elf::changes`] (the number of loads and unloads of modules) when the watcher was registered or
    /// last called.
    #[fork(keep = "the child's modules are its parent's")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
}

/// Registers `watch`, which is called after modules were loaded or unloaded, at the next symbol look-up or
/// `dlclose`. Only one function can be registered.
pub fn watch(watch: fn()) {
    SEEN.store(elf::changes(), Ordering::Relaxed);
    if WATCHER.set(Box::new(watch)).is_ok() {
        ARE_WATCHED.store(true, Ordering::Release);
    }
}

/// Returns true if a function was registered by [`watch`].
pub fn has_watcher() -> bool {
    WATCHER.get().is_some()
}

/// Calls the watcher (the function that [`watch`] has registered), if there is one and `changes` differs from the value
/// at its last call. `changes` is the current value of [`elf::changes`].
pub fn notify_watcher(changes: u64) {
    if let Some(watch) = WATCHER.get()
        && SEEN.swap(changes, Ordering::AcqRel) != changes
    {
        watch();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::sync::atomic::AtomicUsize;
    use std::sync::Mutex;

    use super::*;

    /// A lock that lets only one test at a time change the pages of this module's GOT, or read their
    /// protection.
    pub(crate) static PAGES: Mutex<()> = Mutex::new(());

    fn us() -> ElfModule {
        elf::containing(us as *const () as usize).unwrap()
    }

    #[test]
    fn loaded_modules_are_present() {
        let _pages = PAGES.lock();
        let maps = Maps::read().unwrap();
        let (present, is_complete) = super::present(&maps);
        assert!(is_complete);
        let own = present
            .iter()
            .find(|loaded| loaded.start == us().start)
            .unwrap();
        assert_eq!(own.path, std::fs::canonicalize("/proc/self/exe").unwrap());
        assert!(own.is_left_alone, "it is this library, here");
        let libc = |loaded: &&LoadedModule| loaded.soname.as_deref() == Some(b"libc.so.6");
        let libc = present.iter().find(libc).unwrap();
        assert!(libc.is_left_alone);
        assert!(libc.is(libc) && !libc.is(own));
        let deleted = LoadedModule {
            start: own.start,
            end: own.end,
            path: "/deleted (deleted)".into(),
            name: own.name.clone(),
            soname: None,
            is_left_alone: true,
        };
        assert!(
            deleted.is(own),
            "the file was deleted, and the module stays"
        );
        let listed = listed();
        assert!(deleted.is_listed(&listed) && libc.is_listed(&listed));
        let unloaded = LoadedModule {
            end: own.end + 1,
            ..deleted
        };
        assert!(!unloaded.is(own) && !unloaded.is_listed(&listed));
    }

    #[test]
    fn what_the_loader_has_relocated_is_read_only() {
        let _pages = PAGES.lock();
        let (us, maps) = (us(), Maps::read().unwrap());
        assert!(is_relocated(&us, &maps));
        let relro = relro(&us);
        assert!(!relro.is_empty() && us.contains(relro.start) && relro.end <= us.end);
        assert!(relro.start.is_multiple_of(page_size()) && relro.end.is_multiple_of(page_size()));
    }

    #[test]
    fn a_file_that_was_replaced_is_another() {
        let maps = Maps::read().unwrap();
        let (us, path) = (us(), std::env::current_exe().unwrap());
        assert!(!is_replaced(&us, &maps, &path));
        assert!(is_replaced(&us, &maps, Path::new("/bin/sh")));
        let copy = std::env::temp_dir().join(format!("tllmprof-copy-{}", std::process::id()));
        std::fs::copy(&path, &copy).unwrap();
        let is_another = is_replaced(&us, &maps, &copy);
        std::fs::remove_file(&copy).unwrap();
        assert!(!is_another, "another inode, and the same build");
    }

    #[test]
    fn bytes_are_read_where_a_module_is() {
        static TEXT: [u8; 8] = *b"its text";
        let mut read = [0; 8];
        assert!(read_any((&raw const TEXT).expose_provenance(), &mut read));
        assert_eq!(read, TEXT);
        assert!(!read_any(1, &mut read));
    }

    #[test]
    fn a_thread_has_stack_or_too_little() {
        let on_stack_of = |bytes| {
            let thread = std::thread::Builder::new().stack_size(bytes);
            thread.spawn(has_stack).unwrap().join().unwrap()
        };
        assert!(on_stack_of(2 << 20));
        assert!(!on_stack_of(128 << 10));
    }

    #[test]
    fn a_process_with_two_threads_is_not_alone() {
        assert!(!std::thread::spawn(is_alone).join().unwrap());
    }

    #[test]
    fn the_watcher_is_notified_of_each_change_once() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        notify_watcher(1);
        watch(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        assert!(has_watcher() && ARE_WATCHED.load(Ordering::Relaxed));
        let changes = elf::changes();
        notify_watcher(changes + 1);
        notify_watcher(changes + 1);
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        notify_watcher(changes + 2);
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }
}
