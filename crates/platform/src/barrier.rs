//! Memory barriers that run on all threads of the process (`membarrier(2)`).

use libc::c_int;
use tllmprof_sync::kernel;

/// Runs a memory barrier on every thread: all earlier stores become visible, and later loads are fresh. So threads can
/// count without fences. Returns false if the kernel does not support it.
pub fn process_wide() -> bool {
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    run(PRIVATE_EXPEDITED) || (run(REGISTER_PRIVATE_EXPEDITED) && run(PRIVATE_EXPEDITED))
}

/// Makes every thread refetch its next instructions. Old kernels do not support it; then a processor sees changed code
/// a little later.
pub fn instructions() {
    const SYNC_CORE: c_int = 1 << 5;
    const REGISTER_SYNC_CORE: c_int = 1 << 6;
    run(REGISTER_SYNC_CORE);
    run(SYNC_CORE);
}

fn run(command: c_int) -> bool {
    // SAFETY: these commands use no memory of this process.
    unsafe { kernel::call(libc::SYS_membarrier, [command as usize, 0, 0, 0]) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_refused() {
        assert!(!run(1 << 30));
        // The result must be the same each time.
        assert_eq!(process_wide(), process_wide());
        instructions();
    }
}
