//! The entry points of the gates: one small piece of assembly code (a stub) for each gate.

use core::ffi::c_void;

use super::GATE_COUNT;

/// The size of a gate's stub (its entry point) in bytes, as the assembly code lays out the stubs.
pub const STUB_SIZE: usize = 16;

// SAFETY: the assembly code for each processor defines the symbol, with this size.
unsafe extern "C" {
    static tllmprof_gates: [u8; STUB_SIZE * GATE_COUNT];
}

/// Returns the address of the stub for gate `index`, which the program gets as the function's address.
pub(crate) fn stub(index: usize) -> *mut c_void {
    let pool = (&raw const tllmprof_gates).cast::<u8>();
    pool.wrapping_add(index * STUB_SIZE).cast_mut().cast()
}

/// Returns the index of the gate whose stub (entry point) contains `address`; `None` if `address` is in no stub.
pub(crate) fn index(address: usize) -> Option<usize> {
    let pool = (&raw const tllmprof_gates).addr();
    let index = address.checked_sub(pool)? / STUB_SIZE;
    (index < GATE_COUNT).then_some(index)
}
