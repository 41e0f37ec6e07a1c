//! Builds the C programs of tests with the stand-in for CUDA.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use super::{Scratch, compiler, repo, run, standin};

/// Builds a source of `tests/`, which may include the files of `standin` and `fixtures`. Options follow it,
/// such as the libraries that it is linked with.
pub fn build<O: AsRef<OsStr>>(source: &str, output: &Path, options: impl IntoIterator<Item = O>) {
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
    let built = run(&mut cc, Duration::from_secs(120));
    assert!(built.status.success(), "{cc:?}\n{}", built.err());
}

/// A program that all tests of a binary use.
pub type Built = OnceLock<(Scratch, PathBuf)>;

/// As [`build`], once.
pub fn build_once(built: &'static Built, source: &str, options: &[&str]) -> &'static Path {
    let (_, path) = built.get_or_init(|| {
        let scratch = Scratch::new("built");
        let path = scratch.path("program");
        build(source, &path, options);
        (scratch, path)
    });
    path
}
