//! Listens on a control socket (`TLLMPROF_CONTROL`) for requests from other processes of the same user or of root,
//! while the process runs.
//!
//! ```text
//! first CUDA call ──▶ a thread ──▶ folder, socket ──▶ lines ──▶ session::live
//! ```
//!
//! A process that does not use CUDA has neither the thread nor the socket. The thread runs none of the program's
//! signal handlers, holds none of the program's locks, and delays the end of the process by about a second at most.
//! While no client is connected, it sleeps in one system call, usually without a time-out. The number of clients, the
//! length of a line, and the time for which a client may be silent are limited.
//!
//! [`socket`] manages the descriptors, [`folder`] chooses the socket's folder, [`clients`] reads and writes
//! lines, and [`captures`] follows a window (a range of iterations to capture) from its request to its end.

mod captures;
mod clients;
mod end;
mod folder;
mod server;
mod socket;
mod surroundings;

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::PathBuf;

use tllmprof_config::{Control, Settings};
use tllmprof_platform::lifecycle;
use tllmprof_platform::own_threads::{self, OwnThread, ThreadKind};
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::name_thread;
use tllmprof_platform::thread::uncounted;
use tllmprof_session::Listener;
use tllmprof_sync::Published;

use surroundings::Surroundings;

lifecycle::global! {
    stage: Sinks;

    /// True if the listening thread has been started.
    #[fork(reset)]
    static HAS_THREAD: AtomicBool = AtomicBool::new(false);
    /// The settings, the variable `XDG_RUNTIME_DIR` and the host's name, for the listening thread. The thread must not
    /// look them up itself, because another thread may change the environment at any time.
    #[fork(reset)]
    static SURROUNDINGS: Published<Surroundings> = Published::none();
}

/// The stack size of the listening thread in bytes. It is large because the thread may close a window (a recorded
/// interval) while the process waits for work, and closing a window runs a profiler's code.
const STACK_BYTES: usize = 1 << 20;

/// The listener that opens the control socket when the process has begun to use CUDA.
pub struct ControlSocket;

impl Listener for ControlSocket {
    fn begins(&self, settings: &'static Settings) {
        let is_elevated = !tllmprof_recorder::may_write();
        if settings.control == Control::Off
            || is_elevated
            || HAS_THREAD.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let surroundings = Surroundings {
            settings,
            runtime: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            host: tllmprof_recorder::host_name(),
        };
        SURROUNDINGS.set(Some(Box::leak(Box::new(surroundings))));
        if !own_threads::start(ThreadKind::Live, STACK_BYTES, main) {
            HAS_THREAD.store(false, Ordering::Release);
        }
    }

    fn ends(&self) {
        end::ask();
        if HAS_THREAD.load(Ordering::Acquire) && socket::hang_up() {
            own_threads::ends(ThreadKind::Live);
        }
        socket::remove();
    }
}

/// Wakes the listening thread when the main thread ends. From then on the listening thread must check whether
/// it is the only thread left, so that it does not keep the process alive.
fn wake() {
    socket::hang_up();
}

extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    contained((), || {
        let _own = OwnThread::new(ThreadKind::Live, &(wake as fn()));
        name_thread(c"tllmprof-live");
        if let Some(surroundings) = SURROUNDINGS.get() {
            uncounted(&mut || server::run(surroundings));
        }
    });
    core::ptr::null_mut()
}
