//! Creates the record's file, and grows it without harm to the host process.
//!
//! The host may close descriptors that it does not know and open other files under the same numbers, so the
//! descriptor is checked before each use. Disk space is reserved before it is mapped. A full disk is then an
//! error returned here, instead of a SIGBUS when an event is written.

#[cfg(test)]
mod tests;

use core::ffi::c_int;
use core::ptr::NonNull;
use std::ffi::CString;
use std::fs::{self, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tllmprof_record::{CHUNK_BYTES, HEADER_BYTES, MAGIC, RING_MAGIC, keep_earlier, with_suffix};

use super::failure::Failure;
use super::quiet::Quiet;
use tllmprof_platform::descriptor::OwnFile;

const MODE: u32 = 0o600;
const CREATED: &str = "it could not be created";

/// The largest number of file names that are tried until one is free.
const MAX_NAMES: u32 = 10_000;

/// The file of a record, and the name that it has or will get.
pub(crate) struct File {
    file: OwnFile,
    name: FileName,
    /// The number of bytes of the file that are reserved on disk.
    size: u64,
}

enum FileName {
    /// The file has no name yet. [`File::publish`] will try to give it this path.
    Wanted { path: PathBuf, process: u32 },
    Given {
        path: PathBuf,
        taken: Option<NameTaken>,
    },
}

/// The reason why the new file did not get the wanted name, or why an earlier record was renamed to free that
/// name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NameTaken {
    /// The wanted name belonged to a record that no process writes to. That record has been renamed to this
    /// path.
    ByEarlier(PathBuf),
    /// The wanted name belongs to a record that a process may be writing to, or to one that could not be renamed.
    ByAnother,
}

impl File {
    /// Creates a file that will get the name `path`. The file has no name until [`File::publish`] is called.
    /// If the file system does not support files without a name, the file has its name from the start.
    pub(crate) fn create(path: &Path, process: u32) -> Result<Self, Failure> {
        let (file, name) = match open_unnamed(path) {
            Ok(file) => {
                // This lock shows other processes that the file is in use. On a file system without locks,
                // other processes treat every record as in use.
                let _ = file.try_lock();
                let path = path.to_owned();
                (file, FileName::Wanted { path, process })
            }
            Err(error) if lacks_unnamed(&error) => return Self::create_named(path, process),
            Err(error) => return Err(failure(CREATED, &error)),
        };
        Self::new(file, name)
    }

    /// Creates a file that has its name from the start, so that `/proc/PID/maps` shows this name.
    pub(crate) fn create_named(path: &Path, process: u32) -> Result<Self, Failure> {
        let (file, path, taken) = take_name(path, process, make_locked)?;
        Self::new(file, FileName::Given { path, taken })
    }

    fn new(file: fs::File, name: FileName) -> Result<Self, Failure> {
        write_in_place(&file);
        let file =
            OwnFile::new(file).map_err(|error| failure("it could not be looked at", &error))?;
        Ok(Self {
            file,
            name,
            size: 0,
        })
    }

    /// Gives the file its name, without replacing an existing record. If the wanted name belongs to a record that no
    /// process writes to, that record is renamed: a number is added before its extension. If a process may be writing
    /// to that record, the id of this process is added to the new file's name instead. Returns the reason in both
    /// cases.
    pub(crate) fn publish(&mut self) -> Result<Option<NameTaken>, Failure> {
        match &mut self.name {
            FileName::Given { taken, .. } => Ok(taken.take()),
            FileName::Wanted { path, process } => {
                let closed = Failure::new("its file was closed", 0);
                let file = self.file.get().ok_or(closed)?;
                let make = |path: &Path| link(file, path).map(Some);
                let ((), path, taken) = take_name(path, *process, make)?;
                self.name = FileName::Given { path, taken: None };
                Ok(taken)
            }
        }
    }

    /// Returns the path of the file, or the path that it will get once it is published.
    pub(crate) fn path(&self) -> &Path {
        match &self.name {
            FileName::Wanted { path, .. } | FileName::Given { path, .. } => path,
        }
    }

