//! The barrier that lets threads count without fences.

/// Makes what every thread has stored visible, and what it loads next fresh: `membarrier(2)`,
/// private expedited. False where the kernel has none.
pub fn process_wide() -> bool {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: the commands take no memory of ours.
    let command =
        |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    command(PRIVATE_EXPEDITED)
        || (command(REGISTER_PRIVATE_EXPEDITED) && command(PRIVATE_EXPEDITED))
}
