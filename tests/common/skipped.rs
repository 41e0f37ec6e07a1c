//! Reports tests that cannot run on a machine because a tool, a permission or a kernel feature is missing.

use std::io::Write;

/// Reports that the running test skips some or all of its checks, and why. The line bypasses the test harness, which
/// hides the output of tests that pass. `scripts/run-tests` collects these lines.
pub(crate) fn skipped(why: &str) {
    let test = std::thread::current();
    let why: Vec<_> = why.split_whitespace().collect();
    let line = format!(
        "skipped: {}: {}\n",
        test.name().unwrap_or("a test"),
        why.join(" ")
    );
    // If standard error is closed, the line is lost.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
