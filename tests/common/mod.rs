//! Shared parts of the integration tests: the paths of the library under test and of the stand-in for CUDA, child
//! processes with a time limit, and the stand-in's log.
#![allow(
    dead_code,
    unused_imports,
    reason = "every test binary has its own copy of this module and uses a part of it"
)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

mod build;
mod fixture;
pub(crate) mod load;
mod log;
pub(crate) mod nvtx;
pub(crate) mod python;
pub(crate) mod pythons;
mod signals;
mod skipped;
pub(crate) mod terminal;
pub(crate) mod torch;
pub(crate) use build::{Built, build, build_once};
pub(crate) use fixture::{Fixture, Ran, Switch};
pub(crate) use log::{Record, read_log};
pub(crate) use skipped::skipped;

/// A part of a message of the library. The library logs the message if a window does not begin or end exactly at the
/// requested iteration, because threads could not wait until the profiler was started or stopped. Tests accept the
/// message, because a very busy machine can cause it.
pub(crate) const INEXACT: &str = "whose edges are not exact";

/// The root of the repository.
pub(crate) fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's target folder, wherever `CARGO_TARGET_DIR` put it.
pub(crate) fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("cargo's tmp folder lies in its target folder")
}

/// The library under test: `TLLMPROF_LIB`, else the release build, else the debug build.
pub(crate) fn shim() -> PathBuf {
    if let Some(path) = std::env::var_os("TLLMPROF_LIB") {
        return fs::canonicalize(&path)
            .unwrap_or_else(|e| panic!("TLLMPROF_LIB={}: {e}", path.display()));
    }
    ["release", "debug"]
        .iter()
        .map(|profile| target().join(profile).join("libtllmprof.so"))
        .find(|path| path.is_file())
        .inspect(|library| {
            if let Some(source) = newer_source(library) {
                panic!(
                    "{} is older than {}: run `cargo build --release -p tllmprof-shim` first",
                    library.display(),
                    source.display()
                );
            }
        })
        .unwrap_or_else(|| {
            panic!(
                "no libtllmprof.so under {}: run `cargo build --release` first",
                target().display()
            )
        })
}

/// Returns a source file of the library that has changed since the library was built, if there is one. Cargo lists the
/// sources in a `.d` file next to the library.
fn newer_source(library: &Path) -> Option<PathBuf> {
    let list = fs::read_to_string(library.with_extension("d")).ok()?;
    let built = fs::metadata(library).and_then(|it| it.modified()).ok()?;
    let (_, sources) = list.lines().next()?.split_once(": ")?;
    // The `.d` file has a backslash before each space in a path.
    let sources = sources.replace("\\ ", "\0");
    sources
        .split(' ')
        .map(|path| PathBuf::from(path.replace('\0', " ")))
        .find(|path| {
            let changed = fs::metadata(path).and_then(|it| it.modified());
            changed.is_ok_and(|changed| changed > built)
        })
}

/// The command `tllmprof` that was built with the tests.
pub(crate) fn tllmprof() -> PathBuf {
    let tests = std::env::current_exe().expect("the test binary's path");
    // A test binary lies in the folder `deps` of the build profile's folder.
    tests
        .ancestors()
        .nth(2)
        .expect("cargo's folders")
        .join("tllmprof")
}

/// The folder of the stand-in for CUDA: its libraries, and `bin/` with the programs. They are built on the first call.
/// Test binaries run at the same time, so the makefile has a lock.
pub(crate) fn standin() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let cross = std::env::var("TLLMPROF_TEST_CROSS").unwrap_or_default();
            let out = target().join(format!("{cross}standin"));
            let mut make = Command::new("make");
            make.arg("-s")
                .arg("-C")
                .arg(repo().join("tests/standin"))
                .arg(format!("OUT={}", out.display()))
                .arg(format!("CROSS={cross}"))
                // Under `make test`, this inner make must not use the outer make's job server.
                .env_remove("MAKEFLAGS")
                .env_remove("MAKELEVEL");
            let built = run(&mut make, Duration::from_secs(300));
            assert!(
                built.status.success(),
                "make -C tests/standin: {}\n{}{}",
                built.status,
                built.out(),
                built.err()
            );
            out
        })
        .clone()
}

/// Returns a C compiler for the processor under test. To test another processor than this machine's, set
/// `TLLMPROF_TEST_CROSS` to a prefix such as `aarch64-linux-gnu-`.
pub(crate) fn compiler() -> Command {
    tool("gcc", "cc")
}

/// Returns a C++ compiler for the processor under test.
pub(crate) fn cpp_compiler() -> Command {
    tool("g++", "c++")
}

fn tool(cross_name: &str, name: &str) -> Command {
    Command::new(match std::env::var("TLLMPROF_TEST_CROSS") {
        Ok(cross) => format!("{cross}{cross_name}"),
        Err(_) => name.to_owned(),
    })
}

/// Returns the path of a clang with sanitizers, from `scripts/get-clang`. If there is none, reports that the running
/// test skips some checks, and returns `None`. The script downloads clang, which is large, only if
/// `TLLMPROF_TEST_CLANG` is `fetch`.
pub(crate) fn clang() -> Option<PathBuf> {
    if std::env::var_os("TLLMPROF_TEST_CROSS").is_some() {
        skipped("clang has the sanitizers of this processor alone");
        return None;
    }
    static CLANG: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let got = CLANG.get_or_init(|| {
        let mut get = Command::new(repo().join("scripts/get-clang"));
        if std::env::var("TLLMPROF_TEST_CLANG").as_deref() != Ok("fetch") {
            get.arg("--no-fetch");
        }
        let got = run(&mut get, Duration::from_secs(600));
        match got.status.code() {
            Some(0) => Ok(got.out().trim().into()),
            Some(3) => Err(got.err().trim().to_owned()),
            _ => panic!("scripts/get-clang: {}\n{}", got.status, got.err()),
        }
    });
    got.as_ref().map_err(|why| skipped(why)).ok().cloned()
}

