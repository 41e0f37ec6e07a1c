//! Queries the features of an x86-64 processor.

use core::arch::x86_64::{__cpuid_count, CpuidResult};

/// Returns the result of the instruction `cpuid` for a leaf and its subleaf `part` (0 if the leaf has no
/// subleaves).
#[must_use]
pub fn cpuid(leaf: u32, part: u32) -> CpuidResult {
    #[allow(
        unused_unsafe,
        reason = "unsafe in the oldest Rust that builds this, safe in newer ones"
    )]
    // SAFETY: every x86-64 processor has the instruction, which only writes its result registers.
    unsafe {
        __cpuid_count(leaf, part)
    }
}
