//! The CPythons of this machine, which the tests of what happens inside Python are run with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{command, repo, run};

const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
pub struct CPython {
    pub path: PathBuf,
    /// As in "3.12.1".
    pub version: String,
    pub minor: u32,
    pub is_shared: bool,
    pub has_gil: bool,
    /// It has the package `test`.
    pub has_tests: bool,
}

/// All of them, oldest first: those that `scripts/list-pythons` lists.
pub fn all() -> &'static [CPython] {
    static ALL: OnceLock<Vec<CPython>> = OnceLock::new();
    ALL.get_or_init(|| {
        let listed = run(
            &mut Command::new(repo().join("scripts/list-pythons")),
            TIMEOUT,
        );
        assert!(listed.status.success(), "{}", listed.err());
        let all: Vec<_> = listed.out().lines().map(CPython::parse).collect();
        assert!(!all.is_empty(), "no CPython from 3.8 on is here");
        all
    })
}

/// One of each kind: of every minor version, shared and static, with and without a GIL. With `TLLMPROF_TEST_ALL_PYTHONS`
/// set all there are, those that differ in the last number of their version alone among them.
pub fn kinds() -> Vec<&'static CPython> {
    if std::env::var_os("TLLMPROF_TEST_ALL_PYTHONS").is_some() {
        return all().iter().collect();
    }
    let mut kinds: Vec<&CPython> = Vec::new();
    for python in all() {
        let kind = |other: &CPython| (other.minor, other.is_shared, other.has_gil);
        match kinds.iter_mut().find(|known| kind(known) == kind(python)) {
            Some(known) if !known.has_tests && python.has_tests => *known = python,
            Some(_) => {}
            None => kinds.push(python),
        }
    }
    kinds
}

impl CPython {
    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let [path, version, kind, gil, tests] = words[..] else {
            panic!("scripts/list-pythons wrote {line:?}");
        };
        let minor = version.split('.').nth(1).and_then(|n| n.parse().ok());
        Self {
            path: path.into(),
            version: version.to_owned(),
            minor: minor.unwrap_or_else(|| panic!("a version such as 3.12.1, not {version}")),
            is_shared: kind == "shared",
            has_gil: gil == "gil",
            has_tests: tests == "test",
        }
    }

    /// The words that tell it from the others.
    pub fn name(&self) -> String {
        let kind = if self.is_shared { "shared" } else { "static" };
        let gil = if self.has_gil { "" } else { ", free-threaded" };
        format!("Python {} ({kind}{gil})", self.version)
    }

    /// What an expression with `sys` is in it.
    pub fn says(&self, expression: &str) -> String {
        let mut python = command(&self.path);
        python.args(["-c", &format!("import sys; print({expression})")]);
        let said = run(&mut python, TIMEOUT);
        assert!(said.status.success(), "{}: {}", self.name(), said.err());
        said.out().trim().to_owned()
    }

    /// Its libpython, if it has one, or one came with it.
    pub fn library(&self) -> Option<PathBuf> {
        let home = self.home();
        let suffix = if self.has_gil { "" } else { "t" };
        let name = format!("libpython3.{}{suffix}.so.1.0", self.minor);
        let folders = [
            "lib",
            "lib64",
            "lib/x86_64-linux-gnu",
            "lib/aarch64-linux-gnu",
        ];
        let mut paths = folders.iter().map(|folder| home.join(folder).join(&name));
        paths.find(|path| path.is_file())
    }

    /// What a C compiler is to be told to link to its libpython, or so that a program can open that.
    pub fn linker_options(library: &Path) -> Vec<String> {
        let folder = library.parent().expect("a library lies in a folder");
        let mut options = vec![
            format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display()),
            "-Wl,--allow-shlib-undefined".to_owned(),
        ];
        // One of a newer system has its C library beside it.
        let loader = fs::read_dir(folder).expect("list a library's folder");
        let mut loader = loader.filter_map(|entry| Some(entry.ok()?.path()));
        if let Some(loader) = loader.find(|path| path.to_string_lossy().contains("/ld-linux-")) {
            options.push(format!("-Wl,--dynamic-linker={}", loader.display()));
        }
        options
    }

    /// What `PYTHONHOME` is to be for a program that has its libpython in it.
    pub fn home(&self) -> PathBuf {
        Path::new(&self.says("sys.base_prefix")).to_owned()
    }
}
