//! Properties of an x86-64 processor that must be known before stubs are used.

use core::arch::x86_64::_xgetbv;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::processor::cpuid;
use tllmprof_sync::kernel;

/// Size in bytes of the save area's legacy part, which is followed by a header.
pub const LEGACY: usize = 512;
const XSAVE_HEADER_SIZE: usize = 64;
/// Mask of the state components that are saved: x87, SSE, AVX, opmask, the upper halves of ZMM0-15, ZMM16-31, and APX's
/// registers. Not the AMX tiles, which no call preserves, and not the protection keys.
const SAVED_STATE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 19;

lifecycle::global! {
    /// Size in bytes of the area for the vector registers.
    #[fork(keep = "of the processor")]
    pub static AREA: AtomicUsize = AtomicUsize::new(LEGACY + XSAVE_HEADER_SIZE);
    /// Mask of the state components to save; 0 to use `fxsave`.
    #[fork(keep = "of the processor")]
    pub static MASK: AtomicU64 = AtomicU64::new(0);
}

/// Returns true if the processor keeps a second copy of return addresses that cannot be replaced.
pub fn has_shadow_stack() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    let mut features = 0_u64;
    // SAFETY: the kernel writes one word, if it knows the command.
    let known = unsafe {
        let arguments = [ARCH_SHSTK_STATUS, &raw mut features as usize, 0, 0];
        kernel::call(SYS_ARCH_PRCTL, arguments) == 0
    };
    known && features & 1 != 0
}

/// Determines which registers this processor has. Must run before any stub is used.
pub fn start() {
    const OSXSAVE: u32 = 1 << 27;
    // Leaf 1 exists on every processor of this architecture.
    if cpuid(1, 0).ecx & OSXSAVE == 0 {
        return;
    }
    // SAFETY: the system has enabled the instruction.
    let mask = unsafe { enabled() } & SAVED_STATE;
    let end = (2..64)
        .filter(|component| mask & 1 << component != 0)
        .map(|component| {
            // The leaf describes the components of xsave; the system has enabled these.
            let place = cpuid(0xd, component);
            (place.ebx + place.eax) as usize
        })
        .fold(LEGACY + XSAVE_HEADER_SIZE, usize::max);
    AREA.store(end.next_multiple_of(64), Ordering::Relaxed);
    MASK.store(mask, Ordering::Relaxed);
}

/// Returns the state components that the system has enabled.
///
/// # Safety
/// The processor has `xgetbv` enabled.
#[target_feature(enable = "xsave")]
unsafe fn enabled() -> u64 {
    // SAFETY: the instruction is enabled, as this function requires; register 0 always exists.
    unsafe { _xgetbv(0) }
}
