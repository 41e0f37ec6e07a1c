//! A stand-in for `view.rs` on architectures other than x86-64, on which this crate does not read the memory and
//! stacks of other processes.

use std::io;

/// The memory and modules of a process. It cannot be opened on this architecture.
pub struct ProcessView(());

/// A frame of the stack of a thread in native code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NativeFrame {
    /// Path of the module that contains the frame's code, as the process sees it.
    pub path: String,
    /// Address of the frame's instruction in the module's file.
    pub address: u64,
}

impl ProcessView {
    /// Opens a process to read its memory.
    ///
    /// # Errors
    /// Always fails, because other processes are not read on this architecture.
    pub fn open(_: i32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Always returns an empty list: stacks are read only on x86-64.
    #[must_use]
    pub const fn frames(&self, _: u64, _: u64) -> Vec<NativeFrame> {
        Vec::new()
    }

    /// Always returns `None`: variables are found only on x86-64.
    #[must_use]
    pub const fn variable(&self, _: &str) -> Option<u64> {
        None
    }

    /// Always returns an empty iterator: modules are read only on x86-64.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// Always returns false: memory is read only on x86-64.
    #[must_use]
    pub const fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}
