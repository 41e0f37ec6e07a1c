//! The library's own threads. They must neither keep a process from ending nor run while it shuts down.
//!
//! If a process's main thread has left by `pthread_exit`, the process ends with its last thread. So from then on, each
//! of the library's threads regularly checks if only the library's threads are left, and ends in that case. Until the
//! main thread leaves, an idle thread of the library usually sleeps in one system call, without a time limit. When the
//! main thread leaves, it wakes the library's threads ([`main_thread_leaves`]).
//!
//! When the process exits, the library asks its threads to end, and waits for this for a limited time ([`await_end`]),
//! because destructors that run afterwards may free data that the threads use.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_sync::{Published, kernel};

use crate::lifecycle::{self, OnlyThread};
use crate::{elf, ids, pages, system, thread};

/// The types of the library's threads. There is at most one thread of each type at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadKind {
    /// The worker, which does work that must not delay its caller.
    Worker,
    /// The thread that listens on the control socket.
    Live,
    /// The thread that samples stacks.
    Stacks,
    /// A thread that does one task and then ends.
    Passing,
}

const KINDS: usize = 4;

/// Value in [`NUMBERS`] for a thread that was started but has not stored its ID yet.
const BEGINS: i32 = -1;
/// The interval between two checks whether a thread has ended.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static COUNT: AtomicU32 = AtomicU32::new(0);
    /// The kernel's ID of the latest thread of each type; 0 if there was none.
    #[fork(reset)]
    static NUMBERS: [AtomicI32; KINDS] = [const { AtomicI32::new(0) }; KINDS];
    /// One flag for each type of thread: true if the thread was asked to end.
    #[fork(reset)]
    static END: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
    /// True if the main thread has ended or is about to end, while the process continues.
    #[fork(reset)]
    static MAIN_THREAD_LEFT: AtomicBool = AtomicBool::new(false);
}
lifecycle::global! {
    stage: Last;

    /// For each type of thread, the function that wakes the thread of this type.
    #[fork(keep = "functions of this library")]
    static WAKE: [Published<fn()>; KINDS] = [const { Published::none() }; KINDS];
    /// True if the library is sure to notice when the main thread ends.
    #[fork(by = in_child)]
    static MAIN_THREAD_IS_WATCHED: AtomicBool = AtomicBool::new(false);
}

/// Marks the calling thread as one of the library's threads while this value exists.
pub struct OwnThread(());

impl OwnThread {
    /// Marks the calling thread as a thread of the library that does one task and then ends.
    pub fn passing() -> Self {
        Self::begin(ThreadKind::Passing)
    }

    /// Marks the calling thread as one of the library's threads. Other threads call `wake` to wake it from its sleep.
    pub fn new(kind: ThreadKind, wake: &'static fn()) -> Self {
        WAKE[kind as usize].set(Some(wake));
        Self::begin(kind)
    }

