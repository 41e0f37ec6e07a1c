//! Where callers enter the gates: the assembler's stubs, one for each.

use core::ffi::c_void;

use super::GATE_COUNT;

/// Bytes of a stub, which the assembler keeps to.
pub const STUB_SIZE: usize = 16;

// SAFETY: the assembler of each processor defines the symbol, with this size.
unsafe extern "C" {
    static tllmprof_gates: [u8; STUB_SIZE * GATE_COUNT];
}

/// The address that callers get for gate `index`.
pub fn stub(index: usize) -> *mut c_void {
    let pool = (&raw const tllmprof_gates).cast::<u8>();
    pool.wrapping_add(index * STUB_SIZE).cast_mut().cast()
}

/// Whose stub an address is.
pub fn index(address: usize) -> Option<usize> {
    let pool = (&raw const tllmprof_gates).addr();
    let index = address.checked_sub(pool)? / STUB_SIZE;
    (index < GATE_COUNT).then_some(index)
}
