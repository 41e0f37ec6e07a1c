//! Memory barriers that run on all threads of the process (`membarrier(2)`).

use libc::c_int;
use tllmprof_sync::kernel;

/// Runs a memory barrier on every thread of the process. Each thread's earlier stores become visible, and its later
/// loads return current values. So threads can count calls without memory fences of their own. Returns false if the
/// kernel does not support such barriers.
pub fn process_wide() -> bool {
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    run(PRIVATE_EXPEDITED) || (run(REGISTER_PRIVATE_EXPEDITED) && run(PRIVATE_EXPEDITED))
}

/// Makes every thread refetch its next instructions, after code was changed. On an old kernel that does not
/// support this, a processor may execute the old code for a short time.
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
        // The result must be the same at each call, because it depends only on the kernel.
        assert_eq!(process_wide(), process_wide());
        instructions();
    }
}
