//! Requests to the C library and the kernel that are allowed at any time, for example in a hook.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

use tllmprof_sync::kernel;

/// A clock of the operating system.
#[derive(Clone, Copy, Debug)]
pub enum SystemClock {
    Monotonic,
    /// A cheaper version of [`SystemClock::Monotonic`], with a resolution of a few milliseconds.
    MonotonicCoarse,
    Realtime,
}

impl SystemClock {
    const fn id(self) -> libc::clockid_t {
        match self {
            Self::Monotonic => libc::CLOCK_MONOTONIC,
            Self::MonotonicCoarse => libc::CLOCK_MONOTONIC_COARSE,
            Self::Realtime => libc::CLOCK_REALTIME,
        }
    }
}

fn nanoseconds_of(time: &libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Returns the time of the clock in nanoseconds. The preloaded library has its own `clock_gettime`, which calls the C
/// library's function or the kernel. So another library's function of this name is not called.
#[inline]
pub fn nanoseconds(clock: SystemClock) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to the local variable. These clocks always exist.
    unsafe { libc::clock_gettime(clock.id(), &raw mut time) };
    nanoseconds_of(&time)
}

/// Returns the processor time in nanoseconds that a thread of this process has used so far. Returns `None` if there is
/// no such thread.
pub fn processor_time(thread: i32) -> Option<u64> {
    // The kernel encodes the clock of a thread as the complement of the thread ID, followed by these bits for
    // the type of clock.
    const OF_THREAD: libc::clockid_t = 4;
    const SCHEDULER: libc::clockid_t = 2;
    let clock = !thread << 3 | OF_THREAD | SCHEDULER;
    kernel::time(clock).map(|time| nanoseconds_of(&time))
}

/// Returns the processor time in nanoseconds that all threads of a process have used so far. Returns `None` if there is
/// no such process.
pub fn processor_time_of_process(process: i32) -> Option<u64> {
    // The kernel's number for such a clock: the inverted bits of the process ID, then three bits for the kind of clock.
    // `SCHEDULER` is the processor time; the bit 4, which means "of a thread", is not set.
    const SCHEDULER: libc::clockid_t = 2;
    kernel::time(!process << 3 | SCHEDULER).map(|time| nanoseconds_of(&time))
}

/// The resources that a thread has used since it began. Times are in nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct ThreadUsage {
    /// The time on a processor in nanoseconds. `in_kernel` is the part of that time spent in the kernel,
    /// accurate to a few milliseconds.
    pub ran: u64,
    pub in_kernel: u64,
    /// The number of times that the thread left its processor in order to wait. `preempted` is the number of
    /// times that the kernel took its processor away.
    pub left: u64,
    pub preempted: u64,
    /// The number of page faults without a disk read. `disk_faults` is the number of page faults with a disk
    /// read.
    pub faults: u64,
    pub disk_faults: u64,
}

/// Returns the processor time in nanoseconds that the calling thread has used, or `None` if the kernel refuses the
/// request, for example because of a seccomp filter. Makes a system call.
pub fn own_processor_time() -> Option<u64> {
    kernel::time(libc::CLOCK_THREAD_CPUTIME_ID).map(|time| nanoseconds_of(&time))
}

/// Returns the resources that the calling thread has used. Returns `None` if the kernel refuses the request, for
/// example because of a seccomp filter. `ran` is the thread's processor time, which the caller has read before. Makes a
/// system call.
pub fn used(ran: u64) -> Option<ThreadUsage> {
    let usage = kernel::thread_usage()?;
    let in_kernel = usage.ru_stime;
    Some(ThreadUsage {
        ran,
        in_kernel: in_kernel.tv_sec.cast_unsigned() * 1_000_000_000
            + in_kernel.tv_usec.cast_unsigned() * 1_000,
        left: usage.ru_nvcsw.cast_unsigned(),
        preempted: usage.ru_nivcsw.cast_unsigned(),
        faults: usage.ru_minflt.cast_unsigned(),
        disk_faults: usage.ru_majflt.cast_unsigned(),
    })
}

/// Returns the kernel's name of the calling thread: up to 15 bytes, with zeros after them.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    let arguments = [libc::PR_GET_NAME as usize, name.as_mut_ptr().addr()];
    // SAFETY: writes at most 16 bytes to the local variable, the last of them 0.
    unsafe { kernel::call(libc::SYS_prctl, arguments) };
    name
}

/// Returns the number of threads of the process. Does not list the folder `/proc/self/task`, because the C library's
/// `opendir` allocates memory with the program's allocator.
pub fn threads() -> Option<u64> {
    let stat = std::fs::read("/proc/self/stat").ok()?;
    // Skips the program's name, which is in brackets and may contain any character.
    let after = stat.iter().rposition(|&byte| byte == b')')? + 1;
    // In proc(5) `num_threads` is field 20 and the name is field 2, so 17 fields lie between them.
    let field = str::from_utf8(&stat[after..])
        .ok()?
        .split_whitespace()
        .nth(17)?;
    field.parse().ok()
}

