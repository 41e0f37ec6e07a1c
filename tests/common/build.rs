//! Builds the tests' C programs against the stand-in for CUDA.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use super::{Scratch, compiler, repo, run, standin};

/// Builds a C source of `tests/`, which may include headers of the folders `standin` and `fixtures`. The options come
/// after the source on the command line, so they may name libraries to link with.
pub(crate) fn build<O: AsRef<OsStr>>(
    source: &str,
    output: &Path,
    options: impl IntoIterator<Item = O>,
) {
    let tests = repo().join("tests");
    let mut cc = compiler();
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-pthread", "-DSTANDIN"])
        .arg(format!("-I{}", tests.join("standin").display()))
        .arg(format!("-I{}", tests.join("fixtures").display()))
        .arg(format!("-L{}", standin().display()))
        .arg("-o")
        .arg(output)
        .arg(tests.join(source))
        .args(options);
    let built = run(&mut cc, Duration::from_secs(300));
    assert!(built.status.success(), "{cc:?}\n{}", built.err());
}

/// A program that all tests of one test binary share: its folder and its path. The value is a static, which is never
/// dropped, so the folder remains after the tests.
pub(crate) type Built = OnceLock<(Scratch, PathBuf)>;

/// Like [`build`], but at most once per test binary. Returns the program's path.
pub(crate) fn build_once(built: &'static Built, source: &str, options: &[&str]) -> &'static Path {
    let (_, path) = built.get_or_init(|| {
        let scratch = Scratch::new("built");
        let path = scratch.path("program");
        build(source, &path, options);
        (scratch, path)
    });
    path
}
