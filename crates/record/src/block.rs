//! Memory of one's own for headers and chunks that no file is mapped to.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Zeroed memory, aligned as chunks and header have to be.
#[derive(Debug)]
pub(crate) struct Block(NonNull<[AtomicU64]>);

impl Block {
    pub(crate) fn new(bytes: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..bytes / size_of::<u64>())
            .map(|_| AtomicU64::new(0))
            .collect();
        Self(NonNull::from(Box::leak(words)))
    }

    pub(crate) const fn address(&self) -> NonNull<u8> {
        self.0.cast()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let length = self.0.len() * size_of::<u64>();
        // SAFETY: the block's own memory, which no writer touches while its owner is borrowed.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: from `Box::leak`, and the writers go with the block's owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
