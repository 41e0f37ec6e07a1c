//! Locks, hashes and state machines that can be used in the middle of a host's call: no allocation,
//! no poisoning, bounded waits, and a defined state after `fork`.

pub mod hash;
pub mod kernel;
mod lock;
mod machine;
mod published;

pub use lock::{Guard, Lock, OnlyThread, wait, wait_until_woken, wake};
pub use machine::{Machine, States};
pub use published::Published;
