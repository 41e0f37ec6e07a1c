//! The addresses and the data of two kinds of stubs for functions that a `sym:` rule names. A stub counts a call and
//! jumps to the function. A call returns to a return stub if the library must know when the call ends. Assembly code
//! for each processor defines the instructions of both.

use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::{Cell, cell_offset};

/// Number of stubs (assembly code that counts a call and jumps to the function) for named functions. A function that
/// is unloaded and loaded again at another address uses a new stub.
pub(crate) const STUBS: usize = 128;
/// Offsets in bytes from a thread's first cell (call counter) to two fields of the cell for named functions: the
/// count and its limit.
pub(crate) const COUNT: usize = cell_offset(Counted::Named) + Cell::COUNT;
pub(crate) const LIMIT: usize = cell_offset(Counted::Named) + Cell::LIMIT;

lifecycle::global! {
    /// The function that each stub (code that counts a call and jumps to the function) belongs to; null if the stub is
    /// free. A stub belongs to the same function until the process ends.
    #[fork(keep = "code leads through the stubs")]
    pub static REALS: [AtomicPtr<c_void>; STUBS] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; STUBS];
}

/// Largest number of calls in progress whose return address is replaced because an iteration ends with them. A call
/// that an exception or `longjmp` leaves keeps its element of [`AWAITED`] until the process ends.
pub(crate) const RETURNS: usize = 8;
/// Largest number of calls in progress that are scopes (GPU work is attributed to them), in all threads together.
#[cfg(target_arch = "x86_64")]
pub(crate) const SCOPES: usize = 256;
#[cfg(target_arch = "aarch64")]
pub(crate) const SCOPES: usize = 0;
/// Size in bytes of a return stub: code of this library to which a call returns if the library must know when the call
/// ends. `SCOPE_STUB_SIZE` is the size of a return stub for a scope (a call to which GPU work is attributed).
/// `FIRST_INSTRUCTION_SIZE` is the size of the first instruction of either stub.
const RETURN_STUB_SIZE: usize = 32;
#[cfg(target_arch = "x86_64")]
const SCOPE_STUB_SIZE: usize = 64;
const FIRST_INSTRUCTION_SIZE: usize = if cfg!(target_arch = "x86_64") { 1 } else { 4 };

/// A call that returns to a return stub: the call's original return address, and the iteration that ends with the call.
#[repr(C)]
pub(crate) struct Return {
    /// The call's original return address; 0 if this element of [`AWAITED`] is free.
    pub address: AtomicUsize,
    /// Number of the iteration that ends with the call, or [`Return::NO_ITERATION`].
    pub iteration: AtomicU64,
}

impl Return {
    pub(crate) const NO_ITERATION: u64 = u64::MAX;
    /// Offset in bytes of the field `address`, for the assembly code.
    pub(crate) const ADDRESS: usize = offset_of!(Self, address);
}

lifecycle::global! {
    /// The calls that return to a return stub, by the stub's index. The entries for calls that are scopes (GPU work
    /// is attributed to them) come last.
    #[fork(keep = "calls that the forking thread is in return in the child, too")]
    #[together(tables)]
    pub static AWAITED: [Return; RETURNS + SCOPES] = [const {
        Return {
            address: AtomicUsize::new(0),
            iteration: AtomicU64::new(0),
        }
    }; RETURNS + SCOPES];
}

// SAFETY: the assembly code defines these symbols.
unsafe extern "C" {
    static tllmprof_named_stubs: u8;
    static tllmprof_named_stubs_end: u8;
    static tllmprof_return_stubs: u8;
    #[cfg(target_arch = "x86_64")]
    static tllmprof_scope_stubs: u8;
}

/// Returns the address of the stub (code that counts a call and jumps to the function) for the function at `real`: an
/// existing stub or a free one. Returns `None` if all stubs are in use. Must not be called by several threads at a
/// time.
pub(crate) fn stub(real: usize) -> Option<usize> {
    let of = |known: &AtomicPtr<c_void>| known.load(Ordering::Relaxed).addr();
    let index = REALS
        .iter()
        .position(|known| of(known) == real)
        .or_else(|| REALS.iter().position(|known| of(known) == 0))?;
    let real = core::ptr::with_exposed_provenance_mut(real);
    REALS[index].store(real, Ordering::Release);
    let start = (&raw const tllmprof_named_stubs).addr();
    let size = ((&raw const tllmprof_named_stubs_end).addr() - start) / STUBS;
    Some(start + index * size)
}

