//! The records of a run: the paths that its processes write them to, and the records that were written.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::iter;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use tllmprof_config::error::shown;
use tllmprof_config::{PathTemplate, Placeholders, RunId, Settings};
use tllmprof_record::Reader;

use crate::failure::{usage, worded};
use crate::{beyond, output, runs};

/// The default template for the file names of records in the run's folder.
pub(crate) const DEFAULT: &str = "tllmprof-%h-%r-%p.tllmprof";
/// The default template for the names of ring files, in the same folder as the records. A ring file holds a process's
/// latest steps and collectives.
const RING: &str = "tllmprof-%h-%p.ring";
/// Prefix of the names of marks. A mark is an empty file which shows that a task of a launcher's job, such as a Slurm
/// task, has already used the run's folder.
const MARK: &str = ".task-";
/// Largest difference between the time that a file system stores for a file and the real time. Some file systems round
/// the times of files.
const SLACK: Duration = Duration::from_secs(2);
/// The largest time by which another machine's clock may be late, compared with this machine's clock. A record still
/// belongs to the run if it seems to have begun before the run by at most this time.
const MAX_CLOCK_LAG: Duration = Duration::from_millis(100);

/// The records of one run, given by a path template for their files.
pub(crate) struct Records {
    template: PathTemplate,
    /// The value of the variable `TLLMPROF_TRACE` for the processes of the run.
    pub variable: OsString,
    since: SystemTime,
    /// The run's folder, if the records are in it. `None` if the user chose the path of the records.
    of_run: Option<PathBuf>,
    /// True if this process, or another task of the same job, created the run's folder. In that case, the folder is
    /// removed at the end of the run if no record was written to it.
    is_made: bool,
    /// The mark of this task, an empty file in the run's folder. `None` if this process is not a task of a launcher's
    /// job.
    mark: Option<PathBuf>,
    /// True if no records can be written. The reason was logged when this was found.
    is_unwritable: bool,
}

