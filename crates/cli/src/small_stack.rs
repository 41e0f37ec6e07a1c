//! Runs the command on a larger stack if the limit for the main thread's stack is low (`ulimit -s 64`).

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use crate::supervised::HeldSignals;

/// The smallest limit, in bytes, with which the main thread's stack is large enough. The parser of the command line
/// uses over 64 KiB.
const ENOUGH: libc::rlim_t = 1 << 20;
const STACK_BYTES: usize = 8 << 20;

/// Runs `act`, on a new thread if the main thread's stack is too small. The main thread then blocks all signals, so
/// that the new thread receives them. If that thread cannot be started, `act` runs on the main thread.
pub(crate) fn run_with_enough(act: fn() -> ExitCode) -> ExitCode {
    if limit() >= ENOUGH {
        return act();
    }
    let held = HeldSignals::now();
    let on_thread = move || {
        drop(held);
        act()
    };
    match thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(on_thread)
    {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => act(),
    }
}

fn limit() -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the call writes only to the local variable.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    limit.rlim_cur
}
