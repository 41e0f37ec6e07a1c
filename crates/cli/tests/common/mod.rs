//! Helpers of the tests: a separate folder for each test, a library to preload, and children that are killed after a
//! time limit.

#![allow(dead_code)] // each test file uses only some of the helpers

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[path = "../../../../tests/common/signals.rs"]
mod signals;
#[path = "../../../../tests/common/terminal.rs"]
mod terminal;

/// Time limit of a command, longer than any command needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// The result of a child that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

/// Runs a command until it ends. Fails the test if the command takes longer than [`LIMIT`].
pub(crate) fn finish(command: &mut Command) -> Ended {
    let mut child = signals::end_with_test(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = reader(child.stdout.take().unwrap());
    let stderr = reader(child.stderr.take().unwrap());
    let status = wait(&mut child).unwrap_or_else(|| panic!("{command:?} did not end"));
    Ended {
        status,
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}

fn reader(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the exit status of a child. If the child takes longer than [`LIMIT`], kills the child and returns `None`.
pub(crate) fn wait(child: &mut Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A folder that is removed when the test ends.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        // The path is made canonical, because the dynamic linker and readlink show canonical paths, which tests
        // compare.
        let parent = std::env::temp_dir().canonicalize().unwrap();
        Self(TempDir::with_prefix_in("tllmprof-", parent).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a copy of the command, which all users may execute.
    pub(crate) fn copy_of_the_command(&self, name: &str) -> PathBuf {
        self.executable(name, Path::new(env!("CARGO_BIN_EXE_tllmprof")))
    }

    /// Makes an executable copy of a file. Another process (`cp`) makes it: if this process wrote the copy, a child
    /// that another test forks at that moment would inherit the open file. A file that is open for writing cannot be
    /// executed.
    fn executable(&self, name: &str, file: &Path) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let copied = Command::new("cp").arg(file).arg(&path).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    /// Makes an executable file with these contents.
    pub(crate) fn script(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let written = self.write(&format!("{name}.written"), contents);
        let path = self.executable(name, &written);
        fs::remove_file(written).unwrap();
        path
    }

    /// Compiles a C source to the file `name` in this folder, and returns the path of the file. `arguments` are further
    /// arguments of the compiler.
    pub(crate) fn compile(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let output = self.path(name);
        fs::create_dir_all(output.parent().unwrap()).unwrap();
        let source = self.write(&format!("{name}.c"), source);
        let mut cc = Command::new("cc");
        cc.arg("-o")
            .arg(&output)
            .arg(source)
            .args(arguments)
            .current_dir(self.0.path());
        let ended = finish(&mut cc);
        assert!(ended.status.success(), "{cc:?}: {}", ended.stderr);
        output
    }

    /// Compiles a small library that stands in for `libtllmprof.so`, and returns its path. If `SAY_LOADED` is set when
    /// the library is loaded, the library prints a line on standard error.
    pub(crate) fn library(&self) -> PathBuf {
        self.compile(
            "libtllmprof.so",
            "#include <stdio.h>\n\
             #include <stdlib.h>\n\
             __attribute__((constructor)) static void loaded(void) {\n\
                 if (getenv(\"SAY_LOADED\")) fputs(\"loaded\\n\", stderr);\n\
             }\n",
            &["-shared", "-fPIC"],
        )
    }

    /// Returns the command `tllmprof`, with an environment that has only `PATH` and the path of this folder's library.
    pub(crate) fn tllmprof(&self) -> Command {
        let library = self.path("libtllmprof.so");
        let library = if library.exists() {
            library
        } else {
            self.library()
        };
        let mut command = plain(Path::new(env!("CARGO_BIN_EXE_tllmprof")));
        command.env("TLLMPROF_LIB", library);
        command
    }
}

/// Returns a command with default signals, and only `PATH` in its environment.
pub(crate) fn plain(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin");
    signals::reset(&mut command);
    command
}

/// Runs a command whose standard output is a terminal. In the result, `stdout` is the text that the command wrote to
/// the terminal.
pub(crate) fn on_terminal(command: &mut Command) -> Ended {
    let (mut terminal, slave) = terminal::open(None);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(slave)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // `command` still holds a descriptor of the slave, which would keep the terminal open after the child has ended.
    command.stdout(Stdio::null());
    let stderr = reader(child.stderr.take().unwrap());
    let shown = thread::spawn(move || {
        let mut bytes = Vec::new();
        // Once the slave side of a pseudo-terminal is closed, reading from the master ends with an error instead of an
        // end of file.
        let _ = terminal.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let status = wait(&mut child).unwrap_or_else(|| panic!("{command:?} did not end"));
    Ended {
        status,
        stdout: shown.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}
