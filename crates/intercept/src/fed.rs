//! Runtimes that get their driver functions through this library, so that their calls of the driver are counted.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tllmprof_calls::Call;
use tllmprof_platform::elf;
use tllmprof_platform::entry::jumps;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

/// Largest number of modules, such as CUDA runtimes, that [`FED_MODULES`] can hold.
const MAX_RUNTIMES: usize = 256;

lifecycle::global! {
    #[fork(keep = "the child's modules are its parent's")]
    static FED_MODULES: [(AtomicUsize, AtomicU64); MAX_RUNTIMES] =
        [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; MAX_RUNTIMES];
}

/// Remembers that the module that contains `caller` got its driver function for `call` through this library. The
/// module's runtime functions need not be counted, because the driver functions that they call are counted.
pub(crate) fn feed(caller: usize, call: Call) {
    let Some(module) = elf::containing(caller) else {
        return;
    };
    for (base, calls) in &FED_MODULES {
        let taken = base.compare_exchange(0, module.start, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_ok() || taken == Err(module.start) {
            calls.fetch_or(1 << call.index(), Ordering::AcqRel);
            return;
        }
    }
    log::once!(
        Warn,
        "over {MAX_RUNTIMES} libraries have looked up CUDA driver functions: calls of CUDA runtimes among the later ones \
         are counted twice"
    );
}

/// Returns true if the runtime that contains `function` reaches its driver function for `call` through this library.
pub(crate) fn is_fed(function: usize, call: Call) -> bool {
    jumps::are_seen(call)
        || elf::containing(function).is_some_and(|module| {
            let mut fed = FED_MODULES
                .iter()
                .map(|(base, calls)| (base.load(Ordering::Acquire), calls))
                .take_while(|(base, _)| *base != 0);
            fed.any(|(base, calls)| {
                base == module.start && calls.load(Ordering::Acquire) & 1 << call.index() != 0
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{alone, stranger};

    #[test]
    fn a_module_is_fed_the_calls_that_it_looked_up_and_no_others() {
        alone(&[], || {
            let us = feed as *const () as usize;
            let nowhere = 0x10;
            feed(nowhere, Call::GraphLaunch);
            assert!(!is_fed(nowhere, Call::GraphLaunch));
            assert!(!is_fed(us, Call::GraphLaunch));
            feed(us, Call::GraphLaunch);
            feed(us, Call::MemFree);
            feed(stranger(), Call::StreamSynchronize);
            assert!(is_fed(us, Call::GraphLaunch) && is_fed(us, Call::MemFree));
            assert!(
                !is_fed(us, Call::StreamSynchronize) && is_fed(stranger(), Call::StreamSynchronize)
            );
            assert!(!is_fed(stranger(), Call::GraphLaunch));
        });
    }
}
