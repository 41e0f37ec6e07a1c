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
//! - **Nothing on standard output**, and on standard error one line at a time, when there is
//!   something to say. Nothing at all in a process that does not use CUDA.
//! - **Next to no cost.** A call that is only counted costs a dozen instructions without a shared
//!   cache line; a process without CUDA pays for loading the library.
//!
//! # One direction
//!
//! ```text
//! call ──▶ intercept ──▶ step ──▶ window ──▶ capture
//!          how it        is it a   is it      profiler, NVTX
//!          reaches us    step?     captured?
//! ```
//!
//! An arrow never points back. [`session`] is the process's one run of that line.

#![cfg_attr(test, allow(dead_code))] // what only the doors use, which tests are built without

#[cfg(not(test))]
mod cancel;
#[cfg(not(test))]
mod capture;
#[cfg(not(test))]
mod elf;
#[cfg(not(test))]
mod engines;
#[cfg(not(test))]
mod errno;
mod hash;
#[cfg(not(test))]
mod ids;
#[cfg(not(test))]
mod injection;
#[cfg(not(test))]
mod intercept;
#[cfg(not(test))]
mod libcuda;
mod lock;
#[cfg(not(test))]
mod log;
#[cfg(not(test))]
mod python;
mod ranges;
#[cfg(not(test))]
mod record;
#[cfg(not(test))]
mod session;
#[cfg(not(test))]
mod stack;
#[cfg(not(test))]
mod start;
mod step;
mod window;

#[cfg(not(test))]
use start::{is_active, settings, touched};
