//! Renames an existing record when a new record needs its file name, so that the existing record is not lost. Used
//! for the records that the preloaded library writes, and for records of GPU metrics.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File names with numbers below this one are tried, until a name is free.
const MAX_NAMES: u32 = 10_000;

/// Renames an existing record by adding the next free number to its name, and returns the new name. The
/// caller must have locked the record, so that no other process renames it. Returns `None` if no free name
/// was found or if renaming failed for another reason.
pub fn keep_earlier(path: &Path) -> Option<PathBuf> {
    for number in 1..MAX_NAMES {
        let kept = with_suffix(path, &format!("-{number}"));
        match rename_to_free(path, &kept) {
            Ok(()) => return Some(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(_) => return None,
        }
    }
    None
}

/// Returns the path with `suffix` before its extension, so that patterns such as `*.tllmprof` still match the
/// new name.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Renames a file from `from` to `to`. Fails if a file with the new name exists.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    // SAFETY: both are strings that end with a zero byte, and the kernel keeps no pointer to them. (`syscall`
    // is used because glibc has a wrapper only since 2.28.)
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
