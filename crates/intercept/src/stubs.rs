//! The pool of stubs, which are short functions in assembly code. The program gets a stub's address in place of the
//! address of a hooked function, such as a function of the CUDA driver.

use core::ffi::c_void;

/// Number of stubs of each kind (plain and counting), one for each thunk (description of a hooked function) that a
/// process can have. A process uses about two for each row of the table of calls (the CUDA functions that the library
/// knows). A library that is unloaded and loaded again at another address uses new stubs.
pub(crate) const COUNT: usize = 1024;
/// Size in bytes of a plain stub, which only jumps to a handler.
const STUB_SIZE: usize = if cfg!(target_arch = "x86_64") { 16 } else { 32 };
/// Size in bytes of a counting stub, which counts the call itself: one cache line on x86-64, two on AArch64.
const COUNTING_SIZE: usize = if cfg!(target_arch = "x86_64") {
    64
} else {
    128
};

// SAFETY: the assembly code defines these symbols. The stubs lie between the start and end symbols.
unsafe extern "C" {
    static tllmprof_stubs: u8;
    static tllmprof_counting_stubs: u8;
    static tllmprof_counting_stubs_end: u8;
}

/// Returns the address of stub number `index`, which the program gets in place of the hooked function's address. The
/// stub jumps to the handler of the thunk (the description of a hooked function) with this index.
pub(crate) fn stub(index: usize) -> *mut c_void {
    address_in(&raw const tllmprof_stubs, index * STUB_SIZE)
}

/// Returns the address of counting stub number `index`, which the program gets in place of the hooked function's
/// address. Used if the library never does more with the function's calls in this process than count them.
pub(crate) fn counting_stub(index: usize) -> *mut c_void {
    let pool = &raw const tllmprof_counting_stubs;
    // The assembler chooses the encoding of the jumps in the stubs, so the stubs may be longer than expected. In that
    // case use the plain stub instead.
    let length = (&raw const tllmprof_counting_stubs_end).addr() - pool.addr();
    if length == COUNTING_SIZE * COUNT {
        address_in(pool, index * COUNTING_SIZE)
    } else {
        stub(index)
    }
}

/// Returns true if `address` is the address of one of this library's stubs, which the program got in place of hooked
/// functions.
pub(crate) fn is_stub(address: usize) -> bool {
    let start = (&raw const tllmprof_stubs).addr();
    let counting = (&raw const tllmprof_counting_stubs).addr();
    let end = (&raw const tllmprof_counting_stubs_end).addr();
    (start..start + STUB_SIZE * COUNT).contains(&address) || (counting..end).contains(&address)
}

fn address_in(pool: *const u8, offset: usize) -> *mut c_void {
    pool.wrapping_add(offset).cast_mut().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thunk_has_two_stubs_of_its_own() {
        let counting = &raw const tllmprof_counting_stubs;
        let end = &raw const tllmprof_counting_stubs_end;
        assert_eq!(
            end.addr() - counting.addr(),
            COUNTING_SIZE * COUNT,
            "the assembler's jumps"
        );
        let [first, last] =
            [0, COUNT - 1].map(|index| (stub(index).addr(), counting_stub(index).addr()));
        assert!([first.0, first.1, last.0, last.1].into_iter().all(is_stub));
        assert!(!is_stub(is_stub as *const () as usize));
        assert_eq!(first, ((&raw const tllmprof_stubs).addr(), counting.addr()));
        assert_eq!(last.1 + COUNTING_SIZE, end.addr());
        for index in 1..COUNT {
            assert_eq!(stub(index).addr() - stub(index - 1).addr(), STUB_SIZE);
            assert_eq!(
                counting_stub(index).addr() - counting_stub(index - 1).addr(),
                COUNTING_SIZE
            );
        }
        let pools = [first.0..last.0 + STUB_SIZE, first.1..last.1 + COUNTING_SIZE];
        assert!(
            pools[0].end <= pools[1].start || pools[1].end <= pools[0].start,
            "{pools:x?}"
        );
    }
}
