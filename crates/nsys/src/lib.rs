//! Reads what nsys exports (`nsys export --type sqlite`) as tllmprof's own records are read.
//!
//! [`open`] gives the processes in which iterations of ours were, each a
//! [`Recording`](tllmprof_report::Recording): windows and iterations from the ranges of our NVTX domain,
//! calls, kernels and copies from what nsys traced of CUDA. Rows are streamed, so memory does not depend on
//! how many there are. Tables and columns that an export lacks are left out, and rows that make no sense
//! are counted. Known exports: nsys 2023.4 to 2025.3.
//!
//! Moments are nanoseconds since nsys began, and no `CLOCK_MONOTONIC`: they cannot be held against those
//! of other files.

#![forbid(unsafe_code)]

mod calls;
mod database;
mod error;
mod facts;
mod process;
mod ranges;
mod scopes;
mod strings;
mod windows;

use std::path::Path;
use std::rc::Rc;

use database::Database;
use facts::Facts;
use process::Shared;
use ranges::Domains;
use windows::Windows;

pub use error::Error;
pub use process::Process;
pub use scopes::Scopes;

/// How an SQLite database begins.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Extensions of nsys's own reports.
const REPORTS: [&str; 2] = ["nsys-rep", "qdrep"];

/// Whether a file that begins so, or is called so, is nsys's: an export, or a report that is none yet.
#[must_use]
pub fn is_of_nsys(path: &Path, beginning: &[u8]) -> bool {
    let is_called_so = path
        .extension()
        .is_some_and(|extension| extension == "sqlite");
    beginning.starts_with(MAGIC) || is_called_so || is_report(path)
}

fn is_report(path: &Path) -> bool {
    REPORTS.iter().any(|known| {
        path.extension()
            .is_some_and(|extension| extension == *known)
    })
}

/// The processes of an export in which iterations of ours were, in the order of their ids. Where the rank
/// is not in the environment that nsys saw, or there are several, they are numbered in that order.
///
/// # Errors
/// Where it cannot be read, or holds no iterations of ours.
pub fn open(path: &Path) -> Result<Vec<Process>, Error> {
    if is_report(path) {
        return Err(Error::NotExported);
    }
    let database = Database::open(path)?;
    let domains = Domains::read(&database)?;
    let windows = Windows::read(&database, &domains)?;
    if windows.is_empty() {
        return Err(Error::NoIterations);
    }
    let facts = Facts::read(&database)?;
    let is_one = windows.len() == 1;
    let rank = facts.rank().filter(|_| is_one);
    let shared = Rc::new(Shared {
        database,
        domains,
        facts,
        is_one,
    });
    let recorded = (0..).zip(windows).map(|(place, (process, windows))| {
        Process::new(Rc::clone(&shared), process, windows, rank.unwrap_or(place))
    });
    Ok(recorded.collect())
}
