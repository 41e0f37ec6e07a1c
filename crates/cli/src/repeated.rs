//! Runs of a comparison, and which of them are the same run. Each run counts once, even if the command line names it
//! several times, also through a link or as a copy.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::Result;
use tllmprof_report::Process;

use crate::runs::{self, ProcessKey};
use crate::{output, processes};

/// A run whose files have been found, but not read yet.
pub(crate) struct RunFiles {
    pub path: PathBuf,
    pub files: Vec<PathBuf>,
}

/// A run whose files have been read into processes.
pub(crate) struct ReadRun {
    pub path: PathBuf,
    pub processes: Vec<Process>,
}

/// The runs that the comparison uses so far. A further run is compared with them twice: its files before the run is
/// read, and its processes afterwards.
#[derive(Default)]
pub(crate) struct KnownRuns {
    files: Vec<KnownFile>,
    processes: HashMap<ProcessKey, PathBuf>,
    /// For each run that was left out so far because it repeats a known run, the path of that known run.
    pub repeated: Vec<PathBuf>,
}

/// A file of a run that the comparison uses, and the path of that run.
struct KnownFile {
    /// The path without symbolic links.
    real: PathBuf,
    bytes: u64,
    run: PathBuf,
}

impl KnownRuns {
    /// Finds the files of some runs. Leaves out a run if one of its files belongs to a known run, or has the same
    /// content as a file of a known run.
    ///
    /// # Errors
    /// A run is a folder that cannot be read or that contains no record.
    pub(crate) fn find_files(&mut self, runs: &[PathBuf]) -> Result<Vec<RunFiles>> {
        let mut found = Vec::new();
        for path in runs {
            let run = RunFiles {
                path: path.clone(),
                files: processes::find_files(path)?,
            };
            // A file that does not exist is reported later, when it is opened.
            let real = run.files.iter().filter_map(|file| file.canonicalize().ok());
            let real: Vec<_> = real.collect();
            match real.iter().find_map(|file| self.run_with(file)) {
                Some(counts) => self.leave_out(&run.path, counts),
                None => {
                    self.files.extend(real.into_iter().map(|real| KnownFile {
                        bytes: length(&real),
                        run: path.clone(),
                        real,
                    }));
                    found.push(run);
                }
            }
        }
        Ok(found)
    }

    /// Leaves out a run if one of its processes also belongs to a known run. Such a run is a copy whose files differ
    /// from the original, because the record was copied while it was written.
    pub(crate) fn leave_out_copies(&mut self, runs: Vec<ReadRun>) -> Vec<ReadRun> {
        let mut kept = Vec::new();
        for run in runs {
            let keys: Vec<_> = run.processes.iter().filter_map(runs::key).collect();
            match keys.iter().find_map(|key| self.processes.get(key)).cloned() {
                Some(counts) => self.leave_out(&run.path, counts),
                None => {
                    let of_run = keys.into_iter().map(|key| (key, run.path.clone()));
                    self.processes.extend(of_run);
                    kept.push(run);
                }
            }
        }
        kept
    }

    /// Returns the path of the known run that contains this file, or a file with the same content.
    fn run_with(&self, file: &Path) -> Option<PathBuf> {
        let bytes = length(file);
        let is_it = |known: &&KnownFile| {
            known.real == file
                || (bytes > 0
                    && known.bytes == bytes
                    && have_same_content(&known.real, file).unwrap_or(false))
        };
        let known = self.files.iter().find(is_it)?;
        Some(known.run.clone())
    }

    fn leave_out(&mut self, path: &Path, counts: PathBuf) {
        let shown = path.display();
        match *path == counts {
            true => output::say(format_args!("{shown}: it is given twice, and counts once")),
            false => output::say(format_args!(
                "{shown}: it is the same run as {}, and is left out",
                counts.display()
            )),
        }
        self.repeated.push(counts);
    }
}

/// Returns the length of a regular file, in bytes. The length of anything else is 0.
fn length(file: &Path) -> u64 {
    let status = fs::metadata(file);
    let status = status.ok().filter(fs::Metadata::is_file);
    status.map_or(0, |status| status.len())
}

/// Returns true if two files of the same length have the same content.
fn have_same_content(one: &Path, other: &Path) -> io::Result<bool> {
    let [mut one, mut other] = [
        BufReader::new(File::open(one)?),
        BufReader::new(File::open(other)?),
    ];
    let mut bytes = [[0; 8192]; 2];
    loop {
        let length = one.read(&mut bytes[0])?;
        if length == 0 {
            return Ok(true);
        }
        other.read_exact(&mut bytes[1][..length])?;
        if bytes[0][..length] != bytes[1][..length] {
            return Ok(false);
        }
    }
}
