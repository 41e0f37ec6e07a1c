//! The stubs for functions that a rule names, which each processor has in its own assembler:
//! where they lie, and what they read.

use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::{Cell, cell_offset};

/// Stubs that there are. A function that is unloaded and loaded again elsewhere uses another one.
pub const STUBS: usize = 128;
/// Bytes from a thread's first cell to the count and to the limit of that for what the rule names.
pub const COUNT: usize = cell_offset(Counted::Named) + Cell::COUNT;
pub const LIMIT: usize = cell_offset(Counted::Named) + Cell::LIMIT;

lifecycle::global! {
    /// Where each stub goes on to. One that has an address keeps it.
    #[fork(keep = "code leads through the stubs")]
    pub static REALS: [AtomicPtr<c_void>; STUBS] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; STUBS];
}

/// Calls whose end is awaited at a time. One that is left by an exception or `longjmp` keeps its
/// place for good.
pub const RETURNS: usize = 8;
/// Calls that are scopes at a time, in all threads.
#[cfg(target_arch = "x86_64")]
pub const SCOPES: usize = 256;
#[cfg(target_arch = "aarch64")]
pub const SCOPES: usize = 0;
/// Bytes of a return stub, of one for a call that is a scope, and of its first instruction.
const RETURN_STUB_SIZE: usize = 32;
#[cfg(target_arch = "x86_64")]
const SCOPE_STUB_SIZE: usize = 64;
const FIRST: usize = if cfg!(target_arch = "x86_64") { 1 } else { 4 };

/// Where the call that a return stub stands for goes back to, and what that end means.
#[repr(C)]
pub struct Return {
    /// 0: free.
    pub address: AtomicUsize,
    /// The iteration that ends with the call; [`Return::NO_ITERATION`] for none.
    pub iteration: AtomicU64,
}

impl Return {
    pub const NO_ITERATION: u64 = u64::MAX;
    /// Where the assembler finds the address, in bytes.
    pub const ADDRESS: usize = offset_of!(Self, address);
}

lifecycle::global! {
    /// Of each return stub: those for calls that are scopes come last.
    #[fork(keep = "calls that the forking thread is in return in the child, too")]
    pub static AWAITED: [Return; RETURNS + SCOPES] = [const {
        Return {
            address: AtomicUsize::new(0),
            iteration: AtomicU64::new(0),
        }
    }; RETURNS + SCOPES];
}

// SAFETY: the assembler defines the symbols.
unsafe extern "C" {
    static tllmprof_named_stubs: u8;
    static tllmprof_named_stubs_end: u8;
    static tllmprof_return_stubs: u8;
    #[cfg(target_arch = "x86_64")]
    static tllmprof_scope_stubs: u8;
}

/// The address of the stub for `real`, found or made; none when all are in use. Not for several
/// threads at a time.
pub fn stub(real: usize) -> Option<usize> {
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

/// Whether a slot that holds `value` leads to a stub.
pub fn is_stub(value: usize) -> bool {
    let (start, end) = (
        &raw const tllmprof_named_stubs,
        &raw const tllmprof_named_stubs_end,
    );
    (start.addr()..end.addr()).contains(&value)
}

/// What a call returns to whose end is awaited at place `index` of [`AWAITED`]: behind the stub's
/// first instruction, as unwinders look before a return address.
pub fn return_stub(index: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(index) = index.checked_sub(RETURNS) {
        return (&raw const tllmprof_scope_stubs).addr() + index * SCOPE_STUB_SIZE + FIRST;
    }
    (&raw const tllmprof_return_stubs).addr() + index * RETURN_STUB_SIZE + FIRST
}

/// The place in [`AWAITED`] that belongs to a return address, if it is a return stub's.
pub fn index_of(return_address: usize) -> Option<usize> {
    let index = |start: usize, size: usize, count: usize| {
        let distance = return_address.wrapping_sub(start + FIRST);
        Some(distance / size).filter(|index| *index < count && distance.is_multiple_of(size))
    };
    let of_step = index(return_stub(0) - FIRST, RETURN_STUB_SIZE, RETURNS);
    #[cfg(target_arch = "x86_64")]
    let of_scope = || {
        let start = return_stub(RETURNS) - FIRST;
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
            assert_eq!(return_stub(index), start + index * RETURN_STUB_SIZE + FIRST);
        }
        for index in 0..AWAITED.len() {
            let stub = return_stub(index);
            assert_eq!(index_of(stub), Some(index));
            assert_eq!((index_of(stub - FIRST), index_of(stub + 8)), (None, None));
        }
        #[cfg(target_arch = "x86_64")]
        for (index, awaited) in AWAITED.iter().enumerate() {
            let stub = core::ptr::with_exposed_provenance::<u8>(return_stub(index) - FIRST);
            // SAFETY: the assembler has laid stubs of that size out there.
            let code = unsafe { core::slice::from_raw_parts(stub, RETURN_STUB_SIZE) };
            // nop; push [rip + …]
            assert_eq!(code[..3], [0x90, 0xff, 0x35], "{index}");
            let distance = i32::from_le_bytes(code[3..7].try_into().unwrap());
            let word = return_stub(index)
                .wrapping_add(6)
                .wrapping_add_signed(distance as isize);
            assert_eq!(word, (&raw const awaited.address).addr());
        }
    }
}
