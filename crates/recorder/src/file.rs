//! The record's file: how it comes to be, and how it grows without harm to the host.
//!
//! The host may close what descriptors it does not know and open others in their place, so the
//! descriptor is looked at before each use. Room is reserved before it is mapped: a full disk is an
//! error here, and not a signal where an event is written.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tllmprof_record::{Ended, MAGIC};

use super::failure::Failure;
use super::quiet::Quiet;

/// Descriptors below this are what programs expect to get.
const LOWEST: c_int = 64;
const MODE: libc::mode_t = 0o600;
const OPEN: c_int = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
const CREATE: c_int = OPEN | libc::O_CREAT | libc::O_EXCL;

/// Names that are tried.
const MOST_NAMES: u32 = 16;

/// The file of a record.
pub struct File {
    descriptor: c_int,
    /// Device and inode, by which it is known again.
    identity: (libc::dev_t, libc::ino_t),
    path: CString,
    /// Bytes that are reserved.
    size: u64,
}

impl File {
    /// Makes the file at `path`, in the place of an older record if there is one. Where that one is
    /// still written to, or is of the program that this process ran before, this one's number goes
    /// into the name.
    pub fn create(path: &Path, process: u32) -> Result<Self, Failure> {
        let mut wanted = c_string(path)?;
        for times in 1..=MOST_NAMES {
            match open(&wanted, CREATE) {
                Err(libc::EEXIST) => {}
                result => return Self::new(result, wanted),
            }
            match Existing::at(&wanted, process)? {
                Existing::InUse if times < MOST_NAMES => {
                    wanted = c_string(&with_number(path, process, times))?;
                }
                _ => break,
            }
        }
        replace(wanted, process)
    }

