//! Selects CPythons to test with, and finds the paths and compiler options for a program that embeds a CPython.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::python::{Python, pythons};
use super::{command, run};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns at most four CPythons for tests that depend little on the version: of those with a GIL, the oldest, one in
/// between and the newest; and the newest without a GIL. With `TLLMPROF_TEST_PYTHONS=all`, returns all.
pub(crate) fn few() -> Vec<&'static Python> {
    let (with_gil, without): (Vec<_>, Vec<_>) = pythons().iter().partition(|one| one.has_gil);
    if std::env::var("TLLMPROF_TEST_PYTHONS").is_ok_and(|which| which == "all") {
        return pythons().iter().collect();
    }
    let between = with_gil.get(with_gil.len() / 2);
    let mut few: Vec<_> = [with_gil.first(), between, with_gil.last(), without.last()]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    few.dedup_by_key(|python| &python.path);
    few
}

/// Returns a short name that distinguishes this CPython from the others.
pub(crate) fn name(python: &Python) -> String {
    let kind = if python.is_shared { "shared" } else { "static" };
    let gil = if python.has_gil {
        ""
    } else {
        ", free-threaded"
    };
    format!("{python} ({kind}{gil})")
}

/// Returns the path of this CPython's libpython, if it has one. Even a CPython whose executable contains the
/// interpreter may have a libpython.
pub(crate) fn library(python: &Python) -> Option<PathBuf> {
    let home = home(python);
    let suffix = if python.has_gil { "" } else { "t" };
    let name = format!("libpython3.{}{suffix}.so.1.0", python.version.1);
    let folders = [
        "lib",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
    ];
    let mut paths = folders.iter().map(|folder| home.join(folder).join(&name));
    paths.find(|path| path.is_file())
}

/// Returns the `PYTHONHOME` for a program that is linked to this CPython's libpython.
pub(crate) fn home(python: &Python) -> PathBuf {
    let mut asked = command(&python.path);
    asked.args(["-c", "import sys; print(sys.base_prefix)"]);
    let said = run(&mut asked, TIMEOUT);
    assert!(said.status.success(), "{}: {}", name(python), said.err());
    said.out().trim().into()
}

/// Returns the C compiler's options that let a program find this libpython and the libraries next to it.
pub(crate) fn linker_options(library: &Path) -> Vec<String> {
    let folder = library.parent().expect("a library lies in a folder");
    let mut options = vec![
        format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display()),
        "-Wl,--allow-shlib-undefined".to_owned(),
    ];
    // A libpython that was built on a newer system may have that system's C library in the same folder. Then the
    // program must use the loader in that folder, too.
    let files = fs::read_dir(folder).expect("list a library's folder");
    let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
    if let Some(loader) = files.find(|path| path.to_string_lossy().contains("/ld-linux-")) {
        options.push(format!("-Wl,--dynamic-linker={}", loader.display()));
    }
    options
}
