//! Locks, hashes and state machines that can be used in the middle of a call of the profiled program. Only
//! [`Published::publish`] and [`Published::get_or`] allocate memory. A panic does not poison a lock, waits for a lock
//! can have a time limit, and the state after `fork` is defined.

pub mod hash;
pub mod kernel;
mod lock;
mod machine;
mod published;

pub use lock::{Guard, Lock, OnlyThread, wait, wait_until_woken, wake};
pub use machine::{Machine, States};
pub use published::Published;
