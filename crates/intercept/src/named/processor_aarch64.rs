//! Properties of an AArch64 processor that the assembly code for hooked functions depends on.

/// Returns true if the processor keeps a second copy of return addresses, which cannot be replaced: Linux calls this
/// the guarded control stack.
pub(crate) fn has_shadow_stack() -> bool {
    const PR_GET_SHADOW_STACK_STATUS: usize = 74;
    const PR_SHADOW_STACK_ENABLE: u64 = 1;
    let mut status = 0_u64;
    let arguments = [
        PR_GET_SHADOW_STACK_STATUS,
        (&raw mut status).addr(),
        0,
        0,
        0,
    ];
    // SAFETY: the kernel writes one word to `status`, or nothing if it does not know the command.
    let known = unsafe { tllmprof_sync::kernel::call(libc::SYS_prctl, arguments) == 0 };
    known && status & PR_SHADOW_STACK_ENABLE != 0
}

/// Does nothing: on AArch64 no property of the processor must be determined before functions are hooked.
pub(crate) const fn start() {}