    /// Returns the number of bytes reserved on disk.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Opens the file again if the host has closed it.
    fn reopen(&mut self) -> Result<(), Failure> {
        const GONE: &str = "its file was closed, and is not where it was";
        if self.file.get().is_some() {
            return Ok(());
        }
        let file = open(self.path(), false).map_err(|error| failure(GONE, &error))?;
        let is_it = self.file.reopen(file);
        is_it.then_some(()).ok_or(Failure::new(GONE, 0))
    }

    /// Reserves `bytes` more bytes and maps them.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<NonNull<u8>, Failure> {
        const TRIED: &str = "it could not grow";
        self.reopen()?;
        let file = self.file.get().ok_or(Failure::new(TRIED, 0))?;
        let (offset, end) = (self.size, self.size + bytes as u64);
        if end > largest_file() {
            return Err(Failure::new(TRIED, libc::EFBIG));
        }
        // Another thread may lower the file size limit after the check above. The kernel then sends SIGXFSZ, which
        // would end the process, so this signal is blocked and discarded.
        let _quiet = Quiet::new(libc::SIGXFSZ);
        if let Err(error) = reserve(file, offset, bytes) {
            let _ = file.set_len(offset);
            return Err(failure(TRIED, &error));
        }
        let mapped = map(file, offset, bytes)?;
        self.size = end;
        Ok(mapped)
    }

    /// Cuts the file to `size` bytes. From here on no thread may use the mapped memory beyond `size`.
    pub(crate) fn cut(&mut self, size: u64) {
        if size < self.size
            && let Some(file) = self.file.get()
        {
            let _ = file.set_len(size);
            self.size = size;
        }
    }

    /// Removes the file if its path still leads to it. Used for a file into which nothing was written.
    pub(crate) fn discard(&mut self) {
        if self.file.get().is_some_and(|file| is_at(file, self.path())) {
            let _ = fs::remove_file(self.path());
        }
        self.close();
    }

    /// Closes the descriptor, unless the host has reused its number for another file.
    pub(crate) fn close(&mut self) {
        self.file.close();
    }
}

fn failure(tried: &'static str, error: &io::Error) -> Failure {
    Failure::new(tried, error.raw_os_error().unwrap_or(0))
}

/// The file that already has the wanted name. A variant that holds an open file also holds its lock, until
/// the file is closed.
enum Existing {
    /// The name is free again, because another process has renamed or removed the file in the meantime.
    Gone,
    /// The file is the start of a record whose process was killed before it wrote anything.
    Nothing(fs::File),
    /// The file is a record that no process writes to any more.
    Left(fs::File),
    /// The file is a record that a process writes to. On a file system without locks this variant
    /// stands for any record, because a process may be writing to it.
    InUse,
}

impl Existing {
    fn inspect(path: &Path) -> Result<Self, Failure> {
        const FOREIGN: Failure = Failure::new(
            "there is something else by that name, which is left alone",
            0,
        );
        let status = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Gone),
            status => status.map_err(|_| FOREIGN)?,
        };
        // SAFETY: `geteuid` takes no arguments, and always succeeds.
        let is_own = status.uid() == unsafe { libc::geteuid() };
        if !status.file_type().is_file() || !is_own {
            return Err(FOREIGN);
        }
        let file = match open(path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Gone),
            file => file.map_err(|_| FOREIGN)?,
        };
        let is_locked = file.try_lock().is_ok();
        let mut start = [0; MAGIC.len()];
        let length = file.read_at(&mut start, 0).map_err(|_| FOREIGN)?;
        let size = file.metadata().map_err(|_| FOREIGN)?.len();
        let is_record = [MAGIC, RING_MAGIC].contains(&start);
        // A process that was killed while it created its record leaves a short file of zeros. If the lock belongs to
        // another process, that process may be writing the file now. Then only the start and the size are checked, and
        // the file is not removed.
        let is_begun = start == [0; MAGIC.len()]
            && size <= (HEADER_BYTES + CHUNK_BYTES) as u64
            && size.is_multiple_of(HEADER_BYTES as u64)
            && (!is_locked || is_all_zeros(&file, size));
        if length > 0 && !is_record && !is_begun {
            return Err(FOREIGN);
        }
        Ok(if !is_locked {
            Self::InUse
        } else if !is_at(&file, path) {
            Self::Gone
        } else if is_record {
            Self::Left(file)
        } else {
            Self::Nothing(file)
        })
    }
}

