//! Who is running.

/// The process's number.
pub fn process() -> i32 {
    std::process::id().cast_signed()
}

/// The calling thread's number; the main thread's is the process's.
pub use tllmprof_sync::this_thread as thread;
