//! Loads the library into a process that has another root file system, such as a container, where the library's path
//! does not exist.
//!
//! The stub (the code that `attach` injects) creates a thread in the process, and this thread makes a file in memory
//! (`memfd_create`). The command writes the library into this file. The process can open the file under the path
//! `/proc/thread-self/fd/N`, which the command writes into the stub's memory region. Then the thread loads the library
//! and closes the descriptor. Nothing is written to the process's file systems, and the file is freed with its last
//! mapping.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::elf::Module;
use crate::memory::ProcessMemory;
use crate::process;
use crate::refusal::AttachRefusal;
use crate::stub::{self, MADE};

/// The source from which the library is loaded into the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LibrarySource {
    /// The path of the library's file, which the process can open.
    Path,
    /// A file in memory that the process creates. The command copies the library into this file.
    File,
    /// The library was already loaded from a file in memory by an earlier attach. The value is the address of its
    /// `tllmprof_attach` function.
    Loaded(u64),
}

impl LibrarySource {
    /// Selects the source from which a process can load the library.
    ///
    /// # Errors
    /// Returns the reason why there is no such source.
    pub(crate) fn select(
        pid: i32,
        memory: &ProcessMemory,
        modules: &[Module],
        library: &Path,
    ) -> Result<Self, AttachRefusal> {
        if let Some(module) = modules.iter().find(|module| module.path == MADE) {
            const ENTRY: &str = "tllmprof_attach";
            let entry = module.functions(memory, &[ENTRY]).remove(ENTRY);
            return match entry {
                Some(entry) if is_copy(memory, module, library) => Ok(Self::Loaded(entry.address)),
                _ => Err(AttachRefusal::AnotherLibrary(MADE.to_owned())),
            };
        }
        if process::has_file(pid, library) {
            return Ok(Self::Path);
        }
        match process::has_proc(pid) {
            true => Ok(Self::File),
            false => Err(AttachRefusal::NoProc),
        }
    }
}

/// Returns true if a module was loaded from a copy of the library's file. The module's first page is compared with the
/// file's. This is sufficient, because the page contains the build id.
fn is_copy(memory: &ProcessMemory, module: &Module, library: &Path) -> bool {
    let mut page = [0; 4096];
    let read = File::open(library).and_then(|file| file.read_exact_at(&mut page, 0));
    read.is_ok() && memory.bytes(module.range.start) == Some(page)
}

/// Writes the library into the file that the process has made for it. Returns false if the process has not made the
/// file yet.
///
/// # Errors
/// Returns the reason why the library was not written. If the process has made the file, but the library cannot be
/// copied into it, the function also reports this to the process, which then closes the file.
pub(crate) fn write(
    pid: i32,
    memory: &ProcessMemory,
    region: u64,
    library: &Path,
) -> Result<bool, AttachRefusal> {
    let descriptor = match memory.word(region + stub::FILE).map(u64::cast_signed) {
        None | Some(0) => return Ok(false),
        Some(error @ ..0) => return Err(AttachRefusal::NoFile((-error) as i32)),
        Some(number) => number - 1,
    };
    let written = fill(pid, descriptor, library);
    let path = format!("/proc/thread-self/fd/{descriptor}\0");
    let answer = |value: u64| -> io::Result<()> {
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open(process::folder(pid).join("mem"))?;
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, region + stub::STUB)?;
        if u64::from_le_bytes(word) != stub::CREATED {
            return Err(io::Error::other("it has become another program"));
        }
        memory.write_all_at(path.as_bytes(), region + stub::PATH)?;
        memory.write_all_at(&value.to_le_bytes(), region + stub::READY)
    };
    let failed = |error: io::Error| AttachRefusal::NotWritten(error.to_string());
    match written {
        Ok(()) => answer(stub::WRITTEN).map_err(failed).map(|()| true),
        Err(error) => {
            let _ = answer(stub::GIVEN_UP);
            Err(failed(error))
        }
    }
}

fn fill(pid: i32, descriptor: i64, library: &Path) -> io::Result<()> {
    let path = process::folder(pid).join(format!("fd/{descriptor}"));
    // The program may have closed the file and opened another one under the same descriptor. That other file must not
    // be written to, and opening it could block. So the file's name is checked both before and after the file is
    // opened.
    let is_made = |path: &Path| fs::read_link(path).is_ok_and(|name| name == Path::new(MADE));
    let changed = || io::Error::other("the process has closed it");
    if !is_made(&path) {
        return Err(changed());
    }
    let file = OpenOptions::new().write(true).open(&path)?;
    if !is_made(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))) {
        return Err(changed());
    }
    file.write_all_at(&fs::read(library)?, 0)
}
