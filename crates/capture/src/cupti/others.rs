//! Tracks other profilers in this process that use CUPTI, such as the PyTorch profiler or JAX's profiler. A profiler is
//! known only if its calls of CUPTI reach this library. CUPTI serves one profiler at a time, and other profilers have
//! priority. So this library detaches from CUPTI before another profiler calls it, and does not attach while another
//! profiler uses CUPTI.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tllmprof_calls::CuptiCall;
use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Sinks;

    /// Number of other profilers' calls of CUPTI that require this library to release CUPTI ([`takes`]) and that have
    /// not returned yet.
    #[fork(reset)]
    static COMING: AtomicU32 = AtomicU32::new(0);
    /// Number of subscriptions to CUPTI that other profilers have.
    #[fork(reset)]
    static SUBSCRIBED: AtomicU32 = AtomicU32::new(0);
    /// True if another profiler has registered functions for CUPTI's buffers. This is possible without a subscription.
    #[fork(reset)]
    static HAS_REGISTERED: AtomicBool = AtomicBool::new(false);
}

/// Returns true if another profiler's call of CUPTI has not returned yet, and required this library to release CUPTI.
pub(crate) fn are_coming() -> bool {
    COMING.load(Ordering::Acquire) > 0
}

/// Returns true if another profiler uses CUPTI, as far as the calls that reach this library show it.
pub(crate) fn have_it() -> bool {
    SUBSCRIBED.load(Ordering::Acquire) > 0 || HAS_REGISTERED.load(Ordering::Acquire)
}

/// Returns true if this library must release CUPTI before another profiler makes this call. Only a call that ends a
/// subscription needs no release.
const fn takes(call: CuptiCall) -> bool {
    !matches!(call, CuptiCall::Unsubscribe)
}

/// Must be called before another profiler calls a function of CUPTI. Returns true if this library must release CUPTI
/// first.
pub(crate) fn call(call: CuptiCall) -> bool {
    if takes(call) {
        COMING.fetch_add(1, Ordering::AcqRel);
    }
    takes(call)
}

/// Must be called after another profiler's call of CUPTI has returned. Counts the subscriptions of other profilers.
pub(crate) fn returned(call: CuptiCall, succeeded: bool) {
    if succeeded {
        match call {
            CuptiCall::Subscribe => {
                SUBSCRIBED.fetch_add(1, Ordering::AcqRel);
            }
            CuptiCall::Unsubscribe => one_less(&SUBSCRIBED),
            CuptiCall::Register => HAS_REGISTERED.store(true, Ordering::Release),
            CuptiCall::Finalize => {
                SUBSCRIBED.store(0, Ordering::Release);
                HAS_REGISTERED.store(false, Ordering::Release);
            }
        }
    }
    if takes(call) {
        one_less(&COMING);
    }
}

/// Subtracts 1 from a count, unless the count is 0. For example, the count of subscriptions may be 0 if another
/// profiler ends a subscription that began before this library was loaded.
fn one_less(count: &AtomicU32) {
    let _ = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
        count.checked_sub(1)
    });
}

#[cfg(test)]
mod tests {
    use super::CuptiCall::{Finalize, Register, Subscribe, Unsubscribe};
    use super::*;
    use crate::made::record;

    fn made(one: CuptiCall, succeeded: bool) {
        call(one);
        returned(one, succeeded);
    }

    #[test]
    fn cupti_is_theirs_until_the_last_of_them_gives_it_back() {
        let _alone = record();
        assert!(!have_it());
        made(Subscribe, false);
        made(Unsubscribe, true);
        assert!(
            !have_it(),
            "a refused subscription, and the end of an unknown one"
        );
        for one in [Subscribe, Subscribe] {
            made(one, true);
        }
        made(Unsubscribe, true);
        assert!(have_it());
        made(Unsubscribe, false);
        assert!(have_it());
        made(Unsubscribe, true);
        assert!(!have_it());
    }

    #[test]
    fn functions_for_buffers_stay_until_cupti_goes() {
        let _alone = record();
        made(Register, true);
        made(Unsubscribe, true);
        assert!(have_it());
        made(Finalize, false);
        assert!(have_it());
        made(Finalize, true);
        assert!(!have_it());
    }

    #[test]
    fn who_asks_for_it_is_coming() {
        let _alone = record();
        for one in [Subscribe, Register, Finalize] {
            assert!(call(one) && are_coming() && !have_it());
            returned(one, false);
            assert!(!are_coming() && !have_it());
        }
        assert!(!call(Unsubscribe) && !are_coming());
        returned(Unsubscribe, true);
    }
}
