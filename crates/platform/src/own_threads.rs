//! The library's own threads, which must not be what keeps a process from ending.
//!
//! A process whose main thread has left by `pthread_exit` ends with its last thread. So each of ours looks, now and
//! then, whether only the library's are left, and ends.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{ids, lifecycle, system};

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static COUNT: AtomicU32 = AtomicU32::new(0);
    #[fork(reset)]
    static MAIN_THREAD_LEFT: AtomicBool = AtomicBool::new(false);
}

/// The calling thread is one of the library's for as long as this lives.
pub struct OwnThread(());

impl OwnThread {
    pub fn new() -> Self {
        COUNT.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The main thread is ending, and not by the end of the process.
pub fn main_thread_leaves() {
    MAIN_THREAD_LEFT.store(true, Ordering::Release);
}

/// Whether the main thread has ended and only its entry is left.
///
/// An ended thread has no memory, which is how the kernel shows it without a file being opened: a
/// descriptor of ours, however short-lived, could be the one that the host expects to get.
pub fn main_thread_has_left() -> bool {
    let (byte, mut copy) = (0u8, 0u8);
    let from = libc::iovec {
        iov_base: (&raw const byte).cast_mut().cast(),
        iov_len: 1,
    };
    let to = libc::iovec {
        iov_base: (&raw mut copy).cast(),
        iov_len: 1,
    };
    let process = ids::process();
    // SAFETY: copies one byte of this frame to another of it.
    let copied =
        unsafe { libc::process_vm_readv(process, &raw const to, 1, &raw const from, 1, 0) };
    if copied == 1 {
        return false;
    }
    // Where the kernel is not to be asked, what the thread said itself has to do.
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
        || MAIN_THREAD_LEFT.load(Ordering::Acquire)
}

/// Whether the process has only the library's threads left, besides the entry of the main one.
pub fn are_alone() -> bool {
    main_thread_has_left()
        && system::threads() == Some(u64::from(COUNT.load(Ordering::Acquire)) + 1)
}
