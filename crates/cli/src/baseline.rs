//! The folder of `compare --baseline`, which keeps the latest runs, each in a subfolder `NUMBER-NAME`. New runs are
//! compared with these runs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tllmprof_report::{Data, State};

use crate::failure::usage;
use crate::repeated::ReadRun;
use crate::{output, processes};

/// Minimum number of digits of `NUMBER` in the name `NUMBER-NAME` of a run's folder. Shorter numbers are padded with
/// zeros.
const DIGITS: usize = 4;
/// Maximum number of further numbers that are tried for the folder of a run. The next higher number is tried if another
/// process has meanwhile created a folder with the same number and name.
const TRIES: u64 = 100;

/// Returns the runs in a folder: subfolders that hold records or traces, and single record or trace files. The list is
/// empty if the folder does not exist.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn runs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        let is_run = match path.is_dir() {
            true => processes::find_files(&path).is_ok(),
            false => processes::kind(&path).is_some(),
        };
        if is_run && !is_hidden {
            runs.push(path);
        }
    }
    runs.sort();
    Ok(runs)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| option(folder))?,
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths
        .collect::<io::Result<_>>()
        .with_context(|| option(folder))
}

fn option(folder: &Path) -> String {
    format!("--baseline {}", folder.display())
}

/// Checks that none of the new runs lies in the baseline folder.
///
/// # Errors
/// A run lies in the folder, so it would be compared with itself.
pub(crate) fn check_apart(folder: &Path, runs: &[PathBuf]) -> Result<()> {
    let Ok(folder) = folder.canonicalize() else {
        return Ok(());
    };
    let is_inside = |run: &&PathBuf| run.canonicalize().is_ok_and(|run| run.starts_with(&folder));
    match runs.iter().find(is_inside) {
        Some(run) => Err(usage(format_args!(
            "{}: it lies in the folder of --baseline (wanted: a new run)",
            run.display()
        ))),
        None => Ok(()),
    }
}

/// Checks that the new runs can become the baseline: their records are not damaged and have iterations.
///
/// # Errors
/// A run is not fit, so later runs could not be compared with it.
pub(crate) fn check_fit(folder: &Path, runs: &[ReadRun]) -> Result<()> {
    for run in runs {
        if let Some(why) = find_fault(run) {
            bail!(
                "{}: {}: {why} (wanted: a whole run with iterations; --keep 0 only compares)",
                option(folder),
                run.path.display()
            );
        }
    }
    Ok(())
}

/// Returns the reason why a run cannot become the baseline; `None` if it can.
fn find_fault(run: &ReadRun) -> Option<String> {
    let mut processes = run.processes.iter();
    let damaged = processes.find(|process| process.state() == State::Damaged);
    if let Some(process) = damaged {
        return process.condition();
    }
    let mut processes = run.processes.iter();
    let has_iterations = processes
        .any(|process| process.sum.is_some() && !process.facts.origin.lacks(Data::Iterations));
    (!has_iterations).then(|| "it has no iterations".to_owned())
}

/// Copies the runs `new` into the folder. Then removes the oldest of the runs that were copied there, now or earlier,
/// until at most `most` are left.
///
/// # Errors
/// A run cannot be copied or removed.
pub(crate) fn keep(folder: &Path, new: &[PathBuf], most: usize) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| option(folder))?;
    for run in new {
        let to =
            add(folder, run).with_context(|| format!("{}: {}", option(folder), run.display()))?;
        output::note(format_args!("kept {} as {}", run.display(), to.display()));
    }
    let mut kept = numbered(folder)?;
    kept.sort();
    let left = kept.len().saturating_sub(most);
    for (_, path) in &kept[..left] {
        fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
        output::note(format_args!("removed {}", path.display()));
    }
    Ok(())
}

/// Returns the runs that [`add`] copied into the folder, each with the number at the beginning of its name.
fn numbered(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let number = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let (digits, _) = name.split_once('-')?;
        let is_ours = digits.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_ours && path.is_dir())?;
        Some((number, path))
    };
    Ok(entries(folder)?.into_iter().filter_map(number).collect())
}

/// Copies a run into the folder under the next free number. The copy is made in a hidden folder, which is renamed when
/// it is complete, so that no incomplete run is found under the final name.
fn add(folder: &Path, run: &Path) -> Result<PathBuf> {
    let files = processes::find_files(run)?;
    // Temporary folders are private by default. But this folder becomes part of the baseline, which other members of a
    // team also read.
    let work = tempfile::Builder::new()
        .prefix(".")
        .permissions(fs::Permissions::from_mode(0o777))
        .tempdir_in(folder)?;
    for file in &files {
        let name = file.file_name().unwrap_or_default();
        copy(file, &work.path().join(name)).with_context(|| file.display().to_string())?;
    }
    let name = run
        .file_stem()
        .filter(|_| run.is_file())
        .or(run.file_name());
    let name = name.map_or_else(|| OsString::from("run"), OsString::from);
    let last = numbered(folder)?
        .into_iter()
        .map(|(number, _)| number)
        .max();
    let first = last.unwrap_or(0) + 1;
    let mut number = first;
    loop {
        let mut to = OsString::from(format!("{number:0DIGITS$}-"));
        to.push(&name);
        let to = folder.join(to);
        // A rename fails if the target is a folder that contains files, so another process's run is never replaced.
        match fs::rename(work.path(), &to) {
            Ok(()) => {
                // The rename moved the temporary folder to its final path, so nothing is left to remove when `work` is
                // dropped.
                let _ = work.keep();
                return Ok(to);
            }
            Err(error) if number >= first + TRIES => return Err(error.into()),
            Err(error) if to.exists() => {
                drop(error);
                number += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Copies a file. The copy is on the disk when this function returns. So an old run is removed only when the run that
/// replaces it is on the disk.
fn copy(file: &Path, to: &Path) -> Result<()> {
    match processes::is_foreign(file)? {
        true => fs::copy(file, to).map(drop)?,
        false => tllmprof_record::copy(file, to)?,
    }
    Ok(fs::File::open(to)?.sync_all()?)
}