/// Returns true if the first `size` bytes of the file can be read and are all zero.
fn is_all_zeros(file: &fs::File, size: u64) -> bool {
    let mut bytes = [0_u8; 1 << 12];
    let mut offset = 0;
    while offset < size {
        let length = file.read_at(&mut bytes, offset).unwrap_or(0);
        if length == 0 || bytes[..length].iter().any(|byte| *byte != 0) {
            return false;
        }
        offset += length as u64;
    }
    true
}

/// Creates a file with `make` at `path`. If a record at `path` is in use, creates the file under another name that
/// contains the process id. Returns the new file, its path, and the reason if a record was in use or was renamed.
/// `make` returns `None` if another process took the new file for an abandoned record; then another attempt is made.
fn take_name<T>(
    path: &Path,
    process: u32,
    make: impl Fn(&Path) -> io::Result<Option<T>>,
) -> Result<(T, PathBuf, Option<NameTaken>), Failure> {
    let mut wanted = path.to_owned();
    let mut taken = None;
    let mut others = 0;
    for _ in 0..MAX_NAMES {
        match make(&wanted) {
            Ok(Some(made)) => return Ok((made, wanted, taken)),
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failure(CREATED, &error)),
        }
        let is_free = match Existing::inspect(&wanted)? {
            Existing::Gone => true,
            Existing::Nothing(_held) => fs::remove_file(&wanted).is_ok(),
            Existing::Left(_held) => match keep_earlier(&wanted) {
                Some(kept) => {
                    taken = Some(NameTaken::ByEarlier(kept));
                    true
                }
                None => false,
            },
            Existing::InUse => false,
        };
        if !is_free {
            others += 1;
            wanted = with_number(path, process, others);
            taken = Some(NameTaken::ByAnother);
        }
    }
    Err(failure(CREATED, &io::ErrorKind::AlreadyExists.into()))
}

/// Creates a file at `path` and locks it. Returns `None` if another process took the file for an abandoned
/// record before it was locked.
fn make_locked(path: &Path) -> io::Result<Option<fs::File>> {
    let file = open(path, true)?;
    // If locks are not supported, other processes treat the file as in use.
    let is_lost = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    Ok(Some(file).filter(|file| !is_lost && is_at(file, path)))
}

/// Returns true if the open file is the one at `path`.
fn is_at(file: &fs::File, path: &Path) -> bool {
    let identity = |status: fs::Metadata| (status.dev(), status.ino());
    let of_path = fs::symlink_metadata(path).map(identity);
    matches!((file.metadata().map(identity), of_path), (Ok(file), Ok(path)) if file == path)
}

/// Returns the path with the process id `process` before its extension. From the second attempt on, the attempt
/// number `times` is added as well.
fn with_number(path: &Path, process: u32, times: u32) -> PathBuf {
    let mut suffix = format!("-{process}");
    if times > 1 {
        suffix.push_str(&format!("-{times}"));
    }
    with_suffix(path, &suffix)
}

/// Opens the file at `path`. If `is_new`, creates the file, and fails if it exists.
fn open(path: &Path, is_new: bool) -> io::Result<fs::File> {
    fs::File::options()
        .read(true)
        .write(true)
        .create_new(is_new)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)
}

/// Creates a file without a name in the folder of `path`.
fn open_unnamed(path: &Path) -> io::Result<fs::File> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let file = fs::File::options()
        .read(true)
        .write(true)
        .mode(MODE)
        .custom_flags(libc::O_TMPFILE)
        .open(folder)?;
    // [`link`] later names the file through its path in `/proc`. If `/proc` is not mounted, files without a name
    // count as not supported.
    match fs::symlink_metadata(own_link(&file)) {
        Ok(_) => Ok(file),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

/// Returns true if the error says that the file system or the kernel does not support `O_TMPFILE` (files
/// without a name). A kernel that does not know the flag tries to open the folder instead, which fails with
/// `EISDIR`.
fn lacks_unnamed(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS)
    )
}

