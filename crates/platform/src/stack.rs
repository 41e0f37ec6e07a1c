//! Properties of the C stack of the calling thread.

use core::mem::MaybeUninit;
use core::ops::Range;

/// Returns the value of the stack pointer.
#[inline]
pub fn here() -> usize {
    let here: usize;
    // SAFETY: only reads the stack pointer.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mov {}, sp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    here
}

/// Returns the address range of the calling thread's stack. The stack pointer may lie outside this range, because
/// code of a coroutine or a signal handler may run on another stack. Allocates, and reads a file if the calling thread
/// is the main thread.
pub fn bounds() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size) = (core::ptr::null_mut(), 0);
    // SAFETY: the first call writes the attributes, and the last one frees them. The other calls write only to the
    // local variables.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let known =
            libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        known.then(|| lowest.addr()..lowest.addr() + size)
    }
}

/// Returns the size in bytes of the alternate signal stack, if the calling thread is running on it.
pub fn of_signal_handler() -> Option<usize> {
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: the call sets nothing. It fills the structure on success, and the structure is read only then.
    let stack = unsafe {
        if libc::sigaltstack(core::ptr::null(), stack.as_mut_ptr()) != 0 {
            return None;
        }
        stack.assume_init()
    };
    (stack.ss_flags & libc::SS_ONSTACK != 0).then_some(stack.ss_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_its_stack() {
        let local = 0;
        let check = |local: usize| {
            let bounds = bounds().unwrap();
            assert!(bounds.contains(&here()) && bounds.contains(&local));
            bounds
        };
        let ours = check((&raw const local).addr());
        let theirs = std::thread::spawn(move || {
            let local = 0;
            check((&raw const local).addr())
        });
        let theirs = theirs.join().unwrap();
        assert!(ours.end <= theirs.start || theirs.end <= ours.start);
    }
}
