//! Patches a function's entry with a jump. The jump overwrites the function's first instructions, which have to run
//! at another address instead. So this module examines whether they can be moved there, and then writes the jump.
//!
//! Entries are patched only on x86-64. On other processors a function's code is only examined for reads of
//! its return address.

#[cfg(target_arch = "x86_64")]
mod examine;
pub mod jumps;
mod refusal;
#[cfg(not(target_arch = "x86_64"))]
mod unpatched;
#[cfg(target_arch = "x86_64")]
mod write;

#[cfg(target_arch = "x86_64")]
pub use examine::{InstructionKind, JUMP, Moved, PatchableEntry, examine};
pub use refusal::{Denied, PatchRefusal};
#[cfg(not(target_arch = "x86_64"))]
pub use unpatched::{JUMP, PatchableEntry, examine, fits_one_store, jump, write};
#[cfg(target_arch = "x86_64")]
pub use write::{fits_one_store, jump, write};
