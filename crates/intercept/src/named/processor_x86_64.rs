//! What is found out of an x86-64 processor before stubs are used.

use core::arch::x86_64::_xgetbv;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::processor::cpuid;
use tllmprof_sync::kernel;

/// Bytes that the assembler saves vector registers in: the legacy area and the header.
pub const LEGACY: usize = 512;
const HEADER: usize = 64;
/// x87, SSE, AVX, opmask, the upper halves of ZMM0-15, ZMM16-31, and APX's registers. Not the
/// tiles of AMX, which no call keeps, and not the protection keys.
const STATE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 19;

lifecycle::global! {
    /// Bytes to save them in.
    #[fork(keep = "of the processor")]
    pub static AREA: AtomicUsize = AtomicUsize::new(LEGACY + HEADER);
    /// State components to save; 0: by `fxsave`.
    #[fork(keep = "of the processor")]
    pub static MASK: AtomicU64 = AtomicU64::new(0);
}

/// Whether the processor keeps return addresses a second time, where they cannot be replaced.
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

/// Finds out which registers this processor has. Before any stub is used.
pub fn start() {
    const OSXSAVE: u32 = 1 << 27;
    // Leaf 1 exists on every processor of this architecture.
    if cpuid(1, 0).ecx & OSXSAVE == 0 {
        return;
    }
    // SAFETY: the system has enabled the instruction.
    let mask = unsafe { enabled() } & STATE;
    let end = (2..64)
        .filter(|component| mask & 1 << component != 0)
        .map(|component| {
            // The leaf describes the components of xsave; these are ones that the system enabled.
            let place = cpuid(0xd, component);
            (place.ebx + place.eax) as usize
        })
        .fold(LEGACY + HEADER, usize::max);
    AREA.store(end.next_multiple_of(64), Ordering::Relaxed);
    MASK.store(mask, Ordering::Relaxed);
}

/// The state components that the system has enabled.
///
/// # Safety
/// The processor has `xgetbv` enabled.
#[target_feature(enable = "xsave")]
unsafe fn enabled() -> u64 {
    // SAFETY: the instruction is enabled, which the function requires; register 0 always exists.
    unsafe { _xgetbv(0) }
}
