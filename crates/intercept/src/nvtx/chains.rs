//! Chains: the NVTX functions of other tools, which this library's wrappers call next.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use core::time::Duration;

use super::abi::FunctionPointer;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

/// Number of NVTX functions that this library replaces by wrappers.
pub(crate) const ROWS: usize = 21;

/// Largest number of chains: sets of functions of other tools, which the wrappers call next.
pub(crate) const CHAINS: usize = 8;

/// The functions of another tool that the wrappers call, one for each wrapped function. An element is null if the tool
/// has no such function, or if there is no other tool.
pub(crate) struct Chain {
    next: [AtomicPtr<c_void>; ROWS],
}

impl Chain {
    const fn none() -> Self {
        Self {
            next: [const { AtomicPtr::new(core::ptr::null_mut()) }; ROWS],
        }
    }

    /// Returns the other tool's function that the wrapper with the index `row` must call, or null if there is none.
    #[inline]
    pub(super) fn next(&self, row: usize) -> FunctionPointer {
        self.next[row].load(Ordering::Relaxed)
    }

    fn is(&self, next: &[FunctionPointer; ROWS]) -> bool {
        (0..next.len()).all(|row| self.next(row) == next[row])
    }
}

lifecycle::global! {
    stage: Doors;

    /// All chains. A chain is a set of functions of another NVTX tool, which this library's wrappers call next. The
    /// chains in use come first and do not change.
    #[fork(keep = "code leads through the chains")]
    pub static ALL: [Chain; CHAINS] = [const { Chain::none() }; CHAINS];
    #[fork(keep = "as the chains")]
    static USED: AtomicUsize = AtomicUsize::new(0);
    #[fork(free)]
    static MAKING: Lock<()> = Lock::new(());
}

/// Returns the index of the chain (set of functions of another tool) that consists of these functions, and creates it
/// if necessary. Returns `None` if all chains are in use.
pub(super) fn chain_for(next: &[FunctionPointer; ROWS]) -> Option<usize> {
    // Other threads hold this lock only for a moment and never wait while they hold it, so one second is enough.
    let _making = MAKING.lock_for(Duration::from_secs(1))?;
    let used = USED.load(Ordering::Relaxed);
    if let Some(known) = ALL[..used].iter().position(|chain| chain.is(next)) {
        return Some(known);
    }
    let chain = ALL.get(used)?;
    for (place, next) in chain.next.iter().zip(next) {
        place.store(*next, Ordering::Relaxed);
    }
    USED.store(used + 1, Ordering::Release);
    Some(used)
}
