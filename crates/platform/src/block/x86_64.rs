//! Access to the calling thread's block (the library's thread-local words), on x86-64.

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

/// Returns the word at offset `PLACE` (in bytes) of the calling thread's block. Reads the word relative to the thread
/// pointer, because computing the block's address would read another cache line.
#[inline(always)]
pub(crate) fn word<const PLACE: usize>() -> *const c_void {
    const { assert!(PLACE < Block::SIZE && PLACE.is_multiple_of(size_of::<usize>())) };
    let word: *const c_void;
    // SAFETY: reads the offset that the loader put in the GOT, and a word that exists in any thread: each thread has an
    // initial-exec block from its start, or from the time when the library was loaded.
    unsafe {
        asm!(
            "mov {word}, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
            "mov {word}, qword ptr fs:[{word} + {place}]",
            word = out(reg) word,
            place = const PLACE,
            options(readonly, nostack, preserves_flags),
        );
    }
    word
}

/// Returns the calling thread's block. The pointer is never null, and valid as long as the thread lives.
#[inline]
pub(crate) fn block() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread pointer and the offset that the loader put in the GOT. Both are valid in any thread, for
    // the reasons that `word` states.
    unsafe {
        asm!(
            "mov {block}, qword ptr fs:[0]",
            "add {block}, qword ptr [rip + tllmprof_tls@GOTTPOFF]",
            block = out(reg) block,
            options(pure, nomem, nostack),
        );
    }
    block
}
