//! System calls without the C library. They are needed because another preloaded library may replace the C library's
//! functions, and may not be initialised yet.

use core::arch::asm;
use core::ffi::c_long;
use core::mem::MaybeUninit;

/// Makes a system call with up to six arguments. Returns the kernel's result, which is negative for an error.
/// Does not change `errno`.
///
/// # Safety
/// The caller must meet the requirements of the system call. In particular, the memory that the call reads or writes
/// must belong to the caller for as long as the kernel uses it.
#[inline(always)]
pub unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> isize {
    const { assert!(N <= 6) };
    let [first, second, third, fourth, fifth, sixth] =
        core::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
    let result: isize;
    // SAFETY: the kernel takes the number and the arguments in these registers, and changes only the registers that are
    // declared as changed. The caller guarantees the validity of the memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: the kernel takes the number and the arguments in these registers, and changes only the first argument's
    // register, which receives the result. The caller guarantees the validity of the memory.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first as isize => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    result
}

/// One of the two ends of a socket's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketEnd {
    Own,
    Peer,
}

/// The address of one end of a socket's connection, as the kernel writes it: a `sockaddr` with its length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketAddress {
    bytes: [u8; size_of::<libc::sockaddr_storage>()],
    length: usize,
}

impl SocketAddress {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.min(self.bytes.len())]
    }
}

/// Returns the address of an end of a socket's connection; `None` if the descriptor is no socket, or is not connected.
/// Makes a system call, which does not wait.
pub fn socket_address(descriptor: i32, end: SocketEnd) -> Option<SocketAddress> {
    let mut bytes = [0; size_of::<libc::sockaddr_storage>()];
    let mut length = bytes.len() as libc::socklen_t;
    let number = match end {
        SocketEnd::Own => libc::SYS_getsockname,
        SocketEnd::Peer => libc::SYS_getpeername,
    };
    let arguments = [
        descriptor as usize,
        bytes.as_mut_ptr() as usize,
        (&raw mut length) as usize,
    ];
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, which has that many, and one number to `length`. It
    // refuses descriptors that are no sockets.
    let result = unsafe { call(number, arguments) };
    (result == 0).then_some(SocketAddress {
        bytes,
        length: length as usize,
    })
}

/// Returns the process ID.
pub fn process() -> i32 {
    // SAFETY: `getpid` takes no arguments.
    let process = unsafe { call(libc::SYS_getpid, [0; 4]) };
    i32::try_from(process).unwrap_or_default()
}

/// Returns the calling thread's ID. The main thread's ID is equal to the process ID.
pub fn this_thread() -> i32 {
    // SAFETY: `gettid` takes no arguments.
    let thread = unsafe { call(libc::SYS_gettid, [0; 4]) };
    i32::try_from(thread).unwrap_or_default()
}

/// Returns the status of an open file descriptor, or `None` if it is closed.
pub fn status(descriptor: i32) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let arguments = [descriptor as usize, status.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel's structure is equal to the C library's on these architectures. The kernel fills it on
    // success, and it is read only then.
    unsafe { (call(libc::SYS_fstat, arguments) == 0).then(|| status.assume_init()) }
}

/// Returns the time of a clock, or `None` if the process may not make the system call.
pub fn time(clock: libc::clockid_t) -> Option<libc::timespec> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    let arguments = [clock as usize, time.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel's structure is equal to the C library's on these architectures. The kernel fills it on
    // success, and it is read only then.
    unsafe { (call(libc::SYS_clock_gettime, arguments) == 0).then(|| time.assume_init()) }
}

/// Returns the resources that the calling thread has used, or `None` if the process may not make the system call.
pub fn thread_usage() -> Option<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    let arguments = [
        libc::RUSAGE_THREAD as usize,
        usage.as_mut_ptr() as usize,
        0,
        0,
    ];
    // SAFETY: the kernel's structure is equal to the C library's on these architectures. The kernel fills it on
    // success, and it is read only then.
    unsafe { (call(libc::SYS_getrusage, arguments) == 0).then(|| usage.assume_init()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_the_c_library_says() {
        assert_eq!(process().cast_unsigned(), std::process::id());
        // SAFETY: `gettid` takes no arguments.
        assert_eq!(this_thread(), unsafe { libc::gettid() });
        let (out, into) = std::io::pipe().unwrap();
        let of = |end: &dyn std::os::fd::AsRawFd| status(end.as_raw_fd()).unwrap();
        assert_eq!(of(&out).st_ino, of(&into).st_ino);
        assert_eq!(of(&out).st_mode & libc::S_IFMT, libc::S_IFIFO);
        assert!(status(-1).is_none());
        let epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let now = time(libc::CLOCK_REALTIME).unwrap();
        assert!(now.tv_sec.abs_diff(epoch.as_secs().cast_signed()) < 10);
        assert!(time(12345).is_none());
        // The first write to new memory is a page fault of this thread.
        let faults = || thread_usage().unwrap().ru_minflt;
        let before = faults();
        std::hint::black_box(vec![1_u8; 4 << 20]);
        assert!(faults() > before);
    }

    #[test]
    fn an_error_is_a_negative_number_and_leaves_errno_alone() {
        // SAFETY: no file descriptor has this number, so nothing is read.
        let refused = unsafe {
            *libc::__errno_location() = 0;
            call(libc::SYS_write, [usize::MAX, 0, 0, 0])
        };
        assert_eq!(refused, -(libc::EBADF as isize));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(0));
    }
}
