//! Finds the ring files of running processes, and the ring files that ended processes left in folders. A ring file
//! holds the latest steps and collectives of a process.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use tllmprof_record::{RING_BYTES, RING_MAGIC, Ring};

use crate::beyond;
use crate::failure::{usage, worded};
use crate::output;

/// A ring (a file with the latest steps and collectives of a process), and the process that writes it.
pub(super) struct ProcessRing {
    /// The process id on this machine. `None` if the process does not run on this machine, or its id is not known.
    pub pid: Option<u64>,
    pub path: PathBuf,
    pub ring: Ring,
}

impl ProcessRing {
    /// Reads the ring file (the latest steps and collectives of the process) again. If it can no longer be read,
    /// returns the content that was read earlier.
    pub(crate) fn again(&self) -> Ring {
        read(&self.path).unwrap_or_else(|_| self.ring.clone())
    }
}

/// Returns the content of the file `path`, which may be a ring file (a file with the latest steps and collectives of a
/// process). At most the length of a ring file is read.
///
/// # Errors
/// The file does not exist, or is not a regular file.
fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = tllmprof_symbols::open(path)?;
    file.take(RING_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the ring file `path`, which holds the latest steps and collectives of a process.
///
/// # Errors
/// The file does not exist, or is not a ring file.
fn read(path: &Path) -> Result<Ring> {
    let file = path.display();
    match bytes_of(path) {
        Err(error) => bail!("{file}: {}", worded(&error.to_string())),
        Ok(bytes) => match Ring::read(&bytes) {
            Ok(ring) => Ok(ring),
            Err(why) => bail!("{file}: {why}"),
        },
    }
}

/// Returns the path of the ring file (the file with its latest steps and collectives) that a process has mapped. The
/// path is valid in this process, also if the other process runs in a container.
fn mapped(pid: u64) -> Option<PathBuf> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let paths = maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_ring = words.next()? == "rw-s" && number(end)? - number(start)? == RING_BYTES as u64;
        let path = words.nth(3)?.trim_start();
        (is_ring && path.starts_with('/')).then(|| beyond::path_of(pid, Path::new(path)))
    });
    let is_begun = |path: &PathBuf| {
        let bytes = bytes_of(path);
        bytes.is_ok_and(|bytes| bytes.starts_with(&RING_MAGIC))
    };
    let mut paths = paths.filter(is_begun);
    paths.next()
}

/// Returns the ring files (latest steps and collectives) that running processes on this machine have mapped. Files that
/// cannot be read are left out.
pub(super) fn running() -> Vec<ProcessRing> {
    let found = beyond::numbers().filter_map(|pid| {
        let path = mapped(pid)?;
        let ring = read(&path).ok()?;
        Some(ProcessRing {
            pid: Some(pid),
            path,
            ring,
        })
    });
    found.collect()
}

/// Returns the ring file of a process, which holds its latest steps and collectives.
///
/// # Errors
/// The process does not exist or has no ring file, or its mappings or its ring file cannot be read.
pub(super) fn of_process(pid: u64) -> Result<ProcessRing> {
    if let Err(error) = fs::metadata(format!("/proc/{pid}")) {
        match error.kind() {
            ErrorKind::NotFound => bail!("{pid}: there is no such process here"),
            _ => bail!("{pid}: {}", worded(&error.to_string())),
        }
    }
    if let Some(path) = mapped(pid) {
        return Ok(ProcessRing {
            pid: Some(pid),
            ring: read(&path)?,
            path,
        });
    }
    match fs::read(format!("/proc/{pid}/maps")) {
        Err(error) => bail!(
            "{pid}: what it has mapped cannot be read: {} (wanted: a process of this user, or the right CAP_SYS_PTRACE)",
            worded(&error.to_string())
        ),
        Ok(_) if beyond::has_library(pid) => bail!(
            "{pid}: it has the library and no ring: it was started without TLLMPROF_RING, which tllmprof run sets, or has \
             made no step and no communicator"
        ),
        Ok(_) => {
            bail!("{pid}: it runs without the library (tllmprof run starts a program with it)")
        }
    }
}

/// Adds ring files to `found`: the file `path`, or all ring files of the folder `path`. Files that are already in
/// `found` are not added again.
///
/// # Errors
/// The file does not exist or is not a ring file, or the folder contains none.
pub(super) fn add_files(path: &Path, found: &mut Vec<ProcessRing>) -> Result<()> {
    if !path.is_dir() {
        return add(path, found);
    }
    let files = rings_in(path);
    if files.is_empty() {
        return Err(usage(format_args!(
            "{}: the folder has no ring (wanted: a run's folder, with files NAME.ring)",
            path.display()
        )));
    }
    let mut are_all_bad = true;
    for file in files {
        match add(&file, found) {
            Err(error) => output::say(format_args!("{error:#}")),
            Ok(()) => are_all_bad = false,
        }
    }
    if are_all_bad {
        bail!("{}: none of its rings can be read", path.display());
    }
    Ok(())
}

fn add(path: &Path, found: &mut Vec<ProcessRing>) -> Result<()> {
    let ring = read(path)?;
    add_once(
        ProcessRing {
            pid: None,
            path: path.to_owned(),
            ring,
        },
        found,
    );
    Ok(())
}

/// Adds a ring file (the latest steps and collectives of a process) to `found`, unless the ring file of the same
/// process is there already. So each process gets one verdict, even if the user named it in several ways.
pub(super) fn add_once(new: ProcessRing, found: &mut Vec<ProcessRing>) {
    let writer = |one: &ProcessRing| {
        let ring = &one.ring;
        (ring.boot.clone(), ring.pid, ring.begin_ns)
    };
    let is_same = |other: &&mut ProcessRing| {
        let paths = [&other.path, &new.path].map(|path| path.canonicalize().ok());
        writer(other) == writer(&new) || (paths[0].is_some() && paths[0] == paths[1])
    };
    match found.iter_mut().find(is_same) {
        // If one of the two paths comes from the mappings of the running process, that path stays in `found`, because
        // the process writes this file. The other path may be that of a copy.
        Some(known) if known.pid.is_none() && new.pid.is_some() => *known = new,
        Some(_) => {}
        None => found.push(new),
    }
}

/// Returns the ring files in a folder, that is, the files whose names end in `.ring`. There are none if the folder
/// cannot be read.
fn rings_in(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "ring"))
        .collect()
}

/// Adds the ring files (latest steps and collectives) of other processes of the same runs. They are searched for in the
/// folders of the ring files in `found`.
pub(super) fn add_others(found: &mut Vec<ProcessRing>) {
    let folders: BTreeSet<_> = found
        .iter()
        .filter_map(|one| Some(one.path.parent()?.to_owned()))
        .collect();
    let runs: BTreeSet<_> = found.iter().map(|one| one.ring.run.clone()).collect();
    for path in folders.iter().flat_map(|folder| rings_in(folder)) {
        let is_of_run =
            read(&path).is_ok_and(|ring| !ring.run.is_empty() && runs.contains(&ring.run));
        if is_of_run {
            // An error is ignored. It is unlikely, because the same file has just been read.
            let _ = add(&path, found);
        }
    }
}
