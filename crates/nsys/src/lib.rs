//! Reads exports of Nsight Systems (`nsys export --type sqlite`) in the same form as tllmprof's own records.
//!
//! [`open`] returns processes of an export, each as a [`Recording`](tllmprof_report::Recording). If tllmprof ran in
//! the traced program, it opened NVTX ranges in a domain of its own, and windows and iterations come from these
//! ranges. Otherwise `tllmprof_foreign` finds the iterations. Calls, kernels and copies come from nsys's CUDA trace.
//! Calls and GPU work are kept in memory, about ten bytes each. Missing tables and columns are treated as empty. Rows
//! with invalid times are left out and counted. The reader was checked with exports of nsys 2023.4 to 2026.2.
//!
//! Times are nanoseconds since nsys started, not `CLOCK_MONOTONIC`. They cannot be compared with times in other files.

#![forbid(unsafe_code)]

mod database;
mod error;
mod export;
mod facts;
mod found;
mod loaded;
mod pieces;
mod process;
mod ranges;
mod rows;
mod scopes;
mod strings;
mod windows;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use tempfile::TempDir;
use tllmprof_config::Step;
use tllmprof_foreign::rank_of_file;
use tllmprof_report::Data;

use database::Database;
use facts::ExportFacts;
use loaded::{Events, Loaded, NOBODY};
use process::{Shared, Steps};
use ranges::Domains;
use windows::Windows;

pub use error::ExportError;
pub use process::ExportProcess;
pub use scopes::GraphScopes;

/// The first bytes of every SQLite database.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// File name extensions of reports in nsys's own format.
const REPORTS: [&str; 2] = ["nsys-rep", "qdrep"];

/// Names of tables. Every export of nsys has at least one of these tables.
const TABLES: [&str; 4] = [
    "META_DATA_EXPORT",
    "TARGET_INFO_SESSION_START_TIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "NVTX_EVENTS",
];

/// Returns true if the file may be an export of nsys, or a report of nsys that must be exported first. This is so if
/// its first bytes (`beginning`) are those of an SQLite database, or if its name ends in `.sqlite`, `.nsys-rep` or
/// `.qdrep`.
#[must_use]
pub fn is_of_nsys(path: &Path, beginning: &[u8]) -> bool {
    let is_called_so = path
        .extension()
        .is_some_and(|extension| extension == "sqlite");
    beginning.starts_with(MAGIC) || is_called_so || is_report(path)
}

/// Returns true if a file has the name of a report in nsys's own format.
#[must_use]
pub fn is_report(path: &Path) -> bool {
    REPORTS.iter().any(|known| {
        path.extension()
            .is_some_and(|extension| extension == *known)
    })
}

/// Returns the processes in which tllmprof counted iterations. If there are none, returns the processes that used
/// CUDA (or, if none did, those with NVTX ranges), sorted by the GPUs that they used. A report in nsys's own format
/// is first exported by `nsys`. `step` is the rule for iterations that the user typed.
///
/// A process's rank comes from environment variables in the trace or from the file's name. If neither contains a
/// rank, or if there are several processes, ranks are numbered in the order of the processes.
///
/// # Errors
/// Returns an error if nsys cannot export its report, if the file is not an export or cannot be read, or if
/// iterations are searched for and `step` matches nothing in any process.
pub fn open(
    path: &Path,
    nsys: &Path,
    step: Option<&Step>,
) -> Result<Vec<ExportProcess>, ExportError> {
    let (folder, export) = match is_report(path) {
        true => {
            let (folder, export) = export::export(nsys, path)?;
            (Some(folder), Some(export))
        }
        false => (None, None),
    };
    let file = export.as_deref().unwrap_or(path);
    let database = Database::open(file)?;
    if !TABLES.iter().any(|table| database.columns(table).is_some()) {
        return Err(ExportError::NotAnExport);
    }
    let domains = Domains::read(&database)?;
    let windows = Windows::read(&database, &domains)?;
    let only = windows
        .keys()
        .next()
        .copied()
        .filter(|_| windows.len() == 1);
    let is_wanted = |process: i64, start: i64| {
        let is_in = |windows: &Windows| windows.at(start).is_some();
        match process {
            _ if windows.is_empty() => true,
            NOBODY => windows.values().any(is_in),
            process => windows.get(&process).is_some_and(is_in),
        }
    };
    let loaded = Loaded::read(file, &database, only, &is_wanted)?;
    let opening = Opening {
        facts: ExportFacts::read(&database)?,
        database,
        domains,
        loaded,
        step,
    };
    let rank = opening.facts.rank().or_else(|| rank_of_file(path));
    match windows.is_empty() {
        false => Ok(opening.own(windows, folder, rank)),
        true => opening.found(folder, rank),
    }
}