/// Returns true if the processor under test is x86-64.
pub(crate) fn is_x86_64() -> bool {
    match std::env::var("TLLMPROF_TEST_CROSS") {
        Ok(cross) => cross.starts_with("x86_64"),
        Err(_) => cfg!(target_arch = "x86_64"),
    }
}

/// Returns true if a program under test can start another one with exec. Under `TLLMPROF_TEST_RUNNER` it cannot,
/// because qemu does not run the new program.
pub(crate) fn can_exec() -> bool {
    std::env::var_os("TLLMPROF_TEST_RUNNER").is_none()
}

/// Like [`command`], for a program that the tests have built. The command starts with the words of
/// `TLLMPROF_TEST_RUNNER`, if it is set, such as `qemu-aarch64 -L FOLDER`.
pub(crate) fn built_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let runner = std::env::var("TLLMPROF_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(first) = words.next() else {
        return command(program);
    };
    let mut command = command(first);
    command.args(words).arg(program);
    command
}

/// The name of an environment variable that makes the library believe that a profiler such as Nsight Systems started
/// the process. If no such variable is set, the library warns that windows are not recorded.
pub(crate) const PROFILED: &str = "NV_NSIGHT_INJECTION_OF_TESTS";

/// Returns a command in an environment that does not depend on the tests' own shell: without variables that control the
/// library, and with default signal handling. The command has [`PROFILED`] set, so that the library does not warn that
/// windows are not recorded.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TLLM") || name == "LD_PRELOAD" || name == "NVTX_INJECTION64_PATH" {
            command.env_remove(&*name);
        }
    }
    command.env(PROFILED, "1");
    signals::reset(&mut command);
    signals::end_with_test(&mut command);
    command
}

/// The exit status and the output of a child process.
#[derive(Debug)]
pub(crate) struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Returns true if at least one process of the process group is running. Zombies do not count.
fn lives(group: libc::pid_t) -> bool {
    let is_alive = |process: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(process.ok()?.path().join("stat")).ok()?;
        // The process's name is in parentheses and may contain any character. After it come the state, the parent and
        // the process group.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let state = words.next()?;
        (words.nth(1)?.parse() == Ok(group) && state != "Z" && state != "X").then_some(())
    };
    fs::read_dir("/proc").is_ok_and(|mut all| all.any(|process| is_alive(process).is_some()))
}

/// Runs a child process with an empty standard input. Waits for the child, then up to 20 seconds for processes that it
/// left in its process group, and kills those that still run.
///
/// If the child is not done within `timeout`, kills its process group and panics with the child's output.
pub(crate) fn run(command: &mut Command, timeout: Duration) -> Output {
    // The output goes to files, because a grandchild that keeps a pipe open would block the reader of the pipe.
    let scratch = Scratch::new("run");
    let (out, err) = (scratch.path("stdout"), scratch.path("stderr"));
    signals::end_with_test(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(append(&out))
        .stderr(append(&err))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("start {command:?}: {e}"));
    let group = -(child.id() as libc::pid_t);
    let deadline = Instant::now() + timeout;
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            break Some(status);
        }
        if Instant::now() >= deadline {
            break None;
        }
        sleep(Duration::from_millis(2));
    };
    // Processes that the child left running may still write. They get 20 seconds and are then killed.
    let grace = Instant::now() + Duration::from_secs(if status.is_some() { 20 } else { 0 });
    while signal(group, 0) && lives(-group) && Instant::now() < grace {
        sleep(Duration::from_millis(2));
    }
    signal(group, libc::SIGKILL);
    let status = status.unwrap_or_else(|| {
        let _ = child.wait();
        panic!(
            "{command:?} was not done in {timeout:?}\n{}{}",
            String::from_utf8_lossy(&fs::read(&out).unwrap_or_default()),
            String::from_utf8_lossy(&fs::read(&err).unwrap_or_default()),
        )
    });
    Output {
        status,
        stdout: fs::read(&out).expect("read what a child wrote"),
        stderr: fs::read(&err).expect("read what a child wrote"),
    }
}

fn append(path: &Path) -> File {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap_or_else(|e| panic!("create {}: {e}", path.display()))
}

/// Sends a signal to a process, or to the process group `-pid`. Returns true if a process received it.
pub(crate) fn signal(pid: libc::pid_t, number: libc::c_int) -> bool {
    // SAFETY: kill takes no pointers. The tests pass only processes and process groups that they have started.
    unsafe { libc::kill(pid, number) == 0 }
}

/// Returns a TCP port of this machine that is free. It is below the ports that the kernel gives to sockets whose port is
/// not chosen, so that no such socket takes it before the program that needs it.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 10_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    let start = std::process::id().wrapping_mul(31).wrapping_add(calls);
    let mut ports = (0..COUNT).map(|n| (FIRST + start.wrapping_add(n) % COUNT) as u16);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("a free port")
}

/// Copies a program, so that the copy can be executed at once. Another process (`cp`) makes the copy: if this process
/// made it, a child that another test forks at that moment would inherit the open file, and a file that is open for
/// writing cannot be executed.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "cp {}",
        from.display()
    );
}

/// A temporary folder that is removed when the value is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "{name}-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        // An earlier test process with the same process id may have been killed, and have left a folder with records.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.parent().unwrap()).unwrap();
        fs::create_dir(&folder).unwrap_or_else(|e| panic!("create {}: {e}", folder.display()));
        Self(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
