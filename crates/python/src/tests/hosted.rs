//! Runs tests inside a CPython. The test's process loads a libpython, finds it like the library
//! does, and starts it. A process can load only one libpython, so the test is run again in a
//! separate process for each version.

use core::any::type_name;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::api::ThreadState;
use crate::attach;
use crate::attached;
use crate::object::Python;
use crate::skipped::skipped;

/// The environment variable with the path of the libpython that this process loads.
const LIBRARY: &str = "TLLMPROF_TEST_LIBPYTHON";

/// The environment variable for a test that initializes the interpreter before the library looks
/// for it.
pub(crate) const LATE: &str = "TLLMPROF_TEST_LATE";

/// Runs `body`, the closure of a test, in each CPython from 3.8 on for which `scripts/list-pythons`
/// finds a libpython. Each run has the environment variables `variables` and a new working directory.
pub(crate) fn in_each<F: FnOnce(&Host)>(variables: &[(&str, &str)], body: F) {
    if let Some(library) = env::var_os(LIBRARY) {
        return body(&Host::load(Path::new(&library)));
    }
    run_in(libraries(), test_of::<F>(), variables);
}

/// Runs `body` like [`in_each`], but leaves out the CPythons whose minor version is in `but`, for the reason `why`.
pub(crate) fn in_each_but<F: FnOnce(&Host)>(
    but: RangeInclusive<u32>,
    why: &str,
    variables: &[(&str, &str)],
    body: F,
) {
    if let Some(library) = env::var_os(LIBRARY) {
        return body(&Host::load(Path::new(&library)));
    }
    let others = libraries().iter();
    let (out, others): (Vec<_>, Vec<_>) = others.partition(|(version, _)| but.contains(version));
    if !out.is_empty() {
        skipped(why);
    }
    run_in(others, test_of::<F>(), variables);
}

/// Returns the name of the test that contains the closure `F`.
fn test_of<F>() -> &'static str {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    path.split_once("::").unwrap().1
}

/// Runs `body` like [`in_each`], but only in the oldest version, the newest one and one in between.
/// This function is for tests that hardly depend on the version.
pub(crate) fn in_few<F: FnOnce(&Host)>(variables: &[(&str, &str)], body: F) {
    if let Some(library) = env::var_os(LIBRARY) {
        return body(&Host::load(Path::new(&library)));
    }
    let all = libraries();
    let last = all.len().saturating_sub(1);
    let is_meant = |place| [0, last / 2, last].contains(&place);
    let few = all.iter().enumerate().filter(|(place, _)| is_meant(*place));
    run_in(few.map(|(_, library)| library), test_of::<F>(), variables);
}

fn run_in<'a>(
    libraries: impl IntoIterator<Item = (&'a u32, &'a Library)>,
    test: &str,
    variables: &[(&str, &str)],
) {
    let mut libraries = libraries.into_iter().peekable();
    if libraries.peek().is_none() {
        skipped("no libpython (scripts/setup --tests)");
    }
    for (version, library) in libraries {
        let mut command = library.command();
        for (name, _) in env::vars_os().filter(|(name, _)| is_read(name)) {
            command.env_remove(name);
        }
        command
            .args([test, "--exact", "--test-threads=1", "--nocapture"])
            .env(LIBRARY, &library.path)
            .env("PYTHONHOME", &library.home)
            .envs(variables.iter().copied());
        let folder = env::temp_dir().join(format!(
            "tllmprof-{}-{}-{version}",
            std::process::id(),
            test.replace(':', "-")
        ));
        // An earlier test process with the same process id may have been killed, and have left the folder.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let output = command.current_dir(&folder).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        // The test's name selects the test in the new process. A wrong name would select none and
        // seem to pass, so check that one test has run.
        let has_run = out.contains("1 passed");
        assert!(
            output.status.success() && has_run,
            "{test} with Python 3.{version}, {}: {}\n{out}{err}",
            library.path.display(),
            output.status
        );
    }
}

/// Returns true if the library or Python reads this environment variable. Such variables are
/// removed unless the test sets them.
fn is_read(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_tool = name.ends_with(b"_INJECTION64_PATH");
    is_tool || name.starts_with(b"TLLM") || name.starts_with(b"PYTHON")
}

/// A libpython to test with.
struct Library {
    path: PathBuf,
    /// The folder that the interpreter gets as `PYTHONHOME`.
    home: PathBuf,
}

impl Library {
    /// Returns the libpython that the executable `python` uses, if it is built for this processor.
    fn find(python: &str) -> Option<Self> {
        const ABOUT: &str = "
import platform, sys
print(platform.machine())
print(sys.base_prefix)
with open('/proc/self/maps') as maps:
    print(next(line.split()[-1] for line in maps if '/libpython3.' in line))
";
        let output = Command::new(python).args(["-I", "-c", ABOUT]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        let mut lines = output.lines();
        let mut line = || {
            lines
                .next()
                .unwrap_or_else(|| panic!("{python}: no libpython"))
        };
        let (machine, home, path) = (line(), line().into(), line().into());
        (machine == env::consts::ARCH).then_some(Self { path, home })
    }

    /// Returns a command that runs this test again in a new process. If the folder of the libpython has a C library of
    /// its own, the new process uses that C library.
    fn command(&self) -> Command {
        let us = env::current_exe().unwrap();
        let folder = self.path.parent().unwrap();
        let files = folder.read_dir().unwrap().map(|file| file.unwrap().path());
        let is_loader = |path: &PathBuf| {
            let name = path.file_name().unwrap();
            name.as_bytes().starts_with(b"ld-linux-")
        };
        let Some(loader) = files.into_iter().find(is_loader) else {
            return Command::new(us);
        };
        let mut command = Command::new(loader);
        command.arg("--library-path").arg(folder).arg(us);
        command
    }
}

/// Returns one libpython for each minor version that `scripts/list-pythons` finds. Panics if one of the Python
/// executables that it lists does not run, or uses no libpython.
fn libraries() -> &'static BTreeMap<u32, Library> {
    static FOUND: OnceLock<BTreeMap<u32, Library>> = OnceLock::new();
    FOUND.get_or_init(find_libraries)
}

