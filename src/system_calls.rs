//! This library's private versions of those C library functions that make system calls, and of `getenv`.
//!
//! Another preloaded library may hook any of these functions. For example, a network stack hooks `socket` and `poll`, a
//! tracer hooks `open` and `read`, and a fake clock hooks `clock_gettime`. Such a library may not be initialised yet
//! when this library is loaded. It may have freed its state when the process ends. It need not expect calls from
//! threads whose start it did not see. So the functions that this library, including Rust's standard library in it,
//! calls by these names are hidden symbols. All references to them are bound when the library is linked, as for
//! `tllmprof_bytes`. The host neither sees these functions nor calls them.
//!
//! Each function except `getenv` makes the same system call as the C library does, so that a filter for system calls
//! sees no additional ones. None of the functions is a cancellation point.

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use tllmprof_platform::{environment, function, lifecycle, resolve};
use tllmprof_sync::kernel;

/// The constant `AT_FDCWD`, which stands for the working folder, in the type that system calls take.
const CURRENT_FOLDER: usize = libc::AT_FDCWD as usize;
/// Size of a signal set in system calls, in bytes.
const SIGNAL_SET_BYTES: usize = 8;
/// The signals that the C library sends between its own threads. They are never blocked.
const INTERNAL_SIGNALS: u64 = 1 << 31 | 1 << 32;

/// Makes a system call. Returns its result like the C library does: -1 with `errno` set if the kernel returns an
/// error.
///
/// # Safety
/// The conditions are those of the system call.
#[inline(always)]
unsafe fn answer<const N: usize>(number: c_long, arguments: [usize; N]) -> isize {
    // SAFETY: the caller guarantees that the arguments are valid.
    let result = unsafe { kernel::call(number, arguments) };
    if (-4095..0).contains(&result) {
        set_errno(-result);
        return -1;
    }
    result
}

fn set_errno(error: isize) {
    // SAFETY: the address is that of the calling thread's own `errno`.
    unsafe { *libc::__errno_location() = error as c_int };
}

/// Defines functions under the C library's names. Their symbols are hidden, because exported symbols would be used by
/// the whole process.
macro_rules! define {
    ($($name:literal = $ours:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        /// # Safety
        /// The conditions are those of the C library's function of this name.
        unsafe extern "C" fn $ours($($argument: $type),*) -> $result {
            // No panic: the body makes a system call.
            // SAFETY: the caller satisfies the conditions of the C library's function, which makes the same system
            // call.
            unsafe { $body }
        }
        global_asm!(
            // The symbols are weak, like the references to some of them in Rust's standard library. The linker also
            // binds references to a weak symbol if the symbol is defined.
            concat!(".hidden ", $name),
            concat!(".weak ", $name),
            concat!(".type ", $name, ", %function"),
            concat!(".set ", $name, ", {ours}"),
            ours = sym $ours,
        );
    )*};
}

/// Defines functions like [`define`], each of which passes all its arguments unchanged to one system call.
macro_rules! define_alike {
    ($($name:literal = $ours:ident($($argument:ident),*), $number:ident;)*) => {
        define! {
            $($name = $ours($($argument: usize),*) -> isize {
                answer(libc::$number, [$($argument),*])
            })*
        }
    };
}

