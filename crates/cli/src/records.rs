//! Where the processes of a run write their records, and which they have written.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use tllmprof_config::{PathTemplate, RunId, Settings};
use tllmprof_record::Reader;

use crate::failure::usage;
use crate::{output, runs};

/// What `run` records to, in the run's folder, unless an option names another file.
const DEFAULT: &str = "tllmprof-%h-%r-%p.tllmprof";
/// What the names of the files begin with that show which tasks of a job have run.
const MARK: &str = ".task-";
/// How exact the times of files are on a file system that rounds them.
const SLACK: Duration = Duration::from_secs(2);
/// How far another machine's clock may be behind.
const BEHIND: Duration = Duration::from_millis(100);

/// The records of one run.
pub struct Records {
    template: PathTemplate,
    /// What the processes are to have in `TLLMPROF_TRACE`.
    pub variable: OsString,
    since: SystemTime,
    /// The run's folder, where they are in it.
    of_run: Option<PathBuf>,
    /// It was made for this run.
    is_made: bool,
    /// The file in it that shows that this task has run.
    mark: Option<PathBuf>,
    /// None can be written, which has been said.
    is_unwritable: bool,
}

impl Records {
    /// Those of a run that begins now, in a folder of its own, and its identifier. Where the folder cannot be made the
    /// program runs all the same, and the library says that it cannot record.
    ///
    /// `task`: the identifier is that of a launcher's job, and this is one of its tasks. All tasks are of one run; what a
    /// task runs after that is of another.
    ///
    /// # Errors
    /// As [`Records::begin`].
    pub fn of_run(run: &RunId, task: Option<&str>) -> Result<(Self, RunId)> {
        let mut id = run.clone();
        let mut number = 1;
        loop {
            let folder = PathBuf::from(runs::folder(&id));
            let made = fs::create_dir(&folder);
            if let Err(error) = &made
                && !folder.is_dir()
            {
                output::say(format_args!(
                    "no record can be written: the folder {} cannot be created in {}: {error}. The program runs without one \
                     (--trace PATH names another place, --no-trace writes none)",
                    folder.display(),
                    env::current_dir().unwrap_or_default().display()
                ));
                let records = Self {
                    is_unwritable: true,
                    ..Self::new(DEFAULT.into())?
                };
                return Ok((records, id));
            }
            let mark = task.map(|task| folder.join(format!("{MARK}{task}")));
            match mark.as_ref().map(File::create_new) {
                Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => {
                    number += 1;
                    id = run.again(number);
                    continue;
                }
                // Another task may have removed a folder in which it left nothing.
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => continue,
                _ => {}
            }
            let records = Self::new(folder.join(DEFAULT).into())?;
            let records = Self {
                of_run: Some(folder),
                is_made: made.is_ok() || mark.is_some(),
                mark,
                ..records
            };
            return Ok((records, id));
        }
    }

    /// The place of the records, in words of a command line.
    pub fn place(&self) -> PathBuf {
        let folder = self.of_run.clone();
        folder.unwrap_or_else(|| PathBuf::from(&self.variable))
    }

    /// Removes the folder that was made if nothing was written to it.
    pub fn finish(self) {
        let Some(made) = self.of_run.filter(|_| self.is_made) else {
            return;
        };
        let is_mark = |name: OsString| name.as_encoded_bytes().starts_with(MARK.as_bytes());
        let mut entries = fs::read_dir(&made).into_iter().flatten().flatten();
        if let Some(mark) = &self.mark
            && entries.all(|entry| is_mark(entry.file_name()))
        {
            // It is of no use where there is nothing to distinguish it from.
            let _ = fs::remove_file(mark);
        }
        // One that holds something stays.
        let _ = fs::remove_dir(made);
    }

    /// Those of a run that begins now. `given` is what was asked for, and by which option or variable.
    ///
    /// # Errors
    /// As [`Records::new`], or where the folder of the records is not there or cannot be written to.
    pub fn begin(by: &str, given: OsString) -> Result<Self> {
        let typed = PathBuf::from(&given);
        let records = Self::new(given)?;
        if typed.is_dir() {
            return Err(usage(format_args!(
                "{by} {}: it is a folder (wanted: a file's name)",
                typed.display()
            )));
        }
        let folder = records.folder();
        if !folder.is_dir() {
            let (typed, folder) = (typed.display(), folder.display());
            return Err(usage(format_args!(
                "{by} {typed}: there is no folder {folder}"
            )));
        }
        // Deeper ones depend on the process.
        if records.template.depth() == 0
            && let Err(error) = may_create_in(&folder)
        {
            // Without the slash at its end.
            let folder: PathBuf = folder.components().collect();
            let (typed, folder) = (typed.display(), folder.display());
            return Err(usage(format_args!(
                "{by} {typed}: no record can be written to {folder}: {error} (wanted: a folder that can be written to)"
            )));
        }
        Ok(records)
    }

