//! Locks, hashes and state machines that can be used in the middle of a call of the host program. They do not
//! allocate, panics do not poison them, their waits are bounded, and their state after `fork` is defined.

pub mod hash;
pub mod kernel;
mod lock;
mod machine;
mod published;

pub use lock::{Guard, Lock, OnlyThread, wait, wait_until_woken, wake};
pub use machine::{Machine, States};
pub use published::Published;
