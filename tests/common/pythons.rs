//! The CPythons of this machine, which the tests of what happens inside Python are run with.

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

    /// What `PYTHONHOME` is to be for a program that has its libpython in it.
    pub fn home(&self) -> PathBuf {
        Path::new(&self.says("sys.base_prefix")).to_owned()
    }
}
