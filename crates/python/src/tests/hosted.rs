//! Runs tests in a CPython: the test's own process loads a libpython, finds it as the library does, and
//! starts it. A process can load only one libpython, so each version has a process of its own, which runs the
//! same test again.

use core::any::type_name;
use core::ffi::{CStr, c_char, c_int, c_void};
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

/// The path of the libpython, in the process that loads it.
const LIBRARY: &str = "TLLMPROF_TEST_LIBPYTHON";

/// A variable: the interpreter is initialized before it is looked for.
pub const LATE: &str = "TLLMPROF_TEST_LATE";

/// Runs `body`, the closure of a test, with these variables and in a new folder, in each CPython from 3.8 on
/// for which `scripts/list-pythons` finds a libpython.
pub fn in_each<F: FnOnce(&Host)>(variables: &[(&str, &str)], body: F) {
    if let Some(library) = env::var_os(LIBRARY) {
        return body(&Host::load(Path::new(&library)));
    }
    run_in(libraries(), test_of::<F>(), variables);
}

/// Returns the name of the test that a closure is in.
fn test_of<F>() -> &'static str {
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    path.split_once("::").unwrap().1
}

/// Runs `body` as [`in_each`] does, but only in the oldest version, the newest and one in between: the
/// version matters little.
pub fn in_few<F: FnOnce(&Host)>(variables: &[(&str, &str)], body: F) {
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
        std::fs::create_dir_all(&folder).unwrap();
        let output = command.current_dir(&folder).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        // With a name that is not a test's, nothing would run.
        let has_run = out.contains("1 passed");
        assert!(
            output.status.success() && has_run,
            "{test} with Python 3.{version}, {}: {}\n{out}{err}",
            library.path.display(),
            output.status
        );
    }
}

/// Returns true if the library or Python reads a variable. Only the test may set it then.
fn is_read(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_tool = name.ends_with(b"_INJECTION64_PATH");
    is_tool || name.starts_with(b"TLLM") || name.starts_with(b"PYTHON")
}

/// A libpython to test with.
struct Library {
    path: PathBuf,
    /// The value for `PYTHONHOME`.
    home: PathBuf,
}

impl Library {
    /// Returns the libpython of a Python, if it is built for this processor.
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

    /// Returns a command that runs this test again, with the C library that was installed with the libpython,
    /// if there is one.
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

/// Returns one of each minor version that `scripts/list-pythons` finds. One that cannot be loaded makes the
/// test fail.
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

/// The libpython of this process.
pub struct Host {
    library: *mut c_void,
}

impl Host {
    /// Does what the preloaded library does: it is loaded before libpython, and looks for that when modules
    /// have changed.
    fn load(path: &Path) -> Self {
        let is_late = env::var_os(LATE).is_some();
        if !is_late {
            crate::start();
        }
        assert!(attached::api().is_none());
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a libpython, whose constructors may run at any time.
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

    /// # Safety
    /// `F` is the type of the function that libpython has under this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: the library stays loaded.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        // SAFETY: a pointer to a function of that type.
        unsafe { core::mem::transmute_copy(&address) }
    }

    /// Starts the interpreter, or starts it anew.
    pub fn start(&self) {
        self.initialize();
        assert!(attached::api().unwrap().has_gil());
    }

    fn initialize(&self) {
        // SAFETY: the type is that of Python.h; no interpreter is initialized.
        unsafe { self.function::<extern "C" fn(c_int)>(c"Py_InitializeEx")(0) };
    }

    /// Ends the interpreter.
    pub fn end(&self) {
        // SAFETY: the type is that of Python.h.
        let ended = unsafe { self.function::<extern "C" fn() -> c_int>(c"Py_FinalizeEx")() };
        assert_eq!(ended, 0);
    }

    /// Runs a program, which must not raise.
    pub fn run(&self, program: &str) {
        assert!(self.try_run(program), "{program}");
    }

    /// Runs a program. Returns false if it raised.
    pub fn try_run(&self, program: &str) -> bool {
        type Run = extern "C" fn(*const c_char) -> c_int;
        let text = CString::new(program).unwrap();
        // SAFETY: the type is that of Python.h, where a macro calls it in this way; this thread has the GIL.
        let run = unsafe { self.function::<Run>(c"PyRun_SimpleString") };
        run(text.as_ptr()) == 0
    }

    /// Runs a program that can import `module` with this source.
    pub fn run_with_module(&self, module: &str, source: &str, program: &str) {
        std::fs::write(format!("{module}.py"), source).unwrap();
        self.run("import os, sys\nsys.path.insert(0, os.getcwd())");
        self.run(program);
    }

    /// Runs `act` with the interpreter, whose GIL this thread has.
    pub fn with<R>(&self, act: impl FnOnce(Python<'_>) -> R) -> R {
        Python::if_held(attached::api().unwrap(), act).expect("this thread has the GIL")
    }

    /// Runs `act` without the GIL.
    pub fn without_gil<R>(&self, act: impl FnOnce() -> R) -> R {
        // SAFETY: the types are those of Python.h; this thread has the GIL, and takes it again.
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
    /// Runs a program in another interpreter, which ends afterwards.
    pub fn in_another(&self, program: &str) {
        // SAFETY: the types are those of Python.h; this thread has the GIL, and returns to its own
        // interpreter.
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