impl Records {
    /// Creates the folder of a run that begins now. Returns the run's records and its identifier. If the folder cannot
    /// be created, the error is logged and the program runs without a record.
    ///
    /// `task` is the name of this process's task, if a launcher started this process as part of a job and `run` is the
    /// job's identifier. All tasks of the job share one run and folder. If a task runs a second program, that program
    /// gets a run with another number.
    ///
    /// # Errors
    /// This process's working folder cannot be determined.
    pub(crate) fn begin_run(run: &RunId, task: Option<&str>) -> Result<(Self, RunId)> {
        let mut id = run.clone();
        let mut number = 1;
        loop {
            let folder = PathBuf::from(runs::folder(&id));
            let made = fs::create_dir(&folder);
            if let Err(error) = &made
                && !folder.is_dir()
            {
                output::say(format_args!(
                    "no record can be written: the folder {} cannot be created in {}: {}. The program runs without one \
                     (--trace PATH names another place, --no-trace writes none)",
                    folder.display(),
                    env::current_dir().unwrap_or_default().display(),
                    worded(&error.to_string())
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
                // Another task created the folder and has just removed it again, because that task had written nothing
                // to it. Try again.
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

    /// Returns true if the records are in the run's folder, and not at a path that the user chose.
    pub(crate) const fn are_of_run(&self) -> bool {
        self.of_run.is_some()
    }

    /// Returns the folder or path template of the records, to show in a suggested command line.
    pub(crate) fn place(&self) -> PathBuf {
        let folder = self.of_run.clone();
        folder.unwrap_or_else(|| PathBuf::from(&self.variable))
    }

    /// Returns the run's folder; `None` if the user chose the path of the records.
    pub(crate) fn of_run(&self) -> Option<&Path> {
        self.of_run.as_deref()
    }

    /// Returns the path template of the ring files, which hold the latest steps and collectives of each process.
    /// `None` unless the records are in the run's folder. The template is absolute, like that of the records.
    pub(crate) fn ring(&self) -> Option<OsString> {
        self.of_run.as_ref()?;
        let records = self.variable.as_bytes().strip_suffix(DEFAULT.as_bytes())?;
        Some(OsString::from_vec([records, RING.as_bytes()].concat()))
    }

    /// Removes the run's folder, if this run created it and nothing was written to it.
    pub(crate) fn finish(self) {
        let Some(made) = self.of_run.filter(|_| self.is_made) else {
            return;
        };
        let is_mark = |name: OsString| name.as_encoded_bytes().starts_with(MARK.as_bytes());
        let mut entries = fs::read_dir(&made).into_iter().flatten().flatten();
        if let Some(mark) = &self.mark
            && entries.all(|entry| is_mark(entry.file_name()))
        {
            // If the folder contains only marks of tasks, this task's mark is not needed, and would keep the folder
            // from being removed.
            let _ = fs::remove_file(mark);
        }
        // This call is meant to fail if the folder still contains files.
        let _ = fs::remove_dir(made);
    }

    /// Returns the records of a run that begins now, with a path template that the user chose. `given` is the template,
    /// and `by` is the option or variable that set it.
    ///
    /// # Errors
    /// The errors of [`Records::new`], or the folder of the records does not exist or is not writable.
    pub(crate) fn begin(by: &str, given: OsString) -> Result<Self> {
        let typed = PathBuf::from(&given);
        let records = Self::new(given)?;
        records.check((by, &typed), std::process::id(), Path::to_owned)?;
        Ok(records)
    }

    /// Checks that a running process can write its record to a path template that the user chose. `given` is the
    /// template, and `by` is the option that set it.
    ///
    /// # Errors
    /// The errors of [`Records::begin`].
    pub(crate) fn check_for_process(by: &str, given: OsString, pid: u32) -> Result<()> {
        let typed = PathBuf::from(&given);
        let reach = |path: &Path| beyond::path_of(pid.into(), path);
        Self::new(given)?.check((by, &typed), pid, reach)
    }

    /// Checks that process `pid` can create its record. `typed` is the option or variable that set the path, and its
    /// value. `reach` returns the path with which this process can open the file that process `pid` calls `path`.
    fn check(
        &self,
        (by, typed): (&str, &Path),
        pid: u32,
        reach: impl Fn(&Path) -> PathBuf,
    ) -> Result<()> {
        if reach(typed).is_dir() {
            return Err(usage(format_args!(
                "{by} {}: it is a folder (wanted: a file's name)",
                typed.display()
            )));
        }
        let name = self.path_of_process(pid, 0);
        let other = self.path_of_process(pid.wrapping_add(1), 1);
        let folder = name.parent().unwrap_or(Path::new("/"));
        let is_same = other.parent() == Some(folder);
        let folder = if is_same {
            folder.to_owned()
        } else {
            self.folder()
        };
        check_can_create((by, typed), &reach(&folder), is_same, &reach(&name))
    }

    /// Returns the path of the record of a process with this process id and rank, on this machine.
    fn path_of_process(&self, pid: u32, rank: u64) -> PathBuf {
        let system = rustix::system::uname();
        let place = Placeholders {
            pid,
            rank: Some(rank),
            host: OsStr::from_bytes(system.nodename().to_bytes()),
        };
        self.template.fill(&place, |name| env::var_os(name))
    }

    /// Returns the records for a path template. A relative template is made absolute, because a process that changes
    /// its working folder would write its record to another folder.
    ///
    /// # Errors
    /// The template is not valid, or this process's working folder cannot be determined.
    fn new(given: OsString) -> Result<Self> {
        let variable = make_absolute(given)?;
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

    /// Returns true if no records can be written. The reason was logged when this was found.
    pub(crate) const fn are_unwritable(&self) -> bool {
        self.is_unwritable
    }

    /// Returns the folder that contains the records of all processes, directly or in subfolders.
    pub(crate) fn folder(&self) -> PathBuf {
        self.template.folder()
    }

    /// Returns the names of the records for a suggested command line: the run's folder, otherwise the files in
    /// `written`.
    pub(crate) fn names(&self, written: Vec<PathBuf>) -> Vec<PathBuf> {
        self.of_run.clone().map_or(written, |folder| vec![folder])
    }

    /// Returns the paths of the records that began, and were last written to, after the run began. The paths are
    /// sorted. A name that no process of the run can have chosen is left out.
    pub(crate) fn written(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.search(&self.template.folder(), self.template.depth(), &mut found);
        found.sort();
        found
    }

    /// Returns the records of the run that were begun by the processes with these ids.
    pub(crate) fn written_by(&self, numbers: impl Iterator<Item = u64>) -> Vec<PathBuf> {
        let numbers: Vec<_> = numbers.collect();
        let is_of_them = |path: &PathBuf| {
            let reader = Reader::open(path);
            reader.is_ok_and(|reader| numbers.contains(&reader.header().pid.into()))
        };
        self.written().into_iter().filter(is_of_them).collect()
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

    /// Returns true if a record began after the run did. Also returns true for a file that is not a record, because the
    /// code that reads the records reports such a file.
    fn began_since(&self, path: &Path) -> bool {
        let since = self.since.checked_sub(MAX_CLOCK_LAG).unwrap_or(self.since);
        let since = since.duration_since(SystemTime::UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_nanos());
        let reader = Reader::open(path).ok();
        let begun = reader.and_then(|reader| Some(reader.header().anchors.first()?.unix_ns));
        begun.is_none_or(|begun| u128::from(begun) >= since)
    }

    /// Returns true if a process of the run may have chosen this name for its record. If the name from the template is
    /// already taken, the library appends the process id to the stem, and if that name is taken too, a counter. So up
    /// to two numbers are removed from the name before it is compared with the template.
    fn is_one(&self, path: &Path) -> bool {
        let is_ours = |path: &Path| self.template.is_of_some_process(path.as_os_str());
        let paths = iter::successors(Some(path.to_owned()), |path| without_number(path));
        paths.take(3).any(|path| is_ours(&path))
    }
}

/// Returns `given`, a path template, as an absolute path. A `%` in the working folder is doubled, so that it is not a
/// placeholder.
///
/// # Errors
/// This process's working folder cannot be determined.
pub(crate) fn make_absolute(given: OsString) -> io::Result<OsString> {
    if Path::new(&given).is_absolute() {
        return Ok(given);
    }
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
    Ok(OsString::from_vec(path))
}

/// Checks that this process can create the file `name`. `typed` is the option or variable that set the path, and its
/// value. The file goes into `folder` if `exact` is true, otherwise into a subfolder that may not exist yet.
///
/// # Errors
/// The folder does not exist or is not writable, or the name is too long.
pub(crate) fn check_can_create(
    typed: (&str, &Path),
    folder: &Path,
    exact: bool,
    name: &Path,
) -> Result<()> {
    let (by, typed) = (typed.0, shown(typed.1.as_os_str()));
    let shown_folder = folder.display();
    match fs::metadata(folder) {
        Ok(status) if status.is_dir() => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let why = worded(&error.to_string());
            return Err(usage(format_args!("{by} {typed}: {shown_folder}: {why}")));
        }
        _ => {
            return Err(usage(format_args!(
                "{by} {typed}: there is no folder {shown_folder}"
            )));
        }
    }
    if exact && let Err(error) = may_create_in(folder) {
        // Collecting the components removes a trailing slash from the folder's name.
        let folder: PathBuf = folder.components().collect();
        let folder = folder.display();
        return Err(usage(format_args!(
            "{by} {typed}: no file can be written to {folder}: {} (wanted: a folder that can be written to)",
            worded(&error.to_string())
        )));
    }
    match fs::symlink_metadata(name) {
        Err(error) if error.kind() == ErrorKind::InvalidFilename => {
            let why = worded(&error.to_string());
            Err(usage(format_args!(
                "{by} {typed}: {why} (wanted: a shorter name)"
            )))
        }
        _ => Ok(()),
    }
}

/// Checks that this process can create files in `folder`, by creating a file. A check of the access rights is not
/// enough: root has every right in `/proc`, but cannot create files there.
///
/// # Errors
/// No file can be created in the folder.
pub(crate) fn may_create_in(folder: &Path) -> io::Result<()> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, folder, wanted, AtFlags::EACCESS) {
        // Old kernels cannot check the rights of the effective user (`AT_EACCESS`). With such a kernel, only the
        // attempt to create a file decides.
        Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => try_in(folder),
        Err(error) => Err(error.into()),
    }
}

/// Creates a temporary file in `folder` and removes it, to check that files can be created there.
fn try_in(folder: &Path) -> io::Result<()> {
    match tempfile::tempfile_in(folder) {
        Ok(_) => Ok(()),
        // The folder exists, so this error means that its file system (such as `/proc`) does not accept new files.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(io::Error::other("its file system takes no new files"))
        }
        // The original error names the temporary file, which means nothing to the user. So only the kind of the error
        // is kept.
        Err(error) => Err(error.kind().into()),
    }
}

/// Returns the path without a number before its extension: `a-12.x` becomes `a.x`. `None` if there is no such number.
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

/// Returns true if the processes that `tllmprof run` starts are to write records. They write none if `is_off` is true
/// (`--no-trace`), or if the user has set `TLLMPROF_TRACE` to an empty value.
pub(crate) fn are_wanted(settings: &Settings, is_off: bool) -> bool {
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
            why.starts_with("--trace /") && why.ends_with("/no"),
            "{why}"
        );
    }
}