/// Returns true if `value`, the value of a GOT slot, lies in the stubs (code that counts calls) of named functions.
pub(crate) fn is_stub(value: usize) -> bool {
    let (start, end) = (
        &raw const tllmprof_named_stubs,
        &raw const tllmprof_named_stubs_end,
    );
    (start.addr()..end.addr()).contains(&value)
}

/// Returns the address that replaces the return address of a call with entry `index` of [`AWAITED`]. The returned
/// address lies after the stub's first instruction, because unwinders look up the byte before a return address.
pub(crate) fn return_stub(index: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(index) = index.checked_sub(RETURNS) {
        return (&raw const tllmprof_scope_stubs).addr()
            + index * SCOPE_STUB_SIZE
            + FIRST_INSTRUCTION_SIZE;
    }
    (&raw const tllmprof_return_stubs).addr() + index * RETURN_STUB_SIZE + FIRST_INSTRUCTION_SIZE
}

/// Returns the index in [`AWAITED`] that belongs to `return_address`, or `None` if that is not a return stub's address.
pub(crate) fn index_of(return_address: usize) -> Option<usize> {
    let index = |start: usize, size: usize, count: usize| {
        let distance = return_address.wrapping_sub(start + FIRST_INSTRUCTION_SIZE);
        Some(distance / size).filter(|index| *index < count && distance.is_multiple_of(size))
    };
    let of_step = index(
        return_stub(0) - FIRST_INSTRUCTION_SIZE,
        RETURN_STUB_SIZE,
        RETURNS,
    );
    #[cfg(target_arch = "x86_64")]
    let of_scope = || {
        let start = return_stub(RETURNS) - FIRST_INSTRUCTION_SIZE;
        index(start, SCOPE_STUB_SIZE, SCOPES).map(|index| RETURNS + index)
    };
    #[cfg(target_arch = "aarch64")]
    let of_scope = || None;
    of_step.or_else(of_scope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::alone;

    #[test]
    fn a_function_keeps_its_stub_and_no_two_share_one() {
        alone(&[], || {
            let real = |number: usize| 0x1000 * (1 + number);
            let stubs: Vec<_> = (0..STUBS)
                .map(|number| stub(real(number)).unwrap())
                .collect();
            assert_eq!(stub(real(STUBS)), None, "all are in use");
            for (number, place) in stubs.iter().enumerate() {
                assert_eq!(stub(real(number)), Some(*place));
                assert!(is_stub(*place) && !stubs[..number].contains(place));
            }
            assert!(!is_stub(0) && !is_stub(real(0)));
        });
    }

    #[test]
    fn a_call_returns_behind_the_first_instruction_of_its_return_stub() {
        let start = (&raw const tllmprof_return_stubs).addr();
        for index in 0..RETURNS {
            assert_eq!(
                return_stub(index),
                start + index * RETURN_STUB_SIZE + FIRST_INSTRUCTION_SIZE
            );
        }
        for index in 0..AWAITED.len() {
            let stub = return_stub(index);
            assert_eq!(index_of(stub), Some(index));
            assert_eq!(
                (index_of(stub - FIRST_INSTRUCTION_SIZE), index_of(stub + 8)),
                (None, None)
            );
        }
        #[cfg(target_arch = "x86_64")]
        for (index, awaited) in AWAITED.iter().enumerate() {
            let stub = core::ptr::with_exposed_provenance::<u8>(
                return_stub(index) - FIRST_INSTRUCTION_SIZE,
            );
            // SAFETY: the assembly code defines a stub of this size at this address.
            let code = unsafe { core::slice::from_raw_parts(stub, RETURN_STUB_SIZE) };
            // Each stub must begin with the code `nop; push [rip + …]`.
            assert_eq!(code[..3], [0x90, 0xff, 0x35], "{index}");
            let distance = i32::from_le_bytes(code[3..7].try_into().unwrap());
            let word = return_stub(index)
                .wrapping_add(6)
                .wrapping_add_signed(distance as isize);
            assert_eq!(word, (&raw const awaited.address).addr());
        }
    }
}
