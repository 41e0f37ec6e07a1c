//! The file or folder that an export makes: it is there whole or not at all.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fmt, io, process};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::private::private_file;

/// An export under way, under a name of its own. What was not [kept](Self::keep) is removed.
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    temporary: PathBuf,
    force: bool,
    kept: bool,
}

/// Why there is no output.
#[derive(Debug)]
pub enum OutputError {
    /// There is something by that name, and nobody said that it may go.
    Exists,
    /// There is a folder by that name that no export has made: what is in it.
    Foreign(OsString),
    /// There is a device or a pipe by that name.
    Special,
    /// The folder that it would be in is not there.
    NoFolder(PathBuf),
    Io(io::Error),
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("it exists already (--force replaces it)"),
            Self::Foreign(name) => write!(
                f,
                "it is a folder with {} in it, which no export made: not replaced",
                name.display()
            ),
            Self::Special => {
                f.write_str("it is neither a file nor a folder (wanted: another name)")
            }
            Self::NoFolder(folder) => write!(f, "there is no folder {}", folder.display()),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OutputError {}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists,
            _ => Self::Io(error),
        }
    }
}

impl Output {
    /// Where `target` is to be; with `force` in the place of what is there.
    ///
    /// # Errors
    /// Where that may not be, before anything is done.
    pub fn new(target: &Path, force: bool) -> Result<Self, OutputError> {
        // A link stays: what it leads to is replaced.
        let target = match target.canonicalize() {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => target.to_owned(),
            Err(error) => return Err(OutputError::Io(error)),
        };
        match fs::metadata(&target) {
            Ok(status) if !status.is_file() && !status.is_dir() => {
                return Err(OutputError::Special);
            }
            Ok(_) if !force => return Err(OutputError::Exists),
            Ok(status) if status.is_dir() => made_by_an_export(&target)?,
            Ok(_) => (),
            Err(_) => {
                let folder = target.parent().unwrap_or(Path::new(""));
                if folder != Path::new("") && !folder.is_dir() {
                    return Err(OutputError::NoFolder(folder.to_owned()));
                }
            }
        }
        Ok(Self {
            temporary: beside(&target, "part")?,
            target,
            force,
            kept: false,
        })
    }

    /// Makes the file, which its owner alone may read, as records are.
    ///
    /// # Errors
    /// Where that cannot be.
    pub fn file(&self) -> io::Result<File> {
        private_file(&self.temporary)
    }

    /// Makes the folder, which its owner alone may read.
    ///
    /// # Errors
    /// Where that cannot be.
    pub fn folder(&self) -> io::Result<&Path> {
        DirBuilder::new().mode(0o700).create(&self.temporary)?;
        Ok(&self.temporary)
    }

    /// Gives what was made its name.
    ///
    /// # Errors
    /// Where that cannot be, as where there is something by that name by now.
    pub fn keep(mut self) -> Result<(), OutputError> {
        if !self.force {
            let renamed = renameat_with(
                CWD,
                &self.temporary,
                CWD,
                &self.target,
                RenameFlags::NOREPLACE,
            );
            match renamed {
                // A file system that cannot do that at once.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    if fs::symlink_metadata(&self.target).is_ok() {
                        return Err(OutputError::Exists);
                    }
                    fs::rename(&self.temporary, &self.target)?;
                }
                renamed => renamed.map_err(io::Error::from)?,
            }
        } else if self.target.is_dir() {
            made_by_an_export(&self.target)?;
            let old = beside(&self.target, "old")?;
            fs::rename(&self.target, &old)?;
            if let Err(error) = fs::rename(&self.temporary, &self.target) {
                fs::rename(&old, &self.target)?;
                return Err(error.into());
            }
            fs::remove_dir_all(&old)?;
        } else {
            fs::rename(&self.temporary, &self.target)?;
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // It may be either, or not be there yet.
        let _ = fs::remove_file(&self.temporary);
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// A name for something that is not ready, in the folder of `target`.
fn beside(target: &Path, what: &str) -> Result<PathBuf, OutputError> {
    let Some(name) = target.file_name() else {
        return Err(OutputError::Exists);
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.{what}", process::id()));
    Ok(target.with_file_name(hidden))
}

/// Nothing but the folders of tables may go with a folder that is replaced.
fn made_by_an_export(folder: &Path) -> Result<(), OutputError> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !crate::tables::TABLES.iter().any(|table| name == table.name) {
            return Err(OutputError::Foreign(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    fn scratch() -> TempDir {
        TempDir::with_prefix("tllmprof-").unwrap()
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    fn write(target: &Path, force: bool, text: &str) -> Result<(), OutputError> {
        let output = Output::new(target, force)?;
        output.file()?.write_all(text.as_bytes())?;
        output.keep()
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let scratch = scratch();
        let target = scratch.path().join("out");
        let output = Output::new(&target, false).unwrap();
        output.file().unwrap().write_all(b"half").unwrap();
        assert!(!target.exists());
        drop(output);
        assert!(names(&scratch).is_empty());
        write(&target, false, "one").unwrap();
        assert!(matches!(
            write(&target, false, "two"),
            Err(OutputError::Exists)
        ));
        assert_eq!(fs::read_to_string(&target).unwrap(), "one");
        write(&target, true, "three").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "three");
        assert_eq!(names(&scratch), ["out"]);
    }

    #[test]
    fn nobody_else_may_read_it() {
        let scratch = scratch();
        let rights = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let target = scratch.path().join("out");
        fs::write(&target, "one").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
        write(&target, true, "two").unwrap();
        assert_eq!(rights(&target), 0o600, "nor what was there before");
        let folder = scratch.path().join("folder");
        let output = Output::new(&folder, false).unwrap();
        output.folder().unwrap();
        output.keep().unwrap();
        assert_eq!(rights(&folder), 0o700);
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let scratch = scratch();
        let (target, link) = (scratch.path().join("out"), scratch.path().join("link"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(
            write(&link, false, "one"),
            Err(OutputError::Exists)
        ));
        fs::write(&target, "one").unwrap();
        write(&link, true, "two").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "two");
        assert!(link.is_symlink());
        let device = scratch.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        assert!(matches!(
            write(&device, true, ""),
            Err(OutputError::Special)
        ));
    }

    #[test]
    fn what_came_meanwhile_stays() {
        let scratch = scratch();
        let target = scratch.path().join("out");
        let output = Output::new(&target, false).unwrap();
        output.file().unwrap();
        fs::write(&target, "theirs").unwrap();
        assert!(matches!(output.keep(), Err(OutputError::Exists)));
        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
        assert_eq!(names(&scratch), ["out"]);
    }

    #[test]
    fn no_folder_goes_but_that_of_an_export() {
        let scratch = scratch();
        let target = scratch.path().join("out");
        let make = |force| {
            let output = Output::new(&target, force)?;
            fs::create_dir(output.folder()?.join("calls"))?;
            output.keep()
        };
        make(false).unwrap();
        assert!(matches!(make(false), Err(OutputError::Exists)));
        fs::write(target.join("calls/old"), "").unwrap();
        make(true).unwrap();
        assert!(!target.join("calls/old").exists());
        fs::write(target.join("thesis"), "").unwrap();
        assert!(matches!(make(true), Err(OutputError::Foreign(_))));
        assert!(target.join("thesis").exists());
        assert_eq!(names(&scratch), ["out"]);
    }
}
