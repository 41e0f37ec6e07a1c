//! Tests that cannot do their work on a machine: a missing tool, right or feature of the kernel.

use std::io::Write;

/// Reports that the running test leaves out its work, or a part of it, and why. `scripts/run-tests` collects these lines,
/// which go past the test harness: it keeps quiet about tests that pass.
pub fn skipped(why: &str) {
    let test = std::thread::current();
    let why: Vec<_> = why.split_whitespace().collect();
    let line = format!(
        "skipped: {}: {}\n",
        test.name().unwrap_or("a test"),
        why.join(" ")
    );
    // To a closed standard error there is nothing to say.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
