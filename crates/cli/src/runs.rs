//! Runs: their identifiers, their folders, and which records belong to which run.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tllmprof_config::RunId;
use tllmprof_report::Process;

use crate::failure::usage;
use crate::{output, processes};

/// Prefix of the name of a run's folder. The run's identifier follows.
const PREFIX: &str = "tllmprof-";

/// Returns a new identifier: the UTC time, the id of this process, and a random number. The random number makes the
/// identifier unique if several hosts begin a run at the same time.
///
/// # Errors
/// None in practice, because all characters of these parts are valid in an identifier.
pub(crate) fn new_id() -> Result<RunId> {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S");
    let chance = RandomState::new().hash_one(()) & 0xffff;
    let id = format!("{now}-{}-{chance:04x}", std::process::id());
    Ok(RunId::parse(&id)?)
}

/// Returns the name of the folder of a run. The folder is in the working directory.
pub(crate) fn folder(run: &RunId) -> OsString {
    format!("{PREFIX}{run}").into()
}

/// Returns the records that the user named: files, and all records in folders. Without names, returns the records of
/// the newest run in the working folder.
///
/// # Errors
/// A folder cannot be read or has no records, or the working folder contains no run.
pub(crate) fn named(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let newest = match paths {
        [] => Some(newest(Path::new("."))?),
        _ => None,
    };
    let mut files = Vec::new();
    for path in paths.iter().chain(&newest) {
        files.extend(processes::find_files(path)?);
    }
    Ok(files)
}

/// Returns the folder of the run in `here` whose records were modified last. Fails if there is no folder of a run with
/// records.
fn newest(here: &Path) -> Result<PathBuf> {
    let mut newest = None;
    for entry in fs::read_dir(here).with_context(|| here.display().to_string())? {
        let path = entry.with_context(|| here.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let written = processes::find_files(&path).ok().filter(|_| path.is_dir());
        let times = written.into_iter().flatten();
        let time = times
            .filter_map(|file| fs::metadata(file).ok()?.modified().ok())
            .max();
        if let Some(time) = time {
            newest = newest.max(Some((time, path)));
        }
    }
    let newest = newest.map(|(_, path)| path);
    let path = newest.ok_or_else(|| {
        usage("no FILE was given, and there is no folder tllmprof-RUN with records here (wanted: records, or their folder)")
    })?;
    Ok(path
        .strip_prefix(here)
        .map_or_else(|_| path.clone(), Path::to_owned))
}

/// Groups processes by run, in the order in which the runs appear. Processes without a run identifier form one group.
/// With `merge` all processes form one group, and a message is logged if the runs have different commands. Copies of a
/// record are left out.
pub(crate) fn apart(processes: Vec<Process>, merge: bool) -> Vec<Vec<Process>> {
    let processes = without_copies(processes, |process| process);
    let mut groups: Vec<Vec<Process>> = Vec::new();
    let mut measured = Vec::new();
    for process in processes {
        // A record that contains only GPU metrics joins the group of its run. If there is no such group, the record
        // joins the first group.
        if process.is_metrics_alone() {
            measured.push(process);
            continue;
        }
        let is_its = |group: &&mut Vec<Process>| {
            group
                .first()
                .is_some_and(|first| first.facts.run == process.facts.run)
        };
        match groups.iter_mut().find(is_its) {
            Some(group) => group.push(process),
            None => groups.push(vec![process]),
        }
    }
    for process in measured {
        let run = &process.facts.run;
        let is_its = |group: &Vec<Process>| group.iter().any(|first| first.facts.run == *run);
        let place = groups.iter().position(is_its).unwrap_or(0);
        match groups.get_mut(place) {
            Some(group) => group.push(process),
            None => groups.push(vec![process]),
        }
    }
    if !merge || groups.len() < 2 {
        return groups;
    }
    if let [first, others @ ..] = &groups[..]
        && let Some(other) = others.iter().find(|other| command(other) != command(first))
    {
        output::say(format_args!(
            "these runs have different commands: {} and {}",
            command(first),
            command(other)
        ));
    }
    vec![groups.into_iter().flatten().collect()]
}

/// Returns the command of the first process of a run; empty if the run has only GPU metrics.
fn command(run: &[Process]) -> &str {
    let mut programs = run.iter().filter(|process| !process.is_metrics_alone());
    programs.next().map_or("", |first| &first.facts.command)
}

/// The identity of a process: the boot id and the name of its host, its process id, and the number and the start time
/// of the first iteration in its first window.
pub(crate) type ProcessKey = (String, String, u32, u64, u64);

/// Returns the identity of a process, which all copies of its record share. `None` if the process recorded no
/// iteration, or if the boot id of its host is not known.
pub(crate) fn key(process: &Process) -> Option<ProcessKey> {
    let facts = &process.facts;
    let start = process.windows.first()?.iterations.first()?;
    let (boot, host) = (facts.boot.clone(), facts.host.clone());
    (!facts.boot.is_empty()).then_some((boot, host, process.pid, start.n, start.start))
}

/// Returns the records without copies. If several records have the same process identity, the first is the original and
/// the others are left out. For each original, one line that names its copies is logged.
pub(crate) fn without_copies<T>(records: Vec<T>, process: impl Fn(&T) -> &Process) -> Vec<T> {
    let mut known = HashMap::new();
    // The file of each record, and the files that are copies of that file.
    let mut files: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
    let mut kept = Vec::new();
    for record in records {
        let process = process(&record);
        if let Some(key) = key(process) {
            let file = process.file.clone();
            match known.get(&key) {
                Some(place) => {
                    let (_, copies): &mut (_, Vec<_>) = &mut files[*place];
                    copies.push(file);
                    continue;
                }
                None => {
                    known.insert(key, files.len());
                    files.push((file, Vec::new()));
                }
            }
        }
        kept.push(record);
    }
    for (file, copies) in &files {
        let file = file.display();
        match &copies[..] {
            [] => {}
            [copy] => output::say(format_args!(
                "{}: a copy of {file}; it is left out",
                copy.display()
            )),
            [copy, more @ ..] => output::say(format_args!(
                "{} and {} more: copies of {file}; they are left out",
                copy.display(),
                more.len()
            )),
        }
    }
    kept
}

/// Returns the processes of the only group. Returns no processes if there is no group.
///
/// # Errors
/// There are several groups, each of which is a run. `what` names the output that can show only one run, for the
/// message.
pub(crate) fn expect_one(mut groups: Vec<Vec<Process>>, what: &str) -> Result<Vec<Process>> {
    if groups.len() > 1 {
        let names: Vec<_> = groups.iter().map(|group| name(group)).collect();
        return Err(several(&names, what));
    }
    Ok(groups.pop().unwrap_or_default())
}

/// Checks that processes belong to one run.
///
/// # Errors
/// The processes belong to several runs. `what` names the output that can show only one run, for the message.
pub(crate) fn are_one<'a>(processes: impl Iterator<Item = &'a Process>, what: &str) -> Result<()> {
    let is_program = |process: &&Process| !process.is_metrics_alone();
    let mut runs: Vec<_> = processes
        .filter(is_program)
        .map(|process| &process.facts.run)
        .collect();
    runs.sort();
    runs.dedup();
    if runs.len() > 1 {
        let names: Vec<_> = runs.iter().map(|run| shown(run)).collect();
        return Err(several(&names, what));
    }
    Ok(())
}

