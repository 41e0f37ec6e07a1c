//! A jump at a function's entry, on x86-64.

mod entry;
mod trampoline;
mod write;

pub use entry::{Entry, JUMP, examine};
pub use trampoline::Region;
pub use write::{fits_one_store, jump, write};
