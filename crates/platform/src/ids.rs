//! The IDs of the process and of the calling thread. They come from the kernel, because another preloaded library may
//! replace the C library's functions.

pub use tllmprof_sync::kernel::{process, this_thread as thread};
