//! Who is running.

/// The process's number.
pub fn process() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

/// The calling thread's number; the main thread's is the process's.
pub fn thread() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::gettid() }
}
