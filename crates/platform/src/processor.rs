//! What an x86-64 processor says of itself.

use core::arch::x86_64::{__cpuid_count, CpuidResult};

/// What the instruction `cpuid` gives for a leaf, and a part of it where the leaf has several, else 0.
#[must_use]
pub fn cpuid(leaf: u32, part: u32) -> CpuidResult {
    #[allow(
        unused_unsafe,
        reason = "unsafe in the oldest Rust that builds this, safe in newer ones"
    )]
    // SAFETY: every x86-64 processor has the instruction, which changes nothing.
    unsafe {
        __cpuid_count(leaf, part)
    }
}
