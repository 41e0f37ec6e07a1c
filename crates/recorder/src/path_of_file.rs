//! Paths of the files that the process writes, such as the record.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use once_cell::race::OnceBox;
use tllmprof_config::{PathTemplate, Placeholders};
use tllmprof_platform::lifecycle;

lifecycle::global! {
    /// The working directory when the library was loaded. Relative paths are resolved against it.
    #[fork(keep = "paths are from where the first process began")]
    static FOLDER: OnceBox<PathBuf> = OnceBox::new();
}

/// Stores the working directory. Called when the library is loaded.
pub(crate) fn start() {
    if let Ok(folder) = std::env::current_dir() {
        let _ = FOLDER.set(Box::new(folder));
    }
}

/// Returns true if the process may create files. A process with more rights than its user, such as a
/// set-user-ID program, must not.
pub fn may_write() -> bool {
    // SAFETY: `getauxval` takes no pointer.
    unsafe { libc::getauxval(libc::AT_SECURE) == 0 }
}

/// Returns the host name of the machine or the container; empty if the system does not report it.
pub fn host_name() -> OsString {
    let mut name = vec![0_u8; 256];
    // SAFETY: writes at most one byte less than the vector's length, so the last byte stays 0.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) != 0 };
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    name.truncate(if failed { 0 } else { length });
    OsString::from_vec(name)
}

/// Returns the path for this process: the template with its placeholders filled in. A relative path is resolved against
/// the working directory when the library was loaded.
pub(crate) fn fill(template: &PathTemplate, place: &Placeholders<'_>) -> PathBuf {
    let path = template.fill(place, |name| std::env::var_os(name));
    FOLDER
        .get()
        .map_or(path.clone(), |folder| folder.join(&path))
}