fn several(names: &[String], what: &str) -> anyhow::Error {
    usage(format_args!(
        "{what}: the records belong to {} runs: {} (wanted: one run, or --merge)",
        names.len(),
        names.join(", ")
    ))
}

/// Returns the identifier of the run to which these processes belong, or a text for a run without an identifier. The
/// result is for messages.
pub(crate) fn name(run: &[Process]) -> String {
    shown(run.first().map_or("", |first| &first.facts.run))
}

fn shown(id: &str) -> String {
    match id {
        "" => "one without an identifier".to_owned(),
        id => id.chars().filter(|c| !c.is_control()).take(128).collect(),
    }
}

/// Returns only the processes of this run. Older libraries write no identifier into records. So if no program's record
/// has the identifier `run`, the records without an identifier are returned as well.
pub(crate) fn only(processes: Vec<Process>, run: &RunId) -> Vec<Process> {
    let is_named = processes
        .iter()
        .any(|process| process.facts.run == run.as_str() && !process.is_metrics_alone());
    let wanted = |process: &Process| match &*process.facts.run {
        "" => !is_named,
        id => id == run.as_str(),
    };
    processes.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_identifiers_differ() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert_ne!(one, other);
        let time = one.as_str().splitn(3, '-').take(2).collect::<String>();
        assert!(time.len() == 14 && time.starts_with("20"), "{one}");
    }

    #[test]
    fn the_newest_run_is_the_one_that_was_written_last() {
        let scratch = tempfile::tempdir().unwrap();
        let here = scratch.path();
        assert!(newest(here).is_err());
        for (name, age) in [("tllmprof-b", 20), ("tllmprof-a", 10), ("other", 1)] {
            fs::create_dir(here.join(name)).unwrap();
            let file = here.join(name).join("x");
            fs::write(&file, tllmprof_record::MAGIC).unwrap();
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options()
                .append(true)
                .open(file)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }
        fs::create_dir(here.join("tllmprof-empty")).unwrap();
        assert_eq!(newest(here).unwrap(), Path::new("tllmprof-a"));
    }
}
