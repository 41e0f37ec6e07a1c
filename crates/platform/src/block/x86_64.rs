//! The thread-local block, on x86-64.

use core::arch::{asm, global_asm};

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

/// The calling thread's block; never null, valid as long as the thread lives.
#[inline]
pub fn block() -> *mut Block {
    let block: *mut Block;
    // SAFETY: reads the thread pointer and the offset that the loader put in the GOT; both are
    // valid in any thread, since a preloaded library's initial-exec block exists from its start.
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
