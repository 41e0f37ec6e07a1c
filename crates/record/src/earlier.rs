//! A name that an earlier record has: that record is kept under another one. The library's records and those of GPU metrics
//! follow this rule.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names that are tried.
const MAX_NAMES: u32 = 10_000;

/// Gives an earlier record the next free number, and returns its new name. The caller has locked it, so that no other
/// process does the same. `None` if it cannot be renamed without the danger of replacing another file.
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

/// The path with something before its extension, so that patterns such as `*.tllmprof` match it, too.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Renames a file, and fails where the new name is in use.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    // SAFETY: both are strings that end with a zero, and the kernel keeps neither. (glibc has a function for it since 2.28.)
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
