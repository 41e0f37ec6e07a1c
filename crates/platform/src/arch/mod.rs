//! The assembler of each processor.

#[cfg_attr(target_arch = "aarch64", path = "gate_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "gate_x86_64.rs")]
pub mod gate;
#[cfg_attr(target_arch = "aarch64", path = "thread_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "thread_x86_64.rs")]
pub mod thread;
