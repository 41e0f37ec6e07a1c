//! Checks programs that embed Python: linked to libpython, loading it when they need it, or through a plugin.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::host::{Both, sources, with_each};
use crate::common::python::{Python, pythons};
use crate::common::pythons::{home, library as library_of, linker_options, name};
use crate::common::{Scratch, command, compiler, run, skipped};

/// The paths of the programs that embed Python, built for one libpython.
struct Hosts {
    _scratch: Scratch,
    /// A program that is linked to libpython.
    linked: PathBuf,
    /// A program that loads libpython when it needs it.
    late: PathBuf,
    plugin: PathBuf,
    plugin_host: PathBuf,
    library: PathBuf,
    home: PathBuf,
}

/// Builds a program or a plugin that finds `library` and its dependencies at run time. It is linked to `library` only
/// if `options` contains `-DLINKED`.
fn build(source: &str, built: &Path, options: &[&str], library: &Path) {
    let mut cc = compiler();
    cc.args([
        "-std=gnu11",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ])
    .args(options)
    .arg(sources().join(source))
    .arg("-o")
    .arg(built)
    .args(linker_options(library))
    .arg("-ldl");
    if options.contains(&"-DLINKED") {
        cc.arg(library);
    }
    let output = run(&mut cc, Duration::from_secs(300));
    assert!(output.status.success(), "{cc:?}\n{}", output.err());
}

impl Hosts {
    /// Builds the programs for this Python's libpython. Returns `None` if this Python has no libpython.
    fn find(python: &Python) -> Option<Self> {
        let Some(library) = library_of(python) else {
            skipped(&format!("there is no libpython of {}", name(python)));
            return None;
        };
        let is_of_its_version = |other: &Python| other.is_shared && other.version == python.version;
        if !python.is_shared && pythons().iter().any(is_of_its_version) {
            return None; // This is the libpython of a shared Python of the same version, which is tested already.
        }
        let scratch = Scratch::new("python-embedded");
        let path = |name| scratch.path(name);
        let hosts = Self {
            linked: path("linked"),
            late: path("late"),
            plugin: path("plugin.so"),
            plugin_host: path("plugin_host"),
            home: home(python),
            _scratch: scratch,
            library: library.clone(),
        };
        let plugin = ["-DLINKED", "-DPLUGIN", "-shared", "-fPIC"];
        build("host.c", &hosts.linked, &["-DLINKED"], &library);
        build("host.c", &hosts.late, &[], &library);
        build("host.c", &hosts.plugin, &plugin, &library);
        build("plugin_host.c", &hosts.plugin_host, &[], &library);
        Some(hosts)
    }

    fn command(&self, program: &[&Path], mode: &str) -> Command {
        let mut command = command(program[0]);
        command
            .args(&program[1..])
            .arg(mode)
            .arg(&self.library)
            .env("PYTHONHOME", &self.home)
            .env("PYTHONPATH", sources());
        command
    }

    fn run(&self, python: &Python, program: &[&Path], mode: &str) -> Both {
        let name = format!("{}: {} {mode}", name(python), program[0].display());
        Both::run(name, || self.command(program, mode))
    }
}

fn with_each_library(check: impl Fn(&Python, &Hosts) -> Result<(), String>) {
    with_each(|python| Hosts::find(python).map_or(Ok(()), |hosts| check(python, &hosts)));
}

const MODES: [&str; 7] = [
    "once",
    "left",
    "let-go",
    "again",
    "audit",
    "sub-interpreters",
    "native-threads",
];

fn check(both: &Both, python: &Python, mode: &str) -> Result<(), String> {
    assert_eq!(both.plain.status.code(), Some(7), "{}", both.plain.err());
    both.same()?.gil(python)?;
    match mode {
        "sub-interpreters" => both.collections_of_all(python)?,
        _ => both.collections(1)?,
    };
    Ok(())
}

#[test]
fn that_are_linked_to_it() {
    with_each_library(|python, hosts| {
        for mode in MODES {
            let both = hosts.run(python, &[&hosts.linked], mode);
            check(&both, python, mode)?;
        }
        Ok(())
    });
}

#[test]
fn that_find_it_late() {
    with_each_library(|python, hosts| {
        for mode in MODES.into_iter().chain(["reopen"]) {
            let both = hosts.run(python, &[&hosts.late], mode);
            check(&both, python, mode)?;
        }
        Ok(())
    });
}

#[test]
fn that_have_it_in_a_plugin() {
    with_each_library(|python, hosts| {
        for mode in MODES {
            let both = hosts.run(python, &[&hosts.plugin_host, &hosts.plugin], mode);
            check(&both, python, mode)?;
        }
        Ok(())
    });
}

/// The plugin's constructor starts the interpreter before the library under test can look for an interpreter in the
/// plugin.
#[test]
fn whose_plugin_begins_in_its_constructor() {
    with_each_library(|python, hosts| {
        for how in ["keeps", "lets-go"] {
            let both = Both::run(format!("{}: begun early, {how}", name(python)), || {
                let mut command = hosts.command(&[&hosts.plugin_host, &hosts.plugin], "once");
                command.env("PLUGIN_BEGINS", how);
                command
            });
            both.same()?.collections(1)?.gil(python)?;
        }
        Ok(())
    });
}

/// A program loads two interpreters of different versions. The library follows only one of them, and both interpreters
/// behave as without the library.
#[test]
fn that_have_two() {
    let mut libraries = pythons().iter().filter_map(|python| {
        let library = python.is_shared.then(|| library_of(python))??;
        Some((python, library))
    });
    let (Some((first, one)), Some((second, other))) = (libraries.next(), libraries.next_back())
    else {
        skipped("there are no two shared libpythons");
        return;
    };
    let scratch = Scratch::new("python-two");
    let late = scratch.path("late");
    build("host.c", &late, &[], &other);
    let list = [&one, &home(first), &other, &home(second)].map(|path| path.display().to_string());
    let both = Both::run("two Pythons", || {
        let mut command = command(&late);
        command.args(["two", &list.join(":")]);
        command
    });
    both.same().unwrap_or_else(|wrong| panic!("{wrong}"));
    both.at_least(5).unwrap_or_else(|wrong| panic!("{wrong}"));
}
