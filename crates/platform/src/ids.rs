//! The numbers of the process and of the calling thread. They come from the kernel, because the C library's
//! functions may be replaced by another preloaded library.

pub use tllmprof_sync::kernel::{process, this_thread as thread};
