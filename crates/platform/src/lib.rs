//! The basis of a preloaded library. It does not depend on what the library profiles.
//!
//! It contains code for modules and their symbols ([`elf`], [`modules`], [`resolve`], [`maps`]), patched GOT slots
//! ([`got`]) and function entries ([`entry`]), the state of each thread ([`thread`]), a heap for the library
//! ([`heap`]), memory outside that heap ([`pages`]), reads of memory that is possibly not mapped ([`peek`]),
//! descriptors of files that the library keeps open ([`descriptor`]), panics that must not reach the host program
//! ([`panics`], [`internal_error`]), forks ([`lifecycle`]), the CUDA driver and the gates in front of it ([`driver`],
//! [`gate`]), lines on standard error ([`log`]), and system calls that are allowed at any time ([`system`]).
//! This crate does not know about steps (iterations) or windows (recorded intervals).

#[cfg(not(all(
    any(target_arch = "aarch64", target_arch = "x86_64"),
    target_endian = "little",
    target_pointer_width = "64",
    target_os = "linux",
    target_env = "gnu"
)))]
compile_error!("the assembler is written for x86-64 and AArch64 Linux with glibc");

pub mod barrier;
mod block;
pub mod cancel;
pub mod descriptor;
pub mod driver;
pub mod elf;
pub mod entry;
pub mod environment;
pub mod errno;
pub mod function;
pub mod gate;
pub mod got;
pub mod heap;
pub mod ids;
pub mod injection;
pub mod internal_error;
pub mod libcuda;
pub mod lifecycle;
pub mod log;
pub mod maps;
pub mod modules;
pub mod own_threads;
pub mod pages;
pub mod panics;
pub mod peek;
#[cfg(target_arch = "x86_64")]
pub mod processor;
pub mod resolve;
pub mod sorted;
pub mod stack;
pub mod system;
pub mod thread;
