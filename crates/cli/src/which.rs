//! Finds the file of a command.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    Program(PathBuf),
    /// There is such a file, and it is not executable.
    NotExecutable(PathBuf),
    Folder(PathBuf),
    Nothing,
}

/// Looks a command up as the shell does: as a path if it has a slash, else in `PATH`.
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
            // A part of the path is in the way, such as a file instead of a folder.
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
            other if found == Found::Nothing => found = other,
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
        Ok(metadata) if metadata.is_dir() => Found::Folder(file.to_owned()),
        Ok(_) => Found::NotExecutable(file.to_owned()),
        Err(_) => Found::Nothing,
    }
}

/// Returns whether this user may execute a file; its mode does not decide that completely.
fn is_executable(file: &Path) -> bool {
    rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Number of bytes in which the kernel searches the end of the line that names an interpreter.
const FIRST_LINE: u64 = 256;

/// The first line of a file that a shell would read as a script; `None` for a binary file.
pub fn line_of_script(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut start = Vec::new();
    File::open(file)?.take(FIRST_LINE).read_to_end(&mut start)?;
    let mut lines = start.split(|byte| *byte == b'\n');
    let line = lines.clone().next().unwrap_or_default();
    // No further lines are checked, because a script may be followed by binary data.
    let has_text = lines.find(|line| !line.is_empty()).is_none_or(is_text);
    let is_script = line.starts_with(b"#!") || has_text;
    Ok(is_script.then(|| line.to_vec()))
}

/// Returns whether a line, which may be cut off, consists of text.
fn is_text(line: &[u8]) -> bool {
    let is_text = |c: char| !c.is_control() || matches!(c, '\t' | '\r' | '\x0c' | '\x1b');
    let (text, is_utf8) = match str::from_utf8(line) {
        Ok(text) => (text, true),
        Err(error) => {
            let valid = str::from_utf8(&line[..error.valid_up_to()]);
            (valid.unwrap_or_default(), error.error_len().is_none())
        }
    };
    is_utf8 && text.chars().all(is_text)
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
        assert_eq!(find("/bin", "/"), Found::Folder("/bin".into()));
        assert_eq!(find("bin", "/"), Found::Folder("/bin".into()));
        assert_eq!(find("./nothing", "/bin"), Found::Nothing);
        assert_eq!(
            find("/bin/sh/x", "/"),
            Found::NotExecutable("/bin/sh/x".into())
        );
    }
}
