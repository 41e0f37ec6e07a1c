//! The library that receives NVTX calls in this process (NVTX calls it an injection library).
//!
//! Each module that uses NVTX loads the library that `NVTX_INJECTION64_PATH` names, when the module makes its first
//! NVTX range. So only one library is notified, unless that library passes the calls on to another one. If the steps
//! (iterations) of the program are to be found by NVTX ranges, this library puts its own path into the variable, and
//! passes calls on to the *tool*: the library that the variable named before. Child processes inherit the variable,
//! even those that do not preload this library. So the variable's former value is stored in a second variable, from
//! which this library in a child process learns the path of the tool. Without the second variable, it could neither
//! find the tool nor restore the first variable.

use core::ffi::CStr;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::lifecycle;
use once_cell::race::OnceBox;

use crate::elf;
use crate::environment;
use crate::resolve;

/// Environment variable that names the library to which NVTX sends its calls.
pub const VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// The environment variable that contains the former value of [`VARIABLE`] while [`VARIABLE`] names this library. It is
/// set to an empty text if [`VARIABLE`] was not set before.
const BEFORE: &str = "TLLMPROF_NVTX_CHAIN";

/// Prefixes of environment variables that profilers set in the processes that they start. The first one is set by nsys;
/// the second by nsys, ncu and others that inject into CUDA; the third by ncu; the fourth by compute-sanitizer.
const PROFILERS: [&[u8]; 4] = [
    b"NSYS_PROFILING_SESSION_ID",
    b"CUDA_INJECTION64_PATH",
    b"NV_NSIGHT_INJECTION",
    b"NV_TPS_LAUNCH",
];

lifecycle::global! {
    #[fork(keep = "what the variables said at the start")]
    #[exec = "`NVTX_INJECTION64_PATH` names this library, and `TLLMPROF_NVTX_CHAIN` the tool: the next copy takes them back or goes on with them"]
    static FOUND: OnceBox<InitialVariables> = OnceBox::new();
}

/// The path of this library's file, and the state of the variables [`VARIABLE`] and [`BEFORE`] when this library was
/// loaded.
struct InitialVariables {
    /// Path of this library's file, if it can be determined.
    us: Option<PathBuf>,
    /// Path of the tool: the library to which this library passes NVTX calls. `None` if there is none.
    tool: Option<CString>,
    /// True if the variable [`VARIABLE`] named this library when the process started, because a parent process
    /// had put this library's path there.
    inherited: bool,
}

fn found() -> &'static InitialVariables {
    FOUND.get_or_init(|| Box::new(InitialVariables::from_variables(own_path())))
}

impl InitialVariables {
    /// Reads the variables [`VARIABLE`] and [`BEFORE`]. `us` is the path of this library's file.
    fn from_variables(us: Option<PathBuf>) -> Self {
        let named = variable(VARIABLE);
        let inherited = named.as_deref().is_some_and(|named| {
            is(us.as_deref(), named) || is_like(us.as_deref(), named) && has_chain()
        });
        let tool = if inherited { variable(BEFORE) } else { named };
        let tool = tool.filter(|tool| !is(us.as_deref(), tool));
        Self {
            us,
            tool: tool.and_then(|tool| CString::new(tool.into_vec()).ok()),
            inherited,
        }
    }
}

/// If `wanted` is true, puts this library's path into [`VARIABLE`], so that NVTX sends its calls to this library.
/// Otherwise restores [`VARIABLE`] if a parent process has put this library's path there. Called when the library is
/// loaded, because NVTX may read the variable at any time after that.
pub fn start(wanted: bool) {
    // Most processes need no NVTX ranges for their steps, and did not inherit the variable. They need neither a change
    // nor the path of this library's file.
    if !wanted && !has_chain() {
        return;
    }
    let InitialVariables {
        us,
        tool,
        inherited,
    } = found();
    // NVTX may have loaded this library, without a preload. Then this library has nothing to count, and other
    // threads may be reading the environment.
    if !is_preloaded() {
        return;
    }
    let tool = tool.as_deref().map(CStr::to_bytes);
    match us {
        Some(us) if wanted => publish(
            Some(us.as_os_str().as_bytes()),
            Some(tool.unwrap_or_default()),
        ),
        _ if *inherited => publish(tool, None),
        _ => {}
    }
}

/// Returns true if this library was preloaded: the C library then comes after it in load order. Returns false if it was
/// loaded later.
pub fn is_preloaded() -> bool {
    resolve::next(c"setenv").is_some()
}

/// Returns the path of the tool to which this library passes NVTX calls, if there is one.
pub fn tool() -> Option<&'static CStr> {
    found().tool.as_deref()
}

