//! Who is running. The kernel is asked: the C library's functions may be those of a library in front.

pub use tllmprof_sync::kernel::{process, this_thread as thread};
