//! The file that a command names.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    Program(PathBuf),
    /// There is such a file, and it is not executable.
    NotExecutable(PathBuf),
    Nothing,
}

/// Looks a command up as the shell does: by path where it has a slash, else along `PATH`.
pub fn which(command: &OsStr) -> Found {
    match env::var_os("PATH") {
        Some(path) => which_in(command, &path),
        None => which_in(command, OsStr::new("/bin:/usr/bin")),
    }
}

fn which_in(command: &OsStr, path: &OsStr) -> Found {
    if command.is_empty() {
        return Found::Nothing;
    }
    if command.as_bytes().contains(&b'/') {
        let path = Path::new(command);
        return match path.metadata() {
            // Something is in the way, such as a file in the place of a folder.
            Err(error) if error.kind() != ErrorKind::NotFound => Found::NotExecutable(path.into()),
            _ => look(path),
        };
    }
    let mut found = Found::Nothing;
    for folder in env::split_paths(path) {
        // An empty entry is the current folder.
        let folder = if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder
        };
        match look(&folder.join(command)) {
            program @ Found::Program(_) => return program,
            Found::NotExecutable(file) if found == Found::Nothing => {
                found = Found::NotExecutable(file);
            }
            _ => {}
        }
    }
    found
}

fn look(file: &Path) -> Found {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() && is_executable(file) => {
            Found::Program(file.to_owned())
        }
        Ok(_) => Found::NotExecutable(file.to_owned()),
        Err(_) => Found::Nothing,
    }
}

/// Whether this user may execute a file, which its mode alone does not show.
fn is_executable(file: &Path) -> bool {
    rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(command: &str, path: &str) -> Found {
        which_in(OsStr::new(command), OsStr::new(path))
    }

    #[test]
    fn along_the_path() {
        assert_eq!(
            find("sh", "/nowhere:/bin"),
            Found::Program("/bin/sh".into())
        );
        assert_eq!(
            find("passwd", "/etc"),
            Found::NotExecutable("/etc/passwd".into())
        );
        assert_eq!(
            find("passwd", "/etc:/usr/bin"),
            Found::Program("/usr/bin/passwd".into())
        );
        assert_eq!(find("sh", "/nowhere"), Found::Nothing);
        assert_eq!(find("", "/bin"), Found::Nothing);
    }

    #[test]
    fn by_path() {
        assert_eq!(find("/bin/sh", ""), Found::Program("/bin/sh".into()));
        assert_eq!(find("/bin", "/"), Found::NotExecutable("/bin".into()));
        assert_eq!(find("./nothing", "/bin"), Found::Nothing);
        assert_eq!(
            find("/bin/sh/x", "/"),
            Found::NotExecutable("/bin/sh/x".into())
        );
    }
}
