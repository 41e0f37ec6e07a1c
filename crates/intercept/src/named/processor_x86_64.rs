//! Properties of an x86-64 processor that the assembly code for hooked functions depends on.

use core::arch::x86_64::_xgetbv;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::processor::cpuid;
use tllmprof_sync::kernel;

/// Size in bytes of the legacy part of the XSAVE area. The XSAVE header follows it.
pub(crate) const LEGACY: usize = 512;
const XSAVE_HEADER_SIZE: usize = 64;
/// Mask of the register state that the hooks' assembly code saves before it calls Rust code: x87, SSE, AVX, opmask, the
/// upper halves of ZMM0-15, ZMM16-31, and APX's registers. The AMX tiles are left out because callers neither pass
/// arguments in them nor expect a call to preserve them. The protection keys are left out, too.
const SAVED_STATE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 19;

lifecycle::global! {
    /// Size in bytes of the area in which the vector registers are saved.
    #[fork(keep = "of the processor")]
    pub static AREA: AtomicUsize = AtomicUsize::new(LEGACY + XSAVE_HEADER_SIZE);
    /// Mask of the state components to save; 0 if the processor or the operating system does not support `xsave`. Then
    /// `fxsave` is used.
    #[fork(keep = "of the processor")]
    pub static MASK: AtomicU64 = AtomicU64::new(0);
}

/// Returns true if the processor keeps a second copy of return addresses, which cannot be replaced (a shadow stack).
pub(crate) fn has_shadow_stack() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    let mut features = 0_u64;
    // SAFETY: the kernel writes one word to `features`, or nothing if it does not know the command.
    let known = unsafe {
        let arguments = [ARCH_SHSTK_STATUS, &raw mut features as usize, 0, 0];
        kernel::call(SYS_ARCH_PRCTL, arguments) == 0
    };
    known && features & 1 != 0
}

/// Determines which vector registers the operating system has enabled, so that the hooks' assembly code saves all of
/// them. Must run before any function is hooked.
pub(crate) fn start() {
    const OSXSAVE: u32 = 1 << 27;
    // Leaf 1 of `cpuid` exists on every x86-64 processor.
    if cpuid(1, 0).ecx & OSXSAVE == 0 {
        return;
    }
    // SAFETY: the operating system has enabled `xgetbv`, as the OSXSAVE bit states.
    let mask = unsafe { enabled() } & SAVED_STATE;
    let end = (2..64)
        .filter(|component| mask & 1 << component != 0)
        .map(|component| {
            // Leaf 0xd of `cpuid` returns the size (EAX) and the offset (EBX) of a state component in the XSAVE area.
            let place = cpuid(0xd, component);
            (place.ebx + place.eax) as usize
        })
        .fold(LEGACY + XSAVE_HEADER_SIZE, usize::max);
    AREA.store(end.next_multiple_of(64), Ordering::Relaxed);
    MASK.store(mask, Ordering::Relaxed);
}

/// Returns the mask of the state components that the operating system has enabled.
///
/// # Safety
/// The operating system has enabled `xgetbv`.
#[target_feature(enable = "xsave")]
unsafe fn enabled() -> u64 {
    // SAFETY: the instruction is enabled, as this function requires; register 0 always exists.
    unsafe { _xgetbv(0) }
}
