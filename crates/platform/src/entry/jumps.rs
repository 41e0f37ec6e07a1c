//! The functions of the driver at whose entries the command writes jumps, and for each the code that does the
//! same without the jump.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_calls::Call;
use tllmprof_control::jumps::{Jumps, NO_CALL};

use crate::lifecycle;

lifecycle::global! {
    /// The functions. The command writes jumps at their entries.
    #[fork(keep = "the child's code is its parent's")]
    pub static JUMPS: Jumps = Jumps::none();
    /// The calls, as bits, for which a program may have functions without a jump.
    #[fork(keep = "as the code")]
    static UNSEEN: AtomicU64 = AtomicU64::new(0);
    /// The calls, as bits, whose functions all have jumps, as of this number of the command's rounds.
    #[fork(keep = "as the code")]
    static SEEN: AtomicU64 = AtomicU64::new(0);
    #[fork(keep = "as the code")]
    static ROUNDS: AtomicU64 = AtomicU64::new(u64::MAX);
}

/// Marks that a program may have a function for `call` that gets no jump.
pub fn leave_out(call: Call) {
    UNSEEN.fetch_or(1 << call.index(), Ordering::Relaxed);
}

/// Returns true if the driver's functions for `call` all have jumps, so that every call of one of them is
/// seen there.
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
        // SAFETY: a row that is filled in, of the driver, which stays loaded.
        let code = unsafe { code_at(row.at.load(Ordering::Relaxed) as usize) };
        if code != row.after.load(Ordering::Relaxed) {
            lacks |= 1 << call;
        }
    }
    some & !lacks
}

/// Returns the current code at an entry. The command may write it at any time, but stops this thread while it
/// does.
///
/// # Safety
/// Eight bytes from there are code of a module that stays loaded.
pub unsafe fn code_at(at: usize) -> u64 {
    let code = core::ptr::with_exposed_provenance::<u64>(at);
    // SAFETY: the code exists, as the function requires, and can be read.
    unsafe { code.read_unaligned() }
}

/// Returns code that does the same as `function` without passing the jump at its entry, if there is one.
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
