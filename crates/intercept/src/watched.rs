//! Calls for which NVTX ranges are emitted (`TLLM_NVTX_DEBUG`).
//!
//! Such calls all take the slow path, because their end must be seen. The range is emitted around the driver's
//! function, which the program waits for in any case. If the driver's functions do not come from this library, it is
//! emitted around the runtime's function.

use core::sync::atomic::{AtomicU8, Ordering};
use std::ffi::CString;

use once_cell::race::OnceBox;
use tllmprof_calls::{CALLS, Call};
use tllmprof_platform::lifecycle;

use tllmprof_capture::marks;
use tllmprof_capture::marks::Name;

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
lifecycle::global! {
    #[fork(keep = "the settings are the same")]
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
}

/// Returns true if ranges are emitted for calls. First called at the first CUDA function, when another preloaded
/// profiler has already set its variables.
pub fn are() -> bool {
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

/// Begins the range of a function of the runtime.
pub fn push_runtime(call: Call) {
    lifecycle::global! {
        #[fork(keep = "a name is registered anew in a child")]
        static NAMES: Names = [const { OnceBox::new() }; CALLS.len()];
    }
    push(&NAMES, call, call.info().runtime);
}

/// Begins the range of a function of the driver.
pub fn push_driver(call: Call) {
    lifecycle::global! {
        #[fork(keep = "a name is registered anew in a child")]
        static NAMES: Names = [const { OnceBox::new() }; CALLS.len()];
    }
    push(&NAMES, call, call.info().driver);
}

type Names = [OnceBox<Name>; CALLS.len()];

fn push(names: &Names, call: Call, symbols: &[&str]) {
    let symbol = symbols.first().copied().unwrap_or_default();
    let name = names[call.index()]
        .get_or_init(|| Box::new(Name::register(CString::new(symbol).unwrap_or_default())));
    name.push_until_pop();
}
