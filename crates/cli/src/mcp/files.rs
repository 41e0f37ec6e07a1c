//! The tool of `tllmprof mcp` that lists the runs below a folder.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::answer::{self, Page};
use super::shared::Shared;
use crate::{output, processes};

/// The maximum depth of subfolders in which records and traces are searched for.
const MAX_DEPTH: usize = 6;
/// The maximum number of files and folders that one search examines.
const MAX_ENTRIES: usize = 20_000;
/// The maximum number of file names that are listed for a folder.
const MAX_NAMES: usize = 4;

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
pub(crate) struct Runs {
    /// Folder to search for records and traces, with its subfolders (default: the folder of the server).
    #[schemars(with = "String")]
    folder: Option<PathBuf>,
    #[serde(flatten)]
    page: Page,
}

/// A row of the tool's answer: a folder that contains records or traces.
#[derive(Serialize, Default)]
struct RecordFolder {
    folder: PathBuf,
    /// The number of files of each type, such as "tllmprof record".
    holds: BTreeMap<&'static str, usize>,
    /// The names of the folder's first files, in alphabetical order; at most [`MAX_NAMES`].
    files: Vec<String>,
    bytes: u64,
    /// The time of the latest change of any record or trace in the folder, as text.
    modified: Option<String>,
    #[serde(skip)]
    time: Option<SystemTime>,
}

pub(crate) fn runs(asked: &Runs, _: &mut Shared) -> Result<String> {
    let folder = asked.folder.as_deref().unwrap_or(Path::new("."));
    let mut search = FolderSearch::default();
    // The folder that the user named must be readable. Unreadable folders below that folder are skipped.
    fs::read_dir(folder).with_context(|| format!("folder {}", folder.display()))?;
    search.look(folder, 0);
    if search.left == 0 {
        output::say(format_args!(
            "{}: only the first {MAX_ENTRIES} files and folders below it were looked at (wanted: a folder with fewer)",
            folder.display()
        ));
    }
    let mut found = search.found;
    found.sort_by_key(|found| Reverse(found.time));
    answer::list(Map::new(), asked.page, found.into_iter())
}

struct FolderSearch {
    found: Vec<RecordFolder>,
    /// The number of files and folders that this search may still examine.
    left: usize,
}

impl Default for FolderSearch {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            left: MAX_ENTRIES,
        }
    }
}

impl FolderSearch {
    fn look(&mut self, folder: &Path, depth: usize) {
        let Ok(entries) = fs::read_dir(folder) else {
            return;
        };
        let shown = folder.strip_prefix(".").unwrap_or(folder);
        let mut found = RecordFolder {
            folder: if shown == Path::new("") {
                folder
            } else {
                shown
            }
            .to_owned(),
            ..RecordFolder::default()
        };
        let mut inside = Vec::new();
        for entry in entries.flatten() {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            // Symbolic links are not followed, because they may form a loop.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => inside.push(entry.path()),
                Ok(kind) if kind.is_file() => found.add(&entry),
                _ => {}
            }
        }
        if !found.holds.is_empty() {
            found.files.sort();
            found.files.truncate(MAX_NAMES);
            self.found.push(found);
        }
        inside.sort();
        let is_hidden = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(b".")
        };
        for path in inside
            .iter()
            .filter(|path| depth < MAX_DEPTH && !is_hidden(path))
        {
            self.look(path, depth + 1);
        }
    }
}

impl RecordFolder {
    /// Adds a file to the folder's entry, if it is a record or a trace.
    fn add(&mut self, entry: &fs::DirEntry) {
        let Some(kind) = processes::kind(&entry.path()) else {
            return;
        };
        *self.holds.entry(kind).or_default() += 1;
        self.files
            .push(entry.file_name().to_string_lossy().into_owned());
        let Ok(status) = entry.metadata() else {
            return;
        };
        self.bytes += status.len();
        let time = status.modified().ok();
        if time > self.time {
            self.time = time;
            let time = time.and_then(|time| jiff::Timestamp::try_from(time).ok());
            self.modified = time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
    }
}