/// Registers `handler`, which is called when the process exits, before the handlers that were registered earlier.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::atexit(handler) };
}

/// Starts a detached thread that runs `main` on a stack of `stack` bytes, with the calling thread's signal
/// mask. Returns true on success. `main` may be unwound, for example by `pthread_exit`.
///
/// `std::thread` is not used, because it looks up functions by name, which takes the loader's lock and
/// changes `dlerror`. It also needs a thread key, and aborts if none is left. This function calls a sanitizer's
/// `pthread_create` if there is one, because a sanitizer has to know the threads that call the driver.
pub fn start_thread(stack: usize, main: extern "C-unwind" fn(*mut c_void) -> *mut c_void) -> bool {
    // SAFETY: the declaration is that of pthread.h, except that `main` may be unwound, which the C library expects.
    unsafe extern "C" {
        fn pthread_create(
            thread: *mut libc::pthread_t,
            attributes: *const libc::pthread_attr_t,
            main: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            argument: *mut c_void,
        ) -> core::ffi::c_int;
    }
    // SAFETY: the attributes are initialised before they are used, and destroyed afterwards. The thread takes no
    // argument.
    unsafe {
        let mut attributes = core::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, stack);
        let mut thread = core::mem::zeroed::<libc::pthread_t>();
        let failed = pthread_create(
            &raw mut thread,
            &raw const attributes,
            main,
            core::ptr::null_mut(),
        );
        libc::pthread_attr_destroy(&raw mut attributes);
        failed == 0
    }
}

/// Gives the calling thread a name, which the kernel cuts to 15 bytes.
pub fn name_thread(name: &CStr) {
    let arguments = [libc::PR_SET_NAME as usize, name.as_ptr().addr()];
    // SAFETY: the string is terminated, and the kernel copies it.
    unsafe { kernel::call(libc::SYS_prctl, arguments) };
}

/// Runs `act` with all signals blocked for the calling thread. Threads that `act` starts inherit this mask.
pub fn without_signals<R>(act: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut old = MaybeUninit::uninit();
    // SAFETY: `sigfillset` fills the first set before it is read, and the second set is only written.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    let result = act();
    // SAFETY: the set holds the previous mask, which the first call has stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), core::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted() {
        // The comparison is repeated, because other tests of this process start threads at the same
        // time.
        let listed = || std::fs::read_dir("/proc/self/task").unwrap().count() as u64;
        let agree = || {
            let before = listed();
            threads() == Some(before) && listed() == before
        };
        assert!((0..10_000).any(|_| agree()));
        let before = threads().unwrap();
        let more: Vec<_> = (0..100)
            .map(|_| std::thread::spawn(std::thread::park))
            .collect();
        assert!(threads().unwrap() >= before.saturating_sub(50) + 100);
        for thread in more {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn clocks_go_on() {
        let since = nanoseconds(SystemClock::Monotonic);
        assert!(
            nanoseconds(SystemClock::MonotonicCoarse) / 1_000_000_000 <= since / 1_000_000_000 + 1
        );
        assert!(nanoseconds(SystemClock::Monotonic) >= since);
        let epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        assert!(
            nanoseconds(SystemClock::Realtime).abs_diff(epoch.as_nanos() as u64) < 10_000_000_000
        );
    }

    #[test]
    fn processor_time_is_a_threads_own() {
        let us = kernel::this_thread();
        let (before, other) = std::thread::spawn(move || {
            let ours = kernel::this_thread();
            let since = processor_time(us).unwrap();
            while processor_time(ours).unwrap() < 5_000_000 {}
            (since, ours)
        })
        .join()
        .unwrap();
        // This thread slept in `join` while the other thread ran, so it used hardly any processor
        // time.
        assert!(processor_time(us).unwrap() - before < 5_000_000);
        // The kernel may need a moment for a thread that has ended, longer on a busy machine.
        let since = std::time::Instant::now();
        while processor_time(other).is_some() {
            assert!(since.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
    }

    #[test]
    fn processor_time_is_a_processes_own() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let number = child.id().cast_signed();
        while processor_time_of_process(number).unwrap() < 5_000_000 {}
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processor_time_of_process(number), None);
    }

    #[test]
    fn a_thread_has_its_name() {
        let named = std::thread::Builder::new().name("its name".into());
        let name = named.spawn(thread_name).unwrap().join().unwrap();
        assert_eq!(&name, b"its name\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn signals_are_kept_away_and_come_again() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"));
            u64::from_str_radix(mask.unwrap(), 16).unwrap()
        };
        let before = blocked();
        let term = 1 << (libc::SIGTERM - 1);
        assert_eq!(without_signals(blocked) & term, term);
        assert_eq!(blocked(), before);
    }
}
