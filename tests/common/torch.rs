//! Finds a Python with the real PyTorch to test with.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{repo, run, skipped};

/// Returns a Python that has PyTorch. Logs the reason and returns `None` if it is not available.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    fetched("scripts/get-torch", &FOUND)
}

/// Returns a Python that has PyTorch and transformers. Logs the reason and returns `None` if it is not
/// available.
#[allow(dead_code, reason = "not every test file needs it")]
pub(crate) fn python_with_transformers() -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    fetched("scripts/get-transformers", &FOUND)
}

fn fetched(script: &str, found: &OnceLock<Result<PathBuf, String>>) -> Option<PathBuf> {
    let found = found.get_or_init(|| {
        let mut get = Command::new(repo().join(script));
        let got = run(&mut get, Duration::from_secs(1800));
        if got.status.success() {
            Ok(PathBuf::from(got.out().trim()))
        } else {
            Err(got.err().lines().last().unwrap_or_default().to_owned())
        }
    });
    found.as_ref().map_err(|why| skipped(why)).ok().cloned()
}