/// Returns true if a library other than this one receives NVTX calls.
pub fn has_tool() -> bool {
    variable(VARIABLE).is_some_and(|named| !is_us(&named) || tool().is_some())
}

/// Returns true if a profiler has started this process, or receives its NVTX calls.
pub fn has_profiler() -> bool {
    let is_set = |name: &[u8]| PROFILERS.iter().any(|profiler| name.starts_with(profiler));
    environment::has(is_set) || has_tool()
}

/// Returns true if the environment variable [`VARIABLE`] still names this library, so that NVTX would load this
/// library. Allocates nothing.
pub fn is_in_place() -> bool {
    // SAFETY: the name is terminated. The result is null or a terminated string in the environment, which is read
    // immediately.
    unsafe {
        let named = libc::getenv(c"NVTX_INJECTION64_PATH".as_ptr());
        let us = FOUND.get().and_then(|found| found.us.as_deref());
        us.is_some_and(|us| {
            !named.is_null() && CStr::from_ptr(named).to_bytes() == us.as_os_str().as_bytes()
        })
    }
}

fn is_us(path: &OsStr) -> bool {
    // If `start` found nothing to change, as is usual, `FOUND` is not set. Then this library has not put its path into
    // the NVTX variable, so the path need not be looked up for the comparison.
    FOUND.get().is_some() && is(found().us.as_deref(), path)
}

fn is(us: Option<&Path>, path: &OsStr) -> bool {
    us.is_some_and(|us| us == path || std::fs::canonicalize(path).is_ok_and(|path| us == path))
}

/// Returns true if `path` has the same file name as this library. A parent process may have used another copy
/// of the library.
fn is_like(us: Option<&Path>, path: &OsStr) -> bool {
    us.is_some_and(|us| us.file_name() == Path::new(path).file_name())
}

/// Returns true if this library, or a copy of it, has put its path into [`VARIABLE`] in this process or in a parent
/// process.
fn has_chain() -> bool {
    std::env::var_os(BEFORE).is_some()
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn own_path() -> Option<PathBuf> {
    let us = elf::containing(own_path as *const () as usize)?;
    std::fs::canonicalize(OsStr::from_bytes(us.path().to_bytes())).ok()
}

fn publish(named: Option<&[u8]>, before: Option<&[u8]>) {
    environment::publish(&[(VARIABLE, named), (BEFORE, before)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = "/opt/tool.so";

    fn bytes(text: &str) -> Option<&[u8]> {
        Some(text.as_bytes())
    }

    /// Returns the tool that this library would find in the environment, and a flag. The flag is true if a parent
    /// process has put the path of this library's file into the NVTX variable. The test program stands for this file.
    fn seen() -> (Option<String>, bool) {
        let InitialVariables {
            tool, inherited, ..
        } = InitialVariables::from_variables(Some(us()));
        (tool.map(|tool| tool.into_string().unwrap()), inherited)
    }

    fn us() -> PathBuf {
        std::fs::canonicalize("/proc/self/exe").unwrap()
    }

    #[test]
    fn the_tool_is_found_behind_the_library_that_a_parent_has_put_there() {
        let _one = environment::tests::ONE.lock();
        let us = us().into_os_string().into_string().unwrap();
        let behind_us = (Some(TOOL.to_owned()), true);
        publish(None, None);
        assert!(!has_tool() && !has_chain());
        assert_eq!(seen(), (None, false));
        publish(bytes(TOOL), None);
        assert!(has_tool() && !has_chain());
        assert_eq!(seen(), (Some(TOOL.to_owned()), false));

        publish(bytes(&us), bytes(TOOL));
        assert!(has_chain());
        assert_eq!(seen(), behind_us);
        publish(bytes("/proc/self/exe"), bytes(""));
        assert_eq!(seen(), (None, true), "by another name, and before nothing");

        // Simulates a parent process that has used another copy of this library, with the same file
        // name.
        let name = us.rsplit('/').next().unwrap();
        let copy = format!("/elsewhere/{name}");
        publish(bytes(&copy), bytes(TOOL));
        assert_eq!(seen(), behind_us);
        publish(bytes(&copy), None);
        assert_eq!(seen(), (Some(copy), false), "nobody has put it before one");
        publish(bytes(&us), bytes(&us));
        assert_eq!(seen(), (None, true), "it is never chained to itself");

        publish(None, None);
        assert!(!has_tool());
    }

    #[test]
    fn nothing_is_published_where_it_is_not_wanted() {
        let _one = environment::tests::ONE.lock();
        publish(None, None);
        start(false);
        assert!(variable(VARIABLE).is_none() && !is_in_place());
    }
}
