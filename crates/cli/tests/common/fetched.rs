//! Tools of other projects that the tests run, such as DuckDB. Scripts of this repository download them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skipped::skipped;

/// Runs a script that fetches a tool and prints its path. If the tool is not available, logs the reason and returns
/// `None`.
pub(crate) fn fetched(script: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let got = Command::new(folder.join(script)).output().unwrap();
    if got.status.success() {
        let said = String::from_utf8(got.stdout).unwrap();
        return Some(said.trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    skipped(said.lines().last().unwrap_or_default());
    None
}
