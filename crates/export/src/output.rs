//! The file or folder that an export creates. The output gets its final name only when it is complete.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fmt, io, process};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};

use crate::private::private_file;

/// An output that is not finished yet. An output file has no name if the file system supports files without a name. The
/// kernel removes such a file when this process ends, even if the process is killed. Any other output file, and each
/// output folder, has a temporary name. Such a file or folder is removed when this value is dropped, unless it was
/// [kept](Self::keep).
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    temporary: PathBuf,
    /// The output file while it has no name. Empty if the output has a temporary name instead.
    unnamed: OnceLock<File>,
    force: bool,
    kept: bool,
}

/// The reason why the output of an export cannot be created or cannot get its final name.
#[derive(Debug)]
pub enum OutputError {
    /// The target of the export exists, and the user did not ask to replace it.
    Exists,
    /// The target is a folder that was not created by an export. The value is the name of an entry that no export
    /// creates.
    Foreign(OsString),
    /// The target of the export is a device or a pipe.
    Special,
    /// The folder that should contain the output does not exist. The value is its path.
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
    /// Prepares an output at `target`. If `force` is true, an existing file or folder is replaced.
    ///
    /// # Errors
    /// Returns an error if the target may not be created or replaced. This is checked before anything is written.
    pub fn new(target: &Path, force: bool) -> Result<Self, OutputError> {
        // If the target is a symbolic link, the link stays, and the file that the link points to is replaced.
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
            unnamed: OnceLock::new(),
            target,
            force,
            kept: false,
        })
    }

    /// Creates the file. Only the file's owner may read it, as with records.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn file(&self) -> io::Result<File> {
        match unnamed_beside(&self.temporary) {
            Some(file) => self.unnamed.get_or_init(|| file).try_clone(),
            None => private_file(&self.temporary),
        }
    }

    /// Creates the folder. Only the folder's owner may read it.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn folder(&self) -> io::Result<&Path> {
        DirBuilder::new().mode(0o700).create(&self.temporary)?;
        Ok(&self.temporary)
    }

    /// Gives the finished output its final name.
    ///
    /// # Errors
    /// Returns an error if the output cannot be renamed, for example because the target exists by now.
    pub fn keep(mut self) -> Result<(), OutputError> {
        if let Some(file) = self.unnamed.take() {
            let linked = linkat(
                CWD,
                own_link(&file),
                CWD,
                &self.temporary,
                AtFlags::SYMLINK_FOLLOW,
            );
            linked.map_err(io::Error::from)?;
        }
        if !self.force {
            let renamed = renameat_with(
                CWD,
                &self.temporary,
                CWD,
                &self.target,
                RenameFlags::NOREPLACE,
            );
            match renamed {
                // This file system cannot check that the target does not exist and rename the output in one step, so
                // the check is made separately.
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
        // The temporary name may refer to a file or to a folder, or may not exist, so errors are ignored.
        let _ = fs::remove_file(&self.temporary);
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Creates a file without a name in the folder that contains `path`. Only the file's owner may read it. Returns `None`
/// if the file system or the kernel does not support such files. Also returns `None` if `/proc` has no link to the
/// file, because the file is later given a name through this link.
fn unnamed_beside(path: &Path) -> Option<File> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = File::from(open(folder, flags, Mode::RUSR | Mode::WUSR).ok()?);
    fs::symlink_metadata(own_link(&file))
        .is_ok()
        .then_some(file)
}

/// Returns the path of the link in `/proc` through which an open file can be given a name.
fn own_link(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns a temporary, hidden name in the folder that contains `target`. The name ends with the process id and `what`.
fn beside(target: &Path, what: &str) -> Result<PathBuf, OutputError> {
    let Some(name) = target.file_name() else {
        return Err(OutputError::Exists);
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.{what}", process::id()));
    Ok(target.with_file_name(hidden))
}

/// Returns an error if the folder contains an entry that is not named like an exported table. An export creates no
/// other entries, so such a folder must not be removed.
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
        if unnamed_beside(&target).is_some() {
            assert!(names(&scratch).is_empty(), "a signal leaves nothing");
        }
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