fn find_libraries() -> BTreeMap<u32, Library> {
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/list-pythons");
    let output = Command::new(list).output().unwrap();
    assert!(output.status.success(), "scripts/list-pythons");
    let mut libraries = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [path, version, "shared", "gil", _] = words[..] else {
            continue;
        };
        let minor = version.split('.').nth(1).unwrap().parse().unwrap();
        if !libraries.contains_key(&minor)
            && let Some(library) = Library::find(path)
        {
            libraries.insert(minor, library);
        }
    }
    libraries
}

/// The libpython that this process has loaded.
pub(crate) struct Host {
    library: *mut c_void,
}

impl Host {
    /// Loads libpython in the same order as a program with tllmprof's library preloaded: the library is started first,
    /// and looks for libpython after libpython was loaded. If [`LATE`] is set, the library comes last instead, after
    /// libpython was loaded and the interpreter was initialized.
    fn load(path: &Path) -> Self {
        let is_late = env::var_os(LATE).is_some();
        if !is_late {
            crate::start();
        }
        assert!(attached::api().is_none());
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: this loads a libpython, whose constructors may run at any time.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!library.is_null(), "{path:?} is not loaded");
        if is_late {
            let host = Self { library };
            host.initialize();
            host.without_gil(|| assert_eq!(crate::attach(), crate::InstallProgress::Done));
            return host;
        }
        attach::look();
        let api = attached::api().expect("CPython is found among the modules");
        assert!(!api.is_initialized() && !api.has_gil() && !api.runs());
        let host = Self { library };
        host.start();
        host
    }

    /// Returns libpython's function with this name.
    ///
    /// # Safety
    /// `F` is the type of libpython's function with this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the library stays loaded.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        // SAFETY: the caller promises that the address is a function of type `F`.
        unsafe { core::mem::transmute_copy(&address) }
    }

    /// Starts the interpreter. The interpreter may have been ended before.
    pub(crate) fn start(&self) {
        self.initialize();
        assert!(attached::api().unwrap().has_gil());
    }

    fn initialize(&self) {
        // SAFETY: this is the type in Python.h, and no interpreter is initialized.
        unsafe { self.function::<extern "C" fn(c_int)>(c"Py_InitializeEx")(0) };
    }

    /// Ends the interpreter.
    pub(crate) fn end(&self) {
        // SAFETY: this is the type in Python.h.
        let ended = unsafe { self.function::<extern "C" fn() -> c_int>(c"Py_FinalizeEx")() };
        assert_eq!(ended, 0);
    }

    /// Runs a Python program, which must not raise an exception.
    pub(crate) fn run(&self, program: &str) {
        assert!(self.try_run(program), "{program}");
    }

    /// Runs a Python program. Returns false if it raised an exception.
    pub(crate) fn try_run(&self, program: &str) -> bool {
        type Run = extern "C" fn(*const c_char) -> c_int;
        let text = CString::new(program).unwrap();
        // SAFETY: this is the type in Python.h, where a macro makes the same call. This thread
        // holds the GIL.
        let run = unsafe { self.function::<Run>(c"PyRun_SimpleString") };
        run(text.as_ptr()) == 0
    }

    /// Writes `source` to a file of the name `module`, and runs a Python program that can import this module.
    pub(crate) fn run_with_module(&self, module: &str, source: &str, program: &str) {
        std::fs::write(format!("{module}.py"), source).unwrap();
        self.run("import os, sys\nsys.path.insert(0, os.getcwd())");
        self.run(program);
    }

    /// Runs `act` with access to the interpreter. The calling thread holds the GIL.
    pub(crate) fn with<R>(&self, act: impl FnOnce(Python<'_>) -> R) -> R {
        Python::if_held(attached::api().unwrap(), act).expect("this thread has the GIL")
    }

    /// Runs `act` while this thread does not hold the GIL.
    pub(crate) fn without_gil<R>(&self, act: impl FnOnce() -> R) -> R {
        // SAFETY: these are the types in Python.h. This thread holds the GIL, and takes it again
        // afterwards.
        unsafe {
            let save = self.function::<extern "C" fn() -> ThreadState>(c"PyEval_SaveThread");
            let restore = self.function::<extern "C" fn(ThreadState)>(c"PyEval_RestoreThread");
            let state = save();
            let result = act();
            restore(state);
            result
        }
    }
}

impl Host {
    /// Runs a Python program in a sub-interpreter, and ends this interpreter afterwards.
    pub(crate) fn in_another(&self, program: &str) {
        // SAFETY: these are the types in Python.h. This thread holds the GIL, and returns to its
        // first interpreter.
        unsafe {
            type Swap = extern "C" fn(ThreadState) -> ThreadState;
            let begin = self.function::<extern "C" fn() -> ThreadState>(c"Py_NewInterpreter");
            let end = self.function::<extern "C" fn(ThreadState)>(c"Py_EndInterpreter");
            let swap = self.function::<Swap>(c"PyThreadState_Swap");
            let ours = swap(core::ptr::null_mut());
            swap(ours);
            let another = begin();
            assert!(!another.is_null());
            self.run(program);
            end(another);
            swap(ours);
        }
    }
}