/// An export while it is being opened, with the data that later become part of its processes.
struct Opening<'a> {
    database: Database,
    domains: Domains,
    facts: ExportFacts,
    loaded: Loaded,
    step: Option<&'a Step>,
}

impl Opening<'_> {
    /// Returns the processes in which tllmprof counted iterations while nsys recorded them.
    fn own(
        mut self,
        windows: BTreeMap<i64, Windows>,
        folder: Option<TempDir>,
        rank: Option<u64>,
    ) -> Vec<ExportProcess> {
        let asked = self.step.map(ToString::to_string);
        let mut events = std::mem::take(&mut self.loaded.processes);
        let steps = windows.into_iter().map(|(process, windows)| {
            let events = events.remove(&process).unwrap_or_default();
            (process, Steps::Own(windows, asked.clone()), events)
        });
        let steps = steps.collect();
        self.processes(steps, folder, rank)
    }

    /// Returns the processes of an export without iterations counted by tllmprof: those with GPU work; if there are
    /// none, those with CUDA calls; if there are none, those with NVTX ranges. If there are none either, returns one
    /// empty process. Iterations are found by the user's rule, by known names of ranges, or by repeating calls. If
    /// none are found, the whole trace counts as one iteration.
    fn found(
        mut self,
        folder: Option<TempDir>,
        rank: Option<u64>,
    ) -> Result<Vec<ExportProcess>, ExportError> {
        let mut events = std::mem::take(&mut self.loaded.processes);
        let has_work = |events: &Events| !events.work.is_empty();
        if events.values().any(has_work) {
            events.retain(|_, events| has_work(events));
        }
        if events.is_empty() {
            let with_ranges = found::with_ranges(&self.database).into_iter();
            events.extend(with_ranges.map(|process| (process, Events::default())));
        }
        if events.is_empty() {
            // Add a process without events, so that a report is written and states that nothing was
            // recorded.
            events.insert(0, Events::default());
        }
        let mut all: Vec<_> = events.into_iter().collect();
        // Sort by the first GPU that a process used: usually each rank uses one GPU, and ranks are in the order of
        // the GPUs.
        all.sort_by_key(|(process, events)| (events.devices.map(|(first, _)| first), *process));
        let mut steps = Vec::new();
        let mut not_found = None;
        for (process, events) in all {
            let found = found::find(
                &self.database,
                &self.domains,
                self.step,
                process,
                &events,
                &self.loaded,
            )?;
            match found {
                Ok(found) => steps.push((process, Steps::Found(found), events)),
                Err(error) => not_found = not_found.or(Some(error)),
            }
        }
        match not_found {
            Some(error) if steps.is_empty() => Err(ExportError::NotFound(error)),
            _ => Ok(self.processes(steps, folder, rank)),
        }
    }

    fn processes(
        self,
        steps: Vec<(i64, Steps, Events)>,
        folder: Option<TempDir>,
        rank: Option<u64>,
    ) -> Vec<ExportProcess> {
        let is_one = steps.len() == 1;
        let rank = rank.filter(|_| is_one);
        let Loaded {
            has_calls, has_gpu, ..
        } = self.loaded;
        let lacks = [(Data::Calls, has_calls), (Data::Gpu, has_gpu)].into_iter();
        let shared = Rc::new(Shared {
            database: self.database,
            domains: self.domains,
            facts: self.facts,
            calls: self.loaded.calls,
            kernels: self.loaded.kernels,
            is_one,
            lacks: lacks
                .filter(|(_, has)| !has)
                .map(|(data, _)| data)
                .collect(),
            is_damaged: self.loaded.is_damaged,
            folder,
        });
        let processes = (0..).zip(steps).map(|(place, (process, steps, events))| {
            let rank = rank.unwrap_or(place);
            ExportProcess::new(Rc::clone(&shared), process, steps, events, rank)
        });
        processes.collect()
    }
}
