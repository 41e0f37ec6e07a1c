//! A jump at a function's entry: whether its first instructions can be moved, and the write.
//!
//! Entries are patched on x86-64 only. Elsewhere it is still known of a function's code whether it
//! looks at its return address.

#[cfg(target_arch = "x86_64")]
mod examine;
pub mod jumps;
mod refusal;
#[cfg(not(target_arch = "x86_64"))]
mod unpatched;
#[cfg(target_arch = "x86_64")]
mod write;

#[cfg(target_arch = "x86_64")]
pub use examine::{Entry, JUMP, Kind, Moved, examine};
pub use refusal::{Denied, Refusal};
#[cfg(not(target_arch = "x86_64"))]
pub use unpatched::{Entry, JUMP, examine, fits_one_store, jump, write};
#[cfg(target_arch = "x86_64")]
pub use write::{fits_one_store, jump, write};
