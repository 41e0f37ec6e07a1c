//! The pool's stubs, which the assembler lays out: what callers get in place of functions.

use core::ffi::c_void;

use super::arch::{COUNTING_STUB_SIZE, STUB_SIZE};
use super::thunk::THUNK_COUNT;

// SAFETY: the assembler defines the symbols; the stubs lie between each and its end.
unsafe extern "C" {
    static tllmprof_stubs: u8;
    static tllmprof_counting_stubs: u8;
    static tllmprof_counting_stubs_end: u8;
}

/// The address that callers get for thunk `index`: a stub that goes to its handler.
pub fn stub(index: usize) -> *mut c_void {
    at(&raw const tllmprof_stubs, index * STUB_SIZE)
}

/// The address that callers get for thunk `index` whose handler is [`super::arch::count`] for good.
pub fn counting_stub(index: usize) -> *mut c_void {
    let pool = &raw const tllmprof_counting_stubs;
    // The assembler chooses how long its jumps are; should they not fit, the handler serves.
    let length = (&raw const tllmprof_counting_stubs_end).addr() - pool.addr();
    if length == COUNTING_STUB_SIZE * THUNK_COUNT {
        at(pool, index * COUNTING_STUB_SIZE)
    } else {
        stub(index)
    }
}

fn at(pool: *const u8, offset: usize) -> *mut c_void {
    pool.wrapping_add(offset).cast_mut().cast()
}