    fn new(opened: Result<c_int, i32>, path: CString) -> Result<Self, Failure> {
        let descriptor = opened.map_err(|errno| Failure::new("it could not be created", errno))?;
        let descriptor = move_up(descriptor);
        let Some(status) = status_of(descriptor) else {
            return Err(Failure::last("it could not be looked at"));
        };
        write_in_place(descriptor);
        // SAFETY: the descriptor is ours. Others see by the lock that the file is in use; where
        // there are no locks it is overwritten by whoever has the same name for its own.
        unsafe { libc::flock(descriptor, libc::LOCK_EX | libc::LOCK_NB) };
        Ok(Self {
            descriptor,
            identity: (status.st_dev, status.st_ino),
            path,
            size: 0,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &CStr {
        &self.path
    }

    /// Bytes that are reserved.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether the descriptor still is the file's.
    fn has_descriptor(&self) -> bool {
        status_of(self.descriptor)
            .is_some_and(|status| (status.st_dev, status.st_ino) == self.identity)
    }

    /// Opens the file again if the host has closed it.
    fn reopen(&mut self) -> Result<(), Failure> {
        const GONE: &str = "its file was closed, and is not where it was";
        if self.has_descriptor() {
            return Ok(());
        }
        let descriptor = open(&self.path, OPEN).map_err(|errno| Failure::new(GONE, errno))?;
        let is_it = status_of(descriptor)
            .is_some_and(|status| (status.st_dev, status.st_ino) == self.identity);
        if !is_it {
            close(descriptor);
            return Err(Failure::new(GONE, 0));
        }
        self.descriptor = move_up(descriptor);
        Ok(())
    }

    /// Reserves `bytes` more and maps them.
    pub fn grow(&mut self, bytes: usize) -> Result<NonNull<u8>, Failure> {
        self.reopen()?;
        let (offset, end) = (self.size, self.size + bytes as u64);
        if end > largest_file() {
            return Err(Failure::new("it could not grow", libc::EFBIG));
        }
        // A limit that is lowered meanwhile would send a signal.
        let _quiet = Quiet::new(libc::SIGXFSZ);
        if let Err(errno) = reserve(self.descriptor, offset, bytes) {
            // SAFETY: the descriptor is ours; makes the file as large as it was.
            unsafe { libc::ftruncate(self.descriptor, offset.cast_signed()) };
            return Err(Failure::new("it could not grow", errno));
        }
        let mapped = map(self.descriptor, offset, bytes)?;
        self.size = end;
        Ok(mapped)
    }

    /// Cuts off what lies behind `size` bytes. Nobody may use it any more.
    pub fn cut(&mut self, size: u64) {
        if size < self.size && self.has_descriptor() {
            // SAFETY: the descriptor is ours, and shrinking a file raises no signal here.
            unsafe { libc::ftruncate(self.descriptor, size.cast_signed()) };
            self.size = size;
        }
    }

    /// Closes the descriptor, if it still is the file's.
    pub fn close(&self) {
        if self.has_descriptor() {
            close(self.descriptor);
        }
    }
}

/// Bytes of a file that tell whether it is a record, and whose; where in them are the process and
/// how it ended.
const START: usize = 40;
const PROCESS_AT: usize = 24;
const ENDED_AT: usize = 32;

/// A file that has the name already.
enum Existing {
    /// A record that nobody writes to, or nothing yet.
    Left,
    /// A record that a process writes to, or that this one has written before it became another
    /// program.
    InUse,
}

impl Existing {
    fn at(path: &CStr, process: u32) -> Result<Self, Failure> {
        const FOREIGN: Failure = Failure::new(
            "there is something else by that name, which is left alone",
            0,
        );
        let status = status_at(path).ok_or(FOREIGN)?;
        // SAFETY: always succeeds.
        let is_own = status.st_uid == unsafe { libc::geteuid() };
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || !is_own {
            return Err(FOREIGN);
        }
        let descriptor = open(path, OPEN).map_err(|_| FOREIGN)?;
        let mut start = [0; START];
        // SAFETY: the descriptor was opened here; reads into the local. The lock goes with the
        // descriptor.
        let (length, is_free) = unsafe {
            let length = libc::pread(descriptor, start.as_mut_ptr().cast(), start.len(), 0);
            let locked = libc::flock(descriptor, libc::LOCK_EX | libc::LOCK_NB) == 0;
            (
                length,
                locked || *libc::__errno_location() != libc::EWOULDBLOCK,
            )
        };
        close(descriptor);
        let is_record = start.starts_with(&MAGIC);
        match length.cast_unsigned() {
            0 => {}
            START if is_record || (start == [0; START] && !is_free) => {}
            _ => return Err(FOREIGN),
        }
        let number = |at: usize| start[at..].first_chunk().map(|n| u32::from_le_bytes(*n));
        let is_own = is_record
            && number(PROCESS_AT) == Some(process)
            && number(ENDED_AT) == Some(Ended::Not as u32);
        Ok(if is_free && !is_own {
            Self::Left
        } else {
            Self::InUse
        })
    }
}

/// Makes a file beside `path` and renames it: whoever reads the older one keeps it.
fn replace(path: CString, process: u32) -> Result<File, Failure> {
    let beside = [path.to_bytes(), format!(".new-{process}").as_bytes()].concat();
    let beside = CString::new(beside).map_err(|_| Failure::new("its name is none", 0))?;
    // SAFETY: terminated strings. What is there was left by a process of the same number.
    unsafe { libc::unlink(beside.as_ptr()) };
    let mut file = File::new(open(&beside, CREATE), beside)?;
    // SAFETY: as above.
    if unsafe { libc::rename(file.path.as_ptr(), path.as_ptr()) } != 0 {
        let failure = Failure::last("the older one could not be replaced");
        // SAFETY: as above; the file was made here.
        unsafe { libc::unlink(file.path.as_ptr()) };
        file.close();
        return Err(failure);
    }
    file.path = path;
    Ok(file)
}

fn c_string(path: &Path) -> Result<CString, Failure> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Failure::new("its name is none", 0))
}

/// The path with a process's number before its extension, and from the second time on which it is.
fn with_number(path: &Path, process: u32, times: u32) -> PathBuf {
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(format!("-{process}"));
    if times > 1 {
        name.push(format!("-{times}"));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn open(path: &CStr, flags: c_int) -> Result<c_int, i32> {
    // SAFETY: a terminated string.
    match unsafe { libc::open(path.as_ptr(), flags, libc::c_uint::from(MODE)) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        descriptor => Ok(descriptor),
    }
}

fn close(descriptor: c_int) {
    // SAFETY: a descriptor of ours.
    unsafe { libc::close(descriptor) };
}

/// The same file by a higher number; the lower one, which the host may expect to get, is closed.
fn move_up(descriptor: c_int) -> c_int {
    // SAFETY: a descriptor of ours.
    let moved = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, LOWEST) };
    if moved < 0 {
        return descriptor;
    }
    close(descriptor);
    moved
}

fn status_of(descriptor: c_int) -> Option<libc::stat> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: filled where 0 is returned, and read only then.
    unsafe { (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init()) }
}

