//! Decides whether a stopped thread is at a safe point, where it may create another thread.
//!
//! `pthread_create` takes locks of the C library: those of its thread stacks, of `malloc` and of the loader. A
//! thread must not be made to call `pthread_create` while it holds such a lock, or is inside code that such a lock
//! protects. So a thread is at a safe point if all its stack frames are known and
//!
//! - no frame is in the loader, in the C library's `exit`, in a library that defines `malloc`, or in the tllmprof
//!   library,
//! - the innermost frame is not in the C library, or the thread is in a system call that waits and the C library makes
//!   this call in one of its waiting functions ([`Places::waits`]),
//! - no other frame is in the C library, except the outermost ones, which call `main` or a thread's function.
//!
//! The number of the system call is not sufficient: a thread that waits for a lock of `malloc` uses the same system
//! call as a thread that waits for a condition variable. So the function that makes the call is checked as well.

use std::ops::Range;

use crate::places::Places;

/// System calls in which a thread only waits for an event.
const CALLS: [libc::c_long; 23] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_read,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pause,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_ioctl,
];

/// The reason why a thread is not at a safe point, where it may create another thread.
pub(crate) type UnsafeReason = &'static str;

/// Checks that a thread is at a safe point. `frames` are the code addresses of its stack frames, the innermost first.
/// `call` is the number of the system call that the thread is in, or `None`.
///
/// # Errors
/// Returns the reason why the thread is not at a safe point.
pub(crate) fn check(
    places: &Places,
    frames: &[u64],
    call: Option<i64>,
) -> Result<(), UnsafeReason> {
    let is_in = |ranges: &[Range<u64>], frame: &u64| ranges.iter().any(|r| r.contains(frame));
    let any = |ranges: &[Range<u64>]| frames.iter().any(|frame| is_in(ranges, frame));
    if any(&places.loader) {
        return Err("a thread was in the loader");
    }
    if any(&places.allocators) {
        return Err("a thread was in the library that brings malloc");
    }
    if any(&places.exit) {
        return Err("a thread ended the process");
    }
    if any(&places.ours) {
        return Err("a thread was in the library itself");
    }
    let is_c = |frame: &&u64| is_in(&places.c_library, frame);
    let inner = frames.iter().take_while(is_c).count();
    if inner == frames.len() {
        return Err("a thread was in the C library alone");
    }
    let outer = frames.iter().rev().take_while(is_c).count();
    // The outermost frame of the main thread is the program's start code. This code calls a function of the C library,
    // and that function calls `main`. The frames of the C library between the start code and `main` are allowed.
    let below = frames.len().saturating_sub(outer.max(1));
    let started = frames[inner..below].iter().rev().take_while(is_c).count();
    let middle = &frames[inner..below.saturating_sub(started).max(inner)];
    if middle.iter().any(|frame| is_in(&places.c_library, frame)) {
        return Err("a thread was in a function that the C library had called");
    }
    let Some(outermost) = inner.checked_sub(1).map(|index| frames[index]) else {
        return Ok(());
    };
    let waits = call.is_some_and(|call| CALLS.contains(&call));
    match waits && is_in(&places.waits, &outermost) {
        true => Ok(()),
        false => Err("a thread was in the C library, as in malloc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: u64 = 0x1000;
    const START: u64 = 0x1f00;
    const C: u64 = 0x2000;
    const POLL: u64 = 0x2100;
    const LOADER: u64 = 0x3000;
    const ALLOCATOR: u64 = 0x4000;

    fn checked(frames: &[u64], call: Option<i64>) -> bool {
        let places = Places::made(
            [0x2000..0x3000, 0x3000..0x4000, 0x4000..0x5000],
            0x2100..0x2110,
        );
        check(&places, frames, call).is_ok()
    }

    #[test]
    fn code_of_the_program_is_safe_wherever_it_was_called_from() {
        // The outermost frames are those of a main thread in the first case, and those of another thread in the
        // second.
        assert!(checked(&[PROGRAM, PROGRAM + 1, C, C + 1, START], None));
        assert!(checked(&[PROGRAM, C, C + 1], None));
        assert!(
            !checked(&[PROGRAM, C, PROGRAM, C + 1, START], None),
            "qsort"
        );
        assert!(!checked(&[PROGRAM, C, PROGRAM, C], None));
    }

    #[test]
    fn the_loader_and_an_allocator_are_not_safe_anywhere() {
        for other in [LOADER, ALLOCATOR] {
            assert!(!checked(&[other, PROGRAM, C], None));
            assert!(!checked(&[PROGRAM, other, PROGRAM, C], None));
            assert!(!checked(&[PROGRAM, PROGRAM, C, other], None));
        }
    }

    #[test]
    fn the_c_library_is_safe_where_it_waits() {
        let poll = Some(libc::SYS_poll);
        assert!(checked(&[C + 8, POLL, PROGRAM, C, START], poll));
        assert!(checked(&[POLL, PROGRAM, C], poll));
        assert!(!checked(&[POLL, PROGRAM, C, START], None), "not yet");
        assert!(!checked(&[POLL, PROGRAM, C, START], Some(libc::SYS_mmap)));
        assert!(
            !checked(&[POLL, C, PROGRAM, C, START], poll),
            "within another"
        );
        assert!(!checked(&[C, PROGRAM, C, START], Some(libc::SYS_futex)));
        assert!(!checked(&[POLL, C], poll));
    }
}
