//! Loads the library into a process that runs without it, and starts it there.
//!
//! ```text
//! checks ──▶ a thread is stopped ──▶ is it at a safe point? ──▶ its registers are set, once ──▶ it goes on
//! ```
//!
//! The stopped thread is given one new set of registers and goes on at a stub. The stub saves the processor's state,
//! creates a thread, restores all registers and jumps back. The new thread calls `dlopen` and the library's
//! `tllmprof_attach`, so the program's own threads wait for neither. No state between these needs this command: it can
//! be killed at any moment, and the kernel then lets the stopped thread go on, with its old registers or with the stub's.
//!
//! `docs/attach.md` says what is checked, and what is refused.

mod library;
mod process;
mod refusal;

#[cfg(target_arch = "x86_64")]
mod elf;
#[cfg(target_arch = "x86_64")]
mod everyone;
#[cfg(target_arch = "x86_64")]
mod file;
#[cfg(target_arch = "x86_64")]
mod filters;
#[cfg(target_arch = "x86_64")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod jumps;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod places;
#[cfg(target_arch = "x86_64")]
mod safe;
#[cfg(target_arch = "x86_64")]
mod stub;
#[cfg(target_arch = "x86_64")]
mod traced;
#[cfg(target_arch = "x86_64")]
mod unwind;

pub use library::{Attached, Hooked, Library};
pub use process::{Status, Turn, is_there};
pub use refusal::Refusal;

use std::path::Path;

/// Loads the library into the process `pid`. The caller has the [`Turn`], also while it writes the jumps.
///
/// # Errors
/// Why it is not loaded, or why it is not known whether it is.
pub fn attach(pid: i32, library: Library<'_>) -> Result<Attached, Refusal> {
    load(pid, library).map_err(|refusal| match refusal {
        Refusal::NoProcess | Refusal::Zombie | Refusal::Kernel => refusal,
        // What was read of a process that ends says nothing.
        _ if process::is_ending(pid) => Refusal::Ended,
        _ => refusal,
    })
}

fn load(pid: i32, library: Library<'_>) -> Result<Attached, Refusal> {
    process::check(pid, library.path)?;
    #[cfg(target_arch = "x86_64")]
    return inject::inject(pid, library);
    #[cfg(not(target_arch = "x86_64"))]
    Err(Refusal::Architecture)
}

/// Writes the jumps that the library, which is in the process, has got ready at the entries of the driver's functions, but
/// for those that are there.
///
/// # Errors
/// Why none of them is known.
pub fn write_jumps(pid: i32, library: &Path) -> Result<Hooked, &'static str> {
    #[cfg(target_arch = "x86_64")]
    return jumps::write(pid, library);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (pid, library);
        Ok(Hooked::default())
    }
}