fn status_at(path: &CStr) -> Option<libc::stat> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: as above, with a terminated string.
    unsafe { (libc::lstat(path.as_ptr(), status.as_mut_ptr()) == 0).then(|| status.assume_init()) }
}

/// How large a file of this process may become.
fn largest_file() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the limit to the local.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Has btrfs write what is written again to where it was: for a copy there may be no room when it
/// comes to that, and the store would become a signal. For a file that is empty.
fn write_in_place(descriptor: c_int) {
    const BTRFS: libc::c_long = 0x9123_683e;
    const GET_FLAGS: libc::Ioctl = 0x8008_6601;
    const SET_FLAGS: libc::Ioctl = 0x4008_6602;
    const NO_COPY: c_int = 0x0080_0000;
    let mut system = core::mem::MaybeUninit::<libc::statfs>::uninit();
    let mut flags: c_int = 0;
    // SAFETY: the descriptor is ours; the structure is read where it was filled, and the requests
    // read and write an int, whatever their numbers say.
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

/// Takes room on the disk, or fails.
fn reserve(descriptor: c_int, offset: u64, bytes: usize) -> Result<(), i32> {
    loop {
        // SAFETY: a descriptor of ours.
        let failed = unsafe {
            libc::fallocate(descriptor, 0, offset.cast_signed(), bytes as libc::off_t) != 0
        };
        if !failed {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::EINTR => {}
            libc::EOPNOTSUPP | libc::ENOSYS => return write_zeros(descriptor, offset, bytes),
            errno => return Err(errno),
        }
    }
}

/// For file systems that reserve nothing.
fn write_zeros(descriptor: c_int, mut offset: u64, bytes: usize) -> Result<(), i32> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let end = offset + bytes as u64;
    while offset < end {
        let length = ZEROS.len().min((end - offset) as usize);
        // SAFETY: reads zeros of ours; the descriptor is ours.
        let written = unsafe {
            libc::pwrite(
                descriptor,
                ZEROS.as_ptr().cast(),
                length,
                offset.cast_signed(),
            )
        };
        match written {
            1.. => offset += written.cast_unsigned() as u64,
            0 => return Err(libc::ENOSPC),
            _ => match std::io::Error::last_os_error().raw_os_error().unwrap_or(0) {
                libc::EINTR => {}
                errno => return Err(errno),
            },
        }
    }
    Ok(())
}

fn map(descriptor: c_int, offset: u64, bytes: usize) -> Result<NonNull<u8>, Failure> {
    const TRIED: &str = "it could not be mapped";
    /// Writes to every page, as a store would, but with errors instead of signals. Linux 5.14.
    const POPULATE_WRITE: c_int = 23;
    // SAFETY: a new mapping of a file that has these bytes. A child of a fork has no use for it, and
    // must not write there; a core file is the host's.
    unsafe {
        let place = libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor,
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
