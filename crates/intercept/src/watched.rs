//! Calls for which NVTX ranges are emitted (`TLLM_NVTX_DEBUG`).
//!
//! All calls then take the slow path (the handler `slow`, which calls Rust code before and after the hooked function),
//! because the library must also see the calls return. The range is emitted around the driver's function, which does
//! the work of the call. If the driver calls of a CUDA runtime do not reach this library, the range is emitted around
//! the runtime's function.

use core::sync::atomic::{AtomicU8, Ordering};
use std::ffi::CString;

use once_cell::race::OnceBox;
use tllmprof_calls::{CALLS, Call};
use tllmprof_platform::lifecycle;

use tllmprof_capture::marks;
use tllmprof_capture::marks::RegisteredName;

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
}

/// Returns true if NVTX ranges are emitted for calls. The answer is determined at the first CUDA
/// call, because another preloaded profiler has set its environment variables by then.
pub(crate) fn are() -> bool {
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == YES,
    }
}

#[cold]
fn ask() -> bool {
    let asked = tllmprof_session::activity::settings().is_some_and(|settings| settings.nvtx_debug);
    let are = asked && tllmprof_session::activity::is_active() && marks::are_wanted();
    ANSWER.store(if are { YES } else { NO }, Ordering::Relaxed);
    are
}

/// Begins the NVTX range of a runtime call.
pub(crate) fn push_runtime(call: Call) {
    lifecycle::global! {
        #[fork(keep = "a name is registered anew in a child")]
        static NAMES: CallNames = [const { OnceBox::new() }; CALLS.len()];
    }
    push(&NAMES, call, call.info().runtime);
}

/// Begins the NVTX range of a driver call.
pub(crate) fn push_driver(call: Call) {
    lifecycle::global! {
        #[fork(keep = "a name is registered anew in a child")]
        static NAMES: CallNames = [const { OnceBox::new() }; CALLS.len()];
    }
    push(&NAMES, call, call.info().driver);
}

type CallNames = [OnceBox<RegisteredName>; CALLS.len()];

fn push(names: &CallNames, call: Call, symbols: &[&str]) {
    let symbol = symbols.first().copied().unwrap_or_default();
    let name = names[call.index()].get_or_init(|| {
        Box::new(RegisteredName::register(
            CString::new(symbol).unwrap_or_default(),
        ))
    });
    name.push_until_pop();
}
