//! Finds `libtllmprof.so`, the library that is preloaded into programs.

use std::collections::HashSet;
use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::failure::usage;
use crate::output;

pub(crate) const NAME: &str = "libtllmprof.so";
/// Folders that may hold the library, relative to the folder of this executable: that folder itself, the folders of an
/// installation, and the folders of a build.
const FOLDERS: [&str; 6] = [
    ".",
    PACKAGED[0],
    PACKAGED[1],
    "../lib",
    "../release",
    "../debug",
];
/// Folders of packaged files that the command uses, relative to the executable's folder. The second folder exists for
/// the wheel, because `pip install --target` drops a wheel's folder `lib`.
pub(crate) const PACKAGED: [&str; 2] = ["../lib/tllmprof", "../libexec/tllmprof"];

/// Returns the library's absolute path, in a form that `LD_PRELOAD` accepts.
///
/// # Errors
/// The library was not found, or its path cannot be written in `LD_PRELOAD`.
pub(crate) fn find() -> Result<PathBuf> {
    let found = match env::var_os("TLLMPROF_LIB").filter(|path| !path.is_empty()) {
        Some(given) => {
            let given = PathBuf::from(given);
            if !given.is_file() {
                let shown = given.display();
                return Err(usage(format_args!(
                    "TLLMPROF_LIB=\"{shown}\": there is no such file (wanted: the path of {NAME})"
                )));
            }
            given
        }
        None => search()?,
    };
    let absolute = path::absolute(found)?;
    check(&absolute)?;
    Ok(absolute)
}

fn search() -> Result<PathBuf> {
    let executable = executable()?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let mut candidates: Vec<_> = FOLDERS
        .iter()
        .map(|folder| tidy(&beside.join(folder)).join(NAME))
        .collect();
    // `../release` or `../debug` may be the executable's folder itself, so some candidates occur twice. The second
    // occurrence is removed.
    let mut seen = HashSet::new();
    candidates.retain(|candidate| seen.insert(candidate.clone()));
    match candidates.iter().find(|candidate| candidate.is_file()) {
        Some(candidate) => Ok(candidate.clone()),
        None => {
            let places: Vec<_> = candidates.iter().map(|c| c.display().to_string()).collect();
            Err(usage(format_args!(
                "{NAME} was not found: TLLMPROF_LIB is not set, and there is no {}",
                places.join(", no ")
            )))
        }
    }
}

/// Returns the path of this executable, without symbolic links.
fn executable() -> io::Result<PathBuf> {
    env::current_exe().or_else(|error| {
        // Without `/proc`, the kernel's own note has the path with which this process was started.
        let path = started_as().ok_or(error)?;
        let path = fs::canonicalize(path)?;
        output::say(format_args!(
            "/proc is not there: the command is taken to be {}; what needs /proc may be missing in the record",
            path.display()
        ));
        Ok(path)
    })
}

/// Returns the path with which this process was started, as the kernel has passed it to the process.
fn started_as() -> Option<PathBuf> {
    // SAFETY: `getauxval` only reads the list that the kernel has passed.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
    if address.is_null() {
        return None;
    }
    // SAFETY: the kernel's string stays in memory as long as the process, and ends with a zero byte.
    let path = unsafe { CStr::from_ptr(address) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

/// Prints the library's path for `tllmprof --lib`.
///
/// # Errors
/// The errors of [`find`], or standard output cannot be written.
pub(crate) fn print() -> Result<ExitCode> {
    let mut line = find()?.into_os_string().into_vec();
    line.push(b'\n');
    output::print(&line)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes `.` and `..` from a path without reading the file system. This gives the right folder only because the path
/// of the executable contains no symbolic links.
pub(crate) fn tidy(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            path::Component::CurDir => {}
            path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Refuses a path that the dynamic linker would read as several paths, or that contains a token such as `$ORIGIN`,
/// which the linker would replace.
fn check(library: &Path) -> Result<()> {
    let bytes = library.as_os_str().as_bytes();
    match bytes.iter().find(|byte| b" :$".contains(byte)) {
        None => Ok(()),
        Some(&byte) => Err(usage(format_args!(
            "{} cannot be preloaded: the dynamic linker does not take a \"{}\" in a path \
             (copy the library to another folder, or link to it from there, and set TLLMPROF_LIB)",
            library.display(),
            char::from(byte)
        ))),
    }
}

/// Returns the value of `LD_PRELOAD` in which the path of the library precedes all `existing` entries.
pub(crate) fn preload(library: &Path, existing: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let Some(existing) = existing else {
        return value;
    };
    let is_library = |entry: &&[u8]| *entry == library.as_os_str().as_bytes();
    for entry in existing
        .as_bytes()
        .split(|b| b" :".contains(b))
        .filter(|e| !e.is_empty())
    {
        if !is_library(&entry) {
            value.push(":");
            value.push(OsStr::from_bytes(entry));
        }
    }
    value
}

/// Returns the value of `LD_PRELOAD` without the entries for this library, whatever folder these entries name.
pub(crate) fn without(existing: &OsStr) -> OsString {
    let is_other = |entry: &&[u8]| {
        !entry.is_empty()
            && Path::new(OsStr::from_bytes(entry)).file_name() != Some(OsStr::new(NAME))
    };
    let entries = existing.as_bytes().split(|b| b" :".contains(b));
    let others: Vec<_> = entries.filter(is_other).collect();
    OsString::from_vec(others.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_first_and_once() {
        let library = Path::new("/l/libtllmprof.so");
        let with = |existing: &str| {
            preload(library, Some(existing.into()))
                .into_string()
                .unwrap()
        };
        assert_eq!(preload(library, None), "/l/libtllmprof.so");
        assert_eq!(with(""), "/l/libtllmprof.so");
        assert_eq!(with("/a.so b.so::"), "/l/libtllmprof.so:/a.so:b.so");
        assert_eq!(with("/a.so:/l/libtllmprof.so"), "/l/libtllmprof.so:/a.so");
    }

    #[test]
    fn the_others_stay() {
        let without = |existing: &str| without(existing.as_ref()).into_string().unwrap();
        assert_eq!(without(""), "");
        assert_eq!(without("/l/libtllmprof.so"), "");
        assert_eq!(
            without("/l/libtllmprof.so:/a.so /m/libtllmprof.so:b.so"),
            "/a.so:b.so"
        );
    }

    #[test]
    fn a_path_that_would_be_split_is_refused() {
        assert!(check(Path::new("/a/libtllmprof.so")).is_ok());
        for bad in [
            "/a b/libtllmprof.so",
            "/a:b/libtllmprof.so",
            "/$LIB/libtllmprof.so",
        ] {
            let error = check(Path::new(bad)).unwrap_err().to_string();
            assert!(error.contains(bad) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn dots_are_resolved() {
        assert_eq!(tidy(Path::new("/a/b/../lib/.")), Path::new("/a/lib"));
        assert_eq!(tidy(Path::new("/../lib")), Path::new("/lib"));
    }
}
