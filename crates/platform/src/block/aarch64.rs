//! Access to the calling thread's block (the library's thread-local words), on AArch64.

use core::arch::{asm, global_asm};
use core::ffi::c_void;

use crate::block::Block;

global_asm!(
    ".section .tbss.tllmprof,\"awT\",@nobits",
    ".p2align 6",
    ".hidden tllmprof_tls",
    ".globl tllmprof_tls",
    ".type tllmprof_tls,@object",
    ".size tllmprof_tls,{size}",
    "tllmprof_tls: .zero {size}",
    ".text",
    size = const Block::SIZE,
);

/// Returns the word at offset `PLACE` (in bytes) of the calling thread's block.
#[inline(always)]
pub(crate) fn word<const PLACE: usize>() -> *const c_void {
    const { assert!(PLACE < Block::SIZE && PLACE.is_multiple_of(size_of::<usize>())) };
    // SAFETY: the block exists as long as the thread does, and has a word at this offset.
    unsafe { block().byte_add(PLACE).cast::<*const c_void>().read() }
}

/// Returns the calling thread's block. The pointer is never null, and valid as long as the thread
/// lives.
#[inline]
pub(crate) fn block() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread pointer and the offset that the loader put in the GOT. Both are valid in any thread:
    // each thread has an initial-exec block from its start, or from the time when the library was loaded.
    unsafe {
        asm!(
            "adrp {block}, :gottprel:tllmprof_tls",
            "ldr {block}, [{block}, :gottprel_lo12:tllmprof_tls]",
            "mrs {thread}, tpidr_el0",
            "add {block}, {block}, {thread}",
            block = out(reg) block,
            thread = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    block
}
