//! Loads the library into a process that was started without it, and starts the library there.
//!
//! ```text
//! checks ──▶ a thread is stopped ──▶ is it at a safe point? ──▶ its registers are set, once ──▶ it continues
//! ```
//!
//! The command stops one thread and sets its registers once, so that the thread continues at a stub (a few
//! instructions that the command has placed there). The stub saves the processor's state, creates a thread, restores
//! all registers and jumps back. The new thread calls `dlopen` and the library's `tllmprof_attach`, so no thread of
//! the program waits for these calls. At no point does the process depend on this command: if the command is killed,
//! the kernel resumes the stopped thread, either with its old registers or at the stub.
//!
//! `docs/attach.md` describes the checks and the refusals.

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
mod return_address;
#[cfg(target_arch = "x86_64")]
mod safe;
#[cfg(target_arch = "x86_64")]
mod stub;
#[cfg(target_arch = "x86_64")]
mod traced;
#[cfg(target_arch = "x86_64")]
mod unwind;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_view.rs")]
mod view;

pub use library::{Attached, Hooked, Library};
pub use process::{ProcStatus, Turn, is_there};
pub use refusal::AttachRefusal;
pub use view::{NativeFrame, ProcessView};

use std::path::Path;

/// Loads the library into the process `pid`. The caller must hold the lock on the process ([`Turn`]) and keep it
/// until [`write_jumps`] has also returned.
///
/// # Errors
/// Returns the reason why the library was not loaded, or why it is unknown whether the library was loaded.
pub fn attach(pid: i32, library: Library<'_>) -> Result<Attached, AttachRefusal> {
    load(pid, library).map_err(|refusal| match refusal {
        AttachRefusal::NoProcess | AttachRefusal::Zombie | AttachRefusal::Kernel => refusal,
        // If the process ends while it is checked, its memory reads as empty, and a check may report a wrong reason.
        _ if process::is_ending(pid) => AttachRefusal::Ended,
        _ => refusal,
    })
}

fn load(pid: i32, library: Library<'_>) -> Result<Attached, AttachRefusal> {
    process::check(pid, library.path)?;
    #[cfg(target_arch = "x86_64")]
    return inject::inject(pid, library);
    #[cfg(not(target_arch = "x86_64"))]
    Err(AttachRefusal::Architecture)
}

/// Writes the jumps that the loaded library has prepared for the entries of the driver's functions, except those
/// that are already written. If some of them cannot be written, the reason is in [`Hooked::why`].
///
/// # Errors
/// Returns the reason if the state of the jumps cannot be determined.
pub fn write_jumps(pid: i32, library: &Path) -> Result<Hooked, &'static str> {
    #[cfg(target_arch = "x86_64")]
    return jumps::write(pid, library);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (pid, library);
        Ok(Hooked::default())
    }
}