fn own_link(file: &fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Gives the name `path` to a file that has none yet.
fn link(file: &fs::File, path: &Path) -> io::Result<()> {
    let [from, to] = [
        CString::new(own_link(file))?,
        CString::new(path.as_os_str().as_bytes())?,
    ];
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both are strings that end in a zero byte, and live until the call returns.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the file size limit of this process (`RLIMIT_FSIZE`), in bytes.
fn largest_file() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `getrlimit` writes only to the local variable.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Makes btrfs overwrite this file's data in place. By default btrfs writes each change to a new location, so
/// on a full disk a store into the mapping would raise SIGBUS. The change works only for an empty file.
fn write_in_place(file: &fs::File) {
    const BTRFS: libc::c_long = 0x9123_683e;
    const GET_FLAGS: libc::Ioctl = 0x8008_6601;
    const SET_FLAGS: libc::Ioctl = 0x4008_6602;
    const NO_COPY: c_int = 0x0080_0000;
    let mut system = core::mem::MaybeUninit::<libc::statfs>::uninit();
    let mut flags: c_int = 0;
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is the file's. The structure is read only if the call has filled it. The requests read
    // and write an int, although their numbers state a larger size.
    unsafe {
        if libc::fstatfs(descriptor, system.as_mut_ptr()) == 0
            && system.assume_init().f_type as libc::c_long == BTRFS
            && libc::ioctl(descriptor, GET_FLAGS, &raw mut flags) == 0
        {
            flags |= NO_COPY;
            libc::ioctl(descriptor, SET_FLAGS, &raw const flags);
        }
    }
}

/// Reserves disk space for `bytes` bytes at `offset`.
fn reserve(file: &fs::File, offset: u64, bytes: usize) -> io::Result<()> {
    let (at, length) = (offset.cast_signed(), bytes as libc::off_t);
    loop {
        // SAFETY: the descriptor is the file's, and the call takes no memory.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, at, length) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return write_zeros(file, offset, bytes),
            _ => return Err(error),
        }
    }
}

/// Writes zeros, for file systems that cannot reserve disk space.
fn write_zeros(file: &fs::File, mut offset: u64, bytes: usize) -> io::Result<()> {
    static ZEROS: [u8; 1 << 12] = [0; 1 << 12];
    let end = offset + bytes as u64;
    while offset < end {
        let length = ZEROS.len().min((end - offset) as usize);
        match file.write_at(&ZEROS[..length], offset) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            Ok(written) => offset += written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn map(file: &fs::File, offset: u64, bytes: usize) -> Result<NonNull<u8>, Failure> {
    const TRIED: &str = "it could not be mapped";
    /// Value of `MADV_POPULATE_WRITE` (Linux 5.14 and later). It writes to every page, like a store, but
    /// returns errors instead of raising signals.
    const POPULATE_WRITE: c_int = 23;
    // SAFETY: the mapping is new, and the file has these bytes. A child of a fork gets no copy of the
    // mapping, because it must not write there, and a core file does not contain it.
    unsafe {
        let place = libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset.cast_signed(),
        );
        if place == libc::MAP_FAILED {
            return Err(Failure::last(TRIED));
        }
        libc::madvise(place, bytes, libc::MADV_DONTFORK);
        libc::madvise(place, bytes, libc::MADV_DONTDUMP);
        if libc::madvise(place, bytes, POPULATE_WRITE) != 0 {
            let failure = Failure::last(TRIED);
            if failure.errno != libc::EINVAL && failure.errno != libc::EINTR {
                libc::munmap(place, bytes);
                return Err(failure);
            }
        }
        NonNull::new(place.cast()).ok_or(Failure::new(TRIED, 0))
    }
}
