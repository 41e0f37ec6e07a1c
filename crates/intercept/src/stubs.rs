//! The pool's stubs, which the assembler lays out: what callers get in place of functions.

use core::ffi::c_void;

/// Stubs of each of the two kinds, one for each thunk that a process can have. A process uses about two
/// for each row of the table; libraries that are unloaded and loaded again elsewhere use new ones.
pub const COUNT: usize = 1024;
/// Bytes of one stub of the pool.
const SIZE: usize = if cfg!(target_arch = "x86_64") { 16 } else { 32 };
/// Bytes of one stub that counts: one cache line, or two.
const COUNTING_SIZE: usize = if cfg!(target_arch = "x86_64") {
    64
} else {
    128
};

// SAFETY: the assembler defines the symbols; the stubs lie between each and its end.
unsafe extern "C" {
    static tllmprof_stubs: u8;
    static tllmprof_counting_stubs: u8;
    static tllmprof_counting_stubs_end: u8;
}

/// The address that callers get for thunk `index`: a stub that goes to its handler.
pub fn stub(index: usize) -> *mut c_void {
    at(&raw const tllmprof_stubs, index * SIZE)
}

/// The address that callers get for thunk `index` whose handler counts for good.
pub fn counting_stub(index: usize) -> *mut c_void {
    let pool = &raw const tllmprof_counting_stubs;
    // The assembler chooses how long its jumps are; should they not fit, the handler serves.
    let length = (&raw const tllmprof_counting_stubs_end).addr() - pool.addr();
    if length == COUNTING_SIZE * COUNT {
        at(pool, index * COUNTING_SIZE)
    } else {
        stub(index)
    }
}

/// Whether `address` is one that callers get for a thunk.
pub fn is_stub(address: usize) -> bool {
    let start = (&raw const tllmprof_stubs).addr();
    let counting = (&raw const tllmprof_counting_stubs).addr();
    let end = (&raw const tllmprof_counting_stubs_end).addr();
    (start..start + SIZE * COUNT).contains(&address) || (counting..end).contains(&address)
}

fn at(pool: *const u8, offset: usize) -> *mut c_void {
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
            assert_eq!(stub(index).addr() - stub(index - 1).addr(), SIZE);
            assert_eq!(
                counting_stub(index).addr() - counting_stub(index - 1).addr(),
                COUNTING_SIZE
            );
        }
        let pools = [first.0..last.0 + SIZE, first.1..last.1 + COUNTING_SIZE];
        assert!(
            pools[0].end <= pools[1].start || pools[1].end <= pools[0].start,
            "{pools:x?}"
        );
    }
}
