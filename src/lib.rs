//! `libtllmprof.so`: gates profilers by iteration in a process that knows nothing of it.
//!
//! # What the library promises its host
//!
//! It lives in somebody else's process, so these come before everything else:
//!
//! - **No changed result.** Every intercepted call reaches the function that the program meant,
//!   with its arguments, and returns that function's result. `errno` and `dlerror` stay the
//!   program's. What is not understood is passed through.
//! - **No crash, no hang.** Nothing here panics across a call, waits for another thread without a
//!   bound, or holds a lock while it calls out. A program's exception, `longjmp`, `fork`, `_exit`
//!   and signals work as before.
//! - **Nothing that the host has to be ready for.** What runs in a door calls none of the host's functions
//!   until it is clear that there is something to count: the host may not be initialised yet, or be in
//!   the middle of looking up the very function. `tllmprof_bytes` and `platform::elf` avoid that. A process
//!   with none of the library's variables makes no system call for it but the loader's; one that uses CUDA makes
//!   `gettid`, `getpid` and `futex`, too, when it forks.
//! - **No system call but where something is asked for.** Threads of the library's that are idle sleep in one call. Where
//!   the program installs a filter for system calls, the library is through with its own before that.
//! - **Nothing on standard output**, and on standard error one line at a time, when there is
//!   something to say. Nothing at all in a process that does not use CUDA.
//! - **Next to no cost.** A call that is only counted costs a dozen instructions without a shared
//!   cache line; a process without CUDA pays for loading the library.
//!
//! # One direction
//!
//! ```text
//! call ──▶ intercept ──▶ session ──▶ steps ──▶ sinks
//!          how it        the process's is it a   profiler, NVTX, record,
//!          reaches us    one run       step?     Python, routers, stacks
//! ```
//!
//! The layers are crates, so that an arrow that points back does not compile; `docs/architecture.md`
//! draws them. This one exports the C names and wires the layers, and does nothing else.

mod attach;
mod exports;
mod filter_hooks;
mod libc_hooks;
mod starting;
mod system_calls;
mod unwinder;

// For its symbols, which the linker looks for.
use tllmprof_bytes as _;

use linkme::distributed_slice;
use tllmprof_capture::{self as capture, Profilers};
use tllmprof_intercept::{self as intercept, AllDoors};
use tllmprof_live::ControlSocket;
use tllmprof_platform::errno::Kept;
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

/// Where the program's calls come past the library nothing is registered by then that runs at the end.
#[used]
// SAFETY: the section holds addresses of functions of this type, which the loader calls when the process ends.
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    contained((), intercept::bypass::report_uncounted);
}

#[ctor::ctor(unsafe)]
fn constructor() {
    // A program starts with errno 0, and may read it.
    let _errno = Kept::new();
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