define_alike! {
    "accept4" = accept4(socket, address, length, flags), SYS_accept4;
    "bind" = bind(socket, address, length), SYS_bind;
    "close" = close(descriptor), SYS_close;
    "fallocate" = fallocate(descriptor, mode, offset, length), SYS_fallocate;
    "fchmod" = fchmod(descriptor, mode), SYS_fchmod;
    "fcntl" = fcntl(descriptor, command, argument), SYS_fcntl;
    "flock" = flock(descriptor, operation), SYS_flock;
    "fstat64" = fstat64(descriptor, status), SYS_fstat;
    "fstatfs" = fstatfs(descriptor, system), SYS_fstatfs;
    "ftruncate64" = ftruncate64(descriptor, length), SYS_ftruncate;
    "getrandom" = getrandom(bytes, length, flags), SYS_getrandom;
    "geteuid" = geteuid(), SYS_geteuid;
    "getppid" = getppid(), SYS_getppid;
    "gettid" = gettid(), SYS_gettid;
    "getsockopt" = getsockopt(socket, level, option, value, length), SYS_getsockopt;
    "ioctl" = ioctl(descriptor, request, argument), SYS_ioctl;
    "linkat" = linkat(from_folder, from, to_folder, to, flags), SYS_linkat;
    "listen" = listen(socket, backlog), SYS_listen;
    "lseek64" = lseek64(descriptor, offset, whence), SYS_lseek;
    "madvise" = madvise(start, length, advice), SYS_madvise;
    "mmap" = mmap(start, length, protection, flags, descriptor, offset), SYS_mmap;
    "mmap64" = mmap64(start, length, protection, flags, descriptor, offset), SYS_mmap;
    "mprotect" = mprotect(start, length, protection), SYS_mprotect;
    "munmap" = munmap(start, length), SYS_munmap;
    "pread64" = pread64(descriptor, bytes, length, offset), SYS_pread64;
    "process_vm_readv" = process_vm_readv(process, to, to_count, from, from_count, flags), SYS_process_vm_readv;
    "pwrite64" = pwrite64(descriptor, bytes, length, offset), SYS_pwrite64;
    "read" = read(descriptor, bytes, length), SYS_read;
    "sched_yield" = sched_yield(), SYS_sched_yield;
    "shutdown" = shutdown(socket, how), SYS_shutdown;
    "sigaltstack" = sigaltstack(stack, before), SYS_sigaltstack;
    "socket" = socket(family, kind, protocol), SYS_socket;
    "statx" = statx(folder, path, flags, mask, status), SYS_statx;
    "write" = write(descriptor, bytes, length), SYS_write;
}

#[cfg(target_arch = "x86_64")]
define_alike! {
    "mkdir" = mkdir(path, mode), SYS_mkdir;
    "poll" = poll(list, count, patience), SYS_poll;
    "readlink" = readlink(path, text, length), SYS_readlink;
    "rename" = rename(from, to), SYS_rename;
    "unlink" = unlink(path), SYS_unlink;
}

#[cfg(target_arch = "aarch64")]
define! {
    "mkdir" = mkdir(path: usize, mode: usize) -> isize {
        answer(libc::SYS_mkdirat, [CURRENT_FOLDER, path, mode])
    }
    "poll" = poll(list: usize, count: usize, patience: c_int) -> isize {
        let time = libc::timespec {
            tv_sec: (patience / 1000).into(),
            tv_nsec: (patience % 1000 * 1_000_000).into(),
        };
        let time = if patience < 0 { 0 } else { (&raw const time).addr() };
        answer(libc::SYS_ppoll, [list, count, time, 0, SIGNAL_SET_BYTES])
    }
    "readlink" = readlink(path: usize, text: usize, length: usize) -> isize {
        answer(libc::SYS_readlinkat, [CURRENT_FOLDER, path, text, length])
    }
    "rename" = rename(from: usize, to: usize) -> isize {
        answer(libc::SYS_renameat, [CURRENT_FOLDER, from, CURRENT_FOLDER, to])
    }
    "unlink" = unlink(path: usize) -> isize {
        answer(libc::SYS_unlinkat, [CURRENT_FOLDER, path, 0])
    }
}

