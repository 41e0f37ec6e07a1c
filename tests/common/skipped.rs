//! Tests that cannot do their work on a machine: a missing tool, right or feature of the kernel.

use std::io::Write;

/// Reports that the running test skips its work, or a part of it, and why. `scripts/run-tests` collects these
/// lines, which bypass the test harness: it hides the output of tests that pass.
pub fn skipped(why: &str) {
    let test = std::thread::current();
    let why: Vec<_> = why.split_whitespace().collect();
    let line = format!(
        "skipped: {}: {}\n",
        test.name().unwrap_or("a test"),
        why.join(" ")
    );
    // With a closed standard error, the line is lost.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
