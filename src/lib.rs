//! `libtllmprof.so` starts and stops profilers at chosen iterations of a program that was not changed for this.
//!
//! # What the library promises its host
//!
//! The library runs inside other people's processes, so these promises come before everything else:
//!
//! - **No changed result.** Every intercepted call reaches the function that the program meant,
//!   with its arguments, and returns that function's result. `errno` and `dlerror` stay the
//!   program's. A call that the library does not understand is passed through.
//! - **No crash, no hang.** The library never panics across a call, waits for another thread without
//!   a bound, or holds a lock while it calls other code. A program's exception, `longjmp`, `fork`,
//!   `_exit` and signals work as before.
//! - **Nothing that the host must be prepared for.** A hook calls none of the host's
//!   functions until it is clear that there is something to count. The reason is that a hook may run before
//!   the host is initialised, or while the host looks up the function that the hook would call. `tllmprof_bytes`
//!   and `platform::elf` avoid such calls. In a process with none of the library's variables, only the
//!   loader makes system calls for the library; if the process uses CUDA, the library also calls
//!   `gettid`, `getpid` and `futex` when the process forks.
//! - **No system call without a request.** An idle thread of the library sleeps in a single system call. Before the
//!   program installs a filter for system calls, the library ends its work, unless `TLLMPROF_AFTER_SECCOMP` is set.
//! - **Nothing on standard output**, and on standard error one line at a time, if there is
//!   something to report. Nothing at all in a process that does not use CUDA.
//! - **Next to no cost.** A call that is only counted costs about twelve instructions, and writes to no cache
//!   line that threads share. A process without CUDA pays only for loading the library.
//!
//! # One direction
//!
//! ```text
//! call ──▶ intercept ──▶ session ──▶ steps ──▶ sinks
//!          how it        the process's is it a   profiler, NVTX, record,
//!          reaches us    one run       step?     Python, routers, stacks
//! ```
//!
//! The layers are crates, so that a dependency in the other direction does not compile; `docs/architecture.md` shows
//! them. This crate only exports the C names and wires the layers.

mod attach;
mod exports;
mod filter_hooks;
mod libc_hooks;
mod starting;
mod system_calls;
mod unwinder;

// `tllmprof_bytes` defines symbols that other code is linked against. The import only makes the linker include the
// crate.
use tllmprof_bytes as _;

use linkme::distributed_slice;
use tllmprof_capture::{self as capture, Profilers};
use tllmprof_intercept::{self as intercept, AllDoors};
use tllmprof_live::ControlSocket;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::gate;
use tllmprof_platform::heap::OwnHeap;
use tllmprof_platform::panics::contained;
use tllmprof_python::{self as python, Cpython, Groups, TorchProfiler};
use tllmprof_recorder as recorder;
use tllmprof_router::PerfectRouters;
use tllmprof_session::{Wiring, activity};
use tllmprof_stacks::StackSampler;

#[global_allocator]
static HEAP: OwnHeap = OwnHeap;

#[distributed_slice(tllmprof_session::WIRING)]
static WIRING: Wiring = Wiring {
    sink: &Profilers,
    doors: &AllDoors,
    interpreter: &Cpython,
    listener: &ControlSocket,
};

#[distributed_slice(tllmprof_platform::gate::NEEDS)]
static NEEDS: gate::Needs = gate::Needs {
    are_wanted: || activity::is_asked() && activity::settings().is_some_and(capture::takes_kernels),
    is_hooked: intercept::is_hooked,
    users: recorder::gpu::users,
};

#[distributed_slice(tllmprof_capture::ADD_ONS)]
static ADD_ONS: &[&dyn capture::AddOn] = &[&Groups, &TorchProfiler, &PerfectRouters, &StackSampler];

#[distributed_slice(tllmprof_python::EXTENSION)]
static EXTENSION: &dyn python::Extension = &PerfectRouters;

/// Runs when the process ends. If the library was to count calls but has counted none, logs why CUDA calls bypass it,
/// if some do. In such a process, the library has registered no other exit handler.
#[used]
// SAFETY: the section contains addresses of functions of this type, which the loader calls when the process ends.
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    contained((), intercept::bypass::report_uncounted);
}

#[ctor::ctor(unsafe)]
fn constructor() {
    // A program starts with errno 0 and may read it, so the library restores errno at the end of its constructor.
    let _errno = SavedErrno::new();
    contained((), || {
        intercept::start();
        libc_hooks::find_real();
        filter_hooks::find_real();
        system_calls::find_own();
        if activity::is_asked() && !attach::is_under_way() {
            starting::start(false);
        } else {
            activity::asks_nothing();
        }
    });
}