    /// Wherever the processes go, the records of all are to be in one place: the path is made
    /// absolute.
    ///
    /// # Errors
    /// Where this process's folder cannot be determined.
    fn new(given: OsString) -> Result<Self> {
        let variable = if Path::new(&given).is_absolute() {
            given
        } else {
            let mut path = Vec::new();
            for byte in env::current_dir()?.as_os_str().as_bytes() {
                path.push(*byte);
                if *byte == b'%' {
                    path.push(b'%');
                }
            }
            path.push(b'/');
            let given = given.as_bytes();
            path.extend_from_slice(given.strip_prefix(b"./").unwrap_or(given));
            OsString::from_vec(path)
        };
        let template = PathTemplate::parse(&variable)
            .map_err(|problem| usage(problem.in_variable("TLLMPROF_TRACE", &variable)))?;
        Ok(Self {
            template,
            variable,
            since: SystemTime::now(),
            of_run: None,
            is_made: false,
            mark: None,
            is_unwritable: false,
        })
    }

    /// Whether it is known that none can be written, and has been said.
    pub const fn are_unwritable(&self) -> bool {
        self.is_unwritable
    }

    /// The folder that all of them are in, at some depth.
    pub fn folder(&self) -> PathBuf {
        self.template.folder()
    }

    /// What a command line names them by: the run's folder, or the files that were written.
    pub fn names(&self, written: Vec<PathBuf>) -> Vec<PathBuf> {
        self.of_run.clone().map_or(written, |folder| vec![folder])
    }

    /// The records that have been written to since the run began, by their names.
    pub fn written(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.search(&self.template.folder(), self.template.depth(), &mut found);
        found.sort();
        found
    }

    fn search(&self, folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        let since = self.since.checked_sub(SLACK).unwrap_or(self.since);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(status) = entry.metadata() else {
                continue;
            };
            if depth > 0 && status.is_dir() {
                self.search(&path, depth - 1, found);
            }
            let is_new = || status.modified().is_ok_and(|time| time >= since);
            if status.is_file() && self.is_one(&path) && is_new() && self.began_since(&path) {
                found.push(path);
            }
        }
    }

    /// Whether a record began after the run did; a file that is none is for others to judge.
    fn began_since(&self, path: &Path) -> bool {
        let since = self.since.checked_sub(BEHIND).unwrap_or(self.since);
        let since = since.duration_since(SystemTime::UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_nanos());
        let reader = Reader::open(path).ok();
        let begun = reader.and_then(|reader| Some(reader.header().anchors.first()?.unix_ns));
        begun.is_none_or(|begun| u128::from(begun) >= since)
    }

    /// Whether a process of the run may have called its record so: where the name was in use, the
    /// process's number was put before its extension, and maybe how often it was in use.
    fn is_one(&self, path: &Path) -> bool {
        let is_ours = |path: &Path| self.template.is_of_some_process(path.as_os_str());
        let paths = iter::successors(Some(path.to_owned()), |path| without_number(path));
        paths.take(3).any(|path| is_ours(&path))
    }
}

/// Whether this process may create files in `folder`, as far as can be known.
fn may_create_in(folder: &Path) -> Result<(), Errno> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, folder, wanted, AtFlags::EACCESS) {
        // An old kernel does not answer for the effective user.
        Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        result => result,
    }
}

/// The path without a number before its extension.
fn without_number(path: &Path) -> Option<PathBuf> {
    let stem = path.file_stem()?.to_str()?;
    let (stem, number) = stem.rsplit_once('-')?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let mut name = OsString::from(stem);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    is_number.then(|| path.with_file_name(name))
}

/// Whether the program is to record by itself.
pub fn are_wanted(settings: &Settings, is_off: bool) -> bool {
    !is_off && (settings.trace.is_some() || env::var_os("TLLMPROF_TRACE").is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_of_the_run_by_their_names() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        fs::create_dir_all(folder.join("deep/3")).unwrap();
        let written = |template: &str, files: &[&str]| {
            let records = Records::begin("--trace", folder.join(template).into()).unwrap();
            for file in files {
                fs::write(folder.join(file), "").unwrap();
            }
            let found = records.written();
            for file in files {
                fs::remove_file(folder.join(file)).unwrap();
            }
            let names = found.iter().map(|path| path.strip_prefix(folder).unwrap());
            names
                .map(|name| name.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            written(
                DEFAULT,
                &[
                    "tllmprof-h-0-12.tllmprof",
                    "tllmprof-h-0-x.tllmprof",
                    "other"
                ]
            ),
            ["tllmprof-h-0-12.tllmprof"]
        );
        assert_eq!(
            written("x.t", &["x.t", "x-77.t", "x-77-2.t", "x-7x.t"]),
            ["x-77-2.t", "x-77.t", "x.t"]
        );
        assert_eq!(written("deep/%r/%p", &["deep/3/5", "deep/6"]), ["deep/3/5"]);
        let nowhere = Records::begin("--trace", folder.join("no/x").into());
        let why = nowhere.err().unwrap().to_string();
        assert!(
            why.starts_with("--trace /") && why.ends_with("/no/"),
            "{why}"
        );
    }
}
