//! The library's own threads, which must neither keep a process from ending nor run while it is taken apart.
//!
//! A process whose main thread has left by `pthread_exit` ends with its last thread. So once that has left, each of ours
//! looks, now and then, whether only the library's are left, and ends. Until then an idle one sleeps in one system call,
//! which has no limit: the main thread's end wakes it ([`main_thread_leaves`]).
//!
//! Where the process exits, they are asked to end, and awaited for a bounded time ([`await_end`]): destructors that run
//! afterwards may give back what the threads use.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_sync::{Published, kernel};

use crate::lifecycle::{self, OnlyThread};
use crate::{ids, system, thread};

/// The threads that there may be, one of each kind at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Does what must not hold its caller up.
    Worker,
    /// Listens on the control socket.
    Live,
    /// Samples stacks.
    Stacks,
    /// Does something once, and ends by itself.
    Passing,
}

const KINDS: usize = 4;

/// The slot of a thread that was started and has not said its number yet.
const BEGINS: i32 = -1;
/// How often a thread that ends is looked at.
const LOOK: Duration = Duration::from_micros(100);

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static COUNT: AtomicU32 = AtomicU32::new(0);
    /// The kernel's number of the latest thread of each kind; 0 for none.
    #[fork(reset)]
    static NUMBERS: [AtomicI32; KINDS] = [const { AtomicI32::new(0) }; KINDS];
    /// The thread of the kind was asked to end, and will.
    #[fork(reset)]
    static END: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
    /// The main thread has left, or is about to.
    #[fork(reset)]
    static MAIN_THREAD_LEFT: AtomicBool = AtomicBool::new(false);
}
lifecycle::global! {
    stage: Last;

    /// What wakes the thread of the kind.
    #[fork(keep = "functions of this library")]
    static WAKE: [Published<fn()>; KINDS] = [const { Published::none() }; KINDS];
    /// The main thread's end is noticed.
    #[fork(by = in_child)]
    static MAIN_THREAD_IS_WATCHED: AtomicBool = AtomicBool::new(false);
}

/// The calling thread is one of the library's for as long as this lives.
pub struct OwnThread(());

impl OwnThread {
    /// Of a thread that ends by itself.
    pub fn passing() -> Self {
        Self::begin(Kind::Passing)
    }

    /// Of a thread that sleeps until somebody wakes it, by `wake`.
    pub fn new(kind: Kind, wake: &'static fn()) -> Self {
        WAKE[kind as usize].set(Some(wake));
        Self::begin(kind)
    }

    fn begin(kind: Kind) -> Self {
        thread::when_main_thread_leaves(&(main_thread_leaves as fn()));
        COUNT.fetch_add(1, Ordering::AcqRel);
        NUMBERS[kind as usize].store(ids::thread(), Ordering::Release);
        Self(())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Starts the thread of a kind; whether it did. It runs none of the host's signal handlers.
pub fn start(
    kind: Kind,
    stack: usize,
    main: extern "C-unwind" fn(*mut core::ffi::c_void) -> *mut core::ffi::c_void,
) -> bool {
    let number = &NUMBERS[kind as usize];
    END[kind as usize].store(false, Ordering::Relaxed);
    number.store(BEGINS, Ordering::Release);
    let is_started = system::without_signals(|| system::start_thread(stack, main));
    if !is_started {
        number.store(0, Ordering::Release);
    }
    is_started
}

/// The thread of the kind ends soon.
pub fn ends(kind: Kind) {
    END[kind as usize].store(true, Ordering::Release);
}

/// Waits until the threads that end are gone, with all that the C library does for them; not where this is one of them.
pub fn await_end(patience: Duration) {
    let deadline = Instant::now() + patience;
    let us = ids::thread();
    for (number, ends) in NUMBERS.iter().zip(&END) {
        let is_there = || match number.load(Ordering::Acquire) {
            0 => false,
            BEGINS => true,
            number => number != us && exists(number),
        };
        while ends.load(Ordering::Acquire) && is_there() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether the process has a thread of this number.
fn exists(number: i32) -> bool {
    let arguments = [ids::process() as usize, number as usize, 0];
    // SAFETY: no signal is sent; the kernel only looks whether it could be.
    unsafe { kernel::call(libc::SYS_tgkill, arguments) == 0 }
}

/// Has the calling thread's end noticed, if it is the main one. For the constructor, which that runs.
pub fn watch_main_thread() {
    thread::when_main_thread_leaves(&(main_thread_leaves as fn()));
    let is_main = ids::thread() == ids::process();
    if is_main && thread::watch_end() {
        MAIN_THREAD_IS_WATCHED.store(true, Ordering::Release);
    }
}

/// The thread that has forked is the child's main thread.
fn in_child(_: &OnlyThread) {
    if MAIN_THREAD_IS_WATCHED.swap(false, Ordering::Relaxed) {
        watch_main_thread();
    }
}

/// The main thread is ending, and not by the end of the process.
fn main_thread_leaves() {
    MAIN_THREAD_LEFT.store(true, Ordering::Release);
    WAKE.iter()
        .filter_map(Published::get)
        .for_each(|wake| wake());
}

/// How long an idle thread may sleep until it looks whether it is alone; no limit as long as the main thread is there, if
/// its end is noticed. That is not so where the library was attached to a process whose main thread has made no call since.
pub fn look_after(closely: Duration) -> Option<Duration> {
    const UNWATCHED: Duration = Duration::from_secs(1);
    if MAIN_THREAD_LEFT.load(Ordering::Acquire) {
        return Some(closely);
    }
    (!MAIN_THREAD_IS_WATCHED.load(Ordering::Acquire)).then_some(UNWATCHED)
}

/// Whether the main thread has ended and only its entry is left.
///
/// An ended thread has no memory, which is how the kernel shows it without a file being opened: a
/// descriptor of ours, however short-lived, could be the one that the host expects to get.
fn main_thread_has_left() -> bool {
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

/// Whether the process has only the library's threads left, besides the entry of the main one. Asks the kernel only
/// where the main thread may have left.
pub fn are_alone() -> bool {
    let may_have_left =
        MAIN_THREAD_LEFT.load(Ordering::Acquire) || !MAIN_THREAD_IS_WATCHED.load(Ordering::Acquire);
    may_have_left
        && main_thread_has_left()
        && system::threads() == Some(u64::from(COUNT.load(Ordering::Acquire)) + 1)
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;

    use super::*;

    #[test]
    fn a_thread_that_ends_is_awaited_until_the_kernel_has_none_of_its_number() {
        static MAY_END: AtomicU32 = AtomicU32::new(0);
        fn wake() {
            tllmprof_sync::wake(&MAY_END, i32::MAX);
        }
        extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
            let _own = OwnThread::new(Kind::Stacks, &(wake as fn()));
            while MAY_END.load(Ordering::Acquire) == 0 {
                tllmprof_sync::wait_until_woken(&MAY_END, 0);
            }
            core::ptr::null_mut()
        }
        assert!(start(Kind::Stacks, 256 << 10, main));
        // Nobody has asked it to end: nothing is awaited.
        await_end(Duration::from_secs(3600));
        ends(Kind::Stacks);
        await_end(Duration::from_millis(1));
        let number = &NUMBERS[Kind::Stacks as usize];
        while number.load(Ordering::Acquire) == BEGINS {
            std::thread::yield_now();
        }
        let number = number.load(Ordering::Acquire);
        assert!(exists(number));
        MAY_END.store(1, Ordering::Release);
        wake();
        await_end(Duration::from_secs(3600));
        assert!(!exists(number));
    }
}
