//! The table of driver functions whose calls are redirected to this library by a jump at the function's entry. The
//! library itself writes the jumps that can be written while threads run. The `tllmprof` command, a separate process,
//! writes the others. For each function, the table has the address of code that does the function's work without the
//! jump.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_calls::Call;
use tllmprof_control::jumps::{Jumps, NO_CALL};

use crate::lifecycle;

lifecycle::global! {
    /// The table of the functions that get jumps. The `tllmprof` command reads it, and writes the jumps that this
    /// library has not written itself.
    #[fork(keep = "the child's code is its parent's")]
    pub static JUMPS: Jumps = Jumps::none();
    /// A set of calls, one bit each: those for which the program may have got a driver function
    /// that has no jump.
    #[fork(keep = "as the code")]
    static UNSEEN: AtomicU64 = AtomicU64::new(0);
    /// A set of calls, one bit each: the calls whose functions all had jumps after round number `ROUNDS`. In a round,
    /// the `tllmprof` command writes jumps.
    #[fork(keep = "as the code")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "as the code")]
    static ROUNDS: AtomicU64 = AtomicU64::new(u64::MAX);
}

/// Adds `call` to `UNSEEN`: the program may have got a driver function for `call` that will not get a jump.
pub fn leave_out(call: Call) {
    UNSEEN.fetch_or(1 << call.index(), Ordering::Relaxed);
}

/// Returns true if all driver functions for `call` have jumps at their entries. Then this library sees every `call` of
/// the program.
pub fn are_seen(call: Call) -> bool {
    let rounds = JUMPS.rounds.load(Ordering::Acquire);
    if ROUNDS.load(Ordering::Acquire) != rounds {
        SEEN.store(seen(), Ordering::Release);
        ROUNDS.store(rounds, Ordering::Release);
    }
    SEEN.load(Ordering::Acquire) & 1 << call.index() != 0
}

fn seen() -> u64 {
    let (mut some, mut lacks) = (0, UNSEEN.load(Ordering::Relaxed));
    let count = JUMPS.count.load(Ordering::Acquire) as usize;
    for row in JUMPS.all.iter().take(count) {
        let call = row.call.load(Ordering::Relaxed);
        if call == NO_CALL {
            continue;
        }
        some |= 1 << call;
        // SAFETY: the row is complete, and its address lies in the driver, which stays loaded.
        let code = unsafe { code_at(row.at.load(Ordering::Relaxed) as usize) };
        if code != row.after.load(Ordering::Relaxed) {
            lacks |= 1 << call;
        }
    }
    some & !lacks
}

/// Returns the current eight bytes of code at `at`, the entry of a function. The `tllmprof` command may write a jump to
/// these bytes at any time, but it stops this thread meanwhile.
///
/// # Safety
/// The eight bytes from `at` are code of a module that stays loaded.
pub unsafe fn code_at(at: usize) -> u64 {
    let code = core::ptr::with_exposed_provenance::<u64>(at);
    // SAFETY: the caller guarantees that the code exists, and code can be read.
    unsafe { code.read_unaligned() }
}

/// Returns the address of code that does the work of `function` without the jump at its entry. If `function`
/// has no jump, returns `function` itself.
pub fn original(function: *mut c_void) -> *mut c_void {
    let count = JUMPS.count.load(Ordering::Acquire) as usize;
    let address = function.addr() as u64;
    let mut all = JUMPS.all.iter().take(count);
    let jump = all.find(|jump| jump.function.load(Ordering::Relaxed) == address);
    jump.map_or(function, |jump| {
        core::ptr::with_exposed_provenance_mut(jump.original.load(Ordering::Relaxed) as usize)
    })
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut;

    use super::*;

    #[test]
    fn a_function_without_a_jump_is_its_own_original() {
        let function = without_provenance_mut::<c_void>(0x1000);
        let null = core::ptr::null_mut();
        assert_eq!((original(function), original(null)), (function, null));
        assert!(!are_seen(Call::GraphLaunch));
    }
}
