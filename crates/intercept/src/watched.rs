//! Calls that are given NVTX ranges of their own (`TLLM_NVTX_DEBUG`).
//!
//! Such calls all go the slow way: their end has to be seen. A range is around the driver's
//! function, which is what the program waits for, however it calls it; or around the runtime's,
//! where the driver's functions do not come from us.

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

/// Whether calls are given ranges. Asked when the first function of CUDA's is met, when a profiler
/// that is preloaded, too, has set its variables.
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
        #[fork(keep = "handles of NVTX are inherited")]
        static NAMES: Names = [const { OnceBox::new() }; CALLS.len()];
    }
    push(&NAMES, call, call.info().runtime);
}

/// Begins the range of a function of the driver.
pub fn push_driver(call: Call) {
    lifecycle::global! {
        #[fork(keep = "handles of NVTX are inherited")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{alone, call_by, library, open, real_address};
    use crate::thunk::{Role, Thunk};

    /// A tool that counts pushes and pops in domains, and changes what a function may change.
    const TOOL: &str = "
        #include <errno.h>
        #include <stddef.h>
        typedef struct { size_t size; int (*table)(unsigned, void ***, unsigned *); } Callbacks;
        int counts[2];
        static double take(double a, double b, double c, double d, double e, double f, double g, double h) {
            return a + b + c + d + e + f + g + h;
        }
        static double (*volatile noise)(double, double, double, double, double, double, double, double) = take;
        static int change(int which) {
            noise(-1, -2, -3, -4, -5, -6, -7, -8);
            errno = EIO;
            return counts[which]++;
        }
        static int push(void *domain, const void *attributes) { return change(0); }
        static int pop(void *domain) { return change(1); }
        int InitializeInjectionNvtx2(const void *(*export)(unsigned)) {
            const Callbacks *callbacks = export(1);
            void **places;
            unsigned size;
            if (!callbacks->table(5, &places, &size) || size < 6) return 0;
            *(void **)places[4] = (void *)push;
            *(void **)places[5] = (void *)pop;
            return 1;
        }";

    #[test]
    fn calls_are_given_ranges_where_that_is_asked_for_and_a_tool_listens() {
        let tool = library("libcounts.so", TOOL);
        let variables = [
            ("TLLM_NVTX_DEBUG", "1"),
            ("TLLMPROF_STEP", "cuStreamSynchronize"),
            ("TLLMPROF_START_STOP", "1000"),
            ("NVTX_INJECTION64_PATH", tool.as_str()),
        ];
        alone(&variables, || {
            let path = std::env::var_os("NVTX_INJECTION64_PATH").unwrap();
            let tool = open(path.as_ref());
            // SAFETY: the tool's counters, of which this thread alone makes use.
            let counts = || unsafe { *libc::dlsym(tool, c"counts".as_ptr()).cast::<[i32; 2]>() };
            assert!(are());
            push_runtime(Call::GraphLaunch);
            assert_eq!(counts(), [1, 0]);
            marks::pop();
            for call in [Call::GraphLaunch, Call::StreamSynchronize] {
                let thunk = Thunk::of(real_address(), Role::Driver(call)).unwrap();
                call_by(thunk.stub(), 0, true);
                let slot = tllmprof_session::slot().unwrap();
                assert_eq!(slot.live(call).count(), 1, "{call}");
            }
            assert_eq!(counts(), [3, 3]);
        });
    }

    #[test]
    fn calls_are_given_no_ranges_unasked() {
        alone(&[("TLLMPROF_START_STOP", "1000")], || {
            assert!(!are() && !are())
        });
    }
}