define! {
    "recv" = recv(socket: usize, bytes: usize, length: usize, flags: usize) -> isize {
        answer(libc::SYS_recvfrom, [socket, bytes, length, flags, 0, 0])
    }
    "send" = send(socket: usize, bytes: usize, length: usize, flags: usize) -> isize {
        answer(libc::SYS_sendto, [socket, bytes, length, flags, 0, 0])
    }
    "open64" = open64(path: usize, flags: usize, mode: usize) -> isize {
        answer(libc::SYS_openat, [CURRENT_FOLDER, path, flags, mode])
    }
    "stat64" = stat64(path: usize, status: usize) -> isize {
        answer(libc::SYS_newfstatat, [CURRENT_FOLDER, path, status, 0])
    }
    "lstat64" = lstat64(path: usize, status: usize) -> isize {
        answer(libc::SYS_newfstatat, [CURRENT_FOLDER, path, status, libc::AT_SYMLINK_NOFOLLOW as usize])
    }
    "lstat" = lstat(path: usize, status: usize) -> isize { lstat64(path, status) }
    "getcwd" = getcwd(text: *mut c_char, length: usize) -> *mut c_char {
        if answer(libc::SYS_getcwd, [text.addr(), length]) > 0 { text } else { null_mut() }
    }
    "getrlimit" = getrlimit(resource: usize, limit: usize) -> isize {
        answer(libc::SYS_prlimit64, [0, resource, 0, limit])
    }
    "gethostname" = gethostname(name: *mut c_char, length: usize) -> c_int {
        let mut system = MaybeUninit::<libc::utsname>::uninit();
        if answer(libc::SYS_uname, [system.as_mut_ptr().addr()]) != 0 {
            return -1;
        }
        let node = &system.assume_init_ref().nodename;
        let count = node.iter().position(|byte| *byte == 0).map_or(node.len(), |end| end + 1);
        core::ptr::copy_nonoverlapping(node.as_ptr(), name, count.min(length));
        if count <= length {
            return 0;
        }
        set_errno(libc::ENAMETOOLONG as isize);
        -1
    }
    "sched_getaffinity" = sched_getaffinity(thread: usize, length: usize, set: *mut u8) -> c_int {
        let written = answer(libc::SYS_sched_getaffinity, [thread, length.min(i32::MAX as usize), set.addr()]);
        let Ok(written) = usize::try_from(written) else { return -1 };
        core::ptr::write_bytes(set.add(written), 0, length.saturating_sub(written));
        0
    }
    "sched_getcpu" = sched_getcpu() -> c_int {
        let mut processor = 0_u32;
        let failed = answer(libc::SYS_getcpu, [(&raw mut processor).addr(), 0, 0]) != 0;
        if failed { -1 } else { processor.cast_signed() }
    }
    "sigpending" = sigpending(set: usize) -> isize {
        answer(libc::SYS_rt_sigpending, [set, SIGNAL_SET_BYTES])
    }
    "sigtimedwait" = sigtimedwait(set: usize, information: usize, patience: usize) -> isize {
        answer(libc::SYS_rt_sigtimedwait, [set, information, patience, SIGNAL_SET_BYTES])
    }
    "pthread_sigmask" = pthread_sigmask(how: c_int, set: *const u64, before: usize) -> c_int {
        let mask = if set.is_null() { 0 } else { *set };
        let mask = if how == libc::SIG_UNBLOCK { mask } else { mask & !INTERNAL_SIGNALS };
        let given = if set.is_null() { 0 } else { (&raw const mask).addr() };
        -kernel::call(libc::SYS_rt_sigprocmask, [how as usize, given, before, SIGNAL_SET_BYTES]) as c_int
    }
    "clock_nanosleep" = clock_nanosleep(clock: usize, flags: usize, time: usize, left: usize) -> c_int {
        -kernel::call(libc::SYS_clock_nanosleep, [clock, flags, time, left]) as c_int
    }
    "clock_gettime" = clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
        // If the C library's own `clock_gettime` was found, it is called, because it needs no system call for most
        // clocks.
        match function::at::<ClockGettime>(CLOCK_GETTIME.load(Ordering::Relaxed)) {
            Some(real) => real(clock, time),
            None => answer(libc::SYS_clock_gettime, [clock as usize, time.addr()]) as c_int,
        }
    }
    "getenv" = getenv(name: *const c_char) -> *mut c_char {
        environment::value(CStr::from_ptr(name).to_bytes()).cast_mut()
    }
}

/// Makes the system call `prctl`. Used until the `prctl` function of the next library in the search order has been
/// found, or if there is none.
///
/// # Safety
/// The conditions are those of the C library's function of this name.
pub(crate) unsafe extern "C" fn prctl(
    option: c_int,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_int {
    // No panic: this function only makes a system call.
    let arguments = [option as usize, second, third, fourth, fifth];
    // SAFETY: the caller guarantees that the arguments are valid.
    unsafe { answer(libc::SYS_prctl, arguments) as c_int }
}

/// Makes any system call. Used until the `syscall` function of the next library in the search order has been found,
/// or if there is none.
///
/// # Safety
/// The conditions are those of the C library's function of this name.
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    // No panic: this function only makes a system call.
    let arguments = [first, second, third, fourth, fifth, sixth];
    // SAFETY: the caller guarantees that the arguments are valid.
    unsafe { answer(number, arguments) as c_long }
}

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

lifecycle::global! {
    /// The C library's own `clock_gettime`; null until [`find_own`] has found it.
    #[fork(keep = "the C library stays where it is")]
    static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
}

/// Finds the C library's own `clock_gettime`, which this module calls. Called when the library is loaded.
pub(crate) fn find_own() {
    let found = resolve::of_c_library(c"clock_gettime").unwrap_or_default();
    CLOCK_GETTIME.store(found, Ordering::Relaxed);
}
