//! Finds the file of a command, as a shell does.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CommandLookup {
    Program(PathBuf),
    /// The file exists, but is not executable.
    NotExecutable(PathBuf),
    Folder(PathBuf),
    Nothing,
}

/// Looks up a command as a shell does: as a path if the command contains a slash, otherwise in the folders of `PATH`.
pub(crate) fn which(command: &OsStr) -> CommandLookup {
    match env::var_os("PATH") {
        Some(path) => which_in(command, &path),
        None => which_in(command, OsStr::new("/bin:/usr/bin")),
    }
}

fn which_in(command: &OsStr, path: &OsStr) -> CommandLookup {
    if command.is_empty() {
        return CommandLookup::Nothing;
    }
    if command.as_bytes().contains(&b'/') {
        let path = Path::new(command);
        return match path.metadata() {
            // A part of the path cannot be entered, for example because that part is a file instead of a folder.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                CommandLookup::NotExecutable(path.into())
            }
            _ => look(path),
        };
    }
    let mut found = CommandLookup::Nothing;
    for folder in env::split_paths(path) {
        // In `PATH`, an empty entry means the current folder.
        let folder = if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder
        };
        match look(&folder.join(command)) {
            program @ CommandLookup::Program(_) => return program,
            other if found == CommandLookup::Nothing => found = other,
            _ => {}
        }
    }
    found
}

fn look(file: &Path) -> CommandLookup {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() && is_executable(file) => {
            CommandLookup::Program(file.to_owned())
        }
        Ok(metadata) if metadata.is_dir() => CommandLookup::Folder(file.to_owned()),
        Ok(_) => CommandLookup::NotExecutable(file.to_owned()),
        Err(_) => CommandLookup::Nothing,
    }
}

/// Returns true if this user may execute a file. The function asks the kernel, because the file's mode is not the only
/// condition: for example, the mount may forbid execution (`noexec`).
fn is_executable(file: &Path) -> bool {
    rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Number of bytes at the start of a script in which the kernel looks for the end of the `#!` line.
const FIRST_LINE: u64 = 256;

/// Returns the first line of a file if a shell would read the file as a script. Returns `None` for
/// a binary file.
pub(crate) fn line_of_script(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut start = Vec::new();
    File::open(file)?.take(FIRST_LINE).read_to_end(&mut start)?;
    let mut lines = start.split(|byte| *byte == b'\n');
    let line = lines.clone().next().unwrap_or_default();
    // Only the first line that is not empty is checked, because binary data may follow the text of
    // a script.
    let has_text = lines.find(|line| !line.is_empty()).is_none_or(is_text);
    let is_script = line.starts_with(b"#!") || has_text;
    Ok(is_script.then(|| line.to_vec()))
}

/// Returns true if a line consists of text. The line may be cut off in the middle of a character.
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

    fn find(command: &str, path: &str) -> CommandLookup {
        which_in(OsStr::new(command), OsStr::new(path))
    }

    #[test]
    fn along_the_path() {
        assert_eq!(
            find("sh", "/nowhere:/bin"),
            CommandLookup::Program("/bin/sh".into())
        );
        assert_eq!(
            find("passwd", "/etc"),
            CommandLookup::NotExecutable("/etc/passwd".into())
        );
        assert_eq!(
            find("passwd", "/etc:/usr/bin"),
            CommandLookup::Program("/usr/bin/passwd".into())
        );
        assert_eq!(find("sh", "/nowhere"), CommandLookup::Nothing);
        assert_eq!(find("", "/bin"), CommandLookup::Nothing);
    }

    #[test]
    fn by_path() {
        assert_eq!(
            find("/bin/sh", ""),
            CommandLookup::Program("/bin/sh".into())
        );
        assert_eq!(find("/bin", "/"), CommandLookup::Folder("/bin".into()));
        assert_eq!(find("bin", "/"), CommandLookup::Folder("/bin".into()));
        assert_eq!(find("./nothing", "/bin"), CommandLookup::Nothing);
        assert_eq!(
            find("/bin/sh/x", "/"),
            CommandLookup::NotExecutable("/bin/sh/x".into())
        );
    }
}