    fn begin(kind: ThreadKind) -> Self {
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

/// Starts the thread of this type, with a stack of `stack` bytes. Returns true on success. All signals are blocked in
/// the new thread, so it runs no signal handlers of the program.
pub fn start(
    kind: ThreadKind,
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

/// Returns true if `number` is the thread ID of one of the library's threads. An ended thread still counts until the
/// next thread of its type starts.
pub fn is_one(number: i32) -> bool {
    let mut numbers = NUMBERS.iter();
    numbers.any(|known| known.load(Ordering::Acquire) == number)
}

/// Stores that the thread of this type was asked to end, so that [`await_end`] waits for it.
pub fn ends(kind: ThreadKind) {
    END[kind as usize].store(true, Ordering::Release);
}

/// Waits until the threads that were asked to end are gone, including their clean-up in the C library, or
/// until `patience` has passed. Does not wait for the calling thread.
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
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns true if the process has a thread with this ID.
fn exists(number: i32) -> bool {
    let arguments = [ids::process() as usize, number as usize, 0];
    // SAFETY: signal 0 is not sent. The kernel only checks whether the thread exists.
    unsafe { kernel::call(libc::SYS_tgkill, arguments) == 0 }
}

/// If the calling thread is the main thread, makes sure that the library notices the thread's end. Called
/// when the library is loaded, which usually happens on the main thread.
pub fn watch_main_thread() {
    thread::when_main_thread_leaves(&(main_thread_leaves as fn()));
    let is_main = ids::thread() == ids::process();
    if is_main && thread::watch_end() {
        MAIN_THREAD_IS_WATCHED.store(true, Ordering::Release);
    }
}

/// Runs in the child of a fork, where the thread that forked is the main thread. Watches this thread's end if the
/// parent's main thread was watched.
fn in_child(_: &OnlyThread) {
    if MAIN_THREAD_IS_WATCHED.swap(false, Ordering::Relaxed) {
        watch_main_thread();
    }
}

/// Called when the main thread is ending while the process continues. Wakes the library's threads.
fn main_thread_leaves() {
    MAIN_THREAD_LEFT.store(true, Ordering::Release);
    WAKE.iter()
        .filter_map(Published::get)
        .for_each(|wake| wake());
}

/// Returns true if there is enough memory for the thread-local variables that the calling thread has not used yet. If
/// there is not, the process ends when the thread first uses such a variable: "cannot allocate memory for
/// thread-local data: ABORT".
pub fn has_memory_for_thread_locals() -> bool {
    /// The number of bytes that an allocator requests from the system at a time: glibc's takes 1 MiB,
    /// jemalloc's 2 MiB.
    const ALLOCATOR_BYTES: usize = 2 << 20;
    match elf::unallocated_thread_locals() {
        0 => true,
        bytes => pages::can_map(bytes + ALLOCATOR_BYTES),
    }
}

/// Returns the time that an idle thread may sleep until it must call [`are_alone`]; `None` means no limit.
///
/// After the main thread has left, the result is `closely`. While the main thread runs, there is no limit if the
/// library is sure to notice that thread's end. Otherwise the limit is one second. This is so if the library was
/// attached to the process, and the main thread has made no intercepted call since.
pub fn look_after(closely: Duration) -> Option<Duration> {
    const UNWATCHED: Duration = Duration::from_secs(1);
    if MAIN_THREAD_LEFT.load(Ordering::Acquire) {
        return Some(closely);
    }
    (!MAIN_THREAD_IS_WATCHED.load(Ordering::Acquire)).then_some(UNWATCHED)
}

/// Returns true if the main thread has ended, so that only its entry in the process's list of threads is
/// left.
///
/// A thread that has ended has no memory, so reading its memory fails. No file is opened for this check: even
/// for a short time, a descriptor of the library could take the number that the program expects for its next one.
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
    // SAFETY: copies one byte of this function's frame to another byte of the frame.
    let copied =
        unsafe { libc::process_vm_readv(process, &raw const to, 1, &raw const from, 1, 0) };
    if copied == 1 {
        return false;
    }
    // An error other than ESRCH (no such thread) does not show whether the main thread has ended. Then the flag
    // `MAIN_THREAD_LEFT` decides, which the main thread sets when it ends.
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
        || MAIN_THREAD_LEFT.load(Ordering::Acquire)
}

/// Returns true if only the library's threads are left in the process, apart from the entry of the ended main thread.
/// Makes system calls only if the main thread may have ended.
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
            let _own = OwnThread::new(ThreadKind::Stacks, &(wake as fn()));
            while MAY_END.load(Ordering::Acquire) == 0 {
                tllmprof_sync::wait_until_woken(&MAY_END, 0);
            }
            core::ptr::null_mut()
        }
        assert!(start(ThreadKind::Stacks, 256 << 10, main));
        // No thread was asked to end, so this call must not wait for one.
        await_end(Duration::from_secs(3600));
        ends(ThreadKind::Stacks);
        await_end(Duration::from_millis(1));
        let number = &NUMBERS[ThreadKind::Stacks as usize];
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
